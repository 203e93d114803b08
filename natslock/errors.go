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

// Errors to match with errors.Is.
var (
	// ErrLocked means that a one-shot acquire found the lock held or clients queued for it.
	ErrLocked = call.ErrLocked
	// ErrTimeout means that an acquire gave up because its context ended or [MaxWait] passed.
	ErrTimeout = call.ErrTimeout
	// ErrLost means that the lock ended without an Unlock and before any planned end.
	ErrLost = session.ErrLost
	// ErrBroken means that an operator broke the lock. It also matches [ErrLost].
	ErrBroken = session.ErrBroken
	// ErrReleased means that the lock was unlocked, or that a claim to be broken had already
	// ended.
	ErrReleased = session.ErrReleased
	// ErrEnded means that an [Until] lock reached its planned end. It does not match [ErrLost].
	ErrEnded = session.ErrEnded
	// ErrHandedOff means that [Lock.Handoff] handed the lock over. It also matches
	// [ErrReleased].
	ErrHandedOff = session.ErrHandedOff
	// ErrNotHandedOver means that there is nothing to adopt: see [Client.Adopt].
	ErrNotHandedOver = call.ErrNotHandedOver
	// ErrClosed means that the client was closed, or that [Client.Close] ended the lock.
	ErrClosed = bucket.ErrClosed
	// ErrInvalid means that an argument is invalid and nothing was sent. A name that this client
	// already uses for one kind of lock is invalid for another.
	ErrInvalid = kvstore.ErrInvalid
	// ErrUnavailable means that the server gave no usable answer. The error also matches the
	// context's error if, and only if, the call's context ended before the answer.
	ErrUnavailable = bucket.ErrUnavailable
	// ErrDone means that the job of a [Client.Once] is done. The error also matches [ErrLocked].
	ErrDone = errors.New("the job is done")
	// ErrPermission means that the server refuses this user a subject that the lock needs, or
	// that the accounts do not export and import it.
	ErrPermission = bucket.ErrPermission
)

// LockedError describes a lock that a one-shot acquire did not get. It matches [ErrLocked].
type LockedError struct {
	Name string
	// Holder held the lock at some point during the call. It is nil if this library cannot read
	// the record, or if the lock is free but clients are queued. For a semaphore, Holder is one
	// of several holders.
	Holder *Holder
	// Own is true if this client itself holds the lock.
	Own bool
	// Done is true if the job of a [Client.Once] is done. The lock is kept until Holder.Expires.
	Done bool
	// Lingers is true if the holder's client may keep the lock idle ([Linger]). Idle is true if
	// the lock was idle at its last renewal, up to a third of the TTL ago.
	Lingers, Idle bool
	// Queued is the number of waiting goroutines. It can be out of date by 5 s, or by a third of
	// the TTL for goroutines of the holder's client.
	Queued int

	entry   record.Entry // the holder's record
	permits bool         // the lock is a semaphore, which can have several holders
}

func (e *LockedError) Error() string {
	var b strings.Builder
	if e.permits {
		fmt.Fprintf(&b, "semaphore %q has no free permit; one is held by ", e.Name)
	} else {
		fmt.Fprintf(&b, "lock %q is held by ", e.Name)
	}
	switch {
	case e.Done:
		b.Reset()
		fmt.Fprintf(&b, "lock %q: the job was done by %s, and the lock is kept until %s", e.Name, describe(*e.Holder, e.entry), e.Holder.Expires.UTC().Format(time.RFC3339))
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

// Is reports whether target is [ErrLocked], or [ErrDone] if the job is done.
func (e *LockedError) Is(target error) bool {
	return target == ErrLocked || e.Done && target == ErrDone
}

// TimeoutError describes a wait that was given up. It matches [ErrTimeout], and the context's
// error if the context ended the wait. It also matches [ErrUnavailable], unless the last word
// from the server was that the lock is held or the caller is queued.
type TimeoutError struct {
	Name   string
	Waited time.Duration // from the call to giving up
	// Holder held the lock when the client last read it. It is nil if unknown.
	Holder *Holder
	// Own is true if this client itself held the lock. If the caller did, it waited for itself.
	Own bool
	// Position is the caller's place in the queue, counting from 1, when the client last read
	// it. It is 0 if the client was not queued, or the queue was too long to count.
	Position int

	entry record.Entry // the holder's record
	cause error
}

func (e *TimeoutError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "lock %q: gave up ", e.Name)
	if waited := e.Waited.Round(time.Millisecond); waited > 0 {
		fmt.Fprintf(&b, "after %v", waited)
	} else {
		b.WriteString("immediately")
	}
	if e.Position > 0 {
		fmt.Fprintf(&b, " at place %d in the queue", e.Position)
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

// Is reports whether target is [ErrTimeout].
func (e *TimeoutError) Is(target error) bool { return target == ErrTimeout }

// Timeout returns true, like that of any net.Error that is a timeout.
func (e *TimeoutError) Timeout() bool { return true }

// Unwrap returns the context's error, [ErrUnavailable] in an outage, or both.
func (e *TimeoutError) Unwrap() error { return e.cause }

// public converts internal errors into the documented ones.
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
	case errors.Is(err, kvstore.ErrNotFound) && !errors.Is(err, ErrUnavailable): // a missing record means a free lock, which is not an error, so the bucket is missing
		return fmt.Errorf("%w: %w: the bucket no longer exists", err, ErrUnavailable)
	}
	return err
}
