package core

import (
	"slices"
	"time"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/record"
)

// A waiter that is not first watches its predecessor's place and, because a notification may be lost, also reads that
// place from time to time. If the lock stays free, the waiter takes it out of turn and deletes the place of the head,
// which should have taken it. So a first waiter that has died or been stopped causes a single pause, rather than one at
// each hand-over until its place expires.
//
// That the head is silent proves nothing, because even live waiters renew their places only from time to time. What
// shows that the head is dead is that the lock it is entitled to stays free and unclaimed. So the waiter deletes the
// head's place only under the following conditions:
//
//   - The waiter's own successful reads, rather than notifications, have shown the key free and unchanged for 1.2 s,
//     with the same head throughout. Consecutive answers are less than a second apart. Because a tombstone lives for a
//     second, no grant and release between two answers can go unseen. A failed read, a new connection, a suspend or a
//     longer gap restarts the window.
//   - The waiter's claim at the revision it read is acknowledged soon after the last read.
//   - The delete expects the revision of the head's place that the waiter read, so a place that has been renewed since
//     then stays.
//
// Exclusion does not depend on these conditions, because only a conditional write grants a lock. A head that is alive
// but was too slow finds its place gone and queues again at the end. Until then, both the head and its successor may
// consider themselves first, which is safe because their claims are conditional.

const (
	// idleFor is how long a waiter has to find a lock free before taking it out of turn.
	idleFor = 1200 * time.Millisecond
	// scanEvery is the interval between a waiter's reads while it scans.
	scanEvery = 600 * time.Millisecond
	// scanGap limits the time between consecutive answers so that no change between them goes unseen.
	scanGap = time.Second
	// scanAfter is how long a waiter leaves a free lock to the head before starting to read, so that no waiter reads
	// more than usual unless a client has died.
	scanAfter = 50 * time.Millisecond
	// readAgain is how long a waiter pauses before rereading a key that it found free.
	readAgain = 20 * time.Millisecond
	// rankAfter is how much each place ahead of a waiter delays the waiter's read at the end of a lease. Without this
	// delay, all waiters in a long queue behind a dead holder would read at the same time. With it, the waiters ahead
	// take the lock first if they are alive.
	rankAfter = 5 * time.Millisecond
	// ScanJitter limits the extra time that waiters behind the second one wait.
	ScanJitter = 200 * time.Millisecond
	// renewedLate is how late the predecessor's renewal may be before a waiter watches the lock.
	renewedLate = 500 * time.Millisecond
)

// Successor is a waiter behind its predecessor. It reads the predecessor's place when a timer fires (readAt). When the
// lock seems to be free, the waiter scans (scanAt), which means that it keeps reading the lock, the head, its
// predecessor and its own place until another client has taken the lock or the waiter's window is complete.
type Successor struct {
	ID     string        // id of its place's claim
	Ahead                // whom it waits for
	Counts bool          // the lock is a semaphore
	Shared bool          // the lock is a reader-writer lock
	Jitter time.Duration // how much longer it waits than the second waiter
	Proven bool          // the subscription to the predecessor's place is known to be active
	Seeks  clock.Instant // when it may search for the head, if it does not know the head
	Own    string        // key that an earlier attempt of its claim obtained after all, for the waiter to adopt; "" if there is none

	silent    bool          // the predecessor seems to be dead
	lastWrite clock.Instant // when the predecessor last wrote, as far as is known
	late      Lateness      // for the predecessor's place
	windows   []window      // one for each key of the lock
	readAt    clock.Instant
	scanAt    clock.Instant     // 0 if no key is known to be free
	free      map[string]uint64 // revisions of the keys that the last read found free
	ends      clock.Instant     // earliest end of a lease in the last read that was not renewed in time; 0 if there is none
	again     bool              // the next read comes soon, to see whether the keys in free are still free
	hinted    bool              // scanAt was prompted only by notifications
	scanLate  Lateness          // for the lock's record
}

// window is the period during which a waiter has found a key free.
type window struct {
	since, last clock.Instant // times of the first and the last answer; 0 if the key was not free
	revision    uint64        // of the tombstone; 0 if there is none
	head        record.Entry  // as last read
}

