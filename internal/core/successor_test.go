package core

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/record"
)

// waiter tells the story of a waiter "me" behind the place of "B", with the head "A" ahead of both.
type waiter struct {
	t *testing.T
	Successor
	now   clock.Instant
	queue []record.Entry
}

const (
	followBegun = clock.Instant(-time.Hour) // the sign of an instant has no meaning
	placeTTL    = 15 * time.Second
)

func newWaiter(t *testing.T, keys int, f Successor) *waiter {
	w := &waiter{t: t, Successor: f, now: followBegun}
	w.queue = []record.Entry{placeOf("A", keys), placeOf("B", keys), placeOf("me", keys)}
	if w.ID, w.Counts = "me", keys > 1; w.Pred.ID == "" {
		w.Ahead = Ahead{Pred: w.queue[1], Head: w.queue[0], Rank: 2, Sure: true, Next: true}
	}
	w.Begin(keys, w.now, w.now)
	return w
}

// looks scans the keys some time later. A zero entry is a free key.
func (w *waiter) looks(after time.Duration, keys ...record.Entry) (d Decision, k int, revision uint64) {
	w.now = w.now.Add(after)
	return w.LockScanned(View{Keys: keys, Queue: w.queue, Sent: w.now}, w.now)
}

// stays requires that a scan leaves the lock alone.
func (w *waiter) stays(after time.Duration, keys ...record.Entry) *waiter {
	w.t.Helper()
	d, _, _ := w.looks(after, keys...)
	require.Equal(w.t, Stay, d, "after %v", w.now.Sub(followBegun))
	return w
}

// takes requires that a scan makes the waiter claim key k at revision.
func (w *waiter) takes(after time.Duration, k int, revision uint64, keys ...record.Entry) *waiter {
	w.t.Helper()
	d, got, at := w.looks(after, keys...)
	require.Equal(w.t, Take, d, "after %v", w.now.Sub(followBegun))
	require.Equal(w.t, k, got)
	require.Equal(w.t, revision, at)
	return w
}

func heldAt(revision uint64) record.Entry {
	e := stored(revision, "holder", 1, record.StatusHeld)
	e.Record.TTL = time.Hour
	return e
}

// A waiter takes a lock that its own reads have shown free for 1.2 s. It claims the lock at the revision it has read
// and deletes the head's place as it was read.
func TestSuccessorTakesAnIdleLock(t *testing.T) {
	w := newWaiter(t, 1, Successor{})
	w.stays(0, freeAt(7)).stays(600*time.Millisecond, freeAt(7)).stays(599*time.Millisecond, freeAt(7))
	w.takes(time.Millisecond, 0, 7, freeAt(7))
	head, evicts := w.Evicts(0, w.now.Add(scanGap-1))
	require.True(t, evicts)
	require.Equal(t, "A", head.ID)
	_, evicts = w.Evicts(0, w.now.Add(scanGap))
	require.False(t, evicts, "the head may have come back since")
}

// The wait for an idle lock starts over when the head takes the lock, another client is quicker, or a look fails.
func TestSuccessorBeginsAnew(t *testing.T) {
	begun := func(t *testing.T) *waiter {
		return newWaiter(t, 1, Successor{}).stays(0, freeAt(7)).stays(600*time.Millisecond, freeAt(7))
	}
	for name, c := range map[string]struct {
		between func(w *waiter)
		then    uint64 // the revision of the tombstone
	}{
		"the head has it":           {func(w *waiter) { w.stays(0, heldAt(8)) }, 9},
		"another tombstone":         {func(w *waiter) { w.stays(0, freeAt(8)) }, 9},
		"a look fails":              {func(w *waiter) { w.ScanFailed(w.now, time.Second) }, 7},
		"a read fails":              {func(w *waiter) { w.ReadFailed(w.now, time.Second) }, 7},
		"another server serves it":  {func(w *waiter) { w.SubscriptionMoved() }, 7},
		"another claim was quicker": {func(w *waiter) { w.Missed(0, w.now) }, 7},
	} {
		t.Run(name, func(t *testing.T) {
			w := begun(t)
			c.between(w)
			w.stays(600*time.Millisecond, freeAt(c.then)).stays(600*time.Millisecond, freeAt(c.then))
			w.takes(600*time.Millisecond, 0, c.then, freeAt(c.then))
		})
	}
	begun(t).takes(600*time.Millisecond, 0, 7, freeAt(7)) // otherwise
}

