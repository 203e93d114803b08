package call

import (
	"errors"
	"fmt"
	"time"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/record"
)

// Sentinel errors for a failed acquire. Package natslock documents them.
var (
	ErrLocked  = errors.New("lock is held")
	ErrTimeout = errors.New("timed out waiting for the lock")
)

// ErrMaxWait is the cause of a wait's context once the maximum wait has elapsed. A caller that sets one limit for
// several acquires passes them a context that ends with this cause.
var ErrMaxWait = errors.New("the maximum wait has passed")

// The remaining causes, apart from the caller's own.
var (
	errUntilOver = errors.New("the requested end time has passed")
	errOnceLimit = errors.New("no answer in time")
)

// BusyError explains why a one-shot acquire did not get the lock. Package natslock turns it into an error that matches
// [ErrLocked].
type BusyError struct {
	Kind   record.Kind
	Name   string
	Holder record.Entry // zero if the lock is free but others are queued for it
	Own    bool         // held by this client
	Queued int
}

func (e *BusyError) Error() string { return fmt.Sprintf("lock %q is held", e.Name) }

// WaitError reports that a call gave up waiting. Package natslock turns it into an error that matches [ErrTimeout] and
// the cause.
type WaitError struct {
	Name     string
	Waited   time.Duration
	Holder   record.Entry // zero if unknown
	Own      bool         // held by this client
	Position int          // in the queue, counting from 1; 0 if unknown
	Cause    error        // the context's cause, an outage, or both; nil if only the maximum wait was over
}

func (e *WaitError) Error() string { return fmt.Sprintf("gave up waiting for lock %q", e.Name) }

// ErrUnanswered means that the server gave a call no usable answer.
var ErrUnanswered = fmt.Errorf("%w: no usable answer in time", bucket.ErrUnavailable)
