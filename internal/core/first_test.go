package core

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/record"
)

// head tells the story of the first waiter of a queue.
type head struct {
	t *testing.T
	First
	now    clock.Instant
	server time.Time
	pauses int // how often the pause before the next read was requested
}

const ownClaim = "me"

var firstBegun = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// newHead begins the wait for a semaphore with the given number of permits or, if permits is 0, for a
// mutex whose tombstone is at 7.
func newHead(t *testing.T, permits int) *head {
	h := &head{t: t, now: followBegun, server: firstBegun, First: First{Counts: permits > 0, Watched: true}}
	h.Begin(max(permits, 1), 7, h.now)
	return h
}

// does requires the next step.
func (h *head) does(do Decision, k int, revision uint64) *head {
	h.t.Helper()
	got, gotK, at := h.Next()
	require.Equal(h.t, []any{do, k, revision}, []any{got, gotK, at})
	return h
}

// stays requires that there is nothing to do for d, and then lets the timer fire.
func (h *head) stays(d time.Duration) *head {
	h.t.Helper()
	h.does(Stay, 0, 0)
	at := h.At(h.now, h.server, func() time.Duration { h.pauses++; return 5 * time.Second })
	require.Equal(h.t, d, at.Sub(h.now))
	h.now, h.server = at, h.server.Add(d)
	h.TimeCame(h.server)
	return h
}

func (h *head) found(k int, e record.Entry) *head {
	h.KeyRead(k, e, ownClaim)
	return h
}

// read starts with all slots having been read.
func (h *head) read(keys ...record.Entry) *head {
	h.t.Helper()
	h.does(Prove, 0, 0)
	h.SubscriptionProven(9)
	h.does(ReadAll, 0, 9)
	return h.foundAll(keys...)
}

func (h *head) foundAll(keys ...record.Entry) *head {
	h.AllRead()
	for k, e := range keys {
		h.found(k, e)
	}
	return h
}

// heldFor returns another claim's record, with left remaining.
func heldFor(revision uint64, left time.Duration) record.Entry {
	e := stored(revision, "holder", 1, record.StatusHeld)
	e.Record.Time, e.Record.TTL = firstBegun, left
	return e
}

func heldLong(revision uint64) record.Entry { return heldFor(revision, time.Hour) }

// mine returns a record of the waiter's own claim.
func mine(revision uint64) record.Entry { return stored(revision, ownClaim, 1, record.StatusHeld) }

// The first waiter of a mutex claims it immediately, at the tombstone that it read along with the
// queue, because the reply also proves its subscription. After a release it reads the record and claims
// what it has read.
func TestFirstMutex(t *testing.T) {
	h := newHead(t, 0).does(Take, 0, 7).found(0, heldLong(8)).does(Stay, 0, 0)
	h.TombstoneNotified(0, 9)
	h.does(Verify, 0, 9).found(0, freeAt(9)).does(Take, 0, 9)
	h.found(0, freeAt(11)).does(Take, 0, 11) // another client was quicker and has already left
	h.found(0, record.Entry{}).does(Take, 0, 0)
}

// Nothing is claimed on the strength of a notification, which may be forged. The exception is a claim
// that expects nothing, because the server refuses it while there is a record.
func TestFirstForged(t *testing.T) {
	h := newHead(t, 0).does(Take, 0, 7).found(0, heldLong(8))
	h.TombstoneNotified(0, 99)
	h.does(Verify, 0, 99).found(0, heldLong(8)).does(Stay, 0, 0)
	h.RecordExpired(0)
	h.does(Take, 0, 0).found(0, heldLong(8)).does(Stay, 0, 0)
	h.RecordNotified(0, heldFor(1<<62, time.Second), ownClaim)
	h.does(Stay, 0, 0)
	h.found(0, heldLong(8))
	require.EqualValues(t, 8, h.Record(0).Revision, "what was read counts")

	h = newHead(t, 2).read(heldLong(5), heldLong(6))
	h.TombstoneNotified(1, 99)
	h.does(Verify, 1, 99).found(1, heldLong(6)).does(Stay, 0, 0)
	require.False(t, h.Has(2), "other clients know of more slots")
}