// saw records the free key and the head of the queue, as found by a read that was answered at time at.
func (w *window) saw(key, head record.Entry, at clock.Instant) {
	anew := w.since == 0 || at.Sub(w.last) >= scanGap //safety:window-gap
	if key.Revision != 0 && key.Revision != w.revision {
		anew = true //safety:window-unchanged
	}
	if anew {
		w.since = at
	}
	w.last, w.revision, w.head = at, key.Revision, head
}

// Second reports whether the predecessor is the head.
func (f *Successor) Second() bool { return f.Head.ID == f.Pred.ID }

// Near reports whether the waiter may be the first live one, because it is second or third or because its predecessor
// seems to be dead. Farther back in a long queue, a waiter leaves the lock to the waiters ahead of it.
func (f *Successor) Near() bool { return !f.Head.Zero() && (f.Rank <= headReach || f.silent) }

// Begin begins the wait for a lock with the given number of keys. heard is when the predecessor last wrote its place.
func (f *Successor) Begin(keys int, heard, now clock.Instant) {
	f.windows, f.lastWrite, f.readAt = make([]window, keys), heard, now
}

// At returns when the waiter next reads or scans.
func (f *Successor) At() clock.Instant {
	at := f.readAt
	if f.scanAt != 0 {
		at = min(at, f.scanAt)
	}
	if !f.silent {
		at = min(at, f.silentAt())
	}
	return at
}

// silentAt returns the time after which the predecessor's renewal is later than a live waiter's would be. Such a delay
// proves nothing, but it makes the waiter watch the lock.
func (f *Successor) silentAt() clock.Instant {
	return f.lastWrite.Add(f.Pred.Record.TTL/3 + renewedLate)
}

// Due reports whether to read the predecessor's place now, and whether to watch the lock from now on.
//
// The second waiter may be the first live one, and so may a waiter whose predecessor seems to be dead. Both watch the
// lock, but only from their second read on, because if the lock changes hands quickly, the waiter is already first by
// then.
func (f *Successor) Due(now clock.Instant) (reads, watches bool) {
	if !f.silent && f.silentAt() <= now {
		f.silent, f.readAt = true, now
	}
	reads = f.readAt <= now
	return reads, reads && f.Proven && (f.Second() || f.silent && f.Near())
}

// PlaceWritten records that the predecessor has renewed its place.
func (f *Successor) PlaceWritten(now clock.Instant) { f.lastWrite = now }

// Doubt makes the waiter read the predecessor's place now.
func (f *Successor) Doubt(now clock.Instant) { f.readAt = now }

// SubscriptionMoved records that another server now serves the subscription, so changes may have been missed in the
// meantime.
func (f *Successor) SubscriptionMoved() {
	f.Proven = false
	f.restartWindows()
}

// restartWindows restarts all windows, because a change may have gone unseen.
func (f *Successor) restartWindows() {
	clear(f.windows) //safety:window-anew
}

// LockFreed handles a notification that the lock is free. A live head takes the lock within moments, which triggers
// another notification.
func (f *Successor) LockFreed(now clock.Instant) {
	if f.scanAt == 0 {
		f.scanAt, f.hinted = now.Add(scanAfter), true
	}
}

// First reports whether the notification of the predecessor's tombstone makes this waiter the first. It does if the
// predecessor was granted the lock with no place ahead of its own, and if no place between the two blocks this waiter.
// But a notification may be forged, and in the queue of a reader-writer lock, where several waiters may be granted the
// lock at the same time, a forged one would let a waiter pass others for good. So with such a lock, the waiter reads
// the tombstone instead; see [Waiter.KnownRead].
func (f *Successor) First(tombstone record.Body) bool {
	known := f.Sure && !f.Shared                                                          //safety:no-shortcut
	return tombstone.Status == record.StatusGranted && tombstone.ID == f.Pred.ID && known //safety:shortcut-sure
}

// ReadFailed records that a read got no answer. The next read follows after pause.
func (f *Successor) ReadFailed(now clock.Instant, pause time.Duration) {
	f.restartWindows()
	f.readNext(now, pause)
}

func (f *Successor) readNext(now clock.Instant, pause time.Duration) {
	if f.again {
		pause = min(pause, readAgain)
	}
	f.readAt = now.Add(pause)
	if f.ends != 0 {
		after := scanAfter + time.Duration(f.Rank)*rankAfter
		if f.Head.Zero() { // more places are ahead of the waiter than it knows of
			after += 5 * f.Jitter
		}
		if at := f.ends.Add(after); at > now { // otherwise this was the read at the end of the lease
			f.readAt = min(f.readAt, at) //safety:read-at-end
		}
	}
}

