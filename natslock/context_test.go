package natslock_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

type key struct{}

func TestContextOfParent(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, other := kit.Join(t, s), kit.Join(t, s)
		reason := errors.New("request is over")
		parent, cancel := context.WithCancelCause(context.WithValue(t.Context(), key{}, "value"))
		l, err := c.Lock(parent, "l")
		require.NoError(t, err)
		require.Equal(t, "value", l.Context().Value(key{}))
		require.NoError(t, l.Err())
		cancel(reason)
		<-l.Context().Done()
		require.ErrorIs(t, context.Cause(l.Context()), reason)
		require.ErrorIs(t, l.Err(), reason)
		// The lease is tied to Unlock, not to the parent.
		require.Positive(t, l.Remaining())
		time.Sleep(time.Minute)
		require.Positive(t, l.Remaining())
		require.Positive(t, l.Remaining())
		_, err = other.TryLock(t.Context(), "l")
		require.ErrorIs(t, err, natslock.ErrLocked)
		require.NoError(t, l.Extend(t.Context(), 0))
		synctest.Wait()
		out := c.NC.Stats().OutMsgs
		require.ErrorIs(t, l.Extend(parent, 0), reason)
		synctest.Wait()
		require.Equal(t, out, c.NC.Stats().OutMsgs, "nothing was asked for")

		// A context that has ended does not keep it from being unlocked.
		require.NoError(t, l.Unlock(l.Context()))
		require.ErrorIs(t, l.Err(), natslock.ErrReleased)
		require.ErrorIs(t, l.Err(), natslock.ErrReleased)
		require.ErrorIs(t, context.Cause(l.Context()), reason, "the first cause stays")
		require.Zero(t, l.Remaining())
		next, err := other.TryLock(t.Context(), "l")
		require.NoError(t, err)
		p := kit.NewTap(t, s.Connect(), ">")
		require.NoError(t, l.Unlock(parent), "again")
		require.Empty(t, p.Take(t, c.NC), "does nothing")
		kit.WantHeld(t, next)
	})
}

func TestContextDeadlineOfParent(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		l, err := c.Lock(ctx, "l")
		require.NoError(t, err)
		deadline, ok := l.Context().Deadline()
		require.True(t, ok)
		require.Equal(t, 5*time.Second, time.Until(deadline))
		<-l.Context().Done()
		require.ErrorIs(t, l.Err(), context.DeadlineExceeded)
		require.Positive(t, l.Remaining())
		kit.Unlock(t, l)

		// MaxWait bounds the waiting and not what comes after.
		l, err = c.Lock(t.Context(), "l", natslock.MaxWait(time.Second))
		require.NoError(t, err)
		time.Sleep(time.Minute)
		kit.WantHeld(t, l)
		_, ok = l.Context().Deadline()
		require.False(t, ok)
	})
}

func TestContextDetached(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s)
		parent, cancel := context.WithTimeout(context.WithValue(t.Context(), key{}, "value"), time.Hour)
		l, err := c.Lock(parent, "l", natslock.Detached())
		require.NoError(t, err)
		cancel()
		time.Sleep(time.Minute)
		kit.WantHeld(t, l)
		require.Equal(t, "value", l.Context().Value(key{}))
		_, ok := l.Context().Deadline()
		require.False(t, ok)
		kit.Unlock(t, l)
		require.ErrorIs(t, context.Cause(l.Context()), natslock.ErrReleased)
		require.ErrorIs(t, l.Context().Err(), context.Canceled)
		select {
		case <-l.Context().Done():
		default:
			t.Fatal("Done is not closed")
		}
		// The wait still ends with it.
		kit.Must(t, c.Lock, "l")
		parent, cancel = context.WithCancel(t.Context())
		w := make(chan error)
		go func() {
			_, err := c.Lock(parent, "l", natslock.Detached())
			w <- err
		}()
		synctest.Wait()
		cancel()
		require.ErrorIs(t, kit.Receive(t, w, "the end of the wait"), context.Canceled)
	})
}

// The lock's context ends before the next one can get in.
func TestContextEndsBeforeRelease(t *testing.T) {
	s := testutil.RunServer(t)
	c, other := kit.Join(t, s), kit.Join(t, s)
	for range 100 {
		l := kit.Must(t, c.Lock, "l")
		ended := make(chan bool, 1)
		w := make(chan struct{})
		go func() {
			defer close(w)
			next, err := other.Lock(context.Background(), "l")
			ended <- l.Context().Err() != nil
			if err == nil {
				err = next.Unlock(context.Background())
			}
			if err != nil {
				t.Error(err)
			}
		}()
		kit.Unlock(t, l)
		require.True(t, kit.Receive(t, ended, "the next"))
		kit.Receive(t, w, "its unlock")
	}
}

