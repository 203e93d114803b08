package simulation_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/kvstore"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

// TestLingerSteps counts how many messages follow one another until another client has an
// idle lock. Each takes a millisecond, and nothing else takes any time. A plain hand-over,
// whose waiter has its place already, is beside them.
func TestLingerSteps(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		ctx := context.Background()
		var queued time.Time
		join := func(opts ...natslock.Option) *natslock.Client {
			c, err := natslock.New(ctx, s.Connect(), append(opts, testutil.WrapStore(func(kv kvstore.KV) kvstore.KV {
				return &wire{KV: kv, lag: time.Millisecond}
			}))...)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, c.Close(ctx)) })
			return c
		}
		owner := join()
		asker := join(natslock.WithObserver(func(_ context.Context, ev natslock.Event) {
			if ev.Type == natslock.EventQueued {
				queued = ev.Time
			}
		}))
		take := func(lock func(context.Context, string, ...natslock.LockOption) (*natslock.Lock, error)) (begun, now time.Time) {
			l, err := owner.Lock(ctx, "idle", natslock.Linger(time.Minute))
			require.NoError(t, err)
			require.NoError(t, l.Unlock(ctx))
			time.Sleep(2 * time.Second)
			begun = time.Now()
			l, err = lock(ctx, "idle")
			require.NoError(t, err)
			now = time.Now()
			require.NoError(t, l.Unlock(ctx))
			time.Sleep(2 * time.Second)
			return begun, now
		}
		begun, now := take(asker.Lock)
		granted, placed := now.Sub(begun), now.Sub(queued)
		begun, now = take(asker.TryLock)
		tried := now.Sub(begun)

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

		require.Equal(t, 6*time.Millisecond, plain)
		require.Equal(t, 8*time.Millisecond, placed, "from its place on")
		require.Equal(t, 14*time.Millisecond, granted)
		require.Equal(t, 12*time.Millisecond, tried)
	})
}
