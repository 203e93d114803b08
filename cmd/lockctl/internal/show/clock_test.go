package show

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestClock checks that a printed time includes its date and zone, and that a screen shows the date
// only if it is not today.
func TestClock(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 23, 12, 0, 1, 234e6, time.Local)
	for layout, text := range map[string]string{"2006-01-02 15:04:05Z07:00": Clock(at), "2006-01-02 15:04:05.000Z07:00": clockMillis(at)} {
		parsed, err := time.ParseInLocation(layout, text, time.FixedZone("elsewhere", 3600))
		require.NoError(t, err)
		require.Equal(t, at.Unix(), parsed.Unix(), "the same instant elsewhere")
	}
	require.Equal(t, "12:00:01.234", ClockOn(at, at.Add(time.Hour)))
	require.Equal(t, "2026-11-23 12:00:01.234", ClockOn(at, at.Add(24*time.Hour)))
}
