package locktest

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/natslock/locks/natslock"
)

// TestLocker checks that a natslock.Locker for exclusive locks keeps the contract of
// natslock.Client. For each subtest, it calls open to get a Locker in which no lock is
// held. The suite takes about three seconds, and cannot run inside a synctest bubble.
//
// It checks the order of the queue only if the Locker has a method Waiting(name string)
// int, like [Locker], or Stats() natslock.Stats, like natslock.Client.
func TestLocker(t *testing.T, open func(t *testing.T) natslock.Locker) {
	t.Helper()
	common(t, open)
	run(t, open, map[string]func(*trial){
		"TryLock of a held lock": (*trial).held,
		"Lock waits":             (*trial).waits,
		"MaxWait":                (*trial).maxWait,
		"context ends the wait":  (*trial).canceled,
		"order":                  (*trial).order,
		"exclusion":              (*trial).exclusion,
	})
}

// TestRLocker is [TestLocker] for both sides of a reader-writer lock. open returns two
// Lockers for the same locks, one for reading and one for writing.
func TestRLocker(t *testing.T, open func(t *testing.T) (reader, writer natslock.Locker)) {
	t.Helper()
	t.Run("writer", func(t *testing.T) {
		TestLocker(t, func(t *testing.T) natslock.Locker {
			_, writer := open(t)
			return writer
		})
	})
	t.Run("reader", func(t *testing.T) {
		common(t, func(t *testing.T) natslock.Locker {
			reader, _ := open(t)
			return reader
		})
	})
	t.Run("both", func(t *testing.T) {
		reader, writer := open(t)
		both(&trial{T: t, locks: reader}, &trial{T: t, locks: writer})
	})
}

// common tests the part of the contract that applies to all Lockers.
func common(t *testing.T, open func(t *testing.T) natslock.Locker) {
	run(t, open, map[string]func(*trial){
		"grant":          (*trial).grant,
		"Unlock":         (*trial).unlock,
		"Do":             (*trial).do,
		"context":        (*trial).context,
		"Extend":         (*trial).extend,
		"names":          (*trial).names,
		"refusals":       (*trial).refusals,
		"ended context":  (*trial).ended,
		"ends of leases": (*trial).leases,
	})
}

func run(t *testing.T, open func(t *testing.T) natslock.Locker, cases map[string]func(*trial)) {
	for name, fn := range cases {
		t.Run(name, func(t *testing.T) { fn(&trial{T: t, locks: open(t)}) })
	}
}

// patience limits how long the suite waits for something that must happen, even on a busy
// machine.
const patience = 30 * time.Second

// trial is one subtest.
type trial struct {
	*testing.T
	locks natslock.Locker
}

// lock acquires a free lock.
func (t *trial) lock(name string, opts ...natslock.LockOption) *natslock.Lock {
	t.Helper()
	l, err := t.locks.Lock(t.Context(), name, append(opts, natslock.MaxWait(patience))...)
	if err != nil {
		t.Fatalf("Lock of the free lock %q: %v", name, err)
	}
	return l
}

func (t *trial) release(l *natslock.Lock) {
	t.Helper()
	if err := l.Unlock(t.Context()); err != nil {
		t.Fatalf("Unlock of the held lock %q: %v", l.Name(), err)
	}
}

// matches requires that err matches all targets.
func (t *trial) matches(what string, err error, targets ...error) {
	t.Helper()
	for _, target := range targets {
		if !errors.Is(err, target) {
			t.Fatalf("%s: error %v does not match %v", what, err, target)
		}
	}
}

func (t *trial) check(ok bool, format string, args ...any) {
	t.Helper()
	if !ok {
		t.Fatalf(format, args...)
	}
}

// free requires that no one holds the lock.
func (t *trial) free(name string) {
	t.Helper()
	l, err := t.locks.TryLock(t.Context(), name)
	if err != nil {
		t.Fatalf("lock %q is not free: %v", name, err)
	}
	t.release(l)
}

// await waits for a value that must arrive.
func await[T any](t *trial, ch <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(patience):
		t.Fatalf("%s did not arrive within %v", what, patience)
		panic("unreachable")
	}
}

type key struct{}

func (t *trial) grant() {
	ctx := context.WithValue(t.Context(), key{}, "value")
	for _, take := range []func(context.Context, string, ...natslock.LockOption) (*natslock.Lock, error){t.locks.Lock, t.locks.TryLock} {
		l, err := take(ctx, "grant", natslock.TTL(20*time.Second))
		t.check(err == nil && l != nil, "acquiring a free lock returned %v, %v", l, err)
		t.check(l.Name() == "grant", "the lock's name is %q", l.Name())
		t.check(l.ID() != "" && l.Token() > 0, "ID %q, token %d", l.ID(), l.Token())
		t.check(l.Remaining() > 0 && l.Err() == nil, "the error of a granted lock is %v", l.Err())
		t.check(l.Remaining() > 0 && l.Remaining() < 20*time.Second, "%v of a TTL of 20s remains", l.Remaining())
		t.check(l.Context().Value(key{}) == "value", "the lock's context lacks a value of the context passed to the acquire")
		t.release(l)
	}
}

