package session

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/plain"
	"github.com/natslock/locks/internal/record"
)

// Extend renews the lease immediately and waits for the confirmation. A ttl of 0 keeps the current TTL. Any other ttl
// applies until this holder leaves, but can only lengthen a lease that other readers share. If ctx ends first, the
// outcome is unknown, and the lease remains valid for as long as before, or for less if ttl is shorter.
func (h *Holder) Extend(ctx context.Context, ttl time.Duration) error {
	l := h.lease
	var t clock.Terms
	if ttl != 0 {
		rounded, err := clock.RoundTTL(ttl, l.Body.Fixed)
		if err != nil {
			return fmt.Errorf("extend lock %q: %w", l.Name, err)
		}
		t = clock.NewTerms(rounded)
		l.s.Lock()
		warn := time.Duration(0)
		if h.wishes != nil {
			warn = h.wishes.warnBefore
		}
		l.s.Unlock()
		if warn >= t.Validity() {
			return fmt.Errorf("extend lock %q: %w: a lease of %v is valid for %v, which is not longer than the early warning of %v", l.Name, clock.ErrInvalidTTL, rounded, t.Validity(), warn)
		}
	}
	if _, _, cause := h.Status(); cause != nil {
		return cause
	}
	if ctx.Err() != nil {
		return fmt.Errorf("extend lock %q: not requested: %w", l.Name, plain.EndOf(ctx))
	}
	if l.Valid.Bounded() { // set once, before the lease was shared
		return fmt.Errorf("%w: lock %q has a fixed end time and cannot be extended", clock.ErrInvalidTTL, l.Name)
	}
	if ttl != 0 {
		l.s.Lock()
		if h.cause == nil {
			h.wanted().Terms = t
			l.wanted()
		}
		l.s.Unlock()
	}
	return h.confirm(ctx)
}

// SetMeta replaces the record's metadata and waits until a renewal that carries it is confirmed. If ctx ends first,
// the next renewal still carries it. The metadata of a lease that is not renewed, or that readers share, cannot be
// replaced.
func (h *Holder) SetMeta(ctx context.Context, meta map[string]string) error {
	l := h.lease
	given, limit, fits := l.s.b.Body(record.StatusHeld, meta).Fits(l.s.b.MaxValue())
	switch {
	case l.shared():
		return fmt.Errorf("set the metadata of lock %q: %w: readers share a record, whose metadata cannot be changed", l.Name, record.ErrInvalidOption)
	case l.Body.Fixed:
		return fmt.Errorf("set the metadata of lock %q: %w: the client does not renew this lease, and a write would restart its TTL", l.Name, record.ErrInvalidOption)
	case !fits:
		return fmt.Errorf("set the metadata of lock %q: %w: with this metadata the record has %d bytes; the limit is %d", l.Name, record.ErrInvalidOption, given, limit)
	}
	asked := ctx.Err() == nil
	l.s.Lock()
	if asked && h.cause == nil { //safety:meta-of-holder
		x := h.wanted()
		x.unstored = append(x.unstored, unstored{l.Body.Meta, l.Renewal()})
		l.Body.Meta = maps.Clone(meta)
	}
	l.s.Unlock()
	switch _, _, cause := h.Status(); {
	case cause != nil:
		return cause
	case !asked:
		return fmt.Errorf("set the metadata of lock %q: not requested: %w", l.Name, plain.EndOf(ctx))
	}
	return h.confirm(ctx)
}

// unstored is a SetMeta call whose metadata has not been confirmed.
type unstored struct {
	before map[string]string // the metadata it replaced
	after  uint64            // renewals with higher numbers carry the new metadata
}

// confirm waits until the holder's wishes are confirmed.
func (h *Holder) confirm(ctx context.Context) error {
	err := h.lease.Confirm(ctx)
	if _, _, cause := h.Status(); cause != nil { // the holder has left in the meantime
		return cause
	}
	return err
}
