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

// A handle that is dropped without Unlock is warned of and not renewed any more.
func TestHandleDropped(t *testing.T) {
	t.Parallel()
	s := testutil.RunServer(t)
	var log kit.Log
	other := kit.Join(t, s) // it makes the bucket, which is warned of
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
	next := kit.Must(t, other.Lock, "dropped") // it is not renewed any more
	require.Greater(t, next.Token(), token)
	kit.WantHeld(t, kept)
	require.NotContains(t, log.String(), "lock=kept")
	require.Equal(t, 1, c.Stats().Held)
	kit.Unlock(t, next)
}

// One that was unlocked, or is in use by Do, is not.
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

// A copy of a handle keeps the lease, even when nobody has the handle itself any more.
func TestHandleCopied(t *testing.T) {
	var log kit.Log
	c, _ := kit.JoinInMemory(t, kvstore.NewMemory(kvstore.DefaultBucket), log.Option())
	lock := func(name string) *natslock.Lock { // not mustLock, which keeps the handle
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

// A lock whose handle was dropped ends by its TTL, and its cause blames nobody else.
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
