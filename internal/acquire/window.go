package acquire

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/kvstore"
)

// A waiter that is not first takes a lock out of turn that stays free, and deletes the place
// of the one that should have taken it. So a first waiter that has died, or is stopped, costs
// one pause, and not one for each hand-over until its place ends.
//
// Silence of a place proves nothing: waiters that live renew their places only now and then.
// What shows that the head is dead is the lock that it is entitled to, free and unclaimed. So
// the waiter goes from the free lock to the deletion by these steps:
//
//   - Its own successful reads, never a notification, have seen the key free and unchanged for
//     the patience, and all of them with the same head in place. Two answers in a row are less
//     than a second apart: a tombstone lives for a second, so no cycle in between can hide. A
//     read that fails, a new connection, a suspension and a longer gap begin the window anew.
//   - Its claim at what it has read is acknowledged, soon after the last read.
//   - It deletes the head's place by a write that expects the revision that it has read.
//     A place that was renewed since stays.
//
// Exclusion does not rest on that: a lock is granted by its own conditional write. A head that
// lives, and was too slow, finds its place gone and queues again. Until it does it may think
// that it is the first, as its successor does: their claims are conditional. Its new place
// says how often that has happened, and others watch twice as long before they pass it, each
// time.

const (
	// idleFor is how long a waiter sees a lock free before it takes it out of turn.
	idleFor = 1200 * time.Millisecond
	// lookEvery is how often it reads meanwhile.
	lookEvery = 600 * time.Millisecond
	// lookGap is the time between two answers within which no change goes unseen.
	lookGap = time.Second
	// lookAfter is how long it leaves a lock to the head before it reads at all: as long as
	// nobody has died no waiter reads more than it would.
	lookAfter = 50 * time.Millisecond
	// readAgain is how soon a waiter reads again what it has read to be free.
	readAgain = 20 * time.Millisecond
	// lookJitter bounds by how much those behind the second waiter wait longer than it does.
	lookJitter = 200 * time.Millisecond
	// renewedLate is by how much a renewal may be late before a waiter watches the lock.
	renewedLate = 500 * time.Millisecond
	// mostDoublings is enough for the longest TTL of a place.
	mostDoublings = 4
)

// window is for how long a waiter has seen a key free.
type window struct {
	since, last clock.Instant // of the first and the last answer; 0: it was not free
	revision    uint64        // of the tombstone or the overdue record; 0: there is nothing
	head        record.Entry  // the place that the key belongs to, as read last
}

// saw takes a successful read of the key and of the queue.
func (w *window) saw(key, head record.Entry, at clock.Instant) {
	anew := w.since == 0 || at.Sub(w.last) >= lookGap //safety:window-gap
	anew = anew || w.head.ID != head.ID               //safety:window-head
	if key.Revision != 0 && key.Revision != w.revision {
		anew = true //safety:window-unchanged
	}
	if anew {
		w.since = at
	}
	w.last, w.revision, w.head = at, key.Revision, head
}

// patience is for how long the key has to stay free.
func (w *window) patience() time.Duration {
	return max(min(idleFor<<min(w.head.Evictions, mostDoublings), w.head.Record.TTL), idleFor) //safety:evicted-patience
}

// anew begins all windows anew: something may have gone unseen.
func (f *follower) anew() {
	clear(f.windows) //safety:window-anew
}

// over says whether nobody holds a key any more, or its time is over by the estimate of the
// server's clock.
func (f *follower) over(e record.Entry) bool {
	return !e.Live() || e.Remaining(f.a.c.b.Now()) == 0
}

