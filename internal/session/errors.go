package session

import (
	"errors"
	"fmt"
)

// The sentinels of a lease's end, which package natslock documents.
var (
	ErrLost     = errors.New("lock lost")
	ErrBroken   = fmt.Errorf("broken by an operator: %w", ErrLost)
	ErrReleased = errors.New("lock released")
	ErrEnded    = errors.New("lock ended as planned")
)

// EndError is the cause of a lease's end. It matches [ErrLost], [ErrBroken],
// [ErrReleased], [ErrEnded] or [bucket.ErrClosed].
type EndError struct {
	Name  string
	Token uint64
	Kind  error  // the sentinel
	Why   string // the evidence; may be empty
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
