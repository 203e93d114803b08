package core

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/record"
)

// listed is a place "me" with the ticket 50, in a queue behind others. A letter is a writer, or a waiter
// for a mutex; one after a dash reads.
func listed(others ...string) (queue []record.Entry) {
	for i, id := range append(others, "me") {
		e := stored(uint64(10*(i+1)), id, 1, record.StatusWaiting)
		e.Mode = uint8(record.Exclusive)
		if id[0] == '-' {
			e.Mode = uint8(record.Shared)
		}
		e.Key, e.Record.TTL, e.Time = record.WaitPrefix+"l."+id, placeTTL, serverNow
		queue = append(queue, e)
	}
	return queue
}

var serverNow = time.Unix(1000, 0)

// TestWaiter: a waiter lists the queue, and waits for the last one before it that has to go first.
func TestWaiter(t *testing.T) {
	for _, c := range []struct {
		name   string
		reads  bool
		from   uint64
		queue  []record.Entry
		alone  bool
		want   Standing
		pred   string
		second bool
	}{
		{"alone in the queue of one server", false, 0, listed(), true, Foremost, "", false},
		{"behind a head", false, 0, listed("A"), true, Behind, "A", true},
		{"behind two", false, 0, listed("A", "B"), true, Behind, "B", false},
		{"a writer waits for readers", false, 0, listed("A", "-b"), true, Behind, "-b", false},
		{"a reader passes readers", true, 0, listed("A", "-b"), true, Behind, "A", false},
		{"a reader waits for no reader", true, 0, listed("-a", "-b"), true, Foremost, "", false},
		{"in a part of a long queue", false, 15, listed("A", "B"), true, Behind, "B", false},
		{"of which the part shows no writer", true, 15, listed("-a", "-b"), true, ListOn, "", false},
		{"nor one from there on", true, 15, listed("A", "-b"), true, ListOn, "", false},
		{"nobody, by one of several servers", false, 0, listed(), false, ListOn, "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := Waiter{ID: "me", Ticket: 50, Reads: c.reads}
			before, over, there := w.Listed(c.queue, 0, serverNow)
			require.True(t, there)
			require.Equal(t, len(before), over)
			s, pred, second := w.Judge(before, c.from, c.alone)
			require.Equal(t, c.want, s)
			require.Equal(t, c.pred, pred.ID)
			require.Equal(t, c.second, second)
		})
	}
}

// TestWaiterOfReplica: that nobody is before it a waiter believes of a list that lacks no live record.
func TestWaiterOfReplica(t *testing.T) {
	w := Waiter{ID: "me", Ticket: 50}
	before, _, _ := w.Listed(listed(), 7, serverNow)
	s, _, _ := w.Judge(before, 0, false)
	require.Equal(t, ListOn, s)
	require.True(t, w.Named)
	before, _, _ = w.Listed(listed(), 0, serverNow) // without the lock beside it
	s, _, _ = w.Judge(before, 0, false)
	require.Equal(t, Foremost, s)
	require.EqualValues(t, 7, w.Vacant, "the tombstone that the list before has shown")
}

// TestWaiterInParts: each list that is too short has the next one reach further back.
func TestWaiterInParts(t *testing.T) {
	w := Waiter{ID: "me", Ticket: 50}
	for n := range uint(3) {
		before, _, _ := w.Listed(listed(), 0, serverNow)
		s, _, _ := w.Judge(before, 45, true)
		require.Equal(t, ListOn, s)
		require.Equal(t, n+1, w.Further)
	}
	before, _, _ := w.Listed(listed("A"), 9, serverNow)
	s, _, _ := w.Judge(before, 0, true)
	require.Equal(t, Behind, s)
	require.Zero(t, w.Further)
	require.Zero(t, w.Vacant, "once the predecessor has gone, the lock may be another's")
}

// TestWaiterGone: a list that contains the ticket lacks the own place: it has ended.
func TestWaiterGone(t *testing.T) {
	w := Waiter{ID: "you", Ticket: 50}
	_, _, there := w.Listed(listed("A"), 0, serverNow)
	require.False(t, there)
}

// TestWaiterBehindTheDead: a waiter deletes the overdue places right before its own. Those further
// ahead have waiters that do.
func TestWaiterBehindTheDead(t *testing.T) {
	q := listed("A", "B", "C", "D")
	for _, i := range []int{0, 2, 3} {
		q[i].Time = serverNow.Add(-time.Hour)
	}
	w := Waiter{ID: "me", Ticket: 50}
	before, over, _ := w.Listed(q, 0, serverNow)
	require.Len(t, before, 4)
	require.Equal(t, 2, over)
}

// TestWaiterAsOf: the next list contains what has shown that the predecessor is gone.
func TestWaiterAsOf(t *testing.T) {
	w := Waiter{ID: "me", Ticket: 7}
	w.Gone(0)
	require.EqualValues(t, 7, w.AsOf)
	w.Gone(12)
	w.Gone(0)
	require.EqualValues(t, 12, w.AsOf)
}

// TestPlaces: what a waiter remembers of the places that it has had, and what their tombstones say.
func TestPlaces(t *testing.T) {
	var p Places
	has := func(o Outcome, gone, evicted, first bool, left record.Status, pause int, want Places) {
		t.Helper()
		s, n := p.Had(o, gone, evicted, first)
		require.Equal(t, left, s)
		require.Equal(t, pause, n)
		require.Equal(t, want, p)
	}
	has(Free, true, false, false, record.StatusGone, 0, Places{Again: true}) // its TTL was over
	p.Has()
	has(Free, true, true, false, record.StatusGone, 0, Places{Again: true, Evictions: 1})
	p.Has()
	has(NoRoom, false, false, true, record.StatusGone, 1, Places{Again: true, Returns: true, Evictions: 1, full: 1})
	p.Has()
	has(NoRoom, false, false, true, record.StatusGone, 2, Places{Again: true, Returns: true, Evictions: 1, full: 2})
	p.Has()
	has(Ended, false, false, false, record.StatusGone, 0, Places{Evictions: 1, full: 2})
	has(Granted, false, false, false, record.StatusPassed, 0, Places{Evictions: 1, full: 2})
	has(Granted, false, false, true, record.StatusGranted, 0, Places{Evictions: 1, full: 2})
}
