package core

import (
	"time"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/record"
)

// The first waiter of a queue claims a key of the lock as soon as nobody seems to hold it: a mutex and
// a reader-writer lock have one key, a semaphore has one for each permit. A claim is a conditional
// write, so no mistake about a key makes a second holder. What a mistake can do is to claim at the
// revision of a live record, which would replace it. So a claim expects
//
//   - the revision of a tombstone that the waiter itself has read or written (in place of an overdue record), or
//     that has refused its last claim. A notification may be forged: it makes the waiter read, no more;
//   - or nothing (0), where the time of the record is over by the estimate of the server's clock. The
//     server refuses that while the record is there.
//
// It misses no release, because it reads the keys after its subscription is in place, and again by
// its timers: a notification may be lost, and the end of a record may come without one. What proves
// the subscription is a write that the server refuses. For one key that is the first claim itself.
// For several it is a probe, and then a read of all keys as of a revision that the leader has named.

// First is the first waiter. The driver asks for the [First.Next] step, takes it, and reports what has
// come of it, until a claim is granted. For each key there is at most one step to take. Without any it stays
// until a notification comes, or until [First.At].
type First struct {
	Counts  bool // of a semaphore
	Watched bool // changes are notified, and the ends of the records that the driver tracks

	keys   []firstKey
	all    bool   // all keys are to be read
	proven bool   // the subscription is in place
	asOf   uint64 // what the next read of all keys has to contain
	due    clock.Instant
	late   Lateness
}

// firstKey is a key of the lock: the record that is known, and the step to take.
type firstKey struct {
	record.Entry
	do Decision
	at uint64
}

// Begin begins the wait for a lock of so many keys. vacant is the tombstone of its only key, as it was
// read beside the queue, or 0.
func (f *First) Begin(keys int, vacant uint64, now clock.Instant) {
	f.keys, f.due = make([]firstKey, keys), now
	f.reread(vacant)
}

// reread finds out about all keys, and proves the subscription. A claim of the only key does both.
func (f *First) reread(vacant uint64) {
	if f.proven, f.all = false, f.Counts; !f.all {
		f.keys[0].do, f.keys[0].at = Take, vacant
	}
}

// Next returns the next step. The driver takes it at once.
func (f *First) Next() (do Decision, k int, revision uint64) {
	for _, do := range [...]Decision{Reclaim, Take, Verify} {
		for k := len(f.keys) - 1; k >= 0; k-- { // the highest, so that those that know of fewer find theirs
			if x := &f.keys[k]; x.do == do {
				x.do = Stay
				return do, k, x.at
			}
		}
	}
	switch {
	case !f.all:
		return Stay, 0, 0
	case f.proven: //safety:slots-subscribed
		return ReadAll, 0, f.asOf
	}
	return Prove, 0, 0
}

// KeyRead takes the record of key k, as a read has returned it, or the refusal of a claim. The driver has deleted
// an overdue one. own is the id of the claim under way, of which the record may
// be; "" where that claim has judged the record itself, and does not take it for its own.
func (f *First) KeyRead(k int, e record.Entry, own string) {
	x := &f.keys[k]
	x.Entry, x.do, x.at = e, Take, e.Revision
	switch {
	case !e.Live(): //safety:release-verified
	case isOwn(e, own):
		x.do, x.at = Reclaim, 0
	default:
		x.do = Stay
	}
}

// SubscriptionProven notes that the subscription was in place when the leader had a revision.
func (f *First) SubscriptionProven(revision uint64) { f.proven, f.asOf = true, revision }

// AllRead notes that all keys have been read: see [First.KeyRead].
func (f *First) AllRead() { f.all, f.asOf = false, 0 }

// KeyNotRead notes that the read of one key has had no answer. true: all are read at once instead.
func (f *First) KeyNotRead() bool {
	f.all = f.Counts
	return f.all
}

// ReadFailed notes that a read has had no answer. The next one is after a pause.
func (f *First) ReadFailed(now clock.Instant, pause time.Duration) {
	f.all, f.due = false, now.Add(pause)
}

// Has reports whether there is a key k: other clients may know of more.
func (f *First) Has(k int) bool { return k < len(f.keys) }

// RecordNotified takes a record that was notified.
func (f *First) RecordNotified(k int, e record.Entry, own string) {
	x := &f.keys[k]
	if e.Revision > x.Revision {
		x.Entry = e
	}
	if isOwn(e, own) {
		x.do, x.at = Reclaim, 0
	}
}

// TombstoneNotified notes the notification of a tombstone. Any client may forge that.
func (f *First) TombstoneNotified(k int, revision uint64) {
	f.keys[k].do, f.keys[k].at = Verify, revision
}

// RecordExpired notes that the time of the record of key k is over: a claim decides.
func (f *First) RecordExpired(k int) { f.keys[k].do, f.keys[k].at = Take, 0 }

// SubscriptionMoved notes that another server serves the subscription now.
func (f *First) SubscriptionMoved() { f.reread(0) }

// TimeCame notes that it is [First.At]. The claim of a key whose time is over takes no longer than a read of
// it. One that is overdue is read, and deleted.
func (f *First) TimeCame(server time.Time) {
	_, left := f.Shortest(server)
	switch {
	case f.Counts:
		f.all = true
	case left == 0 && !f.keys[0].OverdueAt(server):
		f.keys[0].do, f.keys[0].at = Take, 0
	default:
		f.keys[0].do, f.keys[0].at = Verify, 0
	}
}

// Record is the record of key k, as far as is known.
func (f *First) Record(k int) record.Entry { return f.keys[k].Entry }

// Tracks reports whether to have the end of the record of key k notified. An end that has come is checked
// by the timers.
func (f *First) Tracks(k int, server time.Time) bool {
	return f.Watched && f.keys[k].Live() && f.keys[k].Remaining(server) != 0
}

// Shortest returns the key whose record has the least time left by the estimate of the server's clock;
// left is negative if none of them ends. k is negative if none is held.
func (f *First) Shortest(server time.Time) (k int, left time.Duration) {
	k, left = -1, -1
	for i := range f.keys {
		if !f.keys[i].Live() {
			continue
		}
		if d := f.keys[i].Remaining(server); k < 0 || left < 0 || d >= 0 && d < left {
			k, left = i, d
		}
	}
	return k, left
}

// At is when the waiter reads by itself. A notification, which can be forged, never puts that off.
// pause yields the time to the next read, where that is due.
func (f *First) At(now clock.Instant, server time.Time, pause func() time.Duration) clock.Instant {
	switch _, left := f.Shortest(server); {
	case left == 0 && f.due <= now:
		f.due = now.Add(f.late.Next())
	case left == 0 && f.late == 0:
		f.due = min(f.due, now.Add(f.late.Next()))
	case left == 0:
	default:
		f.late = 0
		if f.due <= now {
			f.due = now.Add(pause())
		}
		if !f.Watched && left > 0 {
			f.due = min(f.due, now.Add(left))
		}
	}
	return f.due
}
