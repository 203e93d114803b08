package natslock_test

import (
	"context"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

// TestHandleDropped checks that a handle dropped without Unlock is logged as a warning and no
// longer renewed.
func TestHandleDropped(t *testing.T) {
	t.Parallel()
	s := testutil.RunServer(t)
	var log kit.Log
	other := kit.Join(t, s) // creates the bucket, which logs a warning
	c := kit.Join(t, s, log.Option())
	kept := kit.Must(t, c.Lock, "kept", natslock.TTL(3*time.Second))
	token := func() uint64 {
		l, err := c.Lock(t.Context(), "dropped", natslock.TTL(time.Second), natslock.EarlyWarning(time.Millisecond, func(*natslock.Lock) {}))
		require.NoError(t, err)
		c.Events.Wait(t, admin.EventRenewed, "dropped")
		return l.Token()
	}()
	require.Empty(t, log.String())
	kit.Eventually(t, "it is noticed", func() bool {
		runtime.GC()
		return log.String() != ""
	})
	require.Contains(t, log.String(), "dropped without Unlock")
	require.Contains(t, log.String(), "lock=dropped")
	next := kit.Must(t, other.Lock, "dropped") // the dropped lock is no longer renewed
	require.Greater(t, next.Token(), token)
	kit.WantHeld(t, kept)
	require.NotContains(t, log.String(), "lock=kept")
	require.Equal(t, 1, c.Stats().Held)
	kit.Unlock(t, next)
}

// TestHandleInUse checks that there is no warning about a handle that was unlocked or is in use by
// Do.
func TestHandleInUse(t *testing.T) {
	s := testutil.RunServer(t)
	var log kit.Log
	kit.Join(t, s)
	c := kit.Join(t, s, log.Option())
	require.NoError(t, c.Do(t.Context(), "l", func(ctx context.Context, _ *natslock.Lock) error {
		for range 5 {
			runtime.GC()
		}
		return ctx.Err()
	}))
	for range 100 {
		mustUnlockAndDrop(t, c.Client)
	}
	for range 5 {
		runtime.GC()
	}
	require.Empty(t, log.String())
	require.Zero(t, c.Stats().Lost)
}

func mustUnlockAndDrop(t *testing.T, c *natslock.Client) {
	l, err := c.Lock(t.Context(), "l")
	require.NoError(t, err)
	kit.Unlock(t, l)
}

// TestHandleCopied checks that a copy of a handle keeps the lease alive even if nobody refers to
// the original any more.
func TestHandleCopied(t *testing.T) {
	var log kit.Log
	c, _ := kit.JoinInMemory(t, kvstore.NewMemory(kvstore.DefaultBucket), log.Option())
	lock := func(name string) *natslock.Lock { // kit.Must would keep the handle alive
		l, err := c.Lock(t.Context(), name)
		require.NoError(t, err)
		return l
	}
	kept := *lock("kept")
	lock("dropped")
	kit.Eventually(t, "the collection of a handle", func() bool {
		runtime.GC()
		return strings.Contains(log.String(), "lock=dropped")
	})
	require.NotContains(t, log.String(), "lock=kept")
	require.NoError(t, kept.Extend(t.Context(), 0))
	require.NoError(t, kept.Unlock(t.Context()))
}

// TestDroppedCause checks that a lock whose handle was dropped ends with its TTL, and that its
// cause blames nobody else.
func TestDroppedCause(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s)
		l := kit.Must(t, c.Lock, "l", natslock.TTL(5*time.Second))
		ctx := l.Context()
		kit.Drop(l)
		<-ctx.Done()
		require.ErrorIs(t, context.Cause(ctx), natslock.ErrLost)
		require.ErrorContains(t, context.Cause(ctx), "dropped without Unlock")
		require.NotContains(t, context.Cause(ctx).Error(), "server")
	})
}