// A waiter's own record that turns up is adopted by a claim that expects nothing. If that claim does
// not recognize the record, it is not repeated until something happens.
func TestFirstAdopts(t *testing.T) {
	for _, permits := range []int{0, 1} {
		h := newHead(t, permits)
		if permits == 0 {
			h.does(Take, 0, 7)
		} else {
			h.does(Prove, 0, 0).SubscriptionProven(0)
			h.does(ReadAll, 0, 0).AllRead()
		}
		h.found(0, mine(8)).does(Reclaim, 0, 0)
		h.KeyRead(0, mine(8), "") // that claim is refused
		h.does(Stay, 0, 0)
		h.RecordNotified(0, mine(9), ownClaim)
		h.does(Reclaim, 0, 0)
		h.KeyRead(0, mine(9), "")
		h.RecordNotified(0, mine(10), "")
		h.does(Stay, 0, 0)
	}
}

// When a record should have ended, claims that expect nothing probe for it at short intervals, because
// the server may merely be late. An overdue record is read and deleted, and its tombstone is claimed.
func TestFirstExpired(t *testing.T) {
	h := newHead(t, 0).does(Take, 0, 7).found(0, heldFor(8, time.Second))
	require.True(t, h.Tracks(0, h.server))
	h.stays(5 * time.Second)
	h.server = firstBegun.Add(time.Second)
	require.False(t, h.Tracks(0, h.server), "its end has come: the timers check it")
	h.does(Verify, 0, 0).found(0, heldFor(8, time.Second))
	for range 15 {
		h.stays(20 * time.Millisecond)
		if h.server.Before(firstBegun.Add(time.Second + record.OverdueSlack)) {
			h.does(Take, 0, 0).found(0, heldFor(8, time.Second))
		}
	}
	h.does(Verify, 0, 0).found(0, heldFor(8, time.Second))
	h.At(h.now, h.server, nil) // a notification arrived
	for range 2 {
		h.stays(100*time.Millisecond).does(Verify, 0, 0).found(0, heldFor(8, time.Second))
	}
	h.stays(100*time.Millisecond).does(Verify, 0, 0).found(0, freeAt(9)).does(Take, 0, 9)
	h.found(0, heldFor(9, time.Hour)).stays(5 * time.Second) // it was renewed
	h.does(Verify, 0, 0).found(0, heldFor(9, time.Hour))
	require.Equal(t, 2, h.pauses)
	h.server = firstBegun.Add(time.Hour)
	h.stays(20*time.Millisecond).does(Take, 0, 0)
}

// A notification never postpones a read, whereas a claim does, because it shows the same as a read.
// Without a watch, the end of a record sets the timer too.
func TestFirstTimers(t *testing.T) {
	pause := func() time.Duration { return 5 * time.Second }
	h := newHead(t, 0).does(Take, 0, 7).found(0, heldLong(8))
	require.Equal(t, h.now.Add(5*time.Second), h.At(h.now, h.server, pause))
	h.RecordNotified(0, heldLong(9), ownClaim)
	h.RecordNotified(0, heldLong(7), ownClaim)
	require.EqualValues(t, 9, h.Record(0).Revision, "it was renewed")
	require.Equal(t, h.now.Add(5*time.Second), h.At(h.now.Add(time.Second), h.server, pause))
	h.RecordExpired(0)
	h.does(Take, 0, 0).found(0, heldLong(10))
	require.Equal(t, h.now.Add(11*time.Second), h.At(h.now.Add(6*time.Second), h.server, pause), "it was due while the claim was under way")
	h.ReadFailed(h.now, 50*time.Millisecond)
	require.Equal(t, h.now.Add(50*time.Millisecond), h.At(h.now, h.server, pause))

	h = newHead(t, 0).does(Take, 0, 7).found(0, heldFor(8, time.Second))
	h.Watched = false
	require.Equal(t, h.now.Add(time.Second), h.At(h.now, h.server, pause))
	require.False(t, h.Tracks(0, h.server))
	h.ReadFailed(h.now, 0)
	h.found(0, heldFor(9, 0)) // with no end
	require.Equal(t, h.now.Add(5*time.Second), h.At(h.now, h.server, pause))

	h = newHead(t, 0).does(Take, 0, 7).found(0, heldFor(8, time.Second))
	h.At(h.now, h.server, pause)
	require.Equal(t, h.now.Add(20*time.Millisecond), h.At(h.now, h.server.Add(time.Second), pause), "its time is over")
}

