package natslock_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
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

// A bucket that is deleted or re-created takes its locks with it.
func TestHandleBucketDeleted(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, other := kit.Join(t, s), kit.Join(t, s)
		r := kit.NewRaw(t, s.Connect())
		l := kit.Must(t, c.Lock, "l")
		fixed := kit.Must(t, c.Lock, "fixed", natslock.NoRenew(), natslock.TTL(time.Hour))
		w := other.Await(t, "l")
		time.Sleep(2 * time.Second)
		require.NoError(t, r.JS.DeleteStream(t.Context(), kit.StreamName))
		deleted := time.Now()
		<-l.Context().Done()
		require.LessOrEqual(t, time.Since(deleted), 15*time.Second)
		kit.WantLost(t, l, natslock.ErrLost)
		time.Sleep(6 * time.Minute)
		kit.WantLost(t, fixed, natslock.ErrLost)
		require.ErrorIs(t, c.Healthy(), kvstore.ErrNotFound)
		require.ErrorIs(t, w.Failed(t), natslock.ErrUnavailable)
		require.ErrorContains(t, w.Err, "bucket")
		_, err := c.TryLock(t.Context(), "l")
		require.ErrorIs(t, err, natslock.ErrUnavailable)
	})
}

func TestHandleBucketMadeAgain(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s)
		r := kit.NewRaw(t, s.Connect())
		l := kit.Must(t, c.Lock, "l", natslock.TTL(time.Hour))
		fixed := kit.Must(t, c.Lock, "fixed", natslock.NoRenew(), natslock.TTL(time.Hour))
		time.Sleep(2 * time.Second)
		require.NoError(t, r.JS.DeleteStream(t.Context(), kit.StreamName))
		other := rejoin(t, s)
		next := kit.Must(t, other.Lock, "l")
		require.Greater(t, next.Token(), l.Token(), "tokens go on")
		recent := kit.Must(t, c.Lock, "recent")
		time.Sleep(6 * time.Minute) // the client checks the bucket every 5 minutes
		kit.WantLost(t, l, natslock.ErrLost)
		kit.WantLost(t, fixed, natslock.ErrLost)
		kit.WantHeld(t, recent)
		time.Sleep(time.Minute)
		kit.WantHeld(t, next)

		// On a reconnect it is noticed at once.
		l = kit.Must(t, other.Lock, "fixed", natslock.NoRenew(), natslock.TTL(time.Hour))
		require.NoError(t, r.JS.DeleteStream(t.Context(), kit.StreamName))
		newest := rejoin(t, s)
		other.Link.Cut()
		other.Link.Heal()
		time.Sleep(time.Second)
		kit.WantLost(t, l, natslock.ErrLost)
		require.Greater(t, kit.Must(t, newest.Lock, "fixed").Token(), l.Token())
	})
}

// TestHandleBucketOfAClockBehind: the revisions of the new bucket begin below those of the
// old one. A lease of the old one is lost, whether the new one has reached its revision.
func TestHandleBucketOfAClockBehind(t *testing.T) {
	for _, grants := range []int{0, 20} {
		t.Run(fmt.Sprint(grants), func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				c := kit.Join(t, s)
				fixed := kit.Must(t, c.Lock, "fixed", natslock.NoRenew(), natslock.TTL(time.Hour))
				time.Sleep(2 * time.Second) // the time of its creation tells buckets apart
				kit.RemakeBucket(t, s.Connect(), record.TokenRevision(fixed.Token())-10)
				other := kit.Join(t, s)
				for range grants {
					kit.Unlock(t, kit.Must(t, other.Lock, "other"))
				}
				c.Link.Cut()
				c.Link.Heal()
				time.Sleep(time.Second)
				kit.WantLost(t, fixed, natslock.ErrLost)
				kit.Unlock(t, kit.Must(t, other.Lock, "fixed"))
			})
		})
	}
}

// rejoin makes a client with a new bucket. The server may still be removing the
// files of the old one.
func rejoin(t *testing.T, s *testutil.Server) *kit.Member {
	t.Helper()
	nc := s.Connect()
	kit.Eventually(t, "the bucket can be made", func() bool {
		c, err := natslock.New(t.Context(), nc)
		return err == nil && c.Close(t.Context()) == nil
	})
	return kit.Join(t, s)
}

// A server restarted on its files keeps the leases that last so long.
func TestHandleServerRestart(t *testing.T) {
	t.Parallel()
	s := testutil.RunServer(t)
	c, other := kit.Join(t, s), kit.Join(t, s)
	l := kit.Must(t, c.Lock, "l", natslock.TTL(30*time.Second))
	fixed := kit.Must(t, c.Lock, "fixed", natslock.TTL(time.Minute), natslock.NoRenew())
	w := other.Await(t, "l")
	for range 3 {
		renewed := c.Events.Count(admin.EventRenewed, "l")
		s.Restart()
		kit.Eventually(t, "it is confirmed", func() bool { return c.Events.Count(admin.EventRenewed, "l") > renewed })
		kit.WantHeld(t, l)
		kit.WantHeld(t, fixed)
		require.False(t, w.Over())
	}
	require.NoError(t, l.Extend(t.Context(), 0))
	require.NoError(t, fixed.Extend(t.Context(), 0))
	token := l.Token()
	kit.Unlock(t, l)
	require.Greater(t, w.Granted(t).Token(), token)
	kit.Unlock(t, w.Value)
	kit.Unlock(t, fixed)
}

// And one that stays away for longer does not.
func TestHandleServerAway(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s)
		l := kit.Must(t, c.Lock, "l", natslock.TTL(10*time.Second))
		kept := kit.Must(t, c.Lock, "kept", natslock.TTL(time.Minute))
		s.Stop()
		kit.Receive(t, l.Context().Done(), "the end")
		kit.WantLost(t, l, natslock.ErrLost)
		w := c.Begin(t, "l") // an outage is waited out
		time.Sleep(20 * time.Second)
		require.False(t, w.Over())
		s.Restart()
		begun := time.Now()
		w.Granted(t)
		require.Less(t, w.At.Sub(begun), 5*time.Second)
		require.Greater(t, w.Value.Token(), l.Token())
		synctest.Wait()
		kit.WantHeld(t, kept)
		time.Sleep(time.Minute)
		kit.WantHeld(t, kept)
	})
}
