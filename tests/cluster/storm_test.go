package cluster_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/history"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

var stormFor = flag.Duration("storm", 30*time.Second, "how long TestStorm lasts: in rounds of half a minute, each of which is judged")

// TestStorm has clients contend for mutexes, a reader-writer lock and a semaphore on three servers
// while servers die, are cut off and step down, networks break and swallow messages, replies are
// lost or late, an operator breaks locks, and clients die. The history checker judges each round.
func TestStorm(t *testing.T) {
	tier.Proof(t)
	cl := runCluster(t)
	begun := time.Now()
	for round := uint64(0); round == 0 || time.Since(begun) < *stormFor; round++ {
		if s := stormOf(t, cl, round); !s.run(30 * time.Second) {
			return
		}
	}
}

// storm is one round of TestStorm.
type storm struct {
	t     *testing.T
	cl    *testutil.Cluster
	round uint64
	rec   *history.Recorder
	ctx   context.Context
	end   context.CancelFunc
	wg    sync.WaitGroup

	operator *natslock.Client

	mu      sync.Mutex
	clients []*stormClient // those alive
	joined  int
	all     []*stormClient
	weather map[string]int // how often each kind of trouble has happened
}

// stormClient is a client with its own network connection. It dies by losing the connection for
// good.
type stormClient struct {
	*history.Client
	c    *natslock.Client
	link *testutil.Link
	ctx  context.Context
	die  context.CancelFunc
}

const stormClients, stormSpare, stormPermits = 6, 6, 3

var stormWants = []history.Want{
	{Kind: admin.KindMutex, Name: "a"},
	{Kind: admin.KindMutex, Name: "b"},
	{Kind: admin.KindRW, Name: "c"},
	{Kind: admin.KindRW, Name: "c", Mode: admin.Shared},
	{Kind: admin.KindRW, Name: "d", Mode: admin.Shared},
	{Kind: admin.KindSemaphore, Name: "s", Permits: stormPermits},
}

func stormOf(t *testing.T, cl *testutil.Cluster, round uint64) *storm {
	s := &storm{t: t, cl: cl, round: round, rec: history.NewRecorder(), weather: map[string]int{}}
	s.ctx, s.end = context.WithCancel(context.Background())
	s.rec.Tap(t, cl.Connect(nats.MaxReconnects(-1)))
	s.rec.Lossy()
	s.operator = kit.NewClient(t, cl.Connect(nats.MaxReconnects(-1)), r3, s.rec.Option())
	for n := range stormClients + stormSpare {
		s.open(uint64(n))
	}
	for range stormClients {
		s.join()
	}
	return s
}

