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
	"github.com/natslock/locks/natslock"
)

// burnVar makes a test binary a busy loop.
const burnVar = "NATSLOCK_SPEED_BURN"

// burn keeps a processor busy until the end of the standard input, or for an hour.
func burn() {
	go func() {
		_, _ = os.Stdin.Read(make([]byte, 1))
		os.Exit(0)
	}()
	for begun := time.Now(); time.Since(begun) < time.Hour; {
	}
}

// Burn keeps processors busy, each from a process of its own, until stop is called.
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
	messages float64 // of all clients, in and out, without those of waiting
}

// crowd is a lock that goes round among clients, which queue again after each grant.
type crowd struct {
	t       testing.TB
	clients []counted
	queued  chan struct{} // a client has its place
	waiting float64       // messages per second while nothing happens

	// Guarded by the lock.
	released time.Time
	took     []time.Duration
	phases   []handing
	before   uint64
	since    time.Time
	burning  func() // ends the busy loops
}

const (
	crowdWarm      = 5               // hand-overs that do not count
	crowdHandOvers = 100             // in each phase
	crowdRenewal   = 5 * time.Second // a place is renewed this often
)

// handOvers measures n waiters, all clients of their own, while the machine does nothing
// else, and then beside busy loops.
func handOvers(t testing.TB, url string, n int) (quiet, busy handing) {
	c := &crowd{t: t, queued: make(chan struct{}, 4*n+4)}
	for range n + 1 {
		c.clients = append(c.clients, countedClient(t, url, natslock.WithObserver(func(_ context.Context, ev natslock.Event) {
			if ev.Type == natslock.EventQueued {
				c.queued <- struct{}{}
			}
		})))
	}
	ctx, stop := context.WithTimeout(t.Context(), 4*patience)
	defer stop()
	var wg sync.WaitGroup
	name := fmt.Sprint("crowd.", n)
	first, err := c.clients[0].Lock(ctx, name)
	require.NoError(t, err)
	for i, each := range c.clients {
		if i > 0 {
			wg.Go(func() { c.run(ctx, each, name, stop) })
			c.await(ctx) // not all at once: that is another cost
		}
	}
	require.NoError(t, ctx.Err(), "not all are queued")
	before, since := c.messages(), time.Now()
	time.Sleep(crowdRenewal)
	c.waiting = float64(c.messages()-before) / time.Since(since).Seconds()
	wg.Go(func() {
		c.released = time.Now()
		if first.Unlock(context.Background()) == nil {
			c.run(ctx, c.clients[0], name, stop)
		}
	})
	wg.Wait()
	if c.burning != nil {
		c.burning()
	}
	require.Len(t, c.phases, 2, "the hand-overs took too long")
	return c.phases[0], c.phases[1]
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

// run takes the lock over and over until enough is measured.
func (c *crowd) run(ctx context.Context, client counted, name string, stop func()) {
	for {
		l, err := client.Lock(ctx, name)
		if err != nil {
			return
		}
		now := time.Now()
		if ctx.Err() == nil {
			c.await(ctx) // the holder before has its place
			c.hold(now, stop)
		}
		c.released = time.Now()
		if l.Unlock(context.Background()) != nil || ctx.Err() != nil {
			return
		}
	}
}

// hold is the work under the lock.
func (c *crowd) hold(now time.Time, stop func()) {
	c.took = append(c.took, now.Sub(c.released))
	switch n := len(c.took); {
	case n == crowdWarm:
		c.before, c.since = c.messages(), now
	case n == crowdWarm+crowdHandOvers:
		// The slower a machine, the more renewals fall into a hand-over. They are not its cost.
		messages := (float64(c.messages()-c.before) - c.waiting*time.Since(c.since).Seconds()) / crowdHandOvers
		c.phases = append(c.phases, handing{median(c.took[crowdWarm:]), messages})
		if c.took = nil; len(c.phases) == 2 {
			stop()
			return
		}
		c.burning = Burn(c.t, 4)
	}
	time.Sleep(time.Millisecond)
}

// TestThousandClients guards that a hand-over costs the same behind ten waiters and behind
// a thousand of as many clients, also beside four busy loops. A thousand cost 1.2 to 2
// times the messages of ten, and 1.2 to 3 times the time. It was 23 and 18 times. The
// messages of waiting are measured before, and do not count. Beside more than four busy
// loops it was 2.6 times: a waiter reads now and then while a hand-over is late.
func TestThousandClients(t *testing.T) {
	if machine.Race || testing.Short() {
		t.Skip("takes ten seconds")
	}
	url := Server(t)
	few, fewBusy := handOvers(t, url, 10)
	many, manyBusy := handOvers(t, url, 1000)
	for _, x := range []struct {
		what      string
		few, many handing
		messages  float64
		times     time.Duration
	}{{"alone", few, many, 2.5, 6}, {"beside four busy loops", fewBusy, manyBusy, 4, 25}} {
		t.Logf("%s: behind 10 waiters %v and %.0f messages, behind 1000 %v and %.0f", x.what, x.few.p50, x.few.messages, x.many.p50, x.many.messages)
		require.Less(t, x.many.messages, x.messages*x.few.messages, x.what)
		require.Less(t, x.many.p50, x.times*x.few.p50, x.what)
	}
}
