package semaphore_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/machine"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/semaphore"
	"github.com/natslock/locks/testutil"
)

// TestClusterSuite runs the semaphore suite on three replicas that lag, with each client connected
// to a different server.
func TestClusterSuite(t *testing.T) {
	tier.Proof(t)
	cl := testutil.RunCluster(t, 3)
	var clients []*natslock.Client
	for i := range 3 {
		c, _ := kit.Faulty(t, cl.ConnectTo(i), uint64(i), r3, natslock.WithTTL(6*time.Second), natslock.WithOwner(fmt.Sprint(i)), natslock.WithTuning(natslock.Tuning{WatchAfter: 1}))
		clients = append(clients, c)
	}
	a, b, c := clients[0], clients[1], clients[2]
	ctx := t.Context()

	t.Run("one shot", func(t *testing.T) {
		for range 20 {
			one, err := semaphore.New(a, 2).TryAcquire(ctx, "once")
			require.NoError(t, err)
			zero, err := semaphore.New(b, 2).TryAcquire(ctx, "once")
			require.NoError(t, err)
			require.NotEqual(t, slot(t, one), slot(t, zero))
			_, err = semaphore.New(c, 2).TryAcquire(ctx, "once")
			require.ErrorIs(t, err, natslock.ErrLocked)
			kit.Unlock(t, one)
			again, err := semaphore.New(c, 2).TryAcquire(ctx, "once")
			require.NoError(t, err, "a replica that lags is not believed")
			require.Equal(t, slot(t, one), slot(t, again))
			require.Greater(t, again.Token(), one.Token())
			kit.Unlock(t, zero, again)
		}
	})

	t.Run("a holder cut off", func(t *testing.T) {
		nc, link := cl.ConnectLink(nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond))
		dead, _ := kit.Faulty(t, nc, 9, r3, natslock.WithTTL(2*time.Second))
		l := must(t, semaphore.New(dead, 2), "cut")
		other := must(t, semaphore.New(b, 2), "cut")
		late := machine.Lateness(t)
		link.Cut()
		cut := time.Now()
		next := must(t, semaphore.New(a, 2), "cut")
		// The server, the waiter and this test may each be delayed once.
		require.Less(t, time.Since(cut), 2500*time.Millisecond+3*late())
		require.Equal(t, slot(t, l), slot(t, next))
		require.ErrorIs(t, l.Err(), natslock.ErrLost)
		require.Greater(t, next.Token(), l.Token())
		kit.Unlock(t, next, other)
		link.Heal()
	})

	t.Run("breaking", func(t *testing.T) {
		one, zero := must(t, semaphore.New(a, 2), "broken"), must(t, semaphore.New(a, 2), "broken")
		w := begin(t, semaphore.New(c, 2), "broken")
		require.NoError(t, admin.New(b).Break(ctx, admin.BreakRequest{Kind: admin.KindSemaphore, Name: "broken", ID: zero.ID()}))
		kit.Receive(t, zero.Context().Done(), "the end of the lock")
		require.ErrorIs(t, context.Cause(zero.Context()), natslock.ErrBroken)
		require.ErrorIs(t, zero.Unlock(ctx), natslock.ErrBroken)
		l := w.Granted(t)
		require.Equal(t, slot(t, zero), slot(t, l))
		require.NoError(t, one.Err())
		kit.Unlock(t, one, l)
	})
}
