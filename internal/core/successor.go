package core

import (
	"slices"
	"time"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/record"
)

// A waiter that is not first watches its predecessor's place, and reads it now and then: a
// notification may be lost. It takes a lock out of turn that stays free, and deletes the place of
// the head, which should have taken it. So a first waiter that has died, or is stopped, costs one
// pause, and not one for each hand-over until its place ends.
//
// Silence of a place proves nothing: waiters that live renew their places only now and then.
// What shows that the head is dead is the lock that it is entitled to, free and unclaimed. So
// the waiter goes from the free lock to the deletion by these steps:
//
//   - Its own successful reads, never a notification, have seen the key free and unchanged for
//     1.2 s, and all of them with the same head in place. Two answers in a row are less
//     than a second apart: a tombstone lives for a second, so no cycle in between can hide. A
//     read that fails, a new connection, a suspension and a longer gap begin the window anew.
//   - Its claim at what it has read is acknowledged, soon after the last read.
//   - It deletes the head's place by a write that expects the revision that it has read.
//     A place that was renewed since stays.
//
// Exclusion does not depend on that: a lock is granted by its own conditional write. A head that
// lives, and was too slow, finds its place gone and queues again, at the end. Until it does it may
// think that it is the first, as its successor does: their claims are conditional.

const (
	// idleFor is how long a waiter sees a lock free before it takes it out of turn.
	idleFor = 1200 * time.Millisecond
	// scanEvery is how often it reads meanwhile.
	scanEvery = 600 * time.Millisecond
	// scanGap is the time between two answers within which no change goes unseen.
	scanGap = time.Second
	// scanAfter is how long it leaves a lock to the head before it reads at all: as long as
	// nobody has died no waiter reads more than it would.
	scanAfter = 50 * time.Millisecond
	// readAgain is how soon a waiter reads again what it has read to be free.
	readAgain = 20 * time.Millisecond
	// ScanJitter bounds by how much those behind the second waiter wait longer than it does.
	ScanJitter = 200 * time.Millisecond
	// renewedLate is by how much a renewal may be late before a waiter watches the lock.
	renewedLate = 500 * time.Millisecond
)

// Successor is a waiter behind its predecessor. It reads the predecessor's place by its timers
// (readAt). When the lock seems to be free it scans (scanAt): it reads the lock, the head, its predecessor and its own place,
// again and again, until another client has taken the lock or its own window is over.
type Successor struct {
	ID     string        // of the claim of its place
	Ahead                // whom it waits for
	Counts bool          // of a semaphore
	Shared bool          // of a reader-writer lock
	Jitter time.Duration // by how much it waits longer than the second waiter
	Proven bool          // the subscription to the predecessor's place is in place
	Seeks  clock.Instant // from when on it may look for the head, where that is not known
	Own    string        // the key that an earlier attempt of the own claim has got after all, which is to be adopted; "": none

	silent    bool          // the predecessor seems to be dead
	lastWrite clock.Instant // when the predecessor wrote last, as far as is known
	late      Lateness      // of the predecessor's place
	windows   []window      // of each key of the lock
	readAt    clock.Instant
	scanAt    clock.Instant     // 0: nothing is known to be free
	free      map[string]uint64 // the revisions of the keys that were free in the last read
	again     bool              // the next read is soon, and shows whether they are still free
	hinted    bool              // only notifications have set scanAt
	scanLate  Lateness          // of the lock's record
}

// window is for how long a waiter has seen a key free.
type window struct {
	since, last clock.Instant // of the first and the last answer; 0: it was not free
	revision    uint64        // of the tombstone; 0: there is nothing
	head        record.Entry  // the head, as read last
}

// saw takes what a successful read showed: the free key, and the head of the queue.
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

// Second reports whether nobody is before the predecessor.
func (f *Successor) Second() bool { return f.Head.ID == f.Pred.ID }

// Near reports whether the waiter may be the first of those that live: it is the second or the third one, or its
// predecessor seems to be dead. Far back in a long queue it leaves that to those before it.
func (f *Successor) Near() bool { return !f.Head.Zero() && (f.Rank <= headReach || f.silent) }

// Begin begins the wait for a lock of so many keys. heard is when the predecessor last wrote its place.
func (f *Successor) Begin(keys int, heard, now clock.Instant) {
	f.windows, f.lastWrite, f.readAt = make([]window, keys), heard, now
}

// At is when the waiter reads or scans next.
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

