package rwlock_test

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
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

var (
	simSeed  = flag.Uint64("seed", 0, "seed of TestStorm; 0: a new one")
	simHours = flag.Float64("hours", 3, "simulated hours of TestStorm")
)

// TestStorm lets readers and writers of a few clients contend in the bubble while
// writes, answers and notifications go wrong at random, links are cut, holders
// broken, and waiters give up. Repeat a failure with
//
//	go test ./rwlock -run TestStorm -seed N
func TestStorm(t *testing.T) {
	seed := *simSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("go test ./rwlock -run TestStorm -seed %d", seed)
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		const clients, names, ttl = 4, 2, 5 * time.Second
		u := newUmpire()
		newPeer(t, s.Connect(), 0) // makes the bucket
		w := tap(t, s.Connect())
		ctx, stop := context.WithTimeout(context.Background(), time.Duration(*simHours*float64(time.Hour)))
		defer stop()
		var wg sync.WaitGroup
		var peers []*peer
		var mu sync.Mutex
		n := map[string]int{}
		count := func(what string) {
			mu.Lock()
			n[what]++
			mu.Unlock()
		}
		for i := range clients {
			nc, link := s.ConnectLink(nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond))
			p := newPeer(t, nc, seed+uint64(i), natslock.WithTTL(ttl), natslock.WithOwner(fmt.Sprint(i)))
			p.f.Random(testutil.Rates{
				Drop: 0.02, LoseAnswer: 0.03, Delay: 0.02, DelayAnswer: 0.02, Refuse: 0.02, NotSent: 0.01,
				MaxDelay: 20 * time.Second, DropEvent: 0.05,
			})
			peers = append(peers, p)
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(seed, 1000+uint64(i)))
				for ctx.Err() == nil {
					time.Sleep(time.Duration(rng.Int64N(int64(20 * time.Minute))))
					off := time.Duration(rng.Int64N(int64(12 * time.Second)))
					if rng.IntN(2) == 0 {
						link.Cut()
						time.Sleep(off)
						link.Heal()
					} else {
						link.Blackhole(true)
						time.Sleep(off)
						link.Blackhole(false)
					}
					count("outages")
				}
			})
			for g := range 3 {
				wg.Go(func() {
					rng := rand.New(rand.NewPCG(seed, uint64(10*i+g)))
					for ctx.Err() == nil {
						p.storm(t, rng, names, u, count)
					}
				})
			}
		}
		wg.Wait()
		for _, p := range peers {
			p.f.Random(testutil.Rates{})
		}
		time.Sleep(10 * time.Minute)
		u.check(t)
		fouls, joins := w.joinsBehindGate()
		assert.Empty(t, fouls)
		assert.Empty(t, w.writersOverReaders(u))
		assert.Empty(t, keysLeft(t, s.Connect()))
		for i, p := range peers {
			for name := range names {
				l, err := p.TryLock(t.Context(), fmt.Sprint(name))
				require.NoError(t, err, "client %d, lock %d: blocked by a ghost", i, name)
				u.granted(l, true)
				unlock(t, l)
			}
		}
		u.check(t)
		t.Logf("%d reads (at most %d at once, %d joins), %d writes, %v", u.reads, u.most, joins, u.writes, n)
		assert.Greater(t, float64(u.reads), 300**simHours)
		assert.Greater(t, float64(u.writes), 100**simHours)
		assert.Greater(t, u.most, 2)
		for _, what := range []string{"gave up", "refused", "broken", "outages"} {
			assert.Positive(t, n[what], what)
		}
	})
}

// storm does one thing a client may do with a reader-writer lock.
func (p *peer) storm(t *testing.T, rng *rand.Rand, names int, u *umpire, count func(string)) {
	upTo := func(d time.Duration) time.Duration { return time.Duration(rng.Int64N(int64(d))) }
	name := fmt.Sprint(rng.IntN(names))
	time.Sleep(upTo(40 * time.Second))
	writes := rng.IntN(3) == 0
	ctx, cancel := context.Background(), func() {}
	var l *natslock.Lock
	var err error
	switch op := rng.IntN(12); {
	case op == 0:
		info, err := p.c.Inspect(ctx, natslock.RW, name)
		if err != nil {
			return
		}
		var token uint64
		if info.Holder != nil {
			token = info.Holder.Token
		}
		if n := len(info.Readers); n > 0 {
			token = info.Readers[rng.IntN(n)].Token
		}
		if token != 0 && p.c.Break(ctx, natslock.RW, name, token, "storm") == nil {
			count("breaks")
		}
		return
	case op < 3 && writes:
		l, err = p.TryLock(ctx, name)
	case op < 3:
		l, err = p.TryRLock(ctx, name)
	default:
		if op < 6 {
			ctx, cancel = context.WithTimeout(ctx, upTo(20*time.Second))
		}
		if writes {
			l, err = p.Lock(ctx, name)
		} else {
			l, err = p.RLock(ctx, name)
		}
	}
	defer cancel()
	switch {
	case err == nil:
	case errors.Is(err, natslock.ErrTimeout):
		count("gave up")
		return
	case errors.Is(err, natslock.ErrLocked):
		count("refused")
		return
	case errors.Is(err, natslock.ErrUnavailable):
		count("unavailable")
		return
	default:
		assert.NoError(t, err)
		return
	}
	u.granted(l, writes)
	select {
	case <-l.Done():
	case <-time.After(upTo(6 * time.Second)):
	}
	switch err := l.Unlock(context.Background()); {
	case err == nil:
		count("released")
	case errors.Is(err, natslock.ErrBroken):
		count("broken")
	case errors.Is(err, natslock.ErrLost):
		count("lost")
	case errors.Is(err, natslock.ErrUnavailable):
		count("unconfirmed")
	default:
		assert.NoError(t, err)
	}
}
