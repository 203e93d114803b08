package session

import (
	"context"
	"fmt"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/keeper"
)

// Release ends the lease and deletes its record. Further calls wait for the first and return its result. The context
// ends first: the work under it must not meet the next holder.
//
// Release returns nil if it was called inside the validity and nothing shows that the lock had been lost before.
// Otherwise it returns the cause of the end. If the server does not answer within the release timeout, the error
// matches [bucket.ErrUnavailable], the deletion continues in the background, and the TTL frees the lock at the latest.
//
// If ctx ends during the wait for the server, the wait ends, and the deletion continues in the background. A ctx that
// had ended before, or ends with the lease, is ignored.
func (l *Lease) Release(ctx context.Context) error { return l.finish(ctx, true) }

// Retire is Release, but leaves the record, which keeps others out until its TTL ends. The lease must no longer be
// renewed. Retire sends nothing to the server.
func (l *Lease) Retire() error { return l.finish(context.Background(), false) }

// finish is Release, or Retire if the record is not to be deleted.
func (l *Lease) finish(ctx context.Context, deletes bool) error {
	s := l.s
	// The work begins before the lease ends: a Close waits for the end, and then for the work that is registered.
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
		// The caller does not wait for the end of a record that is most likely gone. A broken record is still there,
		// and keeps others out until it is deleted.
		l.DeleteLater()
		s.Work.Done()
	default:
		if ctx.Err() != nil { // the lease's own context has ended by now
			ctx = context.Background()
		}
		d := l.DeleteWithin(ctx, s.ReleaseTimeout)
		switch found := l.endFound(d); {
		case found != nil && (found.Kind == ErrBroken || s.b.Instant() < end):
			result = found
		case found != nil:
			// Refused after the end of the validity: it has simply expired since.
		case d.Err != nil:
			result = fmt.Errorf("release lock %q (token %d): %w; it is free when its TTL of %v has passed at the latest", l.Name, l.Body.Token, d.Err, l.Terms.TTL)
		}
	}
	if was != Held {
		result = cause
	}
	return l.resultIs(result)
}

// endFound returns the end that a deletion has found, nil if the record was the lease's own.
func (l *Lease) endFound(d keeper.Deletion) *EndError {
	switch {
	case d.Broken != nil:
		return &EndError{Name: l.Name, Token: l.Body.Token, Kind: ErrBroken, Why: d.Broken.BrokenBecause()}
	case d.Gone && l.Cause == core.EndHandedOff:
		return &EndError{Name: l.Name, Token: l.Body.Token, Kind: ErrLost, Why: "its record was gone when it was to be handed over"}
	case d.Gone:
		return &EndError{Name: l.Name, Token: l.Body.Token, Kind: ErrLost, Why: "its record was gone when it was to be released"}
	}
	return nil
}

// resultIs keeps the result of the release for the calls that wait for it.
func (l *Lease) resultIs(err error) error {
	if err != nil {
		l.result = &err
	}
	return err
}