// Waiters behind the second one leave the lock to it.
func TestSuccessorJitter(t *testing.T) {
	w := newWaiter(t, 1, Successor{Jitter: 100 * time.Millisecond})
	w.stays(0, freeAt(7)).stays(600*time.Millisecond, freeAt(7)).stays(600*time.Millisecond, freeAt(7))
	w.takes(100*time.Millisecond, 0, 7, freeAt(7))
}

// Of several free slots, the waiter takes the one that has been free longest.
func TestSuccessorSlots(t *testing.T) {
	w := newWaiter(t, 3, Successor{})
	w.stays(0, heldAt(3), freeAt(7), heldAt(5))
	w.stays(600*time.Millisecond, freeAt(8), freeAt(7), heldAt(5))
	w.takes(600*time.Millisecond, 1, 7, freeAt(8), freeAt(7), heldAt(5))
}

// A free slot numbered at or above the head's permits says nothing about the head. The waiter does not take it, opens
// no window for it, and leaves the head's place alone. Slots that the head knows about are taken as usual.
func TestSuccessorHeadOfFewer(t *testing.T) {
	for name, c := range map[string]struct {
		head, own int
		keys      []record.Entry
		takes     int // -1: none
	}{
		"a free slot above":         {1, 3, []record.Entry{heldAt(3), freeAt(7), {}}, -1},
		"free slots above and here": {2, 3, []record.Entry{heldAt(3), freeAt(8), freeAt(7)}, 1},
		"the head knows of more":    {4, 2, []record.Entry{heldAt(3), freeAt(7)}, 1},
		"as many":                   {3, 3, []record.Entry{heldAt(3), heldAt(5), freeAt(7)}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWaiter(t, c.own, Successor{})
			w.Counts, w.queue[0] = true, placeOf("A", c.head)
			w.stays(0, c.keys...).stays(600*time.Millisecond, c.keys...)
			if c.takes < 0 {
				w.stays(600*time.Millisecond, c.keys...).stays(time.Minute, c.keys...)
				require.Equal(t, make([]window, c.own), w.windows)
				require.Zero(t, w.scanAt, "it looks no more until something shows")
				return
			}
			w.takes(600*time.Millisecond, c.takes, c.keys[c.takes].Revision, c.keys...)
			head, evicts := w.Evicts(c.takes, w.now)
			require.True(t, evicts)
			require.Equal(t, "A", head.ID)
		})
	}

	// A slot that was evidence against one head is no evidence against the next, so the waiter lists the queue again.
	w := newWaiter(t, 2, Successor{})
	w.stays(0, heldAt(3), freeAt(7)).stays(600*time.Millisecond, heldAt(3), freeAt(7))
	w.queue[0] = placeOf("C", 1)
	d, _, _ := w.looks(600*time.Millisecond, heldAt(3), freeAt(7))
	require.Equal(t, ListAgain, d)
}

// A waiter far back in a long queue does not watch the lock and looks for the head only now and then.
func TestSuccessorFarBack(t *testing.T) {
	keys, server := []string{"lock.l"}, time.Now()
	w := newWaiter(t, 1, Successor{})
	w.Head, w.Seeks, w.Proven = record.Entry{}, w.now.Add(time.Minute), true
	reads, watches := w.Due(w.now.Add(placeTTL))
	require.True(t, reads)
	require.False(t, watches, "also behind one that is silent")
	require.False(t, w.Near())
	for range 3 {
		w.KeysRead(keys, []record.Entry{freeAt(9)}, "", server, w.now)
	}
	require.False(t, w.Scans(w.now))
	w.now = w.now.Add(time.Minute)
	w.KeysRead(keys, []record.Entry{freeAt(9)}, "", server, w.now)
	require.True(t, w.Scans(w.now), "it is time")
	require.True(t, w.Looks(false, w.now, time.Minute), "its predecessor is silent")
	patient := newWaiter(t, 1, Successor{})
	patient.scanAt = patient.now
	require.True(t, patient.Looks(true, patient.now, time.Minute), "it knows the oldest place")
	require.False(t, patient.Looks(false, patient.now, time.Minute), "its predecessor looks")
	require.False(t, patient.Scans(patient.now))
	require.Equal(t, patient.now.Add(time.Minute), patient.Seeks)
	w.Head = w.queue[0]
	require.True(t, w.Near())
	w.Rank = 3
	require.True(t, w.Near(), "its predecessor is silent")
	there, _ := w.PlaceRead(w.Pred, w.now, w.now, placeTTL, time.Minute)
	require.True(t, there)
	require.False(t, w.Near(), "a renewal was read that was not notified")
}

