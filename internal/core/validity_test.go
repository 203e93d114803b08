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

// validFor returns the terms of a write that is valid for n seconds.
func validFor(n int) clock.Terms {
	return clock.Terms{TTL: time.Duration(n+1) * time.Second, Margin: time.Second}
}

// TestValidity checks that a grant sent at 0 is valid for 9 s, and that a renewal is valid from
// when it was sent.
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

// TestValidityLate checks that a confirmation arriving at or after the end revives nothing.
func TestValidityLate(t *testing.T) {
	v := ValidFrom(0, validFor(9))
	require.False(t, v.InTime(seconds(9)))
	require.True(t, v.Over(seconds(9)))
	require.False(t, v.Over(seconds(9)-1))
}

// TestValidityShorter checks that a renewal with a shorter TTL shortens the validity as soon as
// it is sent, because from then on it may replace the record.
func TestValidityShorter(t *testing.T) {
	v := ValidFrom(0, validFor(9))
	require.True(t, v.RenewalSent(seconds(1), validFor(2)))
	require.Equal(t, seconds(3), v.End)
	require.False(t, v.RenewalSent(seconds(2), validFor(2)))
}

// TestValidityBounded checks that no renewal outlasts the time until which a lock was taken.
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
