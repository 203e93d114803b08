package natslock

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/natslock/locks/internal/cohort"
	"github.com/natslock/locks/internal/plain"
	"github.com/natslock/locks/internal/session"
)

// Lock is a granted lock, which its holder must unlock. If a Lock is dropped without Unlock, the
// client logs a warning and stops renewing the lease. Do not copy a Lock. Methods of a zero Lock
// return an error that matches [ErrInvalid], an ended context, or zero values.
type Lock struct {
	_       noCopy
	lease   cohort.Holding
	cleanup runtime.Cleanup
	self    *Lock // keeps the original Lock, and so the lease, alive while there is a copy
}

// noCopy makes go vet report copies of a Lock.
type noCopy struct{}

func (*noCopy) Lock()   {}
func (*noCopy) Unlock() {}

var errNoLock = fmt.Errorf("%w: the natslock.Lock was not returned by an acquire", ErrInvalid)

// noLock is the lease of a zero Lock.
type noLock struct{}

func (noLock) Name() string                                     { return "" }
func (noLock) ID() string                                       { return "" }
func (noLock) Token() uint64                                    { return 0 }
func (noLock) Context() context.Context                         { return noContext }
func (noLock) Status() (session.State, time.Duration, error)    { return session.Lost, 0, errNoLock }
func (noLock) Left() time.Duration                              { return 0 }
func (noLock) Extend(context.Context, time.Duration) error      { return errNoLock }
func (noLock) SetMeta(context.Context, map[string]string) error { return errNoLock }
func (noLock) HandOff(context.Context) (session.Handed, error)  { return session.Handed{}, errNoLock }
func (noLock) Keep(time.Duration)                               {}
func (noLock) Contended() <-chan struct{}                       { return nil }
func (noLock) Release(context.Context) error                    { return errNoLock }
func (noLock) Retire() error                                    { return errNoLock }
func (noLock) Abandon()                                         {}

var noContext = func() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(errNoLock)
	return ctx
}()

// holding returns the lease, or noLock for a zero Lock.
func (l *Lock) holding() cohort.Holding {
	if l == nil || l.lease == nil {
		return noLock{}
	}
	return l.lease
}

// Name returns the lock's name.
func (l *Lock) Name() string { return l.holding().Name() }

// ID returns the unique ID of this acquisition. It begins with the claim's ID ([Holder.ID]),
// which goroutines of one client can share.
func (l *Lock) ID() string { return l.holding().ID() }

// Token returns the fencing token. Tokens rise with every grant of the lock, even if the bucket
// was deleted and re-created, but not if it was restored from a backup. Renewals keep the token.
// A resource that refuses tokens below the highest it has seen is safe from a holder that was
// paused past its validity: see docs/guide/fencing.md. Tokens stay below 2^53 until 2060, so
// JSON parsers that use doubles read them exactly.
func (l *Lock) Token() uint64 { return l.holding().Token() }

// Context returns a child of the acquire's context. It ends when the lock does, no later than
// the validity, with a cause that matches [ErrReleased], [ErrHandedOff], [ErrEnded], [ErrLost],
// [ErrBroken] or [ErrClosed]. If its parent ends first, the cause is the parent's, and the lock
// is still held.
func (l *Lock) Context() context.Context { return l.holding().Context() }

// Err returns nil while the lock is held and its context has not ended. After that it returns
// the cause (see [Lock.Context]).
func (l *Lock) Err() error {
	if _, _, cause := l.holding().Status(); cause != nil {
		return cause
	}
	return context.Cause(l.holding().Context())
}

// Remaining returns how much of the validity is left, or 0 once the lock has ended. Time that
// the machine spends asleep counts, if the platform has a clock for it.
func (l *Lock) Remaining() time.Duration {
	_, left, cause := l.holding().Status()
	if cause != nil {
		return 0
	}
	return max(left, 0)
}

