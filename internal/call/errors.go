package call

import (
	"errors"
	"fmt"
	"time"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/record"
)

// The sentinels of an acquire, which package natslock documents.
var (
	ErrLocked  = errors.New("lock is held")
	ErrTimeout = errors.New("timed out waiting for the lock")
)

// ErrMaxWait is the cause with which the context of a wait ends when the maximum wait is over. A caller that sets one
// limit for several acquires gives them a context that ends with this cause.
var ErrMaxWait = errors.New("the maximum wait is over")

// The other causes, except the caller's own.
var (
	errUntilOver = errors.New("the time it was wanted for is over")
	errOnceLimit = errors.New("no answer in time")
)

// BusyError tells why a one-shot acquire got no lock. Package natslock turns it into an error that matches [ErrLocked].
type BusyError struct {
	Kind   record.Kind
	Name   string
	Holder record.Entry // zero if the lock is free but others are queued for it
	Own    bool         // held by this client
	Queued int
}

func (e *BusyError) Error() string { return fmt.Sprintf("lock %q is held", e.Name) }

// WaitError describes the end of a wait that was given up. Package natslock turns it into an error that matches
// [ErrTimeout] and the cause.
type WaitError struct {
	Name     string
	Waited   time.Duration
	Holder   record.Entry // zero if not known
	Own      bool         // held by this client
	Position int          // in the queue, from 1; 0 if not known
	Cause    error        // the context's, an outage's, or both; nil if the maximum wait was over
}

func (e *WaitError) Error() string { return fmt.Sprintf("gave up waiting for lock %q", e.Name) }

// ErrUnanswered means that the server has given no usable answer to a call.
var ErrUnanswered = fmt.Errorf("%w: no usable answer by then", bucket.ErrUnavailable)