// If the waiter's own unanswered claim turns up, it is adopted immediately. If the queue lacks the predecessor or the
// waiter's own place, it is listed again.
func TestSuccessorQueue(t *testing.T) {
	w := newWaiter(t, 1, Successor{})
	d, k, revision := w.LockScanned(View{Keys: []record.Entry{stored(9, "claim", 1, record.StatusHeld)}, Queue: w.queue, Own: "claim"}, w.now)
	require.Equal(t, []any{Take, 0, uint64(0)}, []any{d, k, revision})
	for name, queue := range map[string][]record.Entry{
		"the predecessor has gone": {w.queue[0], w.queue[2]},
		"the own place has gone":   w.queue[:2],
		"it queues behind":         {w.queue[2], w.queue[1]},
	} {
		d, _, _ := w.LockScanned(View{Keys: []record.Entry{{}}, Queue: queue}, w.now)
		require.Equal(t, ListAgain, d, name)
	}
}

// A record that should have ended by the waiter's estimate is looked at again soon. A tombstone in its place means that
// the lock is free.
func TestSuccessorOverdue(t *testing.T) {
	w := newWaiter(t, 1, Successor{})
	over := heldAt(9)
	over.Record.TTL = time.Second
	server := over.Record.Time.Add(time.Minute)
	d, _, _ := w.LockScanned(View{Keys: []record.Entry{over}, Queue: w.queue, Server: server}, w.now)
	require.Equal(t, Stay, d)
	require.True(t, w.Scans(w.now.Add(20*time.Millisecond)))
	for range 3 {
		d, _, _ = w.LockScanned(View{Keys: []record.Entry{freeAt(10)}, Queue: w.queue, Server: server}, w.now)
		w.now = w.now.Add(600 * time.Millisecond)
	}
	require.Equal(t, Take, d)
}

// Only the tombstone of a predecessor that was granted with nobody ahead of it makes its successor the first.
func TestSuccessorFirst(t *testing.T) {
	granted := record.Body{ID: "B", Status: record.StatusGranted}
	first := func(f Successor, tombstone record.Body) bool {
		w := newWaiter(t, 1, f)
		return w.First(tombstone)
	}
	require.True(t, first(Successor{}, granted))
	require.False(t, first(Successor{Shared: true}, granted), "it reads the tombstone")
	unsure := newWaiter(t, 1, Successor{})
	unsure.Sure = false
	require.False(t, unsure.First(granted), "another place may be between")
	require.False(t, first(Successor{}, record.Body{ID: "C", Status: record.StatusGranted}), "of another place")
	require.False(t, first(Successor{}, record.Body{ID: "B", Status: record.StatusGone}), "it has given up")
	require.False(t, first(Successor{}, record.Body{ID: "B", Status: record.StatusPassed}), "out of turn")
}

// A waiter reads on a timer. If it is the second, it watches the lock from its second read on. Otherwise it does so
// once the predecessor has been silent for longer than a live one would be.
func TestSuccessorTimers(t *testing.T) {
	for _, second := range []bool{true, false} {
		w := newWaiter(t, 1, Successor{})
		if second {
			w.Head = w.Pred
		}
		reads, watches := w.Due(w.now)
		require.True(t, reads)
		require.False(t, watches, "the subscription is not proven")
		w.Proven = true
		there, over := w.PlaceRead(w.Pred, w.now, w.now, placeTTL, time.Minute)
		require.True(t, there)
		require.False(t, over)
		silent := w.now.Add(placeTTL/3 + renewedLate)
		require.Equal(t, silent, w.At())
		reads, _ = w.Due(silent - 1)
		require.False(t, reads)
		w.PlaceWritten(w.now.Add(time.Second))
		require.Equal(t, silent.Add(time.Second), w.At(), "it has renewed its place")
		reads, watches = w.Due(silent.Add(time.Second))
		require.True(t, reads)
		require.True(t, watches)
		w.Doubt(w.now)
		_, watches = w.Due(w.now)
		require.True(t, watches, "it has been silent")
		there, _ = w.PlaceRead(record.Entry{}, w.now, w.now, 0, time.Minute)
		require.False(t, there)
		there, over = w.PlaceRead(w.Pred, w.now, w.now, 0, time.Minute)
		require.True(t, there && over, "its time is over")
		require.Equal(t, w.now.Add(20*time.Millisecond), w.At())
	}
}

