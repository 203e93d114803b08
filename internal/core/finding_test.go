package core

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/record"
)

// TestFind checks how a holder classifies what it finds under its key. It has sent two renewals, the
// first of which is confirmed at revision 11.
func TestFind(t *testing.T) {
	renewal := func(revision, n uint64) record.Entry {
		e := stored(revision, "me", 0, record.StatusHeld)
		e.Renewal = n
		return e
	}
	for _, c := range []struct {
		name    string
		entry   record.Entry
		want    Finding
		current bool
	}{
		{"the renewal that is known", renewal(11, 1), AsKnown, true},
		{"an older state, of a server that lags", stored(10, "me", 1, record.StatusHeld), AsKnown, true},
		{"a renewal without an answer", renewal(12, 2), Confirms, true},
		{"a renewal that was never sent", renewal(12, 3), FoundEarlier, true},
		{"an attempt from before the grant", stored(12, "me", 1, record.StatusHeld), FoundEarlier, true},
		{"broken", stored(12, "me", 0, record.StatusBroken), FoundBroken, false},
		{"broken with immediate effect", ended(12, "me", record.StatusBroken), FoundBroken, false},
		{"another's", stored(12, "you", 1, record.StatusHeld), FoundReplaced, false},
		{"a tombstone", ended(12, "me", record.StatusGone), FoundGone, false},
		{"nothing", record.Entry{}, FoundGone, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, current := Find(c.entry, "me", record.StatusHeld, 11, 2)
			require.Equal(t, c.want, f)
			require.Equal(t, c.current, current)
		})
	}
	place := stored(12, "me", 0, record.StatusWaiting)
	place.Renewal = 2
	f, current := Find(place, "me", record.StatusWaiting, 11, 2)
	require.Equal(t, Confirms, f, "a place says that it waits")
	require.True(t, current)
}
