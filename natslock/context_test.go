package natslock_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/election"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/partition"
	"github.com/natslock/locks/rwlock"
	"github.com/natslock/locks/semaphore"
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
		// The lease ends with Unlock, not with the parent.
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

		// A lock can be unlocked even with a context that has ended.
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

		// MaxWait limits only the wait, not the time the lock is held.
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
		// The wait still ends with the parent.
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

// TestContextEndsBeforeDeletion checks that the lock's context has ended when the client sends the
// deletion, and so before another client can get in.
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

		// A loss is joined with the work's own error, if there is one.
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

		// The function may unlock by itself.
		require.NoError(t, c.Do(ctx, "l", func(ctx context.Context, l *natslock.Lock) error { return l.Unlock(ctx) }))

		// A panic propagates, after the unlock.
		require.PanicsWithValue(t, "oops", func() {
			_ = c.Do(ctx, "l", func(context.Context, *natslock.Lock) error { panic("oops") })
		})
		require.NoError(t, other.TryDo(ctx, "l", func(context.Context, *natslock.Lock) error { return nil }))

		// So does runtime.Goexit.
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = c.Do(ctx, "l", func(context.Context, *natslock.Lock) error { runtime.Goexit(); return nil })
		}()
		<-done
		require.NoError(t, other.TryDo(ctx, "l", func(context.Context, *natslock.Lock) error { return nil }))

		// The work decides how to react to the end of the parent. The lock is unlocked only when the
		// work returns.
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

var errStopped = errors.New("the service is stopped")

// endings are the ways in which a context can end after d.
var endings = map[string]func(parent context.Context, d time.Duration) (context.Context, context.CancelFunc){
	"canceled": func(parent context.Context, d time.Duration) (context.Context, context.CancelFunc) {
		ctx, cancel := context.WithCancel(parent)
		time.AfterFunc(d, cancel)
		return ctx, cancel
	},
	"canceled with a cause": func(parent context.Context, d time.Duration) (context.Context, context.CancelFunc) {
		ctx, cancel := context.WithCancelCause(parent)
		time.AfterFunc(d, func() { cancel(errStopped) })
		return ctx, func() { cancel(nil) }
	},
	"deadline": func(parent context.Context, d time.Duration) (context.Context, context.CancelFunc) {
		return context.WithTimeout(parent, d)
	},
	"deadline with a cause": func(parent context.Context, d time.Duration) (context.Context, context.CancelFunc) {
		return context.WithTimeoutCause(parent, d, errStopped)
	},
}

// scene is what a call finds: a client, the locks that it holds, and names that another client
// holds.
type scene struct {
	c    *natslock.Client
	lock *natslock.Lock // "held", by c
	set  *natslock.LockSet
	h    natslock.Handle // for "handed"
	held admin.Holder    // holder of "busy"
}

type endedCall struct {
	call func(ctx context.Context, s *scene) error
	// waits means that the call waits for a lock that another client holds, not for the server.
	waits bool
	// ignores means that the call ignores a context that ended before it.
	ignores bool
	// ends means that the call ends what the client holds.
	ends bool
}

func lockError(_ *natslock.Lock, err error) error { return err }

func runsNot(context.Context, *natslock.Lock) error { return errors.New("it ran") }