// PlaceRead handles record e, which was read from the key of the predecessor's place. written is when e was written,
// and left is what remains of its TTL by the estimated server clock. PlaceRead reports whether the predecessor is still
// there and whether its record has run out of time. By now, the key may belong to another claim, whose place is behind
// all those that were queued in the meantime.
func (f *Successor) PlaceRead(e record.Entry, written, now clock.Instant, left, pause time.Duration) (there, over bool) {
	f.readNext(now, pause)
	if !e.Live() || e.ID != f.Pred.ID || e.TokenOrTicket() != f.Pred.TokenOrTicket() {
		return false, false
	}
	if f.lastWrite = max(f.lastWrite, written); left == 0 {
		f.readAt = now.Add(f.late.Next())
		return true, true
	}
	f.late = 0
	if f.silent && f.silentAt() > now { // no notification of its renewal arrived
		f.silent = false
	}
	return true, false
}

// KeysRead handles the keys of the lock that were read along with the predecessor's place, and returns those that are
// held. own is the id of the waiter's claim on the lock, or "" if there is none.
//
// A single read may happen during a hand-over, so the waiter scans only if two consecutive reads find a key free at the
// same revision. The second read follows soon after the first. The waiter also reads when the lease of a held key ends,
// because that end triggers no notification and all waiters ahead may have died with the holder. This applies only to
// leases in their second half, because a live holder renews its lease after a third of the TTL.
func (f *Successor) KeysRead(keys []string, beside []record.Entry, own string, server time.Time, now clock.Instant) (held []int) {
	before, repeated := f.free, f.again
	f.free, f.again, f.ends = nil, false, 0
	for i, e := range beside {
		mine := isOwn(e, own)
		if !mine && !isOver(e, server) {
			held = append(held, i)
			if left := e.Remaining(server); left > 0 && left < e.Record.TTL/2 && (f.ends == 0 || now.Add(left) < f.ends) {
				f.ends = now.Add(left)
			}
			continue
		}
		// A record that has run out of time, the removal of that record, and an expired tombstone all mean that the
		// lock is still free.
		is := e.Revision
		if e.Live() {
			is = 0
		}
		was, shown := before[keys[i]]
		switch stays := shown && (is == 0 || was == is); { //safety:removed-is-free
		case mine:
			f.Own = keys[i]
		case f.scanAt == 0 && stays && f.maySeek(now):
			f.scanAt, f.hinted = now, false
		case !stays:
			f.again = !repeated
		}
		if f.free == nil {
			f.free = make(map[string]uint64)
		}
		f.free[keys[i]] = is
	}
	return held
}

// maySeek reports whether the waiter may scan, either because it knows the head or because it may search for the head
// again.
func (f *Successor) maySeek(now clock.Instant) bool {
	return !f.Head.Zero() || now >= f.Seeks
}

// Looks reports whether the waiter, which does not know the head, lists the queue to find it. oldest means that the
// waiter's predecessor, or a known place ahead of the predecessor, was written before all others. If oldest is false
// and the predecessor renews its place, the waiter leaves the search to the predecessor and looks again after pause.
// Without this rule, a thousand waiters that see a free lock would all list the queue at the same time.
func (f *Successor) Looks(oldest bool, now clock.Instant, pause time.Duration) bool {
	if oldest || f.silent {
		return true
	}
	f.scanAt, f.hinted, f.Seeks = 0, false, now.Add(pause)
	return false
}

// isOver reports whether e no longer holds its key, or has run out of time by the server's clock.
func isOver(e record.Entry, server time.Time) bool { return !e.Live() || e.Remaining(server) == 0 }

// isOwn reports whether e is a live record written by an attempt of the claim with id own.
func isOwn(e record.Entry, own string) bool { return own != "" && e.Live() && e.From(own) } //safety:own-record

// Scans reports whether to scan now; see [Successor.LockScanned].
func (f *Successor) Scans(now clock.Instant) bool { return f.scanAt != 0 && f.scanAt <= now }

