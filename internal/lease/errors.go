package lease

import (
	"errors"
	"fmt"
	"time"

	"github.com/natslock/locks/kvstore"
)

// The sentinels that package natslock shows to its users, documented there.
var (
	ErrLocked        = errors.New("lock is held")
	ErrTimeout       = errors.New("timed out waiting for the lock")
	ErrLost          = errors.New("lock lost")
	ErrBroken        = fmt.Errorf("broken by an operator: %w", ErrLost)
	ErrReleased      = errors.New("lock released")
	ErrEnded         = errors.New("lock ended as planned")
	ErrClosed        = errors.New("client closed")
	ErrInvalidName   = errors.New("invalid lock name")
	ErrInvalidOption = kvstore.ErrInvalidOption
	ErrInvalidTTL    = kvstore.ErrInvalidTTL
	ErrUnavailable   = kvstore.ErrUnavailable
	ErrPermission    = kvstore.ErrPermission
)

// BusyError says who holds what a one-shot acquire asked for. It matches
// [ErrLocked].
type BusyError struct {
	Name   string
	Holder Entry // zero when the lock is free but others are queued for it
	Own    bool  // held by this client
	Queued int
}

func (e *BusyError) Error() string { return fmt.Sprintf("lock %q is held", e.Name) }

// Is makes the error match its sentinel.
func (e *BusyError) Is(target error) bool { return target == ErrLocked }

// WaitError says how a wait ended that was given up. It matches [ErrTimeout]
// and what ended it.
type WaitError struct {
	Name     string
	Waited   time.Duration
	Holder   Entry // zero when not known
	Position int   // in the queue, from 1; 0 when not known
	Cause    error // the context's, or nil when the maximum wait was over
}

func (e *WaitError) Error() string { return fmt.Sprintf("gave up waiting for lock %q", e.Name) }

// Is makes the error match its sentinel.
func (e *WaitError) Is(target error) bool { return target == ErrTimeout }

// Unwrap makes the error match what ended the wait.
func (e *WaitError) Unwrap() error { return e.Cause }

// EndError is the cause of a lease's end. It matches [ErrLost], [ErrBroken],
// [ErrReleased], [ErrEnded] or [ErrClosed].
type EndError struct {
	Name  string
	Token uint64
	Kind  error  // the sentinel
	Why   string // what was seen; may be empty
}

func (e *EndError) Error() string {
	s := fmt.Sprintf("lock %q (token %d): %v", e.Name, e.Token, e.Kind)
	if e.Why != "" {
		s += ": " + e.Why
	}
	return s
}

// Unwrap makes the error match its sentinel.
func (e *EndError) Unwrap() error { return e.Kind }
