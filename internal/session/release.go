package session

import (
	"context"
	"fmt"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/keeper"
)

// Release ends the lease and deletes its record. The context ends first, because the work under it must not overlap
// with the next holder's. Further calls wait for the first and return its result.
//
// Release returns nil if it was called within the validity and nothing shows that the lock had already been lost.
// Otherwise it returns the cause of the end. If the server does not answer within the release timeout, the error
// matches [bucket.ErrUnavailable], and the deletion continues in the background; the lock is free once its TTL has
// passed, at the latest.
//
// If ctx ends while Release waits for the server, Release returns and the deletion continues in the background. A ctx
// that has already ended, or that ends with the lease, is ignored.
func (l *Lease) Release(ctx context.Context) error { return l.finish(ctx, true) }

// Retire is like Release but leaves the record in place, so that it keeps others out until its TTL ends. The lease must
// no longer be renewed. Retire sends nothing to the server.
func (l *Lease) Retire() error { return l.finish(context.Background(), false) }

// finish implements Release, and Retire if deletes is false.
func (l *Lease) finish(ctx context.Context, deletes bool) error {
	s := l.s
	// Register the work before the lease ends, because Close waits for leases to end and then for registered work.
	working := s.Work.Begin()
	s.Lock()
	over, first := l.BeginEnd()
	if !first {
		s.Unlock()
		if working {
			s.Work.Done()
		}
		<-over
		if l.result == nil {
			return nil
		}
		return *l.result
	}
	defer close(over)
	l.EndIfOver(s.b.Instant()) //safety:release-judged
	was, end := l.State, l.Valid.End
	l.EndBy(core.EndReleased)
	for h := l.holders; h != nil; h = h.next {
		h.state = Released
	}
	cause := l.cause
	s.Unlock() // this ends the context
	for h := l.holders; h != nil; h = h.next {
		// Another goroutine may still be publishing the end.
		h.cancel(cause) //safety:context-first
	}

	var result error
	switch held := was == Held; {
	case !deletes || !working:
		if working {
			s.Work.Done()
		} else if held && deletes {
			result = fmt.Errorf("release lock %q: %w", l.Name, bucket.ErrClosed)
		}
	case !held && (cause.Kind != ErrBroken || s.b.Away()):
		// The record is most likely gone, so the caller does not wait for its deletion. A broken record, by contrast,
		// is still there and keeps others out until it is deleted.
		l.DeleteLater()
		s.Work.Done()
	default:
		if ctx.Err() != nil { // it may be the lease's own context, which has ended by now
			ctx = context.Background()
		}
		d := l.DeleteWithin(ctx, s.ReleaseTimeout)
		switch found := l.endFound(d); {
		case found != nil && (found.Kind == ErrBroken || s.b.Instant() < end):
			result = found
		case found != nil:
			// The refusal came after the end of the validity, so the record has simply expired.
		case d.Err != nil:
			result = fmt.Errorf("release lock %q (token %d): %w; it will be free within its TTL of %v", l.Name, l.Body.Token, d.Err, l.Terms.TTL)
		}
	}
	if was != Held {
		result = cause
	}
	return l.resultIs(result)
}

// endFound returns the end that a deletion discovered, or nil if the record still belonged to the lease.
func (l *Lease) endFound(d keeper.Deletion) *EndError {
	switch {
	case d.Broken != nil:
		return &EndError{Name: l.Name, Token: l.Body.Token, Kind: ErrBroken, Why: d.Broken.BrokenBecause()}
	case d.Gone && l.Cause == core.EndHandedOff:
		return &EndError{Name: l.Name, Token: l.Body.Token, Kind: ErrLost, Why: "its record no longer existed when it was handed over"}
	case d.Gone:
		return &EndError{Name: l.Name, Token: l.Body.Token, Kind: ErrLost, Why: "its record no longer existed when it was released"}
	}
	return nil
}

// resultIs stores the result of the release for the calls that are waiting for it.
func (l *Lease) resultIs(err error) error {
	if err != nil {
		l.result = &err
	}
	return err
}
