package natslock_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
	lockadmin "github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

// TestLockAllLosesWhileWaiting checks that a LockAll that loses one lock while waiting for another
// fails immediately, keeps nothing, and returns an error that names both.
func TestLockAllLosesWhileWaiting(t *testing.T) {
	for what, lose := range map[string]func(t *testing.T, r *kit.Raw, by *natslock.Client, l lockadmin.Holder) error{
		"broken": func(t *testing.T, _ *kit.Raw, by *natslock.Client, h lockadmin.Holder) error {
			require.NoError(t, lockadmin.New(by).Break(t.Context(), lockadmin.BreakRequest{Kind: lockadmin.KindMutex, Name: "a", ID: h.ID, Reason: "test"}))
			return natslock.ErrBroken
		},
		"deleted": func(_ *testing.T, r *kit.Raw, _ *natslock.Client, _ lockadmin.Holder) error {
			r.Remove("lock.a")
			return natslock.ErrLost
		},
	} {
		t.Run(what, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				holder, c := kit.Join(t, s), kit.Join(t, s, natslock.WithTuning(natslock.Tuning{WatchAfter: 1}))
				r := kit.NewRaw(t, s.Connect())
				b := kit.Must(t, holder.Lock, "b")
				g := gather(t, c, []string{"a", "b"})
				c.Events.Wait(t, lockadmin.EventQueued, "b")
				time.Sleep(2 * time.Second)
				begun := time.Now()
				want := lose(t, r, holder.Client, *kit.Inspect(t, holder.Client, "a").Holder)
				err := g.Failed(t)
				require.ErrorIs(t, err, want)
				require.NotErrorIs(t, err, natslock.ErrTimeout)
				require.ErrorContains(t, err, `"a"`)
				require.ErrorContains(t, err, `"b"`)
				require.Less(t, g.At.Sub(begun), time.Second)
				time.Sleep(time.Second)
				require.Equal(t, []string{"lock.b"}, r.Live(">"))
				kit.Unlock(t, b)
			})
		})
	}
}

// TestLockAllNoRenew checks that a lease without renewal can end while LockAll waits for another
// lock.
func TestLockAllNoRenew(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		holder, c := kit.Join(t, s), kit.Join(t, s)
		b := kit.Must(t, holder.Lock, "b")
		_, err := c.LockAll(t.Context(), []string{"a", "b"}, natslock.NoRenew(), natslock.TTL(5*time.Second))
		require.ErrorIs(t, err, natslock.ErrLost)
		kit.Unlock(t, b)
		until := time.Now().Add(10 * time.Second)
		l, err := c.LockAll(t.Context(), []string{"a", "b"}, natslock.Until(until))
		require.NoError(t, err)
		<-l.Context().Done()
		require.Equal(t, until, time.Now())
		require.ErrorIs(t, l.Err(), natslock.ErrEnded)
		require.ErrorIs(t, context.Cause(l.Context()), natslock.ErrEnded)
		require.ErrorIs(t, l.Unlock(t.Context()), natslock.ErrEnded)
	})
}

// TestLockAllContext checks that the set's single context ends with the first loss. The other locks
// are held until Unlock, whose error names the lost one.
func TestLockAllContext(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		admin, c := kit.Join(t, s), kit.Join(t, s, natslock.WithTuning(natslock.Tuning{WatchAfter: 1}))
		r := kit.NewRaw(t, s.Connect())
		l, err := c.LockAll(t.Context(), []string{"a", "b", "c"})
		require.NoError(t, err)
		time.Sleep(time.Second)
		require.NoError(t, l.Err())
		require.NoError(t, l.Context().Err())
		require.NoError(t, lockadmin.New(admin.Client).Break(t.Context(), lockadmin.BreakRequest{
			Kind: lockadmin.KindMutex, Name: "b", ID: kit.Inspect(t, admin.Client, "b").Holder.ID, Reason: "test",
		}))
		kit.Receive(t, l.Context().Done(), "the end of the context")
		cause := context.Cause(l.Context())
		require.ErrorIs(t, cause, natslock.ErrBroken)
		require.ErrorContains(t, cause, `"b"`)
		require.ErrorIs(t, l.Err(), natslock.ErrBroken)
		synctest.Wait()
		require.Equal(t, []string{"lock.a", "lock.b", "lock.c"}, r.Live(">"))
		err = l.Unlock(t.Context())
		require.ErrorIs(t, err, natslock.ErrBroken)
		require.ErrorContains(t, err, `"b"`)
		require.NotContains(t, err.Error(), `"a"`)
		require.ErrorIs(t, l.Err(), natslock.ErrBroken)
		require.Equal(t, err, l.Unlock(t.Context()))
		require.Empty(t, r.Live(">"))
	})
}

