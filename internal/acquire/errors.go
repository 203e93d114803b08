package acquire

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/session"
	"github.com/natslock/locks/kvstore"
)

// The sentinels of an acquire, which package natslock documents.
var (
	ErrLocked  = errors.New("lock is held")
	ErrTimeout = errors.New("timed out waiting for the lock")
)

// ErrMaxWait is the cause with which the context of a wait ends when the maximum wait is
// over. A caller that bounds several acquires by one time gives them a context that ends
// with this cause.
var ErrMaxWait = errors.New("the maximum wait is over")

// The other causes, beside the caller's own.
var (
	errUntilOver = errors.New("the time it was wanted for is over")
	errOnceLimit = errors.New("no answer in time")
)

// BusyError says why a one-shot acquire got no lock. Package natslock makes an error of it
// that matches [ErrLocked].
type BusyError struct {
	Kind   record.Kind
	Name   string
	Holder record.Entry // zero when the lock is free but others are queued for it
	Own    bool         // held by this client
	Queued int
}

func (e *BusyError) Error() string { return fmt.Sprintf("lock %q is held", e.Name) }

// WaitError says how a wait ended that was given up. Package natslock makes an error of it
// that matches [ErrTimeout] and the cause.
type WaitError struct {
	Name     string
	Waited   time.Duration
	Holder   record.Entry // zero when not known
	Position int          // in the queue, from 1; 0 when not known
	Cause    error        // the context's, an outage's, or both; nil when the maximum wait was over
}

func (e *WaitError) Error() string { return fmt.Sprintf("gave up waiting for lock %q", e.Name) }

// failure is the error of an acquire that was not granted.
func (a *acquisition) failure(r result) error {
	switch r.outcome {
	case free, busy:
		return a.locked(r.entry)
	case ended:
		return a.gaveUp(r.err)
	}
	if cause := a.over(); cause != nil && !bucket.IsAny(r.err, bucket.ErrPermission, errInvalidTTL, errSlowLink) {
		return a.gaveUp(cause) // whatever it failed with meanwhile
	}
	return fmt.Errorf("acquire lock %q: %w", a.req.Name, r.err)
}

// locked is the answer to a one-shot acquire of a lock that is held or queued
// for.
func (a *acquisition) locked(holder record.Entry) error {
	err := &BusyError{Kind: a.req.Kind, Name: a.req.Name}
	if holder.Live() {
		err.Holder = holder
		err.Own = holder.Client == a.c.b.Client
	}
	if a.queue != nil {
		err.Queued = *a.queue
	} else if queue, _, listErr := a.c.list(a.ctx, a.keys.Place("*"), a.asOf, 0); listErr == nil {
		for _, e := range queue {
			err.Queued += e.Goroutines()
		}
	}
	return err
}

// unavailable is why a call that gives up may be one in an outage; nil: it is none. Its error
// matches that of no context: what it names was ended by this client.
func (a *acquisition) unavailable() error {
	err := a.outage
	switch {
	case !a.asked:
		return nil
	case err == nil && a.req.Once: // it waits for nothing but answers
		return errUnheard
	case err == nil && a.c.b.Away():
		return fmt.Errorf("%w: the connection is down", bucket.ErrUnavailable)
	case bucket.IsAny(err, context.DeadlineExceeded, context.Canceled):
		return fmt.Errorf("%w: %v", bucket.ErrUnavailable, err)
	case err != nil:
		return bucket.Unavailable(err)
	}
	return nil
}

func (a *acquisition) gaveUp(cause error) error {
	waited := a.waited()
	if cause == nil { // the bucket is fit again already
		cause = a.c.b.Refused()
	}
	var err error
	switch {
	case errors.Is(cause, bucket.ErrClosed), a.c.b.Life().Err() != nil && errors.Is(cause, bucket.ErrUnavailable):
		err = fmt.Errorf("acquire lock %q: %w", a.req.Name, cause)
	case errors.Is(cause, kvstore.ErrBucketConfig):
		err = fmt.Errorf("acquire lock %q: refused, and so is every other lock until the bucket is repaired: %w", a.req.Name, cause)
	case errors.Is(cause, errOnceLimit):
		err = fmt.Errorf("acquire lock %q: %w: no answer within %v", a.req.Name, bucket.ErrUnavailable, waited.Round(time.Millisecond))
	default:
		w := &WaitError{Name: a.req.Name, Waited: waited}
		if a.seen != nil {
			w.Holder, w.Position = a.seen.holder, a.seen.ahead
		}
		if !errors.Is(cause, ErrMaxWait) {
			w.Cause = cause
			if a.parent.Err() != nil {
				w.Cause = bucket.EndOf(a.parent)
			}
		}
		switch outage := a.unavailable(); {
		case outage == nil:
		case w.Cause == nil:
			w.Cause = outage
		default:
			w.Cause = fmt.Errorf("%w: %w", w.Cause, outage)
		}
		err = w
	}
	ev := session.Event{Type: session.EventGaveUp, Kind: a.req.Kind, Name: a.req.Name, Waited: waited, Cause: err, ID: a.id}
	a.c.s.Notify(a.parent, ev)
	return err
}
