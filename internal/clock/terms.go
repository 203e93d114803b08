package clock

import (
	"fmt"
	"time"

	"github.com/natslock/locks/internal/kvstore"
)

// ErrInvalidTTL means that no lease can have a duration.
var ErrInvalidTTL = kvstore.ErrInvalidTTL

const (
	// MinTTL is the shortest lease: the server counts in whole seconds.
	MinTTL = time.Second
	// MaxTTL is the longest lease that is renewed.
	MaxTTL = 24 * time.Hour
	// MaxFixedTTL is the longest lease that is not renewed.
	MaxFixedTTL = 366 * 24 * time.Hour
	// DefaultMargin is the fraction of the TTL for which, at its end, the client no longer believes in a lease.
	DefaultMargin = 0.1
	// MinRenewFraction limits the renewals of a lease to 20 in its TTL.
	MinRenewFraction = 0.05
	// maxMargin caps the margin of long leases. The floor of a thousandth of the TTL keeps clocks that run 0.1% apart
	// safe at any length.
	maxMargin   = time.Second
	marginFloor = 1000
)

// RoundTTL returns the TTL that the server keeps for d: whole seconds, rounded up. The error matches [ErrInvalidTTL].
// It is returned even for a d below [MinTTL]: a lease that lasts several times as long as requested is no help.
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

// CeilSecond rounds d up to whole seconds, in which the server counts.
func CeilSecond(d time.Duration) time.Duration {
	return (d + time.Second - 1) / time.Second * time.Second //safety:lease-rounded-up
}

// Terms are the TTL and the margin of one lease.
type Terms struct {
	TTL    time.Duration // the time for which the server keeps the record
	Margin time.Duration // the part of the TTL that the holder leaves unused
}

// NewTerms returns the terms of a lease of ttl, with a margin of the given fraction of ttl.
func NewTerms(ttl time.Duration, fraction float64) Terms {
	m := min(time.Duration(float64(ttl)*fraction), maxMargin)
	return Terms{TTL: ttl, Margin: max(m, ttl/marginFloor)} //safety:margin-floor
}

// TermsUntil returns the shortest terms whose validity lasts for d.
func TermsUntil(d time.Duration, fraction float64) (Terms, error) {
	if d <= 0 {
		return Terms{}, fmt.Errorf("%w: it ended %v ago", ErrInvalidTTL, -d)
	}
	ttl := CeilSecond(min(d, MaxFixedTTL+1))
	for {
		if ttl > MaxFixedTTL {
			return Terms{}, fmt.Errorf("%w: %v and the margin are more than %v", ErrInvalidTTL, d, MaxFixedTTL)
		}
		t := NewTerms(ttl, fraction)
		// The validity has to last for d, and it ends a margin before the record.
		if t.TTL-t.Margin >= d { //safety:until-covered
			return t, nil
		}
		ttl += time.Second
	}
}

// renewAfter returns the time after the sending of a write at which a renewal follows: the given fraction of the TTL,
// and early enough for another try.
func (t Terms) renewAfter(fraction float64) time.Duration {
	fraction = max(fraction, MinRenewFraction)
	return min(time.Duration(float64(t.TTL)*fraction), (t.TTL-t.Margin)*4/5) //safety:renewed-in-time
}

// Validity returns the time for which the client believes in a write after its sending.
func (t Terms) Validity() time.Duration { return t.TTL - t.Margin }

// together limits how early a renewal is sent to go with others.
const together = 100 * time.Millisecond

// NextRenewal returns the time at which to renew what was sent at the time sent. Renewals that are due within the same
// few percent of the time between two, or within the same tenth of a second, are sent together. A renewal by itself
// costs twice as much, mostly in system calls.
func (t Terms) NextRenewal(sent Instant, fraction float64) Instant {
	after := t.renewAfter(fraction)
	due := sent.Add(after)
	step := Instant(max(min(after/32, together), 1))
	return due - (due%step+step)%step // times may be negative
}

// End returns the end of the validity of a write that was sent at the time sent. It counts from the sending, because
// the server begins its own count no earlier, and ends a margin before the TTL, because clocks drift.
func (t Terms) End(sent Instant) Instant { return sent.Add(t.TTL - t.Margin) } //safety:margin
