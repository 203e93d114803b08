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

// Extend renews the lease now and waits for the confirmation. ttl 0 keeps the TTL. Another ttl applies until this
// holder leaves. While other readers share the lease, it can only lengthen it. If ctx ends first, the outcome is
// unknown, and the lease is valid for as long as before, or for less if ttl is shorter.
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
		return fmt.Errorf("extend lock %q: not asked for: %w", l.Name, plain.EndOf(ctx))
	}
	if l.Valid.Bounded() { // set once, before the lease was shared
		return fmt.Errorf("%w: lock %q was taken until a given time and cannot be extended", clock.ErrInvalidTTL, l.Name)
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

// SetMeta replaces the metadata in the record and waits for the confirmation of a renewal that carries them. If ctx
// ends first, the next renewal still carries them. The record of a lease that is not renewed, or that readers share,
// keeps its metadata.
func (h *Holder) SetMeta(ctx context.Context, meta map[string]string) error {
	l := h.lease
	given, limit, fits := l.s.b.Body(record.StatusHeld, meta).Fits(l.s.b.MaxValue())
	switch {
	case l.shared():
		return fmt.Errorf("set the metadata of lock %q: %w: readers share a record, whose metadata stay", l.Name, record.ErrInvalidOption)
	case l.Body.Fixed:
		return fmt.Errorf("set the metadata of lock %q: %w: the client does not renew this lease, and a write would begin its TTL again", l.Name, record.ErrInvalidOption)
	case !fits:
		return fmt.Errorf("set the metadata of lock %q: %w: the metadata make a record larger than %d bytes: it has %d", l.Name, record.ErrInvalidOption, limit, given)
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
		return fmt.Errorf("set the metadata of lock %q: not asked for: %w", l.Name, plain.EndOf(ctx))
	}
	return h.confirm(ctx)
}

// unstored is a SetMeta whose metadata are not confirmed.
type unstored struct {
	before map[string]string // the metadata that it has replaced
	after  uint64            // renewals with the new ones have higher numbers
}

// confirm waits for the confirmation of the holder's wishes.
func (h *Holder) confirm(ctx context.Context) error {
	err := h.lease.Confirm(ctx)
	if _, _, cause := h.Status(); cause != nil { // the holder left meanwhile
		return cause
	}
	return err
}