// The first waiter of a semaphore reads the slots once its subscription is in place, from a state that
// the leader has named since. It adopts a record of its own first and then claims what is free, highest
// slot first.
func TestFirstSlots(t *testing.T) {
	h := newHead(t, 4).read(freeAt(7), heldLong(5), record.Entry{}, heldLong(6))
	h.does(Take, 2, 0).found(2, heldLong(11)).does(Take, 0, 7).found(0, freeAt(12)).does(Take, 0, 12).found(0, heldLong(13))
	h.stays(5*time.Second).does(ReadAll, 0, 0)
	h.foundAll(heldLong(13), freeAt(14), mine(8), freeAt(15)).does(Reclaim, 2, 0).does(Take, 3, 15).does(Take, 1, 14)

	h = newHead(t, 2).does(Prove, 0, 0)
	h.ReadFailed(h.now, time.Second)
	h.stays(time.Second).does(Prove, 0, 0)
	h.SubscriptionProven(9)
	h.does(ReadAll, 0, 9)
	h.ReadFailed(h.now, time.Second)
	h.stays(time.Second).does(ReadAll, 0, 9)
	h.foundAll(heldLong(5), heldLong(6))
	h.TombstoneNotified(0, 20)
	h.does(Verify, 0, 20)
	require.True(t, h.KeyNotRead(), "the notification does not come again")
	h.does(ReadAll, 0, 0).foundAll(freeAt(20), heldLong(6)).does(Take, 0, 20)

	h = newHead(t, 0).does(Take, 0, 7).found(0, heldLong(8))
	h.TombstoneNotified(0, 9)
	h.does(Verify, 0, 9)
	require.False(t, h.KeyNotRead(), "of one key that would be the same read")
}

// When another server takes over the subscription, the subscription is proven again and all keys are
// read.
func TestFirstMoved(t *testing.T) {
	h := newHead(t, 2).read(heldLong(5), heldLong(6)).does(Stay, 0, 0)
	h.SubscriptionMoved()
	h.read(heldLong(5), freeAt(7)).does(Take, 1, 7)

	h = newHead(t, 0).does(Take, 0, 7).found(0, heldLong(8)).does(Stay, 0, 0)
	h.SubscriptionMoved()
	h.does(Take, 0, 0)
}

// Among several holders, the one whose time ends first determines when to read.
func TestFirstShortest(t *testing.T) {
	forever := heldLong(9)
	forever.Record.TTL = 0
	for name, c := range map[string]struct {
		keys []record.Entry
		k    int
		left time.Duration
	}{
		"nobody":       {[]record.Entry{{}, freeAt(7)}, -1, -1},
		"the shortest": {[]record.Entry{heldFor(5, time.Minute), heldFor(6, time.Second), freeAt(7)}, 1, time.Second},
		"no TTL":       {[]record.Entry{forever, heldFor(6, time.Minute)}, 1, time.Minute},
		"no TTL later": {[]record.Entry{heldFor(6, time.Minute), forever}, 0, time.Minute},
		"none ends":    {[]record.Entry{forever}, 0, -1},
	} {
		h := newHead(t, len(c.keys)).read(c.keys...)
		k, left := h.Shortest(h.server)
		require.Equal(t, c.k, k, name)
		if c.left >= 0 {
			require.Equal(t, c.left, left, name)
		} else {
			require.Negative(t, left, name)
		}
	}
}
