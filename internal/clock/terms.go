package clock

import (
	"fmt"
	"time"

	"github.com/natslock/locks/internal/kvstore"
)

// ErrInvalidTTL means that no lease can have the given duration.
var ErrInvalidTTL = kvstore.ErrInvalidTTL

const (
	// MinTTL is the shortest lease, because the server counts in whole seconds.
	MinTTL = time.Second
	// MaxTTL is the longest renewed lease.
	MaxTTL = 24 * time.Hour
	// MaxFixedTTL is the longest lease that is not renewed.
	MaxFixedTTL = 366 * 24 * time.Hour
	// maxMargin caps the margin of long leases. The floor of a thousandth of the TTL keeps leases of any length safe
	// with clocks that run 0.1% apart.
	maxMargin   = time.Second
	marginFloor = 1000
)

// RoundTTL returns the TTL that the server keeps for d: whole seconds, rounded up. The error matches [ErrInvalidTTL].
// It is returned even for a d below [MinTTL], because a lease that lasts several times as long as requested does not
// help.
func RoundTTL(d time.Duration, fixed bool) (time.Duration, error) {
	longest := MaxTTL
	if fixed {
		longest = MaxFixedTTL
	}
	if d < MinTTL || d > longest { //safety:ttl-in-bounds
		return 0, fmt.Errorf("%w: %v is not in [%v, %v]", ErrInvalidTTL, d, MinTTL, longest)
	}
	return CeilSecond(d), nil
}

// CeilSecond rounds d up to whole seconds, the unit in which the server counts.
func CeilSecond(d time.Duration) time.Duration {
	return (d + time.Second - 1) / time.Second * time.Second //safety:lease-rounded-up
}

// Terms are the TTL and the margin of one lease.
type Terms struct {
	TTL    time.Duration // the time for which the server keeps the record
	Margin time.Duration // the part of the TTL that the holder leaves unused
}

// NewTerms returns the terms of a lease of ttl. The margin is a tenth of ttl, but at most a second, and at least a
// thousandth of ttl.
func NewTerms(ttl time.Duration) Terms {
	return Terms{TTL: ttl, Margin: max(min(ttl/10, maxMargin), ttl/marginFloor)} //safety:margin-floor
}

// TermsUntil returns the shortest terms whose validity lasts for d.
func TermsUntil(d time.Duration) (Terms, error) {
	if d <= 0 {
		return Terms{}, fmt.Errorf("%w: it ended %v ago", ErrInvalidTTL, -d)
	}
	ttl := CeilSecond(min(d, MaxFixedTTL+1))
	for {
		if ttl > MaxFixedTTL {
			return Terms{}, fmt.Errorf("%w: %v and the margin are more than %v", ErrInvalidTTL, d, MaxFixedTTL)
		}
		t := NewTerms(ttl)
		// The validity has to last for d, and it ends a margin before the record.
		if t.TTL-t.Margin >= d { //safety:until-covered
			return t, nil
		}
		ttl += time.Second
	}
}

// Validity returns the time for which the client relies on a write after sending it.
func (t Terms) Validity() time.Duration { return t.TTL - t.Margin }

// together limits how early a renewal is sent to go with others.
const together = 100 * time.Millisecond

// NextRenewal returns the time at which to renew what was sent at time sent. A third of the TTL leaves room for two
// more tries. Renewals that are due within the same few percent of the interval, or within the same tenth of a second,
// are sent together. A renewal by itself costs twice as much, mostly in system calls.
func (t Terms) NextRenewal(sent Instant) Instant {
	after := t.TTL / 3
	due := sent.Add(after)
	step := Instant(max(min(after/32, together), 1))
	return due - (due%step+step)%step // times may be negative
}

// End returns the end of the validity of a write sent at time sent. The validity counts from the sending, because the
// server begins its own count no earlier, and ends a margin before the TTL, because clocks drift.
func (t Terms) End(sent Instant) Instant { return sent.Add(t.TTL - t.Margin) } //safety:margin
