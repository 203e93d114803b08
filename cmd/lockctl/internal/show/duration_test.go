package show

import (
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/stretchr/testify/require"
)

// asFlag parses a duration as a flag of lockctl does.
func asFlag(text string) (time.Duration, error) {
	var c struct{ For time.Duration }
	parser, err := kong.New(&c, Durations)
	if err == nil {
		_, err = parser.Parse([]string{"--for=" + text})
	}
	return c.For, err
}

// TestDurations checks that a duration may also be a number of seconds or begin with days.
func TestDurations(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{"20": 20 * time.Second, "1.5": 1500 * time.Millisecond, "0": 0, "90s": 90 * time.Second, "7d": 7 * 24 * time.Hour, "1d12h": 36 * time.Hour} {
		d, err := asFlag(text)
		require.NoError(t, err, text)
		require.Equal(t, want, d, text)
	}
	for _, text := range []string{"d", "1d2", "x", "1e300", "1h2", "nan"} {
		_, err := asFlag(text)
		require.ErrorContains(t, err, "is neither a number of seconds nor a duration such as 90s, 2m or 7d", text)
	}
}