// The holder's lease may end without a notification. A waiter then reads the lock no matter how far back it is, because
// everyone ahead of it may have died along with the holder. Waiters far back read later, and a live holder renews its
// lease before that.
func TestSuccessorReadsAtEnd(t *testing.T) {
	keys, server := []string{"slot.l.0", "slot.l.1", "slot.l.2"}, time.Now()
	lease := func(left time.Duration) record.Entry {
		e := heldAt(6)
		e.Record.Time, e.Record.TTL = server.Add(left-15*time.Second), 15*time.Second
		return e
	}
	ends := heldAt(6)
	ends.Record.TTL = 0
	for _, c := range []struct {
		name string
		rank int
		held []record.Entry
		want time.Duration
	}{
		{"it ends after the timer", 3, []record.Entry{lease(10 * time.Second)}, 5 * time.Second},
		{"it ends before", 3, []record.Entry{lease(2 * time.Second)}, 2*time.Second + scanAfter + 3*rankAfter},
		{"long before it", 1000, []record.Entry{lease(2 * time.Second)}, 5 * time.Second},
		{"the first of three", 1, []record.Entry{lease(4 * time.Second), lease(2 * time.Second), lease(3 * time.Second)}, 2*time.Second + scanAfter + rankAfter},
		{"a record without an end", 3, []record.Entry{ends}, 5 * time.Second},
	} {
		w := newWaiter(t, 1, Successor{})
		w.Rank = c.rank
		w.PlaceWritten(w.now.Add(time.Hour)) // so that the predecessor is not silent
		w.KeysRead(keys[:len(c.held)], c.held, "", server, w.now)
		w.PlaceRead(w.Pred, w.now, w.now, placeTTL, 5*time.Second)
		require.Equal(t, w.now.Add(c.want), w.At(), c.name)
		w.Head, w.Jitter = record.Entry{}, 200*time.Millisecond // it does not know how far back it is
		w.KeysRead(keys[:1], []record.Entry{lease(time.Second)}, "", server, w.now)
		w.PlaceRead(w.Pred, w.now, w.now, placeTTL, 8*time.Second)
		require.Equal(t, w.now.Add(2*time.Second+scanAfter+time.Duration(c.rank)*rankAfter), w.At(), c.name+", and far back")
		w.KeysRead(keys[:1], []record.Entry{lease(15 * time.Second)}, "", server, w.now)
		w.PlaceRead(w.Pred, w.now, w.now, placeTTL, 5*time.Second)
		require.Equal(t, w.now.Add(5*time.Second), w.At(), c.name+": it was renewed")
	}
}

// The read that proves a new subscription does not show the lock, so what the previous read showed of the lease remains
// in effect.
func TestSuccessorReadsAtEndAfterReconnect(t *testing.T) {
	server := time.Now()
	e := heldAt(6)
	e.Record.Time, e.Record.TTL = server.Add(-13*time.Second), 15*time.Second
	w := newWaiter(t, 1, Successor{})
	w.PlaceWritten(w.now.Add(time.Hour)) // so that the predecessor is not silent
	w.KeysRead([]string{"lock.l"}, []record.Entry{e}, "", server, w.now)
	w.PlaceRead(w.Pred, w.now, w.now, placeTTL, 5*time.Second)
	ends := w.now.Add(2*time.Second + scanAfter + 2*rankAfter)
	require.Equal(t, ends, w.At())
	w.SubscriptionMoved()
	w.Doubt(w.now.Add(time.Second))
	w.PlaceRead(w.Pred, w.now, w.now.Add(time.Second), placeTTL, 5*time.Second)
	require.Equal(t, ends, w.At())
	w.ReadFailed(ends, time.Second)
	require.Equal(t, ends.Add(time.Second), w.At(), "once")
}