// silentAt is when the predecessor has not renewed its place for longer than those that live
// do. It proves nothing: the waiter watches the lock then, no more.
func (f *Successor) silentAt() clock.Instant {
	return f.lastWrite.Add(f.Pred.Record.TTL/3 + renewedLate)
}

// Due reports whether to read the predecessor's place now, and whether to watch the lock from now on.
//
// The second waiter, and one whose predecessor seems to be dead, may be the first of those that live.
// It watches the lock from its second read on: behind a lock that changes hands quickly it becomes the
// first before that read.
func (f *Successor) Due(now clock.Instant) (reads, watches bool) {
	if !f.silent && f.silentAt() <= now {
		f.silent, f.readAt = true, now
	}
	reads = f.readAt <= now
	return reads, reads && f.Proven && (f.Second() || f.silent && f.Near())
}

// PlaceWritten notes that the predecessor has renewed its place.
func (f *Successor) PlaceWritten(now clock.Instant) { f.lastWrite = now }

// Doubt has the waiter read the predecessor's place now.
func (f *Successor) Doubt(now clock.Instant) { f.readAt = now }

// SubscriptionMoved notes that another server serves the subscription now: nothing was seen meanwhile.
func (f *Successor) SubscriptionMoved() {
	f.Proven = false
	f.restartWindows()
}

// restartWindows begins all windows anew: a change may have gone unseen.
func (f *Successor) restartWindows() {
	clear(f.windows) //safety:window-anew
}

// LockFreed notes that the lock has become free by its notifications. A head that is alive takes it in a
// moment, and that is notified too.
func (f *Successor) LockFreed(now clock.Instant) {
	if f.scanAt == 0 {
		f.scanAt, f.hinted = now.Add(scanAfter), true
	}
}

// First reports whether the notification of the predecessor's tombstone makes this waiter the first: it does if the predecessor
// was granted, no place was before that, and no place that the waiter has to wait for is between the two. A notification
// may be forged. In the queue of a reader-writer lock that would let a waiter pass for good, since several are granted at
// once, so there the waiter reads the tombstone: see [Waiter.KnownRead].
func (f *Successor) First(tombstone record.Body) bool {
	known := f.Sure && !f.Shared                                                          //safety:no-shortcut
	return tombstone.Status == record.StatusGranted && tombstone.ID == f.Pred.ID && known //safety:shortcut-sure
}

// ReadFailed notes that a read has had no answer. The next one is after a pause.
func (f *Successor) ReadFailed(now clock.Instant, pause time.Duration) {
	f.restartWindows()
	f.readNext(now, pause)
}

func (f *Successor) readNext(now clock.Instant, pause time.Duration) {
	if f.again {
		pause = min(pause, readAgain)
	}
	f.readAt = now.Add(pause)
}

// PlaceRead takes the predecessor's place, as it was read, and written at a time. left is what its
// TTL has left by the estimate of the server's clock. It reports whether the predecessor is there, and
// if its record is over. Another claim may have its key by now, behind all that have queued since.
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
	if f.silent && f.silentAt() > now { // its renewal was not notified
		f.silent = false
	}
	return true, false
}

