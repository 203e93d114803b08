package natslock_test

import (
	"context"
	"fmt"
	"log/slog"
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

// journal is a log that a test can read.
type journal struct{ kit.Log }

func (j *journal) option() natslock.Option {
	return natslock.WithLogger(slog.New(slog.NewTextHandler(j, nil)))
}

// A handle that is dropped without Unlock is warned of and not renewed any more.
func TestHandleDropped(t *testing.T) {
	t.Parallel()
	s := testutil.RunServer(t)
	var log journal
	other := join(t, s) // it makes the bucket, which is warned of
	c := join(t, s, log.option())
	kept := mustLock(t, c.Client, "kept", natslock.TTL(3*time.Second))
	token := func() uint64 {
		l, err := c.Lock(t.Context(), "dropped", natslock.TTL(time.Second), natslock.EarlyWarning(time.Millisecond, func(*natslock.Lock) {}))
		require.NoError(t, err)
		c.rec.Wait(t, admin.EventRenewed, "dropped")
		return l.Token()
	}()
	require.Empty(t, log.String())
	kit.Eventually(t, "it is noticed", func() bool {
		runtime.GC()
		return log.String() != ""
	})
	require.Contains(t, log.String(), "dropped without Unlock")
	require.Contains(t, log.String(), "lock=dropped")
	next := mustLock(t, other.Client, "dropped") // it is not renewed any more
	require.Greater(t, next.Token(), token)
	wantHeld(t, kept)
	require.NotContains(t, log.String(), "lock=kept")
	require.Equal(t, 1, c.Stats().Held)
	kit.Unlock(t, next)
}

// One that was unlocked, or is in use by Do, is not.
func TestHandleInUse(t *testing.T) {
	s := testutil.RunServer(t)
	var log journal
	join(t, s)
	c := join(t, s, log.option())
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
	var log journal
	c, _ := joinInMemory(t, kvstore.NewMemory(kvstore.DefaultBucket), log.option())
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
		c, other := join(t, s), join(t, s)
		r := newRaw(t, s.Connect())
		l := mustLock(t, c.Client, "l")
		fixed := mustLock(t, c.Client, "fixed", natslock.NoRenew(), natslock.TTL(time.Hour))
		w := other.await(t, "l")
		time.Sleep(2 * time.Second)
		require.NoError(t, r.js.DeleteStream(t.Context(), streamName))
		deleted := time.Now()
		<-l.Context().Done()
		require.LessOrEqual(t, time.Since(deleted), 15*time.Second)
		wantLost(t, l, natslock.ErrLost)
		time.Sleep(6 * time.Minute)
		wantLost(t, fixed, natslock.ErrLost)
		require.ErrorIs(t, c.Healthy(), kvstore.ErrNotFound)
		require.ErrorIs(t, w.Failed(t), natslock.ErrUnavailable)
		require.ErrorContains(t, w.Err, "bucket")
		_, err := c.TryLock(t.Context(), "l")
		require.ErrorIs(t, err, natslock.ErrUnavailable)
	})
}

func TestHandleBucketMadeAgain(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := join(t, s)
		r := newRaw(t, s.Connect())
		l := mustLock(t, c.Client, "l", natslock.TTL(time.Hour))
		fixed := mustLock(t, c.Client, "fixed", natslock.NoRenew(), natslock.TTL(time.Hour))
		time.Sleep(2 * time.Second)
		require.NoError(t, r.js.DeleteStream(t.Context(), streamName))
		other := rejoin(t, s)
		next := mustLock(t, other.Client, "l")
		require.Greater(t, next.Token(), l.Token(), "tokens go on")
		recent := mustLock(t, c.Client, "recent")
		time.Sleep(6 * time.Minute) // the client checks the bucket every 5 minutes
		wantLost(t, l, natslock.ErrLost)
		wantLost(t, fixed, natslock.ErrLost)
		wantHeld(t, recent)
		time.Sleep(time.Minute)
		wantHeld(t, next)

		// On a reconnect it is noticed at once.
		l = mustLock(t, other.Client, "fixed", natslock.NoRenew(), natslock.TTL(time.Hour))
		require.NoError(t, r.js.DeleteStream(t.Context(), streamName))
		newest := rejoin(t, s)
		other.link.Cut()
		other.link.Heal()
		time.Sleep(time.Second)
		wantLost(t, l, natslock.ErrLost)
		require.Greater(t, mustLock(t, newest.Client, "fixed").Token(), l.Token())
	})
}

// TestHandleBucketOfAClockBehind: the revisions of the new bucket begin below those of the
// old one. A lease of the old one is lost, whether the new one has reached its revision.
func TestHandleBucketOfAClockBehind(t *testing.T) {
	for _, grants := range []int{0, 20} {
		t.Run(fmt.Sprint(grants), func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				c := join(t, s)
				fixed := mustLock(t, c.Client, "fixed", natslock.NoRenew(), natslock.TTL(time.Hour))
				time.Sleep(2 * time.Second) // the time of its creation tells buckets apart
				kit.RemakeBucket(t, s.Connect(), record.TokenRevision(fixed.Token())-10)
				other := join(t, s)
				for range grants {
					kit.Unlock(t, mustLock(t, other.Client, "other"))
				}
				c.link.Cut()
				c.link.Heal()
				time.Sleep(time.Second)
				wantLost(t, fixed, natslock.ErrLost)
				kit.Unlock(t, mustLock(t, other.Client, "fixed"))
			})
		})
	}
}

// rejoin makes a client with a new bucket. The server may still be removing the
// files of the old one.
func rejoin(t *testing.T, s *testutil.Server) *member {
	t.Helper()
	nc := s.Connect()
	kit.Eventually(t, "the bucket can be made", func() bool {
		c, err := natslock.New(t.Context(), nc)
		return err == nil && c.Close(t.Context()) == nil
	})
	return join(t, s)
}

// A server restarted on its files keeps the leases that last so long.
func TestHandleServerRestart(t *testing.T) {
	t.Parallel()
	s := testutil.RunServer(t)
	c, other := join(t, s), join(t, s)
	l := mustLock(t, c.Client, "l", natslock.TTL(30*time.Second))
	fixed := mustLock(t, c.Client, "fixed", natslock.TTL(time.Minute), natslock.NoRenew())
	w := other.await(t, "l")
	for range 3 {
		renewed := c.rec.Count(admin.EventRenewed, "l")
		s.Restart()
		kit.Eventually(t, "it is confirmed", func() bool { return c.rec.Count(admin.EventRenewed, "l") > renewed })
		wantHeld(t, l)
		wantHeld(t, fixed)
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
		c := join(t, s)
		l := mustLock(t, c.Client, "l", natslock.TTL(10*time.Second))
		kept := mustLock(t, c.Client, "kept", natslock.TTL(time.Minute))
		s.Stop()
		kit.Receive(t, l.Context().Done(), "the end")
		wantLost(t, l, natslock.ErrLost)
		w := c.begin(t, "l") // an outage is waited out
		time.Sleep(20 * time.Second)
		require.False(t, w.Over())
		s.Restart()
		begun := time.Now()
		w.Granted(t)
		require.Less(t, w.At.Sub(begun), 5*time.Second)
		require.Greater(t, w.Value.Token(), l.Token())
		synctest.Wait()
		wantHeld(t, kept)
		time.Sleep(time.Minute)
		wantHeld(t, kept)
	})
}
