package natslock

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/call"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/session"
)

// Errors to branch on with errors.Is.
var (
	// ErrLocked: a one-shot acquire found the lock held, or clients queued for it. The error is
	// a *[LockedError].
	ErrLocked = call.ErrLocked
	// ErrTimeout: the wait ended, because the context ended or [MaxWait] passed. The error
	// is a *[TimeoutError].
	ErrTimeout = call.ErrTimeout
	// ErrLost: the lock ended without an Unlock, before a planned end.
	ErrLost = session.ErrLost
	// ErrBroken: an operator ended the lock. It matches [ErrLost] too.
	ErrBroken = session.ErrBroken
	// ErrReleased: the lock was unlocked, or the claim to be broken has already ended.
	ErrReleased = session.ErrReleased
	// ErrEnded: an [Until] lock was held to its planned end. It does not match
	// [ErrLost].
	ErrEnded = session.ErrEnded
	// ErrHandedOff: the holder handed the lock over with [Lock.Handoff]. It matches
	// [ErrReleased] too.
	ErrHandedOff = session.ErrHandedOff
	// ErrNotHandedOver: the handle has nothing to adopt; see [Client.Adopt].
	ErrNotHandedOver = call.ErrNotHandedOver
	// ErrClosed: the client was closed.
	ErrClosed = bucket.ErrClosed
	// ErrInvalid: an argument is invalid, and the error says which and why. A name that this
	// client already uses for one kind of lock is invalid for another. Nothing was sent.
	ErrInvalid = kvstore.ErrInvalid
	// ErrUnavailable: the server gave no usable answer. The error also matches the context's
	// error if, and only if, the context of the call ended before the answer.
	ErrUnavailable = bucket.ErrUnavailable
	// ErrDone: the job of a [Client.Once] is done. The error matches [ErrLocked] too.
	ErrDone = errors.New("the job is done")
	// ErrPermission: the server refuses this user a subject that the lock needs, or the accounts do
	// not export and import that subject.
	ErrPermission = bucket.ErrPermission
)

// LockedError describes a lock that a one-shot acquire did not get. It matches [ErrLocked].
type LockedError struct {
	Name string
	// Holder held the lock at some point during the call. It is nil if this library
	// cannot read the record, or if the lock is free but clients are queued. For a
	// semaphore it is one of the holders.
	Holder *Holder
	// Own is true when this client holds the lock itself.
	Own bool
	// Done is true when Holder has done the job of a [Client.Once]. The lock is kept until
	// Holder.Expires.
	Done bool
	// Lingers is true if the holder's client may keep the lock idle ([Linger]). Idle is true if
	// no goroutine was inside when that client wrote the record, up to a third of the TTL ago.
	// [Client.Lock] gets an idle lock at once, but a one-shot acquire does not.
	Lingers, Idle bool
	// Queued is the number of waiting goroutines, including those of the holder's client. Each
	// client writes its number when it renews its record: within 5 s if it is queued, and
	// within a third of the TTL if it holds the lock. Until then a client in the queue counts
	// as one waiter.
	Queued int

	entry   record.Entry // of the holder
	permits bool         // for a semaphore, whose holder is one of several
}

func (e *LockedError) Error() string {
	var b strings.Builder
	if e.permits {
		fmt.Fprintf(&b, "semaphore %q has no free permit, one is held by ", e.Name)
	} else {
		fmt.Fprintf(&b, "lock %q is held by ", e.Name)
	}
	switch {
	case e.Done:
		b.Reset()
		fmt.Fprintf(&b, "lock %q: the job is done, by %s, and kept until %s", e.Name, describe(*e.Holder, e.entry), e.Holder.Expires.UTC().Format(time.RFC3339))
	case e.Own && e.Holder != nil && !e.entry.Left():
		fmt.Fprintf(&b, "this client itself (token %d)", e.Holder.Token)
	case e.Holder != nil:
		b.WriteString(describe(*e.Holder, e.entry))
		switch {
		case e.Idle:
			b.WriteString(", idle when last renewed")
		case e.Lingers:
			b.WriteString(", which lingers and may be idle")
		}
	case e.Queued > 0 && !e.entry.Unreadable:
		b.Reset()
		fmt.Fprintf(&b, "lock %q has a queue", e.Name)
	default:
		b.WriteString("an unknown owner")
	}
	if e.Queued > 0 {
		fmt.Fprintf(&b, ", %d waiting", e.Queued)
	}
	return b.String()
}

