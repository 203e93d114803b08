package simulation_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

// TestLingerSteps counts how many messages follow one another until another client has an idle
// lock. Each takes a millisecond, and nothing else takes any time. It compares this with a plain
// hand-over, whose waiter already has its place.
//
// The waiter's list and the owner's release are under way at the same time. One of the clients is a
// microsecond nearer to the server, so that chance does not order them. A list that arrives after
// the release shows the lock free.
func TestLingerSteps(t *testing.T) {
	const near = time.Millisecond - time.Microsecond
	t.Run("the owner is nearer", func(t *testing.T) {
		testLingerSteps(t, near, time.Millisecond, 4*time.Millisecond)
	})
	t.Run("the asker is nearer", func(t *testing.T) {
		testLingerSteps(t, time.Millisecond, near, 8*time.Millisecond)
	})
}

func testLingerSteps(t *testing.T, ownerLag, askerLag, wantPlaced time.Duration) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		ctx := context.Background()
		var queued time.Time
		join := func(lag time.Duration, opts ...natslock.Option) *natslock.Client {
			c, err := natslock.New(ctx, s.Connect(), append(opts, faults.WrapStore(func(kv kvstore.KV) kvstore.KV {
				return &wire{KV: kv, lag: lag}
			}))...)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, c.Close(ctx)) })
			return c
		}
		owner := join(ownerLag)
		asker := join(askerLag, admin.WithObserver(func(_ context.Context, ev admin.Event) {
			if ev.Type == admin.EventQueued {
				queued = ev.Time
			}
		}))
		l, err := owner.Lock(ctx, "idle", natslock.Linger(time.Minute))
		require.NoError(t, err)
		require.NoError(t, l.Unlock(ctx))
		time.Sleep(2 * time.Second)
		begun := time.Now()
		l, err = asker.Lock(ctx, "idle")
		require.NoError(t, err)
		granted, placed := time.Since(begun), time.Since(queued)
		require.NoError(t, l.Unlock(ctx))
		time.Sleep(2 * time.Second)

		held, err := owner.Lock(ctx, "plain")
		require.NoError(t, err)
		got := make(chan time.Time)
		go func() {
			l, err := asker.Lock(ctx, "plain")
			if err == nil {
				got <- time.Now()
				err = l.Unlock(ctx)
			}
			if err != nil {
				t.Error(err)
			}
		}()
		time.Sleep(2 * time.Second)
		begun = time.Now()
		require.NoError(t, held.Unlock(ctx))
		plain := (<-got).Sub(begun)
		time.Sleep(2 * time.Second)

		steps := func(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
		require.Equal(t, 6*time.Millisecond, steps(plain))
		require.Equal(t, wantPlaced, steps(placed), "from its place on")
		require.Equal(t, 6*time.Millisecond+wantPlaced, steps(granted))
	})
}