// KeysRead takes keys of the lock that were read beside the predecessor's place. own is the id of
// the waiter's own claim of the lock; "": there is none. A key makes the waiter scan if two reads in a
// row found it free at one revision: a single read may have hit a hand-over. So the second read
// follows soon. ReadBeside returns the keys that are held.
func (f *Successor) KeysRead(keys []string, beside []record.Entry, own string, server time.Time, now clock.Instant) (held []int) {
	before, repeated := f.free, f.again
	f.free, f.again = nil, false
	for i, e := range beside {
		mine := isOwn(e, own)
		if !mine && !isOver(e, server) {
			held = append(held, i)
			continue
		}
		revision, shown := before[keys[i]]
		switch stays := shown && revision == e.Revision; {
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
		f.free[keys[i]] = e.Revision
	}
	return held
}

// maySeek reports whether the waiter may scan: it knows the head, or looks for it now and then only.
func (f *Successor) maySeek(now clock.Instant) bool {
	return !f.Head.Zero() || now >= f.Seeks
}

// Looks reports whether the waiter lists the queue to find the head, which it does not know. oldest says that its
// predecessor, or a place that it knows before that, was written before all others. Otherwise a predecessor that renews
// its place does the looking: a thousand waiters that see a lock free do not list the queue all at once. They look
// again after a pause.
func (f *Successor) Looks(oldest bool, now clock.Instant, pause time.Duration) bool {
	if oldest || f.silent {
		return true
	}
	f.scanAt, f.hinted, f.Seeks = 0, false, now.Add(pause)
	return false
}

// isOver reports whether nobody holds a key any more, or its time is over by the server's clock.
func isOver(e record.Entry, server time.Time) bool { return !e.Live() || e.Remaining(server) == 0 }

// isOwn reports whether a record is that of an attempt of the own claim.
func isOwn(e record.Entry, own string) bool { return own != "" && e.Live() && e.From(own) } //safety:own-record

// Scans reports whether to scan now: see [Successor.LockScanned].
func (f *Successor) Scans(now clock.Instant) bool { return f.scanAt != 0 && f.scanAt <= now }

// Scan begins a scan. freed says that notifications show the lock free. If that was all that made it
// scan, and the head has taken the lock as was to be expected, there is nothing to scan.
func (f *Successor) Scan(freed bool) bool {
	if f.hinted && !freed {
		f.scanAt, f.hinted = 0, false
		return false
	}
	f.hinted = false
	return true
}

// ScanFailed notes that a scan has had no answer. The next one is after a pause.
func (f *Successor) ScanFailed(now clock.Instant, pause time.Duration) {
	f.restartWindows()
	f.scanAt = now.Add(pause)
}

// View is what a scan has read, in one state that has the own place: of the queue the head, the predecessor and
// that place are enough.
type View struct {
	Keys   []record.Entry // of the lock; tombstones included, also in place of what was overdue; zero: nothing
	Queue  []record.Entry
	Sent   clock.Instant // when the read was sent
	Server time.Time     // by the estimate of the server's clock
	Own    string        // the id of the own claim of the lock; "": there is none
	Freed  bool          // notifications since then show the lock free
}

// LockScanned takes what a scan has read. It returns whether to claim a key out of turn.
func (f *Successor) LockScanned(v View, now clock.Instant) (d Decision, k int, revision uint64) {
	i := slices.IndexFunc(v.Queue, func(e record.Entry) bool { return e.ID == f.ID })
	// Another head has a window of its own.
	if i <= 0 || v.Queue[0].ID != f.Head.ID || !slices.ContainsFunc(v.Queue[:i], func(e record.Entry) bool { return e.ID == f.Pred.ID }) { //safety:window-head
		return ListAgain, 0, 0
	}
	best, ends, head := -1, false, v.Queue[0]
	for k, e := range v.Keys {
		w := &f.windows[k]
		switch {
		case isOwn(e, v.Own): // an earlier attempt, to be adopted
			f.scanAt = now.Add(scanAfter)
			return Take, k, 0
		case e.Live():
			*w = window{}
			ends = ends || isOver(e, v.Server)
			continue
		case f.Counts && k >= int(head.Permits): //safety:evicted-entitled
			*w = window{} // the head does not know of the slot: it leaves that free, dead or alive
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
	case ends: // the server may remove it in a moment
		f.scanAt = now.Add(f.scanLate.Next())
	default:
		f.scanLate, f.scanAt = 0, 0
		if v.Freed { // it was notified since the read
			f.LockFreed(now)
		}
	}
	return Stay, 0, 0
}

// takesAt is when the waiter takes the key that a window is about.
func (f *Successor) takesAt(w *window) clock.Instant { return w.since.Add(idleFor + f.Jitter) }

// Missed notes that another client was quicker to claim key k.
func (f *Successor) Missed(k int, now clock.Instant) {
	f.windows[k], f.scanAt = window{}, now.Add(scanAfter)
}

// Evicts returns the place of the head that a grant of key k has passed, which the waiter deletes as
// it was read. false: it is too long since the last read.
func (f *Successor) Evicts(k int, now clock.Instant) (head record.Entry, evicts bool) {
	w := f.windows[k]
	return w.head, now.Sub(w.last) < scanGap //safety:evicted-granted
}

// Lateness yields the pauses after which a waiter checks a record whose TTL is over
// by the estimate of the server's clock. They are short while the server may only be
// a moment late. They are longer when the server has not removed an overdue record,
// and the waiter cannot delete it either.
type Lateness int

// Next returns the next pause.
func (o *Lateness) Next() time.Duration {
	*o++
	switch {
	case *o <= 15: // 300 ms in all, which is record.OverdueSlack
		return 20 * time.Millisecond
	case *o <= 25:
		return 100 * time.Millisecond
	}
	return time.Second
}