// endedCalls lists every call that takes a context, by name.
var endedCalls = map[string]endedCall{
	"Lock":                  {call: func(ctx context.Context, s *scene) error { return lockError(s.c.Lock(ctx, "busy")) }, waits: true},
	"Do":                    {call: func(ctx context.Context, s *scene) error { return s.c.Do(ctx, "busy", runsNot) }, waits: true},
	"TryLock":               {call: func(ctx context.Context, s *scene) error { return lockError(s.c.TryLock(ctx, "free")) }},
	"TryDo":                 {call: func(ctx context.Context, s *scene) error { return s.c.TryDo(ctx, "free", runsNot) }},
	"Lock without a server": {call: func(ctx context.Context, s *scene) error { return lockError(s.c.Lock(ctx, "free")) }},
	"LockAll": {call: func(ctx context.Context, s *scene) error {
		_, err := s.c.LockAll(ctx, []string{"busy", "free"})
		return err
	}, waits: true},
	"TryLockAll": {call: func(ctx context.Context, s *scene) error {
		_, err := s.c.TryLockAll(ctx, []string{"free", "free2"})
		return err
	}},
	"Once":           {call: func(ctx context.Context, s *scene) error { return s.c.Once(ctx, "free", time.Hour, runsNot) }},
	"Adopt":          {call: func(ctx context.Context, s *scene) error { return lockError(s.c.Adopt(ctx, s.h)) }},
	"Extend":         {call: func(ctx context.Context, s *scene) error { return s.lock.Extend(ctx, 0) }},
	"SetMeta":        {call: func(ctx context.Context, s *scene) error { return s.lock.SetMeta(ctx, map[string]string{"a": "b"}) }},
	"Unlock":         {call: func(ctx context.Context, s *scene) error { return s.lock.Unlock(ctx) }, ignores: true, ends: true},
	"LockSet.Unlock": {call: func(ctx context.Context, s *scene) error { return s.set.Unlock(ctx) }, ignores: true, ends: true},
	"Close":          {call: func(ctx context.Context, s *scene) error { return s.c.Close(ctx) }, waits: true, ends: true},

	"rwlock.Lock":     {call: func(ctx context.Context, s *scene) error { return lockError(rwlock.New(s.c).Lock(ctx, "rw.busy")) }, waits: true},
	"rwlock.RLock":    {call: func(ctx context.Context, s *scene) error { return lockError(rwlock.New(s.c).RLock(ctx, "rw.busy")) }, waits: true},
	"rwlock.TryLock":  {call: func(ctx context.Context, s *scene) error { return lockError(rwlock.New(s.c).TryLock(ctx, "rw.free")) }},
	"rwlock.TryRLock": {call: func(ctx context.Context, s *scene) error { return lockError(rwlock.New(s.c).TryRLock(ctx, "rw.free")) }},
	"rwlock.Do":       {call: func(ctx context.Context, s *scene) error { return rwlock.New(s.c).Do(ctx, "rw.busy", runsNot) }, waits: true},
	"rwlock.RDo":      {call: func(ctx context.Context, s *scene) error { return rwlock.New(s.c).RDo(ctx, "rw.busy", runsNot) }, waits: true},

	"semaphore.Acquire": {call: func(ctx context.Context, s *scene) error {
		return lockError(semaphore.New(s.c, 1).Acquire(ctx, "sem.busy"))
	}, waits: true},
	"semaphore.TryAcquire": {call: func(ctx context.Context, s *scene) error {
		return lockError(semaphore.New(s.c, 1).TryAcquire(ctx, "sem.free"))
	}},
	"semaphore.Do": {call: func(ctx context.Context, s *scene) error { return semaphore.New(s.c, 1).Do(ctx, "sem.busy", runsNot) }, waits: true},

	"Campaign": {call: func(ctx context.Context, s *scene) error {
		_, err := election.New(s.c, "busy").Campaign(ctx)
		return err
	}, waits: true},
	"Leader": {call: func(ctx context.Context, s *scene) error { _, err := election.New(s.c, "busy").Leader(ctx); return err }},
	"election.Run": {call: func(ctx context.Context, s *scene) error {
		return election.New(s.c, "busy").Run(ctx, func(context.Context, *election.Term) error { return errors.New("it ran") })
	}, waits: true},
	"partition.Run": {call: func(ctx context.Context, s *scene) error {
		return partition.New(s.c, "group", 1).Run(ctx, func(ctx context.Context, p *partition.Partition) error { <-p.Leaving(); return nil })
	}, waits: true},
	"partition.Inspect": {call: func(ctx context.Context, s *scene) error { _, err := partition.Inspect(ctx, s.c, "group"); return err }},

	"Inspect": {call: func(ctx context.Context, s *scene) error {
		_, err := admin.New(s.c).Inspect(ctx, admin.KindMutex, "busy")
		return err
	}},
	"List": {call: func(ctx context.Context, s *scene) error {
		for _, err := range admin.New(s.c).List(ctx, ">") {
			if err != nil {
				return err
			}
		}
		return nil
	}},
	"RemoveOverdue": {call: func(ctx context.Context, s *scene) error {
		_, _, err := admin.New(s.c).RemoveOverdue(ctx, ">", 1)
		return err
	}},
	"Break": {call: func(ctx context.Context, s *scene) error {
		return admin.New(s.c).Break(ctx, admin.BreakRequest{Kind: admin.KindMutex, Name: "busy", ID: s.held.ID})
	}},
}

// TestEndedContext checks that every call cut short by its context returns a single-line error that
// matches both the context's error and its cause, and leaves no lock behind.
func TestEndedContext(t *testing.T) {
	for what, call := range endedCalls {
		for how, end := range endings {
			for when, after := range map[string]time.Duration{"before": 0, "during": 100 * time.Millisecond} {
				if call.ignores && after == 0 {
					continue
				}
				t.Run(what+"/"+how+"/"+when, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { endedContext(t, call, end, after) })
				})
			}
		}
	}
}

func endedContext(t *testing.T, call endedCall, end func(context.Context, time.Duration) (context.Context, context.CancelFunc), after time.Duration) {
	memory := kvstore.NewMemory(kvstore.DefaultBucket)
	c, f := kit.FaultyInMemory(t, memory, 0)
	other, _ := kit.FaultyInMemory(t, memory, 0)
	s := &scene{c: c, lock: kit.Must(t, c.Lock, "held"), h: kit.HandOff(t, kit.Must(t, other.Lock, "handed"))}
	var err error
	s.set, err = c.LockAll(t.Context(), []string{"held1", "held2"})
	require.NoError(t, err)
	kit.Must(t, other.Lock, "busy")
	kit.Must(t, rwlock.New(other).Lock, "rw.busy")
	permit, err := semaphore.New(other, 1).Acquire(t.Context(), "sem.busy")
	require.NoError(t, err)
	kit.Keep(t, permit)
	s.held = *kit.Inspect(t, other, "busy").Holder
	held := c.Stats().Held

	if !call.waits && after > 0 {
		f.OnSend(func(int, kvstore.Write) faults.Fate { return faults.Drop })
		f.FailReads(func(faults.ReadOp, string) error { return faults.Hang })
	}
	ctx, cancel := end(t.Context(), after)
	defer cancel()
	if after == 0 {
		<-ctx.Done()
	}
	err = call.call(ctx, s)
	require.Error(t, ctx.Err())
	require.ErrorIs(t, err, ctx.Err())
	require.ErrorIs(t, err, context.Cause(ctx))
	require.NotContains(t, err.Error(), "\n")
	if call.ends {
		return
	}
	if cause := context.Cause(ctx).Error(); cause != ctx.Err().Error() {
		require.Equal(t, 1, strings.Count(err.Error(), cause), err)
	}
	require.Equal(t, held, c.Stats().Held)
	require.NoError(t, s.lock.Err())
	f.OnSend(nil)
	f.FailReads(nil)
	time.Sleep(time.Minute)
	for _, name := range []string{"free", "free2"} {
		l, err := other.TryLock(t.Context(), name)
		require.NoError(t, err, "a lock is left")
		kit.Unlock(t, l)
	}
}