// open creates a client before the trouble starts, because without a leader no bucket can be
// opened.
func (s *storm) open(n uint64) {
	nc, link := s.cl.ConnectLink(nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	opts := []natslock.Option{r3, natslock.WithTTL(time.Duration(3+n%3) * time.Second), s.rec.Option()}
	c, f := kit.Faulty(s.t, nc, n, opts...)
	x := &stormClient{Client: s.rec.Client(fmt.Sprint("c", n), c), c: c, link: link}
	rates := faults.Rates{LoseAnswer: 0.005, DelayAnswer: 0.005, MaxDelay: 2 * time.Second}
	f.OnSend(func(i int, _ kvstore.Write) faults.Fate {
		fate := rates.Fate(s.round<<8|n, i)
		if fate.Kind != faults.KindPass {
			s.rec.Fault(x.Name, "answer lost")
		}
		return fate
	})
	x.ctx, x.die = context.WithCancel(s.ctx)
	s.all = append(s.all, x)
}

// join starts another client with two goroutines. It reports whether one was left.
func (s *storm) join() (joined bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.joined
	if n == len(s.all) {
		return false
	}
	x := s.all[n]
	s.joined++
	s.clients = append(s.clients, x)
	for g := range uint64(2) {
		s.wg.Go(func() { s.work(x, rand.New(rand.NewPCG(s.round, uint64(n)<<8|g))) })
	}
	return true
}

// work takes one lock after another until the client dies.
func (s *storm) work(x *stormClient, rng *rand.Rand) {
	for x.ctx.Err() == nil {
		w := stormWants[rng.IntN(len(stormWants))]
		w.Try = rng.IntN(5) == 0
		opts := []natslock.LockOption{natslock.Detached()}
		if rng.IntN(4) == 0 && w.Kind != admin.KindSemaphore {
			opts = append(opts, natslock.Linger(time.Second))
		}
		held, err := x.Acquire(x.ctx, w, opts...)
		if err != nil {
			known := x.ctx.Err() != nil || errors.Is(err, natslock.ErrUnavailable) || errors.Is(err, natslock.ErrTimeout) || w.Try && errors.Is(err, natslock.ErrLocked)
			assert.True(s.t, known, "%v: %v", w, err)
			continue
		}
		select { // within the validity
		case <-time.After(time.Duration(rng.IntN(30)) * time.Millisecond):
		case <-held.Lock().Context().Done():
		}
		_ = held.Unlock(context.Background()) // the history checker looks at lost locks
	}
}

// happen counts an incident.
func (s *storm) happen(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.weather[what]++
}

func (s *storm) someone(rng *rand.Rand) *stormClient {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.clients[rng.IntN(len(s.clients))]
}

// run causes trouble for d and then judges the history.
func (s *storm) run(d time.Duration) (sound bool) {
	until := time.Now().Add(d)
	during := func(n uint64, every time.Duration, change func(rng *rand.Rand)) {
		rng := rand.New(rand.NewPCG(s.round, n))
		s.wg.Go(func() {
			for time.Now().Before(until) {
				change(rng)
				time.Sleep(time.Duration(rng.Int64N(int64(every))))
			}
		})
	}
	during(1000, 4*time.Second, s.serverFails)
	during(1001, 2*time.Second, s.networkFails)
	during(1002, 10*time.Second, s.clientDies)
	during(1003, 2*time.Second, s.operatorBreaks)
	time.Sleep(time.Until(until))
	s.end()
	s.wg.Wait()
	for _, x := range s.all { // not in t.Cleanup, which might have thousands to close
		s.wg.Go(func() { _ = x.c.Close(s.ctx) })
	}
	s.wg.Wait()
	n := s.rec.History().Counts()
	s.t.Logf("round %d: %v; %v", s.round, s.weather, n)
	history.Verify(s.t, s.rec.History(), history.Options{Least: map[string]int{"grants": 200}})
	kit.Eventually(s.t, "nothing is left", func() bool { return len(kit.KeysLeft(s.t, s.cl.Connect())) == 0 })
	return !s.t.Failed()
}

// serverFails keeps a majority of the servers up at all times.
func (s *storm) serverFails(rng *rand.Rand) {
	defer s.rec.Outage("", "a server fails")()
	switch i := rng.IntN(3); rng.IntN(3) {
	case 0:
		s.happen("step-downs")
		s.cl.StepDown(s.t, "KV_natslock")
	case 1:
		s.happen("servers killed")
		s.cl.Kill(i)
		time.Sleep(time.Duration(rng.IntN(2000)) * time.Millisecond)
		s.cl.Restart(i)
		s.cl.WaitReady()
	default:
		s.happen("servers cut off")
		s.cl.Isolate(i)
		time.Sleep(time.Duration(rng.IntN(4000)) * time.Millisecond)
		s.cl.Rejoin(i)
		s.cl.WaitReady()
	}
}

func (s *storm) networkFails(rng *rand.Rand) {
	x := s.someone(rng)
	lasts := time.Duration(rng.IntN(4000)) * time.Millisecond
	defer s.rec.Outage(x.Name, "its network fails")()
	if rng.IntN(2) == 0 {
		s.happen("networks cut")
		x.link.Cut()
		time.Sleep(lasts)
		x.link.Heal()
		return
	}
	s.happen("black holes")
	x.link.Blackhole(true)
	time.Sleep(lasts)
	x.link.Blackhole(false)
}

// clientDies cuts a client off for good, as if its machine had lost power, and has another one
// join.
func (s *storm) clientDies(rng *rand.Rand) {
	if !s.join() {
		return
	}
	s.happen("clients dead")
	s.mu.Lock()
	i := rng.IntN(len(s.clients))
	x := s.clients[i]
	s.clients = append(s.clients[:i], s.clients[i+1:]...)
	s.mu.Unlock()
	s.rec.Fault(x.Name, "dies")
	x.link.Cut()
	x.die()
}

func (s *storm) operatorBreaks(rng *rand.Rand) {
	w := stormWants[rng.IntN(len(stormWants))]
	ctx, cancel := context.WithTimeout(s.ctx, 5*time.Second)
	defer cancel()
	info, err := admin.New(s.operator).Inspect(ctx, w.Kind, w.Name)
	if err != nil {
		return
	}
	holders := append(info.Permits, info.Readers...)
	if info.Holder != nil {
		holders = append(holders, *info.Holder)
	}
	if len(holders) == 0 {
		return
	}
	s.happen("breaks")
	_ = s.rec.Client("operator", s.operator).Break(ctx, w.Kind, w.Name, holders[rng.IntN(len(holders))], false) // the holder may have left
}
