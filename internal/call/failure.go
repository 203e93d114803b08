package call

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/plain"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/session"
)

// Failure returns the error for an acquire that was not granted.
func (a *Call) Failure(r result) error {
	switch r.Outcome {
	case free, busy:
		return a.Locked(r.Entry)
	case ended:
		return a.GaveUp(r.Err)
	}
	if cause := a.Over(); cause != nil && !bucket.IsAny(r.Err, bucket.ErrPermission, errInvalidTTL, errSlowLink) {
		return a.GaveUp(cause) // the end of the wait takes precedence over any other failure
	}
	return fmt.Errorf("acquire lock %q: %w", a.Req.Name, r.Err)
}

// Locked returns the error for a one-shot acquire that found the lock held, or other goroutines queued for it.
func (a *Call) Locked(holder record.Entry) error {
	err := &BusyError{Kind: a.Req.Kind, Name: a.Req.Name}
	if holder.Live() {
		err.Holder = holder
		err.Own = holder.Client == a.c.b.Client
	}
	if a.queue != nil {
		err.Queued = *a.queue
	} else if l, listErr := a.c.b.ListSoon(a.ctx, a.Keys.Place("*"), a.asOf); listErr == nil {
		for _, e := range record.Queue(l.Records) {
			err.Queued += e.Goroutines()
		}
	}
	return err
}

// unavailable returns the outage that the call ran into before it gave up, or nil if there was none. The error never
// matches a context error, because this client, not the caller, ended the request's context.
func (a *Call) unavailable() error {
	err := a.outage
	switch {
	case !a.Requested:
		return nil
	case err == nil && a.Req.Once: // a one-shot call waits only for answers
		return ErrUnanswered
	case err == nil && a.c.b.Away():
		return fmt.Errorf("%w: the connection is down", bucket.ErrUnavailable)
	case bucket.IsAny(err, context.DeadlineExceeded, context.Canceled):
		return fmt.Errorf("%w: %v", bucket.ErrUnavailable, err)
	case err != nil:
		return bucket.Unavailable(err)
	}
	return nil
}

// GaveUp returns the error for a call that gave up because of cause, and publishes the event.
func (a *Call) GaveUp(cause error) error {
	waited := a.waited()
	if cause == nil { // the bucket was unfit but is fit again
		cause = a.c.b.Refused()
	}
	var err error
	switch {
	case errors.Is(cause, bucket.ErrClosed), a.c.b.Life().Err() != nil && errors.Is(cause, bucket.ErrUnavailable):
		err = fmt.Errorf("acquire lock %q: %w", a.Req.Name, cause)
	case errors.Is(cause, kvstore.ErrBucketConfig):
		err = fmt.Errorf("acquire lock %q: no lock is granted until the bucket is repaired: %w", a.Req.Name, cause)
	case errors.Is(cause, errOnceLimit):
		err = fmt.Errorf("acquire lock %q: %w: no answer within %v", a.Req.Name, bucket.ErrUnavailable, waited.Round(time.Millisecond))
	default:
		w := &WaitError{Name: a.Req.Name, Waited: waited}
		if a.seen != nil {
			w.Holder, w.Position = a.seen.Holder, a.seen.Ahead
			w.Own = w.Holder.Live() && w.Holder.Client == a.c.b.Client
		}
		if !errors.Is(cause, ErrMaxWait) {
			w.Cause = cause
			if a.Parent.Err() != nil {
				w.Cause = plain.EndOf(a.Parent)
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
	ev := session.Event{Type: session.EventGaveUp, Kind: a.Req.Kind, Name: a.Req.Name, Waited: waited, Cause: err, ID: a.id}
	a.c.s.Notify(a.Parent, ev)
	return err
}
