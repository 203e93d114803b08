package session

import (
	"context"
	"fmt"
	"time"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/record"
)

// Handed names a lock that its holder has handed over.
type Handed struct {
	Kind  record.Kind
	Name  string
	ID    string // of the claim
	Token uint64
	TTL   time.Duration
}

// MayHandOff returns nil if the holder can hand the lock over now. An error that matches
// [record.ErrInvalidOption] says that no lock of its sort can be. Otherwise the error is
// the cause of the holder's end.
func (h *Holder) MayHandOff() error {
	l := h.lease
	if _, _, cause := h.Status(); cause != nil {
		return cause
	}
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	switch {
	case l.shared():
		return fmt.Errorf("hand off lock %q: %w: it is held for reading", l.kept.Name, record.ErrInvalidOption)
	case l.Kind == record.Semaphore:
		return fmt.Errorf("hand off lock %q: %w: it is a permit of a semaphore", l.kept.Name, record.ErrInvalidOption)
	case l.Valid.Bounded():
		return fmt.Errorf("hand off lock %q: %w: it was taken until a given time", l.kept.Name, record.ErrInvalidOption)
	case h.wishes != nil && h.wishes.Least > 0:
		return fmt.Errorf("hand off lock %q: %w: it has a minimum hold", l.kept.Name, record.ErrInvalidOption)
	}
	return nil
}

// HandOff ends the lease, and leaves its record to a client that adopts the lock, by a last renewal, which is fixed. The
// context ends first: the work under it must not meet the next holder.
//
// It returns nil when the server has confirmed that renewal inside the validity before. Otherwise the record is left to
// its TTL. In any case nothing else is written under the id of the claim. The caller has called [Holder.MayHandOff].
func (h *Holder) HandOff(ctx context.Context) (handed Handed, err error) {
	l, s := h.lease, h.lease.s
	if !s.work.begin() {
		return Handed{}, fmt.Errorf("hand off lock %q: %w", l.kept.Name, bucket.ErrClosed)
	}
	l.s.mu.Lock()
	if l.State != Held || l.released != nil {
		cause := l.cause
		l.s.mu.Unlock()
		s.work.done()
		return Handed{}, cause
	}
	l.released = make(chan struct{})
	defer close(l.released)
	valid := l.Valid // before it ends here
	ended := l.release(core.EndHandedOff)
	l.s.mu.Unlock()
	ended.finish() //safety:handoff-context-first

	limit := s.ReleaseTimeout
	working, cancel := context.WithCancelCause(s.work.ctx)
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { cancel(bucket.EndOf(ctx)) })()
	done := make(chan deletion, 1)
	go func() {
		defer s.work.done()
		done <- l.delete(working, record.StatusGone, time.Now(), limit, nil)
	}()
	stuck := time.NewTimer(limit + limit/10)
	defer stuck.Stop()
	var d deletion
	select {
	case d = <-done:
	case <-working.Done():
		if d.err = bucket.ErrClosed; ctx.Err() != nil {
			d.err = fmt.Errorf("%w: not confirmed: %w", bucket.ErrUnavailable, bucket.EndOf(ctx))
		}
	case <-stuck.C:
		d.err = fmt.Errorf("%w: the network takes no writes", bucket.ErrUnavailable)
	}
	if d.found == nil && d.err == nil && !valid.InTime(s.b.Instant()) { //safety:handoff-in-time
		d.err = fmt.Errorf("%w: the confirmation came after the end of its validity", bucket.ErrUnavailable)
	}
	switch {
	case d.found != nil:
		return Handed{}, l.results(d.found)
	case d.err != nil:
		return Handed{}, l.results(fmt.Errorf("hand off lock %q (token %d): %w; it is free when its TTL of %v has passed", l.kept.Name, h.token, d.err, l.Terms.TTL))
	}
	return Handed{Kind: l.Kind, Name: l.kept.Name, ID: l.Body.ID, Token: h.token, TTL: l.Granted.TTL}, nil
}
