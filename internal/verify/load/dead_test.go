package load

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/rwlock"
	"github.com/natslock/locks/semaphore"
	"github.com/natslock/locks/testutil"
)

func mutex(c *natslock.Client) kit.Taking  { return c.Lock }
func writer(c *natslock.Client) kit.Taking { return rwlock.New(c).Lock }
func reader(c *natslock.Client) kit.Taking { return rwlock.New(c).RLock }
func permit(c *natslock.Client) kit.Taking { return semaphore.New(c, 5).Acquire }

// TestDeadHead has a client die while it is first in the queue and the lock becomes free. Six goroutines of three other
// clients keep asking for the lock, patiently or not. This costs them one or two pauses of 1.2 s, but not the 15 s of
// the dead client's place.
func TestDeadHead(t *testing.T) {
	tier.Proof(t)
	for _, w := range []struct {
		name        string
		holders     int
		head, takes func(c *natslock.Client) kit.Taking
	}{
		{"mutex", 1, mutex, mutex},
		{"semaphore", 5, permit, permit},
		{"writer", 1, writer, writer},
		{"readers behind a writer", 1, writer, reader},
	} {
		for _, wait := range []time.Duration{time.Minute, time.Second, 200 * time.Millisecond, 50 * time.Millisecond} {
			t.Run(fmt.Sprint(w.name, " ", wait), func(t *testing.T) {
				t.Parallel()
				s := testutil.RunServer(t)
				holder := kit.NewClient(t, s.Connect())
				var held []*natslock.Lock
				for range w.holders {
					held = append(held, kit.Must(t, w.head(holder), "l"))
				}
				nc := s.Connect()
				head := kit.NewClient(t, nc)
				kit.Begin(t, func(ctx context.Context) (*natslock.Lock, error) { return w.head(head)(ctx, "l") })
				kit.Eventually(t, "the head's place", func() bool { return head.Stats().Waiting == 1 })
				nc.Close()
				clients := []*natslock.Client{kit.NewClient(t, s.Connect()), kit.NewClient(t, s.Connect()), kit.NewClient(t, s.Connect())}
				kit.Unlock(t, held...)

				ctx, stop := context.WithTimeout(t.Context(), 6*time.Second)
				defer stop()
				var mu sync.Mutex
				var grants int
				var gap time.Duration
				begun := time.Now()
				last := begun
				granted := func() {
					mu.Lock()
					defer mu.Unlock()
					now := time.Now()
					gap, last = max(gap, now.Sub(last)), now
					grants++
				}
				var wg sync.WaitGroup
				for _, c := range clients {
					for range 2 {
						wg.Go(func() {
							for ctx.Err() == nil {
								l, err := w.takes(c)(ctx, "l", natslock.MaxWait(wait))
								if err != nil {
									if !errors.Is(err, natslock.ErrTimeout) && ctx.Err() == nil {
										t.Error(err)
										return
									}
									continue
								}
								granted()
								time.Sleep(2 * time.Millisecond)
								_ = l.Unlock(context.Background()) // a slow machine may not confirm it in time
							}
						})
					}
				}
				wg.Wait()
				gap = max(gap, time.Since(last))
				t.Logf("%d grants in %v, longest gap %v", grants, time.Since(begun).Round(time.Millisecond), gap.Round(time.Millisecond))
				require.LessOrEqual(t, gap, 2500*time.Millisecond)
				require.Greater(t, grants, 50)
			})
		}
	}
}
