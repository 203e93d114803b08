package top

import (
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"
	"github.com/stretchr/testify/require"
)

// The line of all locks shows the longest wait on 80 columns, however many locks there are.
func TestCountsFit(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for _, c := range []struct {
		locks, held, waiting int
		waits                time.Duration
		rate                 float64
		shows                string
	}{
		{0, 0, 0, 0, 0, "locks 0  held 0  waiting 0  longest wait -  grants 0.0/s  hand-overs 0.0/s"},
		{3, 3, 1, 90 * time.Second, 9.87, "locks 3  held 3  waiting 1  longest wait 1m30s  grants 9.9/s  hand-overs 9.9/s"},
		{100, 100, 900, 90 * time.Second, 1234.5, "locks 100  held 100  waiting 900  longest wait 1m30s  grants 1234/s  hand-overs"},
		{100_000, 100_000, 1_000_000, 99*time.Hour + 59*time.Minute, 12345, "locks 100000  held 100000  waiting 1000000  longest wait 4d03h  grants 12345/s"},
	} {
		m := &top{totals: totals{locks: c.locks, held: c.held, waiting: c.waiting}}
		if c.waits > 0 {
			m.totals.waits = now.Add(-c.waits)
		}
		rate := meter{c.rate, now}
		m.shot.rates.grants, m.shot.rates.handovers = rate, rate
		require.Contains(t, ansi.Truncate(m.counts(now), 80, ""), c.shows)
	}
}
