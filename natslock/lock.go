package natslock

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/natslock/locks/internal/lease"
)

// State is the state of a [Lock].
type State int

const (
	// Held: the lock is inside its validity.
	Held State = iota
	// Lost: the lock ended without an Unlock.
	Lost
	// Released: the lock was unlocked.
	Released
)

func (s State) String() string {
	switch s {
	case Held:
		return "held"
	case Lost:
		return "lost"
	case Released:
		return "released"
	}
	return fmt.Sprintf("State(%d)", int(s))
}

// Lock is a lock that was granted. It must be unlocked. A Lock that is dropped
// without is noticed and warned of; its lease then runs out.
type Lock struct {
	lease   lease.Holding
	cleanup runtime.Cleanup
}

// Name returns the lock's name.
func (l *Lock) Name() string { return l.lease.Name() }

// ID returns the id of this acquisition. No other acquisition ever has it.
func (l *Lock) ID() string { return l.lease.ID() }

// Token returns the fencing token. It is greater than the token of every holder before,
// even if the bucket was deleted and re-created. It is below 2^63, and below 2^53 until
// the year 2255. A resource that refuses tokens smaller than the greatest it has seen
// is safe from a holder that was paused past its validity.
func (l *Lock) Token() uint64 { return l.lease.Token() }

// Context returns a child of the acquire's context. It ends when the lock ends, at the
// latest with the validity, or when its parent ends. context.Cause returns an error
// that matches [ErrReleased], [ErrLost], [ErrBroken] or [ErrClosed]. If the parent
// ended, it returns the parent's cause, and the lock is still held.
func (l *Lock) Context() context.Context { return l.lease.Context() }

// Done returns the Done channel of the lock's context.
func (l *Lock) Done() <-chan struct{} { return l.lease.Context().Done() }

// Err returns nil while the lock is held and its context has not ended. Then it returns
// the cause.
func (l *Lock) Err() error {
	if _, _, cause := l.lease.Status(); cause != nil {
		return cause
	}
	return context.Cause(l.lease.Context())
}

// State returns the state of the lock. It reads the clock and does no I/O.
func (l *Lock) State() State {
	s, _, _ := l.lease.Status()
	return State(s)
}

// ValidUntil returns the end of the validity as wall-clock time, for logs. A renewal
// moves it. Once the lock has ended, the time is in the past.
func (l *Lock) ValidUntil() time.Time {
	return time.Now().Add(l.lease.Left())
}

// Remaining returns how much of the validity is left, or 0 once the lock has ended. Its
// clock counts the time in which the machine sleeps, where the platform has such a
// clock.
func (l *Lock) Remaining() time.Duration {
	_, left, cause := l.lease.Status()
	if cause != nil {
		return 0
	}
	return max(left, 0)
}

// Extend confirms the lock with the server now, with a new TTL; 0 keeps the TTL.
//
// It returns nil when the server has confirmed it within the validity: the
// validity then counts from this call's sending. Otherwise the error is the
// cause of the lock's end, matches [ErrInvalidTTL], or matches ctx's error: then
// it is not known whether the server has taken it, and the validity is as it
// was, or shorter if a shorter TTL was asked for. Where ctx had ended before,
// nothing was asked for.
func (l *Lock) Extend(ctx context.Context, ttl time.Duration) error {
	err := l.lease.Extend(ctx, ttl)
	runtime.KeepAlive(l)
	return err
}

// Unlock ends the lock's context and deletes its record. It ignores ctx, so it works
// after ctx has ended. It waits for the server until the client's release timeout
// passes ([WithReleaseTimeout]). Further calls return the result of the first.
//
// It returns nil if the call came inside the validity and nothing contradicts that. An
// error that matches [ErrLost] or [ErrBroken] means that the lock was lost before, so
// other clients may have held it. An error that matches [ErrUnavailable] means that the
// lock was valid to the end, but the server did not confirm the release. The next
// holder may then have to wait for the TTL.
func (l *Lock) Unlock(ctx context.Context) error {
	l.cleanup.Stop()
	err := l.lease.Release()
	runtime.KeepAlive(l)
	return err
}

// Do runs fn with the lock's context, and unlocks when fn returns or panics. It returns
// fn's error joined with the error of the unlock.
func (l *Lock) Do(fn func(ctx context.Context, l *Lock) error) (err error) {
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
