package core

import (
	"math"

	"github.com/natslock/locks/internal/clock"
)

// Validity limits how long a client relies on a record that it keeps alive. The validity of a write counts from when
// the write was sent and ends a margin before the TTL does. A confirmation that arrives after the current end has no
// effect, because by then the client has canceled the contexts of the work done under the record.
type Validity struct {
	End   clock.Instant
	Until clock.Instant // latest possible end; [unbounded] if there is none
}

// unbounded is the latest end of a record that is renewed for as long as it is held.
const unbounded = clock.Instant(math.MaxInt64)

// ValidFrom returns the validity that results from a write sent at time sent.
func ValidFrom(sent clock.Instant, t clock.Terms) Validity {
	return Validity{End: t.End(sent), Until: unbounded} //safety:from-sending
}

// Bound sets the latest end of v.
func (v *Validity) Bound(until clock.Instant) { v.Until, v.End = until, min(v.End, until) }

// Bounded reports whether v has a latest end, which is set before other goroutines know of the record and never
// changes.
func (v *Validity) Bounded() bool { return v.Until != unbounded }

// Over reports whether v has ended.
func (v Validity) Over(now clock.Instant) bool { return now >= v.End }

// Planned reports whether v ends at the record's requested end.
func (v *Validity) Planned() bool { return v.Bounded() && v.End >= v.Until } //safety:planned-end

// RenewalSent records that a renewal is being sent. The server may apply it at any time from now on, and the renewal's
// TTL may be shorter than the record's. In that case, RenewalSent shortens the validity immediately and returns true.
func (v *Validity) RenewalSent(sent clock.Instant, t clock.Terms) (shorter bool) {
	if end := t.End(sent); end < v.End { //safety:shorter-at-once
		v.End = end
		return true
	}
	return false
}

// InTime reports whether a confirmation that arrives now is in time.
func (v Validity) InTime(now clock.Instant) bool { return now < v.End } //safety:late-renewal

// RenewalConfirmed handles the confirmation of a renewal. The caller has checked that it arrived in time.
func (v *Validity) RenewalConfirmed(sent clock.Instant, t clock.Terms) {
	v.End = max(v.End, t.End(sent)) //safety:renewal-from-sending
	// Renewals of a gate must not outlast the requested end of its lock.
	if v.Bounded() { //safety:until-kept
		v.End = min(v.End, v.Until)
	}
}