// look reads the lock and the queue, and takes the lock out of turn when its window is over.
// false: that decides nothing.
func (f *follower) look() (result, bool) {
	a, b := f.a, f.a.c.b
	if f.hinted && !f.freed.any() { // the head has taken it, as was to be expected
		f.lookAt, f.hinted = 0, false
		return result{}, false
	}
	f.freed.forget()
	f.hinted = false
	sent := b.Instant()
	keys, queue, err := f.readAll()
	now := b.Instant()
	if err != nil {
		a.heard(err)
		f.anew()
		f.lookAt = now.Add(clock.OutageBackoff(f.failed))
		f.failed++
		return result{}, false
	}
	f.failed = 0
	i := slices.IndexFunc(queue, func(e record.Entry) bool { return e.ID == f.place.ID() })
	if i < 0 || !slices.ContainsFunc(queue[:i], func(e record.Entry) bool { return e.ID == f.pred.ID }) {
		return result{outcome: relist}, true
	}
	best, ends := -1, false
	for k, e := range keys {
		w := &f.windows[k]
		switch {
		case a.bid.mine(e): // an earlier attempt, to be adopted
			f.lookAt = now.Add(lookAfter)
			return f.claim(k, 0)
		case e.Live() && !b.Overdue(a.ctx, e):
			a.heard(nil)
			a.saw(e)
			*w = window{}
			ends = ends || f.over(e)
			if f.lock != nil {
				f.lock.Track(e.Record)
			}
			continue
		}
		w.saw(e, owner(queue[:i], k, a.counts()), now)
		if best < 0 || f.takes(w) < f.takes(&f.windows[best]) { //safety:slot-longest
			best = k
		}
	}
	switch {
	case best >= 0 && f.takes(&f.windows[best]) <= now: //safety:idle-lock
		if r, decided := f.claim(best, f.windows[best].revision); decided {
			return r, true
		}
		f.windows[best], f.lookAt = window{}, b.Instant().Add(lookAfter)
	case best >= 0:
		f.lookLate = 0
		f.lookAt = max(sent.Add(lookEvery), now)
		if at := f.takes(&f.windows[best]); at > now {
			f.lookAt = min(f.lookAt, at)
		}
	case ends: // the server may remove it in a moment
		f.lookAt = now.Add(f.lookLate.next())
	default:
		f.lookLate, f.lookAt = 0, 0
		if f.freed.any() { // it was notified since the read
			f.lookAt, f.hinted = now.Add(lookAfter), true
		}
	}
	return result{}, false
}

// takes is when the waiter takes the key that a window is about.
func (f *follower) takes(w *window) clock.Instant { return w.since.Add(w.patience() + f.jitter) }

// claim claims key k out of turn. false: another client was quicker.
func (f *follower) claim(k int, revision uint64) (result, bool) {
	a := f.a
	if a.counts() {
		a.aim(k)
	}
	r := a.bid.offer(revision)
	switch w := f.windows[k]; {
	case r.outcome == free || r.outcome == busy:
		return r, false
	case r.outcome == granted && a.c.b.Instant().Sub(w.last) < lookGap: //safety:evicted-granted
		a.passed = w.head
	}
	return r, true
}

// readAll reads the keys of the lock, and the queue, in one state that has the own place.
func (f *follower) readAll() (keys []record.Entry, queue []record.Entry, err error) {
	a := f.a
	if a.counts() {
		all, places, _, err := a.readSlots(f.place.Ticket(), a.keys.Place("*"))
		return all, record.Queue(places), err
	}
	l, err := a.c.b.ListSoon(a.ctx, a.keys.Place("*"), f.place.Ticket(), kvstore.Beside(a.keys.Gate))
	var gate record.Entry
	if l.Beside.Revision != 0 {
		gate = record.Of(l.Beside)
	}
	return []record.Entry{gate}, record.Queue(l.Records), err
}

// owner is the place among those before the own one that key k belongs to: the head. A slot
// belongs to the earliest waiter that knows of it.
func owner(before []record.Entry, k int, counts bool) record.Entry {
	for _, e := range before {
		if !counts || int(e.Permits) > k { //safety:evicted-entitled
			return e
		}
	}
	return record.Entry{}
}

// evict deletes the place of the head that the acquire has passed, as it was read.
func (a *acquisition) evict() {
	head := a.passed
	if a.passed = (record.Entry{}); head.Zero() {
		return
	}
	a.c.s.Background(func(ctx context.Context) {
		err := a.c.b.Delete(ctx, head.Key, head.Revision, head.ID) //safety:evicted-as-read
		if err != nil && !errors.Is(err, kvstore.ErrConflict) {
			a.c.s.Logger.Debug("delete the place of a waiter that was passed", "lock", a.req.Name, "error", err)
		}
	})
}

// freed are the keys of a lock that have become free by their notifications. These are hints:
// they make a waiter read, no more.
type freed struct {
	box *mailbox // to be poked

	mu   sync.Mutex
	keys map[string]bool
}

func (f *freed) deliver(ev kvstore.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case ev.Kind == kvstore.Put:
		delete(f.keys, ev.Record.Key)
	case ev.Kind == kvstore.Recheck: // the predecessor's watch has it too
	default:
		if f.keys == nil {
			f.keys = make(map[string]bool)
		}
		f.keys[ev.Record.Key] = true
		f.box.poke()
	}
}

func (f *freed) any() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.keys) > 0
}

func (f *freed) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.keys)
}
