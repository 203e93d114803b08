package ratios_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/machine"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock/admin"
)

// burnVar makes a test binary run a busy loop.
const burnVar = "NATSLOCK_SPEED_BURN"

// burn keeps a processor busy until standard input ends, or for an hour.
func burn() {
	go func() {
		_, _ = os.Stdin.Read(make([]byte, 1))
		os.Exit(0)
	}()
	for begun := time.Now(); time.Since(begun) < time.Hour; {
	}
}

// Burn keeps n processors busy, each with a process of its own, until stop is called.
func Burn(t testing.TB, n int) (stop func()) {
	t.Helper()
	stop = func() {}
	for range n {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), burnVar+"=1")
		in, err := cmd.StdinPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		before := stop
		stop = func() {
			before()
			_ = in.Close()
			_ = cmd.Wait()
		}
	}
	stop = sync.OnceFunc(stop)
	t.Cleanup(stop)
	return stop
}

// handing is the cost of a hand-over in a crowd.
type handing struct {
	p50      time.Duration
	messages float64 // in and out, of all clients, excluding those for waiting
}

// turn is a series of hand-overs in a crowd, without a pause between them.
type turn struct {
	took     []time.Duration
	messages float64 // per hand-over
}

// crowd is a lock that is passed around among clients, which queue again after each grant.
type crowd struct {
	clients []counted
	queued  chan struct{} // signals that a client has its place
	waiting float64       // messages per second while nothing happens
	begin   chan struct{} // lets a turn begin
	over    chan turn     // delivers a turn that is over

	// Guarded by the lock.
	released time.Time
	took     []time.Duration
	before   uint64
	since    time.Time
}

const (
	crowdTurns     = 10              // of each crowd, in each state of the machine
	crowdWarm      = 2               // hand-overs of a turn that are not measured
	crowdHandOvers = 10              // hand-overs of a turn that are measured
	crowdRenewal   = 5 * time.Second // a place is renewed this often
)

// newCrowd queues n waiters behind a holder, each with its own client. They wait for the first
// turn and leave when ctx ends.
func newCrowd(ctx context.Context, t testing.TB, url string, n int) *crowd {
	c := &crowd{queued: make(chan struct{}, 4*n+4), begin: make(chan struct{}), over: make(chan turn)}
	for range n + 1 {
		c.clients = append(c.clients, countedClient(t, url, admin.WithObserver(func(_ context.Context, ev admin.Event) {
			if ev.Type == admin.EventQueued {
				c.queued <- struct{}{}
			}
		})))
	}
	ctx, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	t.Cleanup(func() { stop(); wg.Wait() })
	name := fmt.Sprint("crowd.", n)
	first, err := c.clients[0].Lock(ctx, name)
	require.NoError(t, err)
	for _, each := range c.clients[1:] {
		wg.Go(func() { c.run(ctx, each, name) })
		c.await(ctx) // not all at once, which has a cost of its own
	}
	require.NoError(t, ctx.Err(), "not all are queued")
	wg.Go(func() {
		c.pause(ctx)
		if first.Unlock(context.Background()) == nil {
			c.run(ctx, c.clients[0], name)
		}
	})
	return c
}

func (c *crowd) await(ctx context.Context) {
	select {
	case <-c.queued:
	case <-ctx.Done():
	}
}

func (c *crowd) messages() (sum uint64) {
	for _, each := range c.clients {
		stats := each.nc.Stats()
		sum += stats.InMsgs + stats.OutMsgs
	}
	return sum
}

// run takes the lock over and over until ctx ends.
func (c *crowd) run(ctx context.Context, client counted, name string) {
	for {
		l, err := client.Lock(ctx, name)
		if err != nil {
			return
		}
		now := time.Now()
		if ctx.Err() == nil {
			c.await(ctx) // the previous holder has its place
			c.hold(ctx, now)
		}
		c.released = time.Now()
		if l.Unlock(context.Background()) != nil || ctx.Err() != nil {
			return
		}
	}
}

// hold does the work under the lock.
func (c *crowd) hold(ctx context.Context, now time.Time) {
	c.took = append(c.took, now.Sub(c.released))
	switch len(c.took) {
	case crowdWarm:
		c.before, c.since = c.messages(), now
	case crowdWarm + crowdHandOvers:
		// The slower a machine is, the more renewals fall into a hand-over, but they are not
		// part of its cost.
		messages := (float64(c.messages()-c.before) - c.waiting*time.Since(c.since).Seconds()) / crowdHandOvers
		select {
		case c.over <- turn{c.took[crowdWarm:], messages}:
		case <-ctx.Done():
		}
		c.pause(ctx)
	}
	time.Sleep(time.Millisecond)
}

// pause holds the lock until the next turn begins.
func (c *crowd) pause(ctx context.Context) {
	select {
	case <-c.begin:
	case <-ctx.Done():
	}
	c.took, c.released = nil, time.Now()
}

// handOvers measures the crowds alternately, so that all of them meet the same states of the
// machine.
func handOvers(ctx context.Context, t testing.TB, crowds ...*crowd) []handing {
	t.Helper()
	took, messages := make([][]time.Duration, len(crowds)), make([]float64, len(crowds))
	for range crowdTurns {
		for i, c := range crowds {
			select {
			case c.begin <- struct{}{}:
			case <-ctx.Done():
			}
			select {
			case each := <-c.over:
				took[i], messages[i] = append(took[i], each.took...), messages[i]+each.messages
			case <-ctx.Done():
				require.FailNow(t, "the hand-overs took too long")
			}
		}
	}
	var all []handing
	for i := range crowds {
		all = append(all, handing{median(took[i]), messages[i] / crowdTurns})
	}
	return all
}

// TestThousandClients guards that a hand-over costs the same behind ten waiters and behind a
// thousand, each with its own client, even alongside four busy loops. A thousand waiters cost 1
// to 2 times the messages of ten, and 1.2 to 3 times the time. Alongside busy loops it was up
// to 2.3 times the messages and 8 times the time, and before the repair it was 23 and 18 times.
// The messages for waiting are measured beforehand and excluded.
func TestThousandClients(t *testing.T) {
	tier.Proof(t)
	if machine.Race || testing.Short() {
		t.Skip("takes ten seconds")
	}
	url := Server(t)
	ctx, stop := context.WithTimeout(t.Context(), 4*patience)
	defer stop()
	crowds := []*crowd{newCrowd(ctx, t, url, 10), newCrowd(ctx, t, url, 1000)}
	before, since := []uint64{crowds[0].messages(), crowds[1].messages()}, time.Now()
	time.Sleep(crowdRenewal)
	for i, c := range crowds {
		c.waiting = float64(c.messages()-before[i]) / time.Since(since).Seconds()
	}
	for _, x := range []struct {
		what     string
		loops    int
		messages float64
		times    time.Duration
	}{{"alone", 0, 2.5, 6}, {"beside four busy loops", 4, 4, 15}} {
		burning := Burn(t, x.loops)
		costs := handOvers(ctx, t, crowds...)
		burning()
		few, many := costs[0], costs[1]
		t.Logf("%s: behind 10 waiters %v and %.0f messages, behind 1000 %v and %.0f", x.what, few.p50, few.messages, many.p50, many.messages)
		require.Less(t, many.messages, x.messages*few.messages, x.what)
		require.Less(t, many.p50, x.times*few.p50, x.what)
	}
}
