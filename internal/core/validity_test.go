package core

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/clock"
)

func seconds(n float64) clock.Instant {
	return clock.Instant(0).Add(time.Duration(n * float64(time.Second)))
}

// validFor is the terms of a write that counts for n seconds.
func validFor(n int) clock.Terms {
	return clock.Terms{TTL: time.Duration(n+1) * time.Second, Margin: time.Second}
}

// TestValidity: a grant that was sent at 0 counts for 9 s, and a renewal from its own sending.
func TestValidity(t *testing.T) {
	v := ValidFrom(0, validFor(9))
	require.Equal(t, seconds(9), v.End)
	require.True(t, v.InTime(seconds(9)-1))
	v.RenewalSent(seconds(3), validFor(9))
	require.Equal(t, seconds(9), v.End, "it may never be stored")
	v.RenewalConfirmed(seconds(3), validFor(9))
	require.Equal(t, seconds(12), v.End)
	v.RenewalConfirmed(seconds(1), validFor(9))
	require.Equal(t, seconds(12), v.End, "an older one that was confirmed later")
	require.False(t, v.Planned())
}

// TestValidityLate: a confirmation that arrives at the end, or after it, revives nothing.
func TestValidityLate(t *testing.T) {
	v := ValidFrom(0, validFor(9))
	require.False(t, v.InTime(seconds(9)))
	require.True(t, v.Over(seconds(9)))
	require.False(t, v.Over(seconds(9)-1))
}

// TestValidityShorter: a renewal with a shorter TTL may replace the record from its sending on.
func TestValidityShorter(t *testing.T) {
	v := ValidFrom(0, validFor(9))
	require.True(t, v.RenewalSent(seconds(1), validFor(2)))
	require.Equal(t, seconds(3), v.End)
	require.False(t, v.RenewalSent(seconds(2), validFor(2)))
}

// TestValidityBounded: no renewal outlasts the time that a lock was taken until.
func TestValidityBounded(t *testing.T) {
	v := ValidFrom(0, validFor(9))
	v.Bound(seconds(10))
	require.Equal(t, seconds(9), v.End)
	require.False(t, v.Planned())
	v.RenewalConfirmed(seconds(3), validFor(9))
	require.Equal(t, seconds(10), v.End)
	require.True(t, v.Planned())
	v.Bound(seconds(4))
	require.Equal(t, seconds(4), v.End)
}