// Extend renews the lock immediately, with a new TTL, or with the same one if ttl is 0. It waits
// for the server until ctx or the validity ends.
//
// Extend returns nil if the server confirmed the renewal within the validity. The new validity
// starts at the moment the request was sent. The error matches [ErrInvalid] for an [Until] lock,
// and for a ttl that [TTL] or the [EarlyWarning] refuses. If the lock has ended, the error is
// the cause (see [Lock.Context]).
//
// If ctx had ended before the call, the error matches only ctx's error, and nothing was sent. If
// ctx ended during the call, the error also matches [ErrUnavailable]: the server may have
// extended the lock, but the validity stays as it was, or gets shorter if ttl is.
func (l *Lock) Extend(ctx context.Context, ttl time.Duration) error {
	h := l.holding()
	if ctx == nil && h != (noLock{}) {
		return fmt.Errorf("extend lock %q: %w", l.Name(), errNoContext)
	}
	err := h.Extend(ctx, ttl)
	runtime.KeepAlive(l)
	return err
}

// SetMeta replaces the lock's metadata with m, within the limits of [Meta], and renews the lock.
// Of two concurrent calls, the later one wins.
//
// SetMeta returns nil if the server stored m within the validity. The error matches [ErrInvalid]
// if m is too large, for an [Until] or [NoRenew] lock, and for a reader. If the lock has ended,
// the error is the cause (see [Lock.Context]). ctx works as in [Lock.Extend], but if it ends
// during the call, the next renewal stores m if this request did not.
func (l *Lock) SetMeta(ctx context.Context, m map[string]string) error {
	h := l.holding()
	if ctx == nil && h != (noLock{}) {
		return fmt.Errorf("set the metadata of lock %q: %w", l.Name(), errNoContext)
	}
	err := h.SetMeta(ctx, m)
	runtime.KeepAlive(l)
	return err
}

// Contended returns a channel that is closed when another client queues for the lock, or another
// goroutine of this client waits for it. Use it as a hint to finish early. For a reader, only
// waiting writers close the channel.
//
// Contended does not block. The client learns of a waiter immediately, or within 5 s if the
// notification is lost, but not of a [Client.TryLock], which does not queue. A user that is not
// allowed to read the queue learns only of its own client's goroutines.
func (l *Lock) Contended() <-chan struct{} {
	ch := l.holding().Contended()
	runtime.KeepAlive(l)
	return ch
}

// Unlock ends the lock's context, and then deletes its record. It waits for the server until ctx
// ends or the release timeout passes (5 s by default, see [Tuning]), and then continues in the
// background. A ctx that is nil or had ended before the call is ignored, so a deferred Unlock
// works. Further calls return the result of the first.
//
// Unlock returns nil if the call came within the validity and nothing shows that the lock had
// already been lost. Otherwise the error matches one of these:
//
//   - [ErrLost] or [ErrBroken]: the lock had been lost, and other clients may have held it.
//   - [ErrClosed] or [ErrEnded]: [Client.Close] had ended the lock, or the time of an [Until]
//     lock was over. Any work after that was unprotected.
//   - [ErrUnavailable]: the lock was held until the call, but the server did not confirm the
//     release, so the next holder may have to wait for the TTL. The error also matches ctx's
//     error if, and only if, ctx ended the wait.
func (l *Lock) Unlock(ctx context.Context) error {
	h := l.holding()
	if h != (noLock{}) {
		l.cleanup.Stop()
	}
	if ctx == nil {
		ctx = context.Background()
	}
	err := h.Release(ctx)
	runtime.KeepAlive(l)
	return err
}

// retire ends the lock's context and leaves the record to expire with its TTL.
func (l *Lock) retire() error {
	l.cleanup.Stop()
	err := l.holding().Retire()
	runtime.KeepAlive(l)
	return err
}

// Do calls fn with the lock's context and the lock, and unlocks when fn returns or panics. It
// returns fn's error joined with that of [Lock.Unlock]. If fn is nil, the lock stays held.
func (l *Lock) Do(fn func(ctx context.Context, l *Lock) error) error {
	if l.holding() == (noLock{}) {
		return errNoLock
	}
	if fn == nil {
		return fmt.Errorf("lock %q: %w", l.Name(), errNoFunc)
	}
	return run(func() error { return fn(l.Context(), l) }, func() error { return l.Unlock(l.Context()) })
}

// run calls fn and then unlock, even if fn panics, and joins their errors.
func run(fn, unlock func() error) (err error) {
	returned := false
	defer func() {
		after := unlock()
		if returned {
			err = plain.Join(err, after)
		}
	}()
	err = fn()
	returned = true
	return err
}