func (t *trial) unlock() {
	l := t.lock("unlock")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	t.check(l.Unlock(ended) == nil, "Unlock with an ended context failed")
	t.check(l.Unlock(t.Context()) == nil, "the second Unlock returned a different result")
	await(t, l.Context().Done(), "the end of the context")
	t.matches("cause", context.Cause(l.Context()), natslock.ErrReleased)
	t.matches("Err", l.Err(), natslock.ErrReleased)
	t.check(errors.Is(l.Err(), natslock.ErrReleased) && l.Remaining() == 0, "the error of a released lock is %v, and %v remains", l.Err(), l.Remaining())
	t.matches("Extend", l.Extend(t.Context(), 0), natslock.ErrReleased)
	next := t.lock("unlock")
	t.check(next.ID() != l.ID(), "two acquires got the same ID %q", l.ID())
	t.check(next.Token() > l.Token(), "got token %d after token %d", next.Token(), l.Token())
	t.release(next)
}

func (t *trial) do() {
	failure := errors.New("the work failed")
	for name, do := range map[string]func(context.Context, string, func(context.Context, *natslock.Lock) error, ...natslock.LockOption) error{
		"Do": t.locks.Do, "TryDo": t.locks.TryDo,
	} {
		for _, want := range []error{nil, failure} {
			var under *natslock.Lock
			err := do(t.Context(), "do", func(ctx context.Context, l *natslock.Lock) error {
				under = l
				t.check(l.Remaining() > 0 && ctx.Err() == nil, "during %[2]s the lock's error is %[1]v and the context's error is %[3]v", l.Err(), name, ctx.Err())
				t.check(ctx == l.Context(), "%s passed the function a context other than the lock's", name)
				return want
			})
			t.check(under != nil, "%s did not run the function: %v", name, err)
			t.check(errors.Is(err, want), "%s returned %v, want %v", name, err, want)
			t.check(errors.Is(under.Err(), natslock.ErrReleased), "the lock's error is %v after %s", under.Err(), name)
		}
		func() {
			defer func() { t.check(recover() == failure, "%s swallowed a panic", name) }()
			_ = do(t.Context(), "do", func(context.Context, *natslock.Lock) error { panic(failure) })
		}()
		t.free("do")
		t.matches(name+" with a nil function", do(t.Context(), "do", nil), natslock.ErrInvalid)
		t.matches(name+" with an empty name", do(t.Context(), "", t.never), natslock.ErrInvalid)
	}
}

// never is a function that must not run.
func (t *trial) never(context.Context, *natslock.Lock) error {
	t.Error("the function ran without a lock")
	return nil
}

func (t *trial) context() {
	why := errors.New("the work is done")
	ctx, cancel := context.WithCancelCause(t.Context())
	l, err := t.locks.Lock(ctx, "parent")
	t.check(err == nil, "Lock: %v", err)
	detached, err := t.locks.Lock(ctx, "detached", natslock.Detached())
	t.check(err == nil, "Lock: %v", err)
	cancel(why)
	await(t, l.Context().Done(), "the end of the context")
	t.matches("cause", context.Cause(l.Context()), why)
	t.check(l.Remaining() > 0, "the lock's error is %v after its parent context ended", l.Err())
	t.check(detached.Context().Err() == nil, "the context of a detached lock ended with its parent")
	t.release(l)
	t.release(detached)
}

func (t *trial) extend() {
	l := t.lock("extend", natslock.TTL(10*time.Second))
	t.check(l.Extend(t.Context(), time.Minute) == nil, "Extend failed")
	t.check(l.Remaining() > 20*time.Second, "%v of a minute remains", l.Remaining())
	t.check(l.Extend(t.Context(), 0) == nil, "Extend with the same TTL failed")
	t.matches("Extend", l.Extend(t.Context(), time.Nanosecond), natslock.ErrInvalid)
	t.release(l)
}

func (t *trial) names() {
	var all []*natslock.Lock
	for _, name := range []string{"a", "A", "a.b", "a..b", ".a", "a b", "a*", ">", "\x00", "\xff", "🔒", strings.Repeat("x", 512)} {
		l, err := t.locks.TryLock(t.Context(), name)
		t.check(err == nil, "TryLock of %q: %v", name, err)
		t.check(l.Name() == name, "lock %q has the name %q", name, l.Name())
		all = append(all, l)
	}
	for _, l := range all {
		t.release(l)
	}
}

