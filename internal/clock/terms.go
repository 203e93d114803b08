package clock

import (
	"fmt"
	"time"

	"github.com/natslock/locks/internal/kvstore"
)

// ErrInvalidTTL reports a duration that no lease can have.
var ErrInvalidTTL = kvstore.ErrInvalidTTL

const (
	// MinTTL is the shortest TTL of a lease. The server counts in whole seconds.
	MinTTL = time.Second
	// MaxTTL is the longest TTL of a renewed lease.
	MaxTTL = 24 * time.Hour
	// MaxFixedTTL is the longest TTL of a lease that is not renewed.
	MaxFixedTTL = 366 * 24 * time.Hour
	// maxMargin caps the margin of long leases. marginFloor keeps the margin at a thousandth of the TTL or more, so
	// that leases of any length are safe with clocks that run 0.1% apart.
	maxMargin   = time.Second
	marginFloor = 1000
)

// RoundTTL returns the TTL that the server uses for d, which is d rounded up to whole seconds. It returns an error
// matching [ErrInvalidTTL] if d is out of bounds. A d below [MinTTL] is rejected rather than rounded up, because a
// lease several times as long as requested would not help.
func RoundTTL(d time.Duration, fixed bool) (time.Duration, error) {
	longest := MaxTTL
	if fixed {
		longest = MaxFixedTTL
	}
	if d < MinTTL || d > longest { //safety:ttl-in-bounds
		return 0, fmt.Errorf("%w: %v is not between %v and %v", ErrInvalidTTL, d, MinTTL, longest)
	}
	return CeilSecond(d), nil
}

// CeilSecond rounds d up to whole seconds, the unit in which the server counts.
func CeilSecond(d time.Duration) time.Duration {
	return (d + time.Second - 1) / time.Second * time.Second //safety:lease-rounded-up
}

// Terms holds the TTL and the margin of a lease.
type Terms struct {
	TTL    time.Duration // how long the server keeps the record
	Margin time.Duration // the part of the TTL that the holder leaves unused
}

// NewTerms returns the terms of a lease with the given TTL. The margin is a tenth of the TTL, but at most one second
// and at least a thousandth of the TTL.
func NewTerms(ttl time.Duration) Terms {
	return Terms{TTL: ttl, Margin: max(min(ttl/10, maxMargin), ttl/marginFloor)} //safety:margin-floor
}

// TermsUntil returns the shortest terms whose validity lasts for d. It returns an error matching [ErrInvalidTTL] if d
// is not positive or is too long.
func TermsUntil(d time.Duration) (Terms, error) {
	if d <= 0 {
		return Terms{}, fmt.Errorf("%w: the requested end passed %v ago", ErrInvalidTTL, -d)
	}
	ttl := CeilSecond(min(d, MaxFixedTTL+1))
	for {
		if ttl > MaxFixedTTL {
			return Terms{}, fmt.Errorf("%w: %v plus the safety margin exceeds the maximum of %v", ErrInvalidTTL, d, MaxFixedTTL)
		}
		t := NewTerms(ttl)
		// The validity, which ends a margin before the record does, has to cover d.
		if t.TTL-t.Margin >= d { //safety:until-covered
			return t, nil
		}
		ttl += time.Second
	}
}

// Validity returns how long the client relies on a write after sending it.
func (t Terms) Validity() time.Duration { return t.TTL - t.Margin }

// together limits how early a renewal may be sent so that it goes out with others.
const together = 100 * time.Millisecond

// NextRenewal returns when to renew a record that was written at time sent. Renewing after a third of the TTL leaves
// room for two more attempts. Renewals due within the same three percent of the interval, or the same tenth of a second
// if that is shorter, are sent together, because a renewal sent by itself costs twice as much, mostly in system calls.
func (t Terms) NextRenewal(sent Instant) Instant {
	after := t.TTL / 3
	due := sent.Add(after)
	step := Instant(max(min(after/32, together), 1))
	return due - (due%step+step)%step // instants may be negative
}

// End returns when the validity of a write sent at time sent ends. The validity counts from when the write was sent,
// because the server starts its own count no earlier, and ends a margin before the TTL does, because clocks drift.
func (t Terms) End(sent Instant) Instant { return sent.Add(t.TTL - t.Margin) } //safety:margin
