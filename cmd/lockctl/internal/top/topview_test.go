package top

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/mirror"
)

// TestCountsFit checks that the summary line shows the longest wait within 80 columns, regardless
// of the number of locks.
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

// TestSaysWhatItKnows checks that an empty screen claims that there are no locks only while the
// mirror is live, and that the state fits into 80 columns.
func TestSaysWhatItKnows(t *testing.T) {
	t.Parallel()
	since := time.Now().Add(-90 * time.Second)
	for name, c := range map[string]struct {
		state       mirror.State
		head, below string
		none        bool
	}{
		"live":         {mirror.State{Condition: mirror.Live}, "connected", "by queue", true},
		"at first":     {mirror.State{Why: mirror.ErrReading}, "reading", "by queue", false},
		"disconnected": {mirror.State{Since: since, Why: errors.New("no connection")}, "disconnected for 1m30s", "As last read.", false},
		"no leader":    {mirror.State{Condition: mirror.NoLeader, Since: since, Why: errors.New("503")}, "no leader for 1m30s", "No client can get a lock", false},
		"unfit":        {mirror.State{Condition: mirror.Unfit, Since: since, Why: errors.New("sealed of bucket b is true")}, "unfit for 1m30s", "sealed", false},
		"no bucket":    {mirror.State{Condition: mirror.Unfit, Since: since, Why: kvstore.ErrNotFound}, "no bucket for 1m30s", "not found", false},
	} {
		t.Run(name, func(t *testing.T) {
			m := newTop(&Command{Pattern: ">", Sort: "queue"}, "nats://127.0.0.1:4222", "natslock", 0, newPicture(), nil)
			m.width, m.height, m.shot.state = 80, 24, c.state
			head := ansi.Strip(m.header()[0])
			require.LessOrEqual(t, ansi.StringWidth(head), 80)
			require.Contains(t, head, c.head)
			require.Contains(t, ansi.Strip(m.subtitle()), c.below)
			require.Equal(t, c.none, strings.Contains(strings.Join(m.listLines(), "\n"), "no locks"))
		})
	}
}
