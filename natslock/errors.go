package natslock

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/natslock/locks/internal/acquire"
	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/session"
	"github.com/natslock/locks/kvstore"
)

// Errors to branch on with errors.Is.
var (
	// ErrLocked: a one-shot acquire found the lock held, or others queued for
	// it. The error is a *[LockedError].
	ErrLocked = acquire.ErrLocked
	// ErrTimeout: the wait was given up: its context ended, or its [MaxWait]
	// was over. The error is a *[TimeoutError], and matches the context's error
	// too if that ended the wait. A one-shot acquire waits for nothing but the
	// server's answers: if its context ends meanwhile, the error matches
	// [ErrUnavailable] as well.
	ErrTimeout = acquire.ErrTimeout
	// ErrLost: the lock ended without an Unlock, before an end that was planned.
	ErrLost = session.ErrLost
	// ErrBroken: an operator ended the lock. It matches [ErrLost] too.
	ErrBroken = session.ErrBroken
	// ErrReleased: the lock was unlocked.
	ErrReleased = session.ErrReleased
	// ErrEnded: an [Until] lock was held to its planned end. It does not match
	// [ErrLost].
	ErrEnded = session.ErrEnded
	// ErrClosed: the client was closed.
	ErrClosed = bucket.ErrClosed
	// ErrInvalidName: the name is empty or too long. Nothing was sent.
	ErrInvalidName = record.ErrInvalidName
	// ErrInvalidTTL: the TTL or the end is not one a lease can have. Nothing
	// was sent.
	ErrInvalidTTL = clock.ErrInvalidTTL
	// ErrInvalidOption: an option has a value that makes no sense. Nothing was
	// sent.
	ErrInvalidOption = record.ErrInvalidOption
	// ErrUnavailable: the server gave no usable answer. The error matches the
	// context's error too if the call's own context ended before the answer came,
	// and only then.
	ErrUnavailable = bucket.ErrUnavailable
	// ErrPermission: the server refuses this user what the lock needs.
	ErrPermission = bucket.ErrPermission
)

// LockedError says who holds a lock that was asked for once. It matches
// [ErrLocked].
type LockedError struct {
	Name string
	// Holder held the lock at a moment during the call. It is nil when it is
	// unknown: the record is none this library can read, or the lock is free and
	// others are queued for it.
	Holder *Holder
	// Own says that this client holds the lock itself.
	Own bool
	// Queued is how many wait for the lock.
	Queued int

	unknown bool // held, by a record that cannot be read
}

func (e *LockedError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "lock %q is held by ", e.Name)
	switch {
	case e.Own:
		fmt.Fprintf(&b, "this client itself (token %d)", e.Holder.Token)
	case e.Holder != nil:
		b.WriteString(e.Holder.describe())
	case e.Queued > 0 && !e.unknown:
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

// Is makes the error match [ErrLocked].
func (e *LockedError) Is(target error) bool { return target == ErrLocked }

// TimeoutError says what a wait that was given up had come to. It matches
// [ErrTimeout] and the error of the context that ended it.
type TimeoutError struct {
	Name   string
	Waited time.Duration
	// Holder is who held the lock when last looked; nil when not known.
	Holder *Holder
	// Position is the place in the queue when last looked, from 1; 0 when not
	// queued, or when the queue was too long for everybody to count it.
	Position int

	cause error
}

func (e *TimeoutError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "lock %q: gave up after %v", e.Name, e.Waited.Round(time.Millisecond))
	if e.Position > 0 {
		fmt.Fprintf(&b, " at place %d of the queue", e.Position)
	}
	if e.Holder != nil {
		fmt.Fprintf(&b, ", held by %s", e.Holder.describe())
	}
	if e.cause != nil {
		fmt.Fprintf(&b, ": %s", strings.ReplaceAll(e.cause.Error(), "\n", ": "))
	}
	return b.String()
}

// Is makes the error match [ErrTimeout].
func (e *TimeoutError) Is(target error) bool { return target == ErrTimeout }

// Timeout is true: the error is one in the sense of net.Error.
func (e *TimeoutError) Timeout() bool { return true }

// Unwrap makes the error match the context's.
func (e *TimeoutError) Unwrap() error { return e.cause }

// public turns the errors of the machinery into those documented here.
func public(err error) error {
	if busy, ok := errors.AsType[*acquire.BusyError](err); ok {
		return &LockedError{Name: busy.Name, Holder: knownHolder(busy.Holder), Own: busy.Own, Queued: busy.Queued, unknown: busy.Holder.Unreadable}
	}
	if wait, ok := errors.AsType[*acquire.WaitError](err); ok {
		return &TimeoutError{Name: wait.Name, Waited: wait.Waited, Holder: knownHolder(wait.Holder), Position: wait.Position, cause: wait.Cause}
	}
	switch {
	case errors.Is(err, kvstore.ErrClosed) && !errors.Is(err, ErrClosed):
		return fmt.Errorf("%w: %w", ErrClosed, err)
	case errors.Is(err, kvstore.ErrNotFound) && !errors.Is(err, ErrUnavailable): // a lock that is free is none
		return fmt.Errorf("%w: %w: the bucket is gone", err, ErrUnavailable)
	}
	return err
}