// The context has ended when the client sends the deletion, not only when another client
// can profit by it.
func TestContextEndsBeforeDeletion(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, f := kit.Faulty(t, s.Connect(), 1)
		l, err := c.Lock(t.Context(), "l")
		require.NoError(t, err)
		f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
			if !w.Delete || l.Context().Err() == nil {
				t.Errorf("the work may go on at the write of %s", w.Key)
			}
			return faults.Pass
		})
		require.NoError(t, l.Unlock(t.Context()))
		require.Equal(t, 2, f.Counts().Sends)
	})
}

func TestContextEndedBeforeAcquire(t *testing.T) {
	s := testutil.RunServer(t)
	c := kit.Join(t, s)
	before := c.NC.Stats().OutMsgs
	reason := errors.New("too late")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(reason)
	fn := func(context.Context, *natslock.Lock) error { t.Error("ran"); return nil }
	for name, do := range map[string]func() error{
		"Lock":    func() error { _, err := c.Lock(ctx, "l"); return err },
		"TryLock": func() error { _, err := c.TryLock(ctx, "l"); return err },
		"Do":      func() error { return c.Do(ctx, "l", fn) },
		"TryDo":   func() error { return c.TryDo(ctx, "l", fn) },
	} {
		err := do()
		require.ErrorIs(t, err, context.Canceled, name)
		require.ErrorIs(t, err, reason, name)
		require.ErrorIs(t, err, natslock.ErrTimeout, name)
	}
	require.Equal(t, before, c.NC.Stats().OutMsgs, "nothing is sent")
}

func TestContextMaxWaitRefused(t *testing.T) {
	s := testutil.RunServer(t)
	c := kit.Join(t, s)
	before := c.NC.Stats().OutMsgs
	for _, d := range []time.Duration{0, -1} {
		_, err := c.Lock(t.Context(), "l", natslock.MaxWait(d))
		require.ErrorIs(t, err, natslock.ErrInvalid)
		require.ErrorContains(t, err, "TryLock")
	}
	require.Equal(t, before, c.NC.Stats().OutMsgs)
	l, err := c.TryLock(t.Context(), "l", natslock.MaxWait(time.Nanosecond))
	require.NoError(t, err, "TryLock ignores it")
	kit.Unlock(t, l)
}

func TestContextDo(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, other := kit.Join(t, s), kit.Join(t, s)
		ctx := context.WithValue(t.Context(), key{}, "value")
		failure := errors.New("the work failed")

		require.NoError(t, c.Do(ctx, "l", func(ctx context.Context, l *natslock.Lock) error {
			require.Equal(t, "value", ctx.Value(key{}))
			require.Same(t, l.Context(), ctx)
			kit.WantHeld(t, l)
			require.ErrorIs(t, other.TryDo(ctx, "l", func(context.Context, *natslock.Lock) error { t.Error("ran"); return nil }), natslock.ErrLocked)
			return nil
		}))
		require.ErrorIs(t, c.TryDo(ctx, "l", func(context.Context, *natslock.Lock) error { return failure }), failure)
		require.NoError(t, other.TryDo(ctx, "l", func(context.Context, *natslock.Lock) error { return nil }), "unlocked")

		// A loss is joined with the work's own error, and with none.
		for _, result := range []error{nil, failure} {
			err := c.Do(ctx, "l", func(ctx context.Context, l *natslock.Lock) error {
				time.Sleep(2 * time.Second)
				kit.Break(t, other.Client, l, "stop it")
				<-ctx.Done()
				return result
			})
			require.ErrorIs(t, err, natslock.ErrBroken)
			require.ErrorIs(t, err, natslock.ErrLost)
			if result != nil {
				require.ErrorIs(t, err, result)
			}
		}

		// A function that unlocks by itself.
		require.NoError(t, c.Do(ctx, "l", func(ctx context.Context, l *natslock.Lock) error { return l.Unlock(ctx) }))

		// A panic passes on, after the unlock.
		require.PanicsWithValue(t, "oops", func() {
			_ = c.Do(ctx, "l", func(context.Context, *natslock.Lock) error { panic("oops") })
		})
		require.NoError(t, other.TryDo(ctx, "l", func(context.Context, *natslock.Lock) error { return nil }))

		// As does the end of the goroutine.
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = c.Do(ctx, "l", func(context.Context, *natslock.Lock) error { runtime.Goexit(); return nil })
		}()
		<-done
		require.NoError(t, other.TryDo(ctx, "l", func(context.Context, *natslock.Lock) error { return nil }))

		// The parent's end is the work's affair; the lock is unlocked after it.
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		err := c.Do(short, "l", func(ctx context.Context, l *natslock.Lock) error {
			<-ctx.Done()
			return context.Cause(ctx)
		})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, natslock.ErrLost)
		require.NoError(t, other.TryDo(ctx, "l", func(context.Context, *natslock.Lock) error { return nil }))
	})
}
