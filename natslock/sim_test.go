package natslock_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

var (
	simSeed  = flag.Uint64("seed", 0, "seed of TestSimulatedDay; 0: a new one")
	simHours = flag.Float64("hours", 24, "simulated hours of TestSimulatedDay")
)

// TestSimulatedDay lets clients contend for a few locks for a day, in the
// bubble, while writes, answers and notifications go wrong at random, holders
// are broken and waiters give up. Repeat a failure with
//
//	go test ./natslock -run TestSimulatedDay -seed N
func TestSimulatedDay(t *testing.T) {
	seed := *simSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("go test ./natslock -run TestSimulatedDay -seed %d", seed)
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		const clients, names, ttl = 4, 3, 5 * time.Second
		ref := newReferee()
		tally := newTally()
		var wg sync.WaitGroup
		ctx, stop := context.WithTimeout(context.Background(), time.Duration(*simHours*float64(time.Hour)))
		defer stop()
		var all []*natslock.Client
		var faults []*testutil.Faults
		for i := range clients {
			nc, link := s.ConnectLink(nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond))
			c, f := faulty(t, nc, seed+uint64(i), natslock.WithTTL(ttl), natslock.WithOwner(fmt.Sprint(i)))
			f.Random(testutil.Rates{
				Drop: 0.02, LoseAnswer: 0.04, Delay: 0.03, DelayAnswer: 0.03, Refuse: 0.02, NotSent: 0.01,
				MaxDelay: 30 * time.Second, DropEvent: 0.05,
			})
			all, faults = append(all, c), append(faults, f)
			wg.Go(func() { disturb(ctx, link, rand.New(rand.NewPCG(seed, uint64(i)+100)), tally) })
			for w := range 2 {
				rng := rand.New(rand.NewPCG(seed, uint64(i*10+w)))
				wg.Go(func() {
					for ctx.Err() == nil {
						contend(t, c, rng, names, ref, tally)
					}
				})
			}
		}
		wg.Wait()
		for _, f := range faults {
			f.Random(testutil.Rates{})
		}
		time.Sleep(10 * time.Minute) // late writes land, ghosts are laid
		ref.check(t)
		assert.Empty(t, keysLeft(t, s.Connect()), "left in the bucket")
		for i, c := range all {
			for n := range names {
				l, err := c.TryLock(t.Context(), fmt.Sprint(n))
				require.NoError(t, err, "client %d, lock %d: blocked by a ghost", i, n)
				ref.granted(l)
				require.NoError(t, l.Unlock(t.Context()))
			}
		}
		ref.check(t)
		tally.check(t, ref, faults)
	})
}

// disturb cuts a client off now and then: with the connection gone, or with its
// bytes held back so that what it sent arrives when nobody expects it any more.
func disturb(ctx context.Context, link *testutil.Link, rng *rand.Rand, tally *tally) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Duration(rng.Int64N(int64(20 * time.Minute)))):
		}
		off := time.Duration(rng.Int64N(int64(15 * time.Second)))
		if rng.IntN(2) == 0 {
			link.Cut()
			time.Sleep(off)
			link.Heal()
			tally.add("cuts")
		} else {
			link.Blackhole(true)
			time.Sleep(off)
			link.Blackhole(false)
			tally.add("blackouts")
		}
	}
}

// tally counts what happened, so that a run in which nothing did cannot pass.
type tally struct {
	mu   sync.Mutex
	n    map[string]int
	wait time.Duration
}

func newTally() *tally { return &tally{n: map[string]int{}} }

func (c *tally) add(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n[what]++
}

func (c *tally) waited(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wait = max(c.wait, d)
}

func (c *tally) check(t *testing.T, ref *referee, faults []*testutil.Faults) {
	t.Helper()
	fired := 0
	for _, f := range faults {
		fired += f.Counts().Faults()
	}
	t.Logf("%d grants, %d faults, %v, longest wait %v", ref.grants, fired, c.n, c.wait)
	hours := *simHours
	assert.Greater(t, float64(ref.grants), 200*hours)
	assert.Greater(t, float64(fired), 50*hours)
	for _, what := range []string{"released", "lost", "broken", "gave up", "refused", "parked", "cuts", "blackouts"} {
		assert.Positive(t, c.n[what], what)
	}
}

// contend does one thing a client may do with a lock.
func contend(t *testing.T, c *natslock.Client, rng *rand.Rand, names int, ref *referee, tally *tally) {
	upTo := func(most time.Duration) time.Duration { return time.Duration(rng.Int64N(int64(most))) }
	name := fmt.Sprint(rng.IntN(names))
	time.Sleep(upTo(time.Minute))
	var l *natslock.Lock
	var err error
	switch begun := time.Now(); rng.IntN(10) {
	case 0, 1:
		l, err = c.TryLock(context.Background(), name)
	case 2, 3:
		wctx, cancel := context.WithTimeout(context.Background(), upTo(20*time.Second))
		l, err = c.Lock(wctx, name)
		if err == nil && rng.IntN(2) == 0 {
			cancel() // the context has no say in the lease
		}
		defer cancel()
	case 4:
		info, err := c.Inspect(context.Background(), natslock.Mutex, name)
		if err == nil && info.Holder != nil && !info.Holder.Unreadable {
			if c.Break(context.Background(), natslock.Mutex, name, info.Holder.Token, "simulated") == nil {
				tally.add("breaks")
			}
		}
		return
	default:
		l, err = c.Lock(context.Background(), name)
		tally.waited(time.Since(begun))
		// Without a deadline there is nothing that may go wrong: no fault here
		// lasts.
		assert.NoError(t, err)
	}
	if err != nil {
		switch {
		case isAny(err, natslock.ErrTimeout):
			tally.add("gave up")
		case isAny(err, natslock.ErrLocked):
			tally.add("refused")
		case isAny(err, natslock.ErrUnavailable):
			tally.add("unavailable")
		default:
			assert.NoError(t, err)
		}
		return
	}
	ref.granted(l)
	if rng.IntN(20) == 0 {
		// Stops looking after it: never unlocked in time.
		tally.add("parked")
		time.Sleep(20 * time.Second)
	} else {
		select {
		case <-l.Done():
		case <-time.After(upTo(8 * time.Second)):
		}
	}
	switch err := l.Unlock(context.Background()); {
	case err == nil:
		tally.add("released")
	case isAny(err, natslock.ErrBroken):
		tally.add("broken")
	case isAny(err, natslock.ErrLost):
		tally.add("lost")
	case isAny(err, natslock.ErrUnavailable):
		tally.add("release unconfirmed")
	default:
		assert.NoError(t, err)
	}
}