// A waiter behind a live holder reads on its own timer, no matter how short the holder's TTL is.
func TestSuccessorBehindAHolderThatLives(t *testing.T) {
	for ttl := time.Second; ttl <= 15*time.Second; ttl += time.Second {
		w, server := newWaiter(t, 1, Successor{}), time.Now()
		begun, reads := w.now, 0
		for ; w.now.Sub(begun) < time.Minute; w.now = w.At() {
			past := w.now.Sub(begun)
			e := heldAt(uint64(6 + past/(ttl/3)))
			e.Record.Time, e.Record.TTL = server.Add(past.Truncate(ttl/3)), ttl
			w.PlaceWritten(w.now)
			w.KeysRead([]string{"lock.l"}, []record.Entry{e}, "", server.Add(past), w.now)
			w.PlaceRead(w.Pred, w.now, w.now, placeTTL, placeTTL/3)
			reads++
		}
		require.Equal(t, 12, reads, "in a minute, with a TTL of %v", ttl)
	}
}

// A record past its end and its subsequent removal count as one free lock, as do a tombstone and its expiry. Two
// different tombstones count as two.
func TestSuccessorRemoved(t *testing.T) {
	server, keys := time.Now(), []string{"lock.l"}
	over := heldAt(6)
	over.Record.Time, over.Record.TTL = server.Add(-time.Minute), time.Second
	for _, c := range []struct {
		name        string
		first, next record.Entry
		scans       bool
	}{
		{"removed", over, record.Entry{}, true},
		{"removed, and read from a replica that lags", record.Entry{}, over, true},
		{"a tombstone that ends", freeAt(7), record.Entry{}, true},
		{"a tombstone", freeAt(7), freeAt(7), true},
		{"another cycle", freeAt(7), freeAt(9), false},
		{"a cycle after the removal", record.Entry{}, freeAt(9), false},
	} {
		w := newWaiter(t, 1, Successor{})
		w.KeysRead(keys, []record.Entry{c.first}, "", server, w.now)
		w.KeysRead(keys, []record.Entry{c.next}, "", server, w.now)
		require.Equal(t, c.scans, w.Scans(w.now), c.name)
	}
}

// A key that is free in two consecutive reads makes the waiter look. A single read does not, because it may coincide
// with any hand-over. A notification makes the waiter look after a pause, unless the head is quicker.
func TestSuccessorLooks(t *testing.T) {
	server := time.Now()
	keys := []string{"lock.l"}
	w := newWaiter(t, 1, Successor{})
	require.Equal(t, []int{0}, w.KeysRead(keys, []record.Entry{heldAt(6)}, "", time.Time{}, w.now))
	require.Empty(t, w.KeysRead(keys, []record.Entry{freeAt(7)}, "", server, w.now))
	w.PlaceRead(w.Pred, w.now, w.now, placeTTL, time.Minute)
	require.Equal(t, w.now.Add(readAgain), w.At(), "soon again")
	require.False(t, w.Scans(w.now))
	w.KeysRead(keys, []record.Entry{freeAt(9)}, "", server, w.now)
	w.PlaceRead(w.Pred, w.now, w.now, placeTTL, time.Minute)
	require.False(t, w.Scans(w.now), "from hand to hand")
	require.Greater(t, w.At(), w.now.Add(time.Second), "and once only")
	w.KeysRead(keys, []record.Entry{freeAt(9)}, "", server, w.now)
	require.True(t, w.Scans(w.now))
	require.True(t, w.Scan(false), "by its own reads")

	w = newWaiter(t, 1, Successor{})
	w.PlaceRead(w.Pred, w.now, w.now, placeTTL, time.Minute)
	w.LockFreed(w.now)
	require.False(t, w.Scans(w.now))
	require.Equal(t, w.now.Add(scanAfter), w.At())
	require.True(t, w.Scans(w.now.Add(scanAfter)))
	require.True(t, w.Scan(true), "it is free still")
	w.stays(0, heldAt(9))
	w.LockFreed(w.now)
	require.False(t, w.Scan(false), "the head has it")
	require.False(t, w.Scans(w.now.Add(time.Hour)))
}

// Lateness returns short pauses for as long as the clocks of two servers may differ.
func TestLateness(t *testing.T) {
	var l Lateness
	var all time.Duration
	for range 15 {
		all += l.Next()
	}
	require.Equal(t, record.OverdueSlack, all)
	for range 10 {
		require.Equal(t, 100*time.Millisecond, l.Next())
	}
	require.Equal(t, time.Second, l.Next())
}