// TestLockAllParent checks that the context is a child of the one passed to LockAll unless the
// locks are detached, and that its end leaves the locks held.
func TestLockAllParent(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s)
		type key struct{}
		ctx, cancel := context.WithCancelCause(context.WithValue(t.Context(), key{}, "value"))
		child, err := c.LockAll(ctx, []string{"a", "b"})
		require.NoError(t, err)
		detached, err := c.LockAll(ctx, []string{"c", "d"}, natslock.Detached())
		require.NoError(t, err)
		require.Equal(t, "value", child.Context().Value(key{}))
		require.Equal(t, "value", detached.Context().Value(key{}))
		reason := errors.New("the user went away")
		cancel(reason)
		require.Equal(t, reason, context.Cause(child.Context()))
		require.Equal(t, reason, child.Err())
		require.NoError(t, detached.Context().Err())
		require.NoError(t, detached.Err())
		time.Sleep(time.Minute)
		require.Equal(t, 4, c.Stats().Held)
		mustUnlockAll(t, child)
		mustUnlockAll(t, detached)
		require.ErrorIs(t, context.Cause(detached.Context()), natslock.ErrReleased)

		_, err = c.LockAll(ctx, []string{"a", "b"})
		require.ErrorIs(t, err, natslock.ErrTimeout)
		require.ErrorIs(t, err, reason)
		_, err = c.TryLockAll(ctx, []string{"a", "b"})
		require.ErrorIs(t, err, natslock.ErrTimeout)
		require.ErrorIs(t, err, reason)
	})
}

// TestLockAllContextEndsFirst checks that Unlock ends the context before it sends the first
// release.
func TestLockAllContextEndsFirst(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, f := kit.JoinFaulty(t, s)
		l, err := c.LockAll(t.Context(), []string{"a", "b", "c"})
		require.NoError(t, err)
		f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
			assert.True(t, w.Delete)
			assert.ErrorIs(t, l.Context().Err(), context.Canceled)
			return faults.Pass
		})
		mustUnlockAll(t, l)
	})
}

// TestLockAllGivesUp checks that MaxWait and ctx limit the whole call, even after some locks were
// granted. Those locks are then released.
func TestLockAllGivesUp(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		holder, c := kit.Join(t, s, natslock.WithOwner("alice")), kit.Join(t, s)
		r := kit.NewRaw(t, s.Connect())
		for _, limit := range []bool{true, false} {
			b, e := kit.Must(t, holder.Lock, "b"), kit.Must(t, holder.Lock, "e")
			var opts []natslock.LockOption
			if limit {
				opts = append(opts, natslock.MaxWait(10*time.Second))
			}
			g := gather(t, c, []string{"a", "b", "c", "d", "e"}, opts...)
			time.Sleep(6 * time.Second)
			kit.Unlock(t, b)
			time.Sleep(4*time.Second - time.Millisecond)
			require.False(t, g.Over())
			require.Len(t, r.Live("lock.*"), 5)
			time.Sleep(time.Millisecond)
			reason := errors.New("the user went away")
			if !limit {
				g.Cancel(reason)
			}
			err := g.Failed(t)
			var timeout *natslock.TimeoutError
			require.ErrorAs(t, err, &timeout)
			require.Equal(t, "e", timeout.Name)
			require.Equal(t, 10*time.Second, timeout.Waited)
			require.Equal(t, "alice", timeout.Holder.Owner)
			if !limit {
				require.ErrorIs(t, err, reason)
				require.ErrorIs(t, err, context.Canceled)
			} else {
				require.NotErrorIs(t, err, context.DeadlineExceeded)
			}
			synctest.Wait()
			require.Equal(t, []string{"lock.e"}, r.Live(">"))
			kit.Unlock(t, e)
		}
	})
}

