package admin

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/session"
	"github.com/natslock/locks/kvstore"
)

// TestReplayOrder: the end of a lease is found out 300 ms after it, so later changes wait for
// it. A lease that still runs, or that was released, makes no change wait.
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