// Is makes the error match [ErrLocked], and [ErrDone] if the job is done.
func (e *LockedError) Is(target error) bool {
	return target == ErrLocked || e.Done && target == ErrDone
}

// TimeoutError describes a wait that was given up. It matches [ErrTimeout], and the context's
// error if that ended the wait. In an outage, that is, unless the server's last word was that
// the lock is held or the caller is queued, it also matches [ErrUnavailable].
type TimeoutError struct {
	Name   string
	Waited time.Duration // from the call to giving up
	// Holder held the lock when the client last read it. It is nil if unknown.
	Holder *Holder
	// Own is true when this client held the lock itself: in another goroutine, or in the caller,
	// which then waited for itself.
	Own bool
	// Position is the place in the queue, from 1, when the client last read it. It is 0 if the
	// client was not queued, or did not count because the queue was long.
	Position int

	entry record.Entry // of the holder
	cause error
}

func (e *TimeoutError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "lock %q: gave up ", e.Name)
	if waited := e.Waited.Round(time.Millisecond); waited > 0 {
		fmt.Fprintf(&b, "after %v", waited)
	} else {
		b.WriteString("at once")
	}
	if e.Position > 0 {
		fmt.Fprintf(&b, " at place %d of the queue", e.Position)
	}
	switch {
	case e.Own && e.Holder != nil && !e.entry.Left():
		fmt.Fprintf(&b, ", held by this client itself (token %d)", e.Holder.Token)
	case e.Holder != nil:
		fmt.Fprintf(&b, ", held by %s", describe(*e.Holder, e.entry))
	}
	if e.cause != nil {
		fmt.Fprintf(&b, ": %s", strings.ReplaceAll(e.cause.Error(), "\n", ": "))
	}
	return b.String()
}

// Is makes the error match [ErrTimeout].
func (e *TimeoutError) Is(target error) bool { return target == ErrTimeout }

// Timeout returns true, as for a net.Error that is a timeout.
func (e *TimeoutError) Timeout() bool { return true }

// Unwrap makes the error match the context's, and [ErrUnavailable] in an outage.
func (e *TimeoutError) Unwrap() error { return e.cause }

// public converts internal errors into those documented here.
func public(err error) error {
	if busy, ok := errors.AsType[*call.BusyError](err); ok {
		h := busy.Holder
		lingers := h.Lingers && h.Status == record.StatusHeld
		return &LockedError{Name: busy.Name, Holder: knownHolder(h), Own: busy.Own, Done: h.Done(), Lingers: lingers, Idle: lingers && !h.InUse,
			Queued: busy.Queued + h.Goroutines() - 1, entry: h, permits: busy.Kind == record.Semaphore}
	}
	if wait, ok := errors.AsType[*call.WaitError](err); ok {
		return &TimeoutError{Name: wait.Name, Waited: wait.Waited, Holder: knownHolder(wait.Holder), Own: wait.Own, Position: wait.Position, entry: wait.Holder, cause: wait.Cause}
	}
	switch {
	case errors.Is(err, kvstore.ErrClosed) && !errors.Is(err, ErrClosed):
		return fmt.Errorf("%w: %w", ErrClosed, err)
	case errors.Is(err, kvstore.ErrNotFound) && !errors.Is(err, ErrUnavailable): // it cannot mean a free lock, which is no error
		return fmt.Errorf("%w: %w: the bucket is gone", err, ErrUnavailable)
	}
	return err
}
