package admin

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/session"
)

// TestReplayOrder checks that changes come out in order although an expiry is noticed only 300 ms
// after the lease ended. A lease that is still running, or that was released, delays no change.
func TestReplayOrder(t *testing.T) {
	begin := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	names := map[session.EventType]string{session.EventGranted: "granted", session.EventReleased: "released", session.EventLost: "expired"}
	var got []string
	r := replay{live: map[string]record.Entry{}, yield: func(c Change) bool {
		got = append(got, names[c.Type]+" "+c.Name+" "+c.Time.Sub(begin).String())
		return true
	}}
	revision := uint64(0)
	write := func(at time.Duration, name string, ttl time.Duration, body record.Body) {
		t.Helper()
		value, err := body.Encode()
		require.NoError(t, err)
		revision++
		r.next(kvstore.HistoryRecord{Record: kvstore.Record{Key: "lock." + name, Value: value, Revision: revision,
			Time: begin.Add(at), TTL: ttl, Deleted: body.Status == record.StatusGone}})
	}
	holds := func(name string) record.Body {
		return record.Body{Status: record.StatusHeld, ID: name, TTL: 3600, Attempt: 1}
	}
	take := func() (all []string) { all, got = got, nil; return all }

	write(0, "long", time.Hour, holds("long"))
	require.Equal(t, []string{"granted long 0s"}, take(), "no change can come before it")
	write(0, "short", time.Second, holds("short"))
	write(100*time.Millisecond, "freed", time.Second, holds("freed"))
	write(200*time.Millisecond, "freed", time.Second, record.Body{Status: record.StatusGone, ID: "freed", Token: 1})
	require.Equal(t, []string{"granted short 0s", "granted freed 100ms", "released freed 200ms"}, take())
	write(1100*time.Millisecond, "next", time.Hour, holds("next"))
	require.Empty(t, take(), "the lease of short has ended")
	write(1500*time.Millisecond, "last", time.Hour, holds("last"))
	require.Equal(t, []string{"expired short 1s", "granted next 1.1s", "granted last 1.5s"}, take())
}