// Scan begins a scan. freed means that, according to notifications, the lock is free. Scan returns false if only
// notifications prompted the scan and the head has since taken the lock, as expected.
func (f *Successor) Scan(freed bool) bool {
	if f.hinted && !freed {
		f.scanAt, f.hinted = 0, false
		return false
	}
	f.hinted = false
	return true
}

// ScanFailed records that a scan got no answer. The next scan follows after pause.
func (f *Successor) ScanFailed(now clock.Instant, pause time.Duration) {
	f.restartWindows()
	f.scanAt = now.Add(pause)
}

// View is what a scan has read, all of it from a single state that contains the waiter's place. Queue may be limited to
// the head, the predecessor and the waiter's own place.
type View struct {
	Keys   []record.Entry // of the lock, including tombstones, even those that replaced overdue records; zero for an empty key
	Queue  []record.Entry
	Sent   clock.Instant // when the read was sent
	Server time.Time     // estimate of the server's clock
	Own    string        // id of the waiter's claim on the lock; "" if there is none
	Freed  bool          // notifications since the read show that the lock is free
}

// LockScanned handles the result of a scan and decides whether to claim a key out of turn.
func (f *Successor) LockScanned(v View, now clock.Instant) (d Decision, k int, revision uint64) {
	i := slices.IndexFunc(v.Queue, func(e record.Entry) bool { return e.ID == f.ID })
	// A new head needs a window of its own.
	if i <= 0 || v.Queue[0].ID != f.Head.ID || !slices.ContainsFunc(v.Queue[:i], func(e record.Entry) bool { return e.ID == f.Pred.ID }) { //safety:window-head
		return ListAgain, 0, 0
	}
	best, ends, head := -1, false, v.Queue[0]
	for k, e := range v.Keys {
		w := &f.windows[k]
		switch {
		case isOwn(e, v.Own): // written by an earlier attempt, so adopt it
			f.scanAt = now.Add(scanAfter)
			return Take, k, 0
		case e.Live():
			*w = window{}
			ends = ends || isOver(e, v.Server)
			continue
		case f.Counts && k >= int(head.Permits): //safety:evicted-entitled
			*w = window{} // the head does not know of the slot and leaves it free, dead or alive
			continue
		}
		w.saw(e, head, now)
		if best < 0 || f.takesAt(w) < f.takesAt(&f.windows[best]) { //safety:slot-longest
			best = k
		}
	}
	switch {
	case best >= 0 && f.takesAt(&f.windows[best]) <= now: //safety:idle-lock
		return Take, best, f.windows[best].revision
	case best >= 0:
		f.scanLate = 0
		f.scanAt = max(v.Sent.Add(scanEvery), now)
		if at := f.takesAt(&f.windows[best]); at > now {
			f.scanAt = min(f.scanAt, at)
		}
	case ends: // the server may remove the record in a moment
		f.scanAt = now.Add(f.scanLate.Next())
	default:
		f.scanLate, f.scanAt = 0, 0
		if v.Freed { // freed since the read
			f.LockFreed(now)
		}
	}
	return Stay, 0, 0
}

// takesAt returns when the waiter takes the key of window w.
func (f *Successor) takesAt(w *window) clock.Instant { return w.since.Add(idleFor + f.Jitter) }

// Missed records that another client claimed key k first.
func (f *Successor) Missed(k int, now clock.Instant) {
	f.windows[k], f.scanAt = window{}, now.Add(scanAfter)
}

// Evicts returns the head's place as last read, now that the grant of key k has passed over the head. The waiter
// deletes the place if it has not changed since that read. evicts is false if the last read was too long ago.
func (f *Successor) Evicts(k int, now clock.Instant) (head record.Entry, evicts bool) {
	w := f.windows[k]
	return w.head, now.Sub(w.last) < scanGap //safety:evicted-granted
}

// Lateness yields the pauses between a waiter's checks of a record whose TTL has expired by the estimate of the
// server's clock. The pauses are short at first, when the server may be only a moment late, and get longer if the
// server does not remove the overdue record and the waiter cannot delete it either.
type Lateness int

// Next returns the next pause.
func (o *Lateness) Next() time.Duration {
	*o++
	switch {
	case *o <= 15: // 300 ms in total, which is record.OverdueSlack
		return 20 * time.Millisecond
	case *o <= 25:
		return 100 * time.Millisecond
	}
	return time.Second
}
