package natslock

import (
	"context"
	"errors"
	"fmt"
	"github.com/natslock/locks/internal/session"
	"runtime"
	"time"

	"github.com/natslock/locks/internal/acquire"
)

// State is the state of a [Lock].
type State int

const (
	// Held: the lock is inside its validity.
	Held State = iota + 1
	// Lost: the lock ended without an Unlock.
	Lost
	// Released: the lock was unlocked.
	Released
	// Ended: the time of an [Until] lock was over before it was unlocked.
	Ended
)

func (s State) String() string {
	switch s {
	case 0:
		return "none" // of a zero Lock
	case Held:
		return "held"
	case Lost:
		return "lost"
	case Released:
		return "released"
	case Ended:
		return "ended"
	}
	return fmt.Sprintf("State(%d)", int(s))
}

// Lock is a lock that was granted. Its holder must unlock it. When a Lock is dropped
// without Unlock, the client logs a warning and no longer renews the lease, which then
// ends.
//
// A zero Lock holds nothing: its methods that return errors return one matching
// [ErrInvalidOption], its context has ended, and the others return zero values.
type Lock struct {
	lease   acquire.Holding
	cleanup runtime.Cleanup
}

var errNoLock = fmt.Errorf("%w: a natslock.Lock that no acquire has returned", ErrInvalidOption)

// noLock is what a zero Lock holds.
type noLock struct{}

func (noLock) Name() string                                  { return "" }
func (noLock) ID() string                                    { return "" }
func (noLock) Token() uint64                                 { return 0 }
func (noLock) Context() context.Context                      { return noContext }
func (noLock) Status() (session.State, time.Duration, error) { return session.Lost, 0, errNoLock }
func (noLock) Left() time.Duration                           { return 0 }
func (noLock) Extend(context.Context, time.Duration) error   { return errNoLock }
func (noLock) Release() error                                { return errNoLock }
func (noLock) Abandon()                                      {}

var noContext = func() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(errNoLock)
	return ctx
}()

// holding returns what the lock holds.
func (l *Lock) holding() acquire.Holding {
	if l == nil || l.lease == nil {
		return noLock{}
	}
	return l.lease
}

// Name returns the lock's name.
func (l *Lock) Name() string { return l.holding().Name() }

// ID returns the id of this acquisition. It is never used again.
func (l *Lock) ID() string { return l.holding().ID() }

// Token returns the fencing token. It is greater than that of every holder
// before, also across a bucket that was re-created. It is below 2^63, and
// below 2^53 until the year 2255. A resource that refuses tokens smaller than
// the greatest it has seen is safe from holders that were paused past their
// validity.
func (l *Lock) Token() uint64 { return l.holding().Token() }

// Context returns a child of the acquire's context that ends when the lock
// does, at the latest at the end of its validity, or when its parent does.
// context.Cause tells why: it matches [ErrReleased], [ErrEnded], [ErrLost],
// [ErrBroken] or [ErrClosed], or is the parent's own cause; then the lock is still
// held.
func (l *Lock) Context() context.Context { return l.holding().Context() }

// Done returns the Done channel of the lock's context.
func (l *Lock) Done() <-chan struct{} { return l.holding().Context().Done() }

// Err returns nil while the lock is held and its context has not ended, then
// the cause.
func (l *Lock) Err() error {
	if _, _, cause := l.holding().Status(); cause != nil {
		return cause
	}
	return context.Cause(l.holding().Context())
}

// State returns the state. It checks the clock itself and does no I/O.
func (l *Lock) State() State {
	h := l.holding()
	if h == (noLock{}) {
		return 0
	}
	s, _, _ := h.Status()
	return Held + State(s)
}

// ValidUntil returns when the validity ends unless it is confirmed before, as
// wall-clock time, for logs; a time in the past once the lock has ended.
func (l *Lock) ValidUntil() time.Time {
	h := l.holding()
	if h == (noLock{}) {
		return time.Time{}
	}
	return time.Now().Add(h.Left())
}

// Remaining returns how much of the validity is left, on a clock that counts
// suspend where there is one; 0 once the lock has ended.
func (l *Lock) Remaining() time.Duration {
	_, left, cause := l.holding().Status()
	if cause != nil {
		return 0
	}
	return max(left, 0)
}

// Extend confirms the lock with the server now, with a new TTL, which has the
// limits of [TTL]; 0 keeps the TTL.
//
// It returns nil when the server has confirmed the lock within the validity: the
// validity then counts from the sending of this call's request. Otherwise the error
// matches [ErrInvalidTTL] (also for an [Until] lock; nothing was sent), is the cause of
// the lock's end (see [Lock.Context]), or matches ctx's error. If ctx ended during the
// call, it matches [ErrUnavailable] too: the server may have extended the lock, and its
// validity is as it was, or shorter if ttl was shorter. If ctx had ended before the
// call, nothing was sent. Without an end in ctx, Extend waits until the validity ends.
func (l *Lock) Extend(ctx context.Context, ttl time.Duration) error {
	err := l.holding().Extend(ctx, ttl)
	runtime.KeepAlive(l)
	return err
}

// Unlock ends the lock's context, then deletes its record. It does not use ctx, so
// it works with one that has ended. It waits for the server at most the client's
// release timeout ([WithReleaseTimeout]). Further calls return what the first did.
//
// It returns nil when it was called inside the validity and nothing contradicts
// it. An error that matches [ErrLost] (or [ErrBroken]) says that the lock had
// been lost before, so others may have got in. One that matches [ErrEnded] says that
// the time of an [Until] lock was over before: work that went on after that time was
// not protected. One that matches [ErrUnavailable] says that the lock was valid to
// the end but the server did not confirm the release: the next holder may have to
// wait for the TTL.
func (l *Lock) Unlock(ctx context.Context) error {
	h := l.holding()
	if h != (noLock{}) {
		l.cleanup.Stop()
	}
	err := h.Release()
	runtime.KeepAlive(l)
	return err
}

// Do runs fn under the lock, with the lock's context, and unlocks when fn
// returns or panics. It returns fn's error joined with that of [Lock.Unlock]. A nil fn
// is refused with [ErrInvalidOption], and the lock stays held.
func (l *Lock) Do(fn func(ctx context.Context, l *Lock) error) (err error) {
	if l.holding() == (noLock{}) {
		return errNoLock
	}
	if fn == nil {
		return fmt.Errorf("lock %q: %w", l.Name(), errNoFunc)
	}
	returned := false
	defer func() {
		unlock := l.Unlock(l.Context())
		if returned {
			err = errors.Join(err, unlock)
		}
	}()
	err = fn(l.Context(), l)
	returned = true
	return err
}