// TestLockAllOutage checks that a LockAll survives an outage, and that one that gives up during the
// outage does so on time.
func TestLockAllOutage(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s)
		kit.Unlock(t, kit.Must(t, c.Lock, "warm"))
		c.Link.Blackhole(true)
		begun := time.Now()
		_, err := c.LockAll(t.Context(), []string{"a", "b"}, natslock.MaxWait(2*time.Second))
		require.ErrorIs(t, err, natslock.ErrTimeout)
		require.Equal(t, 2*time.Second, time.Since(begun))
		_, err = c.TryLockAll(t.Context(), []string{"a", "b"})
		require.ErrorIs(t, err, natslock.ErrUnavailable)
		g := gather(t, c, []string{"a", "b"})
		time.Sleep(20 * time.Second)
		c.Link.Blackhole(false)
		mustUnlockAll(t, g.Granted(t))
	})
}

// TestLockAllClose checks that Close ends a waiting LockAll, which releases the locks it already
// has, and that Close waits for locks that are still held.
func TestLockAllClose(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		holder, c := kit.Join(t, s), kit.Join(t, s)
		r := kit.NewRaw(t, s.Connect())
		b := kit.Must(t, holder.Lock, "b")
		held, err := c.LockAll(t.Context(), []string{"x", "y"})
		require.NoError(t, err)
		g := gather(t, c, []string{"a", "b"})
		c.Events.Wait(t, lockadmin.EventQueued, "b")
		closed := make(chan error, 1)
		go func() { closed <- c.Close(context.Background()) }()
		err = g.Failed(t)
		require.ErrorIs(t, err, natslock.ErrClosed)
		synctest.Wait()
		require.Equal(t, []string{"lock.b", "lock.x", "lock.y"}, r.Live(">"))
		require.Empty(t, closed)
		mustUnlockAll(t, held)
		require.NoError(t, kit.Receive(t, closed, "the end of Close"))
		kit.Unlock(t, b)
		for _, acquire := range []func(context.Context, []string, ...natslock.LockOption) (*natslock.LockSet, error){c.LockAll, c.TryLockAll} {
			_, err = acquire(t.Context(), []string{"a", "b"})
			require.ErrorIs(t, err, natslock.ErrClosed)
		}
	})
}

// TestLockAllDropped checks that locks dropped without Unlock are no longer renewed.
func TestLockAllDropped(t *testing.T) {
	tier.Proof(t)
	s := testutil.RunServer(t)
	var log kit.Log
	other := kit.Join(t, s)
	c := kit.Join(t, s, log.Option())
	ctx := func() context.Context {
		l, err := c.LockAll(t.Context(), []string{"a", "b"}, natslock.TTL(3*time.Second))
		require.NoError(t, err)
		c.Events.Wait(t, lockadmin.EventRenewed, "a")
		c.Events.Wait(t, lockadmin.EventRenewed, "b")
		require.NoError(t, l.Err())
		return l.Context()
	}()
	kit.Eventually(t, "it is noticed", func() bool {
		runtime.GC()
		return strings.Contains(log.String(), "lock=a") && strings.Contains(log.String(), "lock=b")
	})
	kit.Receive(t, ctx.Done(), "the end of the context")
	require.ErrorIs(t, context.Cause(ctx), natslock.ErrLost)
	l, err := other.LockAll(t.Context(), []string{"a", "b"})
	require.NoError(t, err)
	mustUnlockAll(t, l)
}
