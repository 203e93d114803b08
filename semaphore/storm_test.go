package semaphore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/history"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

// inside counts the goroutines that believe they hold a permit, and records the maximum.
type inside struct {
	mu        sync.Mutex
	now, most int
}

func (i *inside) add(n int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.now += n
	i.most = max(i.most, i.now)
}

// work holds a permit for a while, within its validity.
func (i *inside) work(h *history.Held, d time.Duration) {
	ctx := h.Lock().Context()
	if ctx.Err() == nil {
		i.add(1)
		select {
		case <-time.After(d):
		case <-ctx.Done():
		}
		i.add(-1)
	}
	if ctx.Err() != nil {
		time.Sleep(time.Second) // it notices late
	}
	h.Use()
}

// TestStorm has 20 clients contend for four permits while clients crash, replies are late or lost,
// notifications get lost and an operator breaks holders. No more than four may ever be inside, by
// the clock and by the stream's own record.
func TestStorm(t *testing.T) {
	tier.Proof(t)
	const clients, permits = 20, 4
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	var in inside
	var h *history.History
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		rec := history.NewRecorder()
		operator := join(t, s)
		rec.Tap(t, s.Connect())
		want := history.Want{Kind: admin.KindSemaphore, Name: "storm", Permits: permits}
		ctx, stop := context.WithTimeout(context.Background(), 10*time.Minute)
		defer stop()
		var wg sync.WaitGroup
		var peers []*peer
		for i := range clients {
			p := join(t, s, natslock.WithTTL(3*time.Second), rec.Option(), natslock.WithTuning(natslock.Tuning{WatchAfter: 1}))
			p.f.Random(faults.Rates{Drop: 0.01, LoseAnswer: 0.02, Delay: 0.02, DelayAnswer: 0.02, DropEvent: 0.05, MaxDelay: 5 * time.Second})
			peers = append(peers, p)
			c := rec.Client(fmt.Sprint("c", i), p.Client)
			rng := rand.New(rand.NewPCG(seed, uint64(i)))
			wg.Go(func() {
				for ctx.Err() == nil {
					time.Sleep(time.Duration(rng.IntN(2000)) * time.Millisecond)
					w := want
					w.Try = rng.IntN(5) == 0
					held, err := c.Acquire(ctx, w, natslock.Detached())
					switch {
					case err == nil:
						d := time.Duration(rng.IntN(1000)) * time.Millisecond
						if rng.IntN(5) == 0 {
							d *= 6 // longer than a lease
						}
						in.work(held, d)
						_ = held.Unlock(context.Background())
					case !errors.Is(err, natslock.ErrTimeout) && !w.Try:
						assert.NoError(t, err)
					}
				}
			})
		}
		wg.Go(func() { // crashes
			rng := rand.New(rand.NewPCG(seed, 100))
			for ctx.Err() == nil {
				over := rec.Outage("", "crash")
				some := rng.Perm(clients)[:4]
				for _, i := range some {
					peers[i].link.Cut()
				}
				time.Sleep(time.Duration(rng.IntN(8000)) * time.Millisecond)
				for _, i := range some {
					peers[i].link.Heal()
				}
				over()
				time.Sleep(time.Duration(rng.IntN(5000)) * time.Millisecond)
			}
		})
		wg.Go(func() { // breaks
			rng := rand.New(rand.NewPCG(seed, 101))
			boss := rec.Client("operator", operator.Client)
			for ctx.Err() == nil {
				time.Sleep(time.Duration(rng.IntN(5000)) * time.Millisecond)
				info, err := admin.New(operator.Client).Inspect(ctx, want.Kind, want.Name)
				if err == nil && len(info.Permits) > 0 {
					_ = boss.Break(context.Background(), want.Kind, want.Name, info.Permits[rng.IntN(len(info.Permits))], false)
				}
			}
		})
		wg.Wait()
		for _, p := range peers {
			p.f.Random(faults.Rates{})
		}
		time.Sleep(time.Minute)
		rec.Left(kit.KeysLeft(t, operator.nc)...)
		h = rec.History()
	})
	n := h.Counts()
	t.Logf("%d grants, %d expired, at most %d inside: %v", n["grants"], n["expired"], in.most, n)
	require.Equal(t, permits, in.most)
	history.Verify(t, h, history.Options{Least: map[string]int{"grants": 500, "expired": 3, "break ok": 20, "queued": 100}})
}

var r3 = natslock.WithReplicas(3)