func (t *trial) refusals() {
	for _, c := range []struct {
		what string
		name string
		opts []natslock.LockOption
		want error
	}{
		{"an empty name", "", nil, natslock.ErrInvalid},
		{"a name that is too long", strings.Repeat("x", 513), nil, natslock.ErrInvalid},
		{"a nil option", "a", []natslock.LockOption{nil}, natslock.ErrInvalid},
		{"a zero TTL", "a", []natslock.LockOption{natslock.TTL(0)}, natslock.ErrInvalid},
		{"a TTL of 25 h", "a", []natslock.LockOption{natslock.TTL(25 * time.Hour)}, natslock.ErrInvalid},
		{"a zero MaxWait", "a", []natslock.LockOption{natslock.MaxWait(0)}, natslock.ErrInvalid},
		{"Until with a zero time", "a", []natslock.LockOption{natslock.Until(time.Time{})}, natslock.ErrInvalid},
		{"Until with a past time", "a", []natslock.LockOption{natslock.Until(time.Now().Add(-time.Second))}, natslock.ErrInvalid},
		{"Until and TTL", "a", []natslock.LockOption{natslock.Until(time.Now().Add(time.Hour)), natslock.TTL(time.Minute)}, natslock.ErrInvalid},
		{"Linger and NoRenew", "a", []natslock.LockOption{natslock.Linger(time.Second), natslock.NoRenew()}, natslock.ErrInvalid},
		{"too long a Linger", "a", []natslock.LockOption{natslock.Linger(2 * time.Hour)}, natslock.ErrInvalid},
		{"an EarlyWarning with a nil function", "a", []natslock.LockOption{natslock.EarlyWarning(time.Second, nil)}, natslock.ErrInvalid},
		{"too much metadata", "a", []natslock.LockOption{natslock.Meta(map[string]string{"k": strings.Repeat("x", 15<<10)})}, natslock.ErrInvalid},
	} {
		for _, take := range []func(context.Context, string, ...natslock.LockOption) (*natslock.Lock, error){t.locks.Lock, t.locks.TryLock} {
			l, err := take(t.Context(), c.name, c.opts...)
			t.matches(c.what, err, c.want)
			t.check(l == nil, "%s: returned both a lock and an error", c.what)
		}
	}
	t.free("a")
}

func (t *trial) ended() {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, take := range []func(context.Context, string, ...natslock.LockOption) (*natslock.Lock, error){t.locks.Lock, t.locks.TryLock} {
		l, err := take(ctx, "ended")
		t.check(l == nil, "an acquire with an ended context returned a lock")
		t.matches("acquire", err, natslock.ErrTimeout, context.Canceled)
	}
	t.free("ended")
}

// leases tests three concurrent leases, two of which end.
func (t *trial) leases() {
	renewed := t.lock("renewed", natslock.TTL(6*time.Second))
	before := time.Now().Add(renewed.Remaining())
	lost := t.lock("lost", natslock.TTL(time.Second), natslock.NoRenew())
	until, err := t.locks.Lock(t.Context(), "until", natslock.Until(time.Now().Add(1500*time.Millisecond)))
	t.check(err == nil, "Lock with Until: %v", err)

	await(t, lost.Context().Done(), "the end of a lease without renewals")
	t.matches("cause", context.Cause(lost.Context()), natslock.ErrLost)
	t.check(errors.Is(lost.Err(), natslock.ErrLost), "the lock's error is %v", lost.Err())
	next := t.lock("lost")
	t.check(next.Token() > lost.Token(), "got token %d after token %d", next.Token(), lost.Token())
	t.matches("Unlock", lost.Unlock(t.Context()), natslock.ErrLost)
	t.check(next.Remaining() > 0, "Unlock of a lost lock ended the next holder's lock")
	t.release(next)

	await(t, until.Context().Done(), "the planned end")
	t.matches("cause", context.Cause(until.Context()), natslock.ErrEnded)
	t.check(errors.Is(until.Err(), natslock.ErrEnded), "the lock's error is %v", until.Err())
	t.matches("Extend", until.Extend(t.Context(), 0), natslock.ErrEnded)
	t.matches("Unlock", until.Unlock(t.Context()), natslock.ErrEnded)

	for begun := time.Now(); time.Now().Add(renewed.Remaining()).Before(before.Add(time.Second)); time.Sleep(10 * time.Millisecond) {
		t.check(renewed.Err() == nil, "a lock with renewal ended: %v", renewed.Err())
		t.check(time.Since(begun) < patience, "no renewal arrived")
	}
	t.release(renewed)
}
