package session

import (
	"context"
	"fmt"
	"time"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/keeper"
	"github.com/natslock/locks/internal/plain"
	"github.com/natslock/locks/internal/record"
)

// Handed identifies a lock that its holder has handed over.
type Handed struct {
	Kind  record.Kind
	Name  string
	ID    string // the claim's id
	Token uint64
	TTL   time.Duration
}

// MayHandOff returns nil if the holder can hand the lock over now. The error matches [record.ErrInvalidOption] if this
// lock can never be handed over; otherwise it is the cause of the holder's end.
func (h *Holder) MayHandOff() error {
	l := h.lease
	if _, _, cause := h.Status(); cause != nil {
		return cause
	}
	l.s.Lock()
	defer l.s.Unlock()
	switch {
	case l.shared():
		return fmt.Errorf("hand off lock %q: %w: it is held for reading", l.Name, record.ErrInvalidOption)
	case l.Kind == record.Semaphore:
		return fmt.Errorf("hand off lock %q: %w: it is a semaphore permit", l.Name, record.ErrInvalidOption)
	case l.Valid.Bounded():
		return fmt.Errorf("hand off lock %q: %w: it has a fixed end time", l.Name, record.ErrInvalidOption)
	case h.wishes != nil && h.wishes.Least > 0:
		return fmt.Errorf("hand off lock %q: %w: it has a minimum hold", l.Name, record.ErrInvalidOption)
	}
	return nil
}

// HandOff ends the lease and leaves its record to a client that adopts the lock. It does so with a final renewal that
// marks the record as fixed. The context ends first, because the work under it must not overlap with the next holder's.
//
// HandOff returns nil if the server confirmed that renewal within the validity that the lease had before the handoff.
// Otherwise the record is left to expire with its TTL. Nothing else is ever written under the claim's id. The caller
// must have called [Holder.MayHandOff].
func (h *Holder) HandOff(ctx context.Context) (handed Handed, err error) {
	l, s := h.lease, h.lease.s
	if !s.Work.Begin() {
		return Handed{}, fmt.Errorf("hand off lock %q: %w", l.Name, bucket.ErrClosed)
	}
	s.Lock()
	var over chan struct{}
	first := false
	if l.State == Held {
		over, first = l.BeginEnd()
	}
	if !first {
		cause := l.cause
		s.Unlock()
		s.Work.Done()
		return Handed{}, cause
	}
	defer close(over)
	valid := l.Valid // as it was before the lease ended here
	l.EndBy(core.EndHandedOff)
	s.Unlock() // this ends the context

	limit := s.ReleaseTimeout
	working, cancel := context.WithCancelCause(s.Work.Context())
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { cancel(plain.EndOf(ctx)) })()
	done := make(chan keeper.Deletion, 1)
	go func() {
		defer s.Work.Done()
		done <- l.Delete(working, record.StatusGone, time.Now(), limit, nil)
	}()
	stuck := time.NewTimer(limit + limit/10)
	defer stuck.Stop()
	var d keeper.Deletion
	select {
	case d = <-done:
	case <-working.Done():
		if d.Err = bucket.ErrClosed; ctx.Err() != nil {
			d.Err = fmt.Errorf("%w: not confirmed: %w", bucket.ErrUnavailable, plain.EndOf(ctx))
		}
	case <-stuck.C:
		d.Err = fmt.Errorf("%w: the network is not accepting writes", bucket.ErrUnavailable)
	}
	found := l.endFound(d)
	if found == nil && d.Err == nil && !valid.InTime(s.b.Instant()) { //safety:handoff-in-time
		d.Err = fmt.Errorf("%w: the confirmation arrived after its validity had ended", bucket.ErrUnavailable)
	}
	switch {
	case found != nil:
		return Handed{}, l.resultIs(found)
	case d.Err != nil:
		return Handed{}, l.resultIs(fmt.Errorf("hand off lock %q (token %d): %w; it will be free when its TTL of %v has passed", l.Name, h.token, d.Err, l.Terms.TTL))
	}
	return Handed{Kind: l.Kind, Name: l.Name, ID: l.Body.ID, Token: h.token, TTL: l.Granted.TTL}, nil
}
