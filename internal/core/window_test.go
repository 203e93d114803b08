package core

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
)

func placeOf(id string, permits int) record.Entry {
	return record.Entry{
		Record: kvstore.Record{Key: "wait.l." + id, Revision: 5, TTL: 15 * time.Second},
		Body:   record.Body{ID: id, Status: record.StatusWaiting, Permits: record.Permits(permits)},
	}
}

func freeAt(revision uint64) record.Entry {
	return record.Entry{Record: kvstore.Record{Key: "lock.l", Revision: revision, Deleted: true}}
}

// A window continues from read to read while nothing changes, even if its tombstone expires.
// Anything else restarts it.
func TestWindow(t *testing.T) {
	const at = clock.Instant(-5 * time.Second)
	head := placeOf("A", 0)
	begun := func() *window {
		w := &window{}
		w.saw(freeAt(7), head, at)
		w.saw(freeAt(7), head, at.Add(600*time.Millisecond))
		require.Equal(t, at, w.since)
		return w
	}
	later := at.Add(1200 * time.Millisecond)

	w := begun()
	w.saw(record.Entry{}, head, later)
	require.Equal(t, at, w.since, "the tombstone has expired")
	require.Zero(t, w.revision)
	w.saw(freeAt(9), head, later.Add(time.Millisecond))
	require.Equal(t, later.Add(time.Millisecond), w.since, "somebody has had the lock since")

	w = begun()
	w.saw(freeAt(8), head, later)
	require.Equal(t, later, w.since, "another tombstone")

	w = begun()
	renewed := head
	renewed.Revision = 8
	w.saw(freeAt(7), renewed, later)
	require.Equal(t, at, w.since, "the head has renewed its place")
	require.EqualValues(t, 8, w.head.Revision, "its deletion expects what was read last")

	w = &window{}
	w.saw(record.Entry{}, head, at)
	w.saw(record.Entry{}, head, at.Add(time.Second))
	require.Equal(t, at.Add(time.Second), w.since, "a second went unseen: nothing then and nothing now is no proof")
}