// TestReplayLost checks which missing grants and ends a lock's own records reveal. A hold that is
// missing entirely, other locks, and anything older than the history reveal nothing.
func TestReplayLost(t *testing.T) {
	begin := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	const (
		hour   = time.Hour
		remade = 1 << 40 // instead of a number of missing writes
	)
	type write struct {
		revision, missed uint64
		key              string
		ttl              time.Duration
		body             record.Body
	}
	held := func(id string, of, renewal uint64) record.Body {
		b := record.Body{Status: record.StatusHeld, ID: id, Renewal: renewal, Attempt: 1}
		if renewal > 0 {
			b.Token = record.Token(of, 0)
		}
		return b
	}
	gone := func(id string, of uint64) record.Body {
		return record.Body{Status: record.StatusGone, ID: id, Token: record.Token(of, 0)}
	}
	for name, c := range map[string]struct {
		writes []write
		lost   []uint64
	}{
		"nothing":            {[]write{{11, 0, "lock.x", hour, held("a", 0, 0)}, {12, 0, "lock.x", 1, gone("a", 11)}}, nil},
		"others":             {[]write{{11, 0, "lock.x", hour, held("a", 0, 0)}, {15, 3, "lock.x", 1, gone("a", 11)}, {19, 3, "lock.x", hour, held("b", 0, 0)}}, nil},
		"a grant":            {[]write{{11, 0, "lock.y", 1, gone("a", 5)}, {14, 2, "lock.x", hour, held("a", 13, 1)}, {15, 0, "lock.x", hour, held("a", 13, 2)}}, []uint64{1}},
		"at the first":       {[]write{{14, 2, "lock.x", 1, gone("a", 13)}}, []uint64{1}},
		"a grant before":     {[]write{{14, 2, "lock.x", 1, gone("a", 10)}}, nil},
		"an end":             {[]write{{11, 0, "lock.x", hour, held("a", 0, 0)}, {14, 2, "lock.x", hour, held("b", 0, 0)}}, []uint64{1}},
		"an end and grant":   {[]write{{11, 0, "lock.x", hour, held("a", 0, 0)}, {14, 2, "lock.x", hour, held("b", 13, 1)}}, []uint64{2}},
		"a lease that ended": {[]write{{11, 0, "lock.x", 1, held("a", 0, 0)}, {14, 2, "lock.x", hour, held("b", 0, 0)}}, nil},
		"a renewal":          {[]write{{11, 0, "lock.x", hour, held("a", 0, 0)}, {14, 2, "lock.x", hour, held("a", 11, 3)}}, nil},
		"none in between":    {[]write{{11, 2, "lock.x", hour, held("a", 0, 0)}, {12, 0, "lock.x", hour, held("b", 0, 0)}, {14, 1, "lock.y", hour, held("c", 0, 0)}}, nil},
		"handed over": {[]write{{11, 0, "lock.x", hour, record.Body{Status: record.StatusHeld, ID: "a", Renewal: 1, Fixed: true, Token: record.Token(10, 0)}},
			{14, 2, "lock.x", hour, record.Body{Status: record.StatusHeld, ID: "b", Attempt: 1, Token: record.Token(10, 0)}}}, nil},
		"a place": {[]write{{11, 0, "lock.x", hour, held("a", 0, 0)}, {14, 2, "wait.x.QUJDREVGR0hJSktMTU5PUFFSU1", 1,
			record.Body{Status: record.StatusGone, ID: "b", Token: 13}}}, []uint64{1}},
		"a hold behind an end": {[]write{{11, 0, "lock.x", hour, held("a", 0, 0)}, {14, 2, "lock.x", 1, gone("b", 13)}}, []uint64{2}},
		"renewed late":         {[]write{{11, 2, "lock.x", time.Second, held("a", 0, 0)}, {30, 2, "lock.y", hour, held("b", 0, 0)}, {31, 0, "lock.x", hour, held("a", 11, 1)}}, nil},
		"no gap":               {[]write{{11, 0, "lock.x", hour, held("a", 0, 0)}, {14, 0, "lock.x", hour, held("b", 0, 0)}}, nil},
		"made again":           {[]write{{14, 2, "lock.y", hour, held("a", 0, 0)}, {3, remade, "lock.y", hour, held("b", 0, 0)}, {15, 0, "lock.x", 1, gone("c", 13)}}, nil},
		"of two":               {[]write{{11, 0, "lock.x", hour, held("a", 0, 0)}, {13, 1, "lock.y", hour, held("b", 0, 0)}, {15, 1, "lock.x", hour, held("c", 14, 1)}}, []uint64{2}},
	} {
		var lost []uint64
		r := replay{live: map[string]record.Entry{}, yield: func(c Change) bool {
			if c.Type == EventGap && c.Name != "" {
				require.Equal(t, "x", c.Name, name)
				require.False(t, c.Time.IsZero() || c.Time.After(c.Until), name)
				lost = append(lost, c.Missed)
			}
			return true
		}}
		previous := begin
		for _, w := range c.writes {
			value, err := w.body.Encode()
			require.NoError(t, err)
			at := previous.Add(time.Second)
			if w.revision > 20 {
				at = previous.Add(10 * time.Second)
			}
			missed := w.missed % remade
			r.next(kvstore.HistoryRecord{Missed: missed, Remade: missed != w.missed, After: previous, Record: kvstore.Record{Key: w.key, Value: value, Revision: w.revision,
				Time: at, TTL: w.ttl, Deleted: w.body.Status == record.StatusGone}})
			previous = at
		}
		r.end(&kvstore.History{Now: previous})
		require.Equal(t, c.lost, lost, name)
	}
}
