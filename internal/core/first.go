package core

import (
	"time"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/record"
)

// The first waiter of a queue claims a key of the lock as soon as that key seems to be free. A mutex and a
// reader-writer lock have one key, and a semaphore has one for each permit. Because a claim is a conditional write, a
// mistake about a key can create a second holder only if the claim expects the revision of a live record, which the
// claim would then replace. So a claim expects one of the following:
//
//   - The revision of a tombstone that the waiter itself has read, that it has written over an overdue record, or that
//     caused its last claim to be refused. A notification may be forged, so it only makes the waiter read.
//   - No record (0), if the key's record has run out of time by the estimate of the server's clock. The server refuses
//     the claim while the record is still there.
//
// The waiter cannot miss a release. A notification may be lost and a record may end without one, so the waiter reads
// the keys after its subscription is in place and again whenever its timers fire. A refused write proves that the
// subscription is in place. With one key, the first claim serves as that write. With several keys, the waiter sends a
// probe and then reads all keys as of a revision that the leader has named.

// First is the first waiter. The driver asks [First.Next] for a step, carries it out, and reports the result, until a
// claim is granted. Each key has at most one pending step. If no key has a pending step, the waiter does nothing until
// a notification arrives or until [First.At].
type First struct {
	Counts  bool // the lock is a semaphore
	Watched bool // the driver is notified of changes and of the expiry of the records it tracks

	keys   []firstKey
	all    bool   // read all keys
	proven bool   // the subscription is in place
	asOf   uint64 // revision that the next read of all keys has to contain
	due    clock.Instant
	late   Lateness
}

// firstKey is a key of the lock, along with its last known record and its pending step.
type firstKey struct {
	record.Entry
	do Decision
	at uint64
}

// Begin begins the wait for a lock with the given number of keys. vacant is the tombstone of its only key, as read
// along with the queue, or 0.
func (f *First) Begin(keys int, vacant uint64, now clock.Instant) {
	f.keys, f.due = make([]firstKey, keys), now
	f.reread(vacant)
}

// reread makes the waiter read all keys and prove the subscription. If there is only one key, claiming it does both.
func (f *First) reread(vacant uint64) {
	if f.proven, f.all = false, f.Counts; !f.all {
		f.keys[0].do, f.keys[0].at = Take, vacant
	}
}

// Next returns the next step, which the driver carries out immediately.
func (f *First) Next() (do Decision, k int, revision uint64) {
	for _, do := range [...]Decision{Reclaim, Take, Verify} {
		for k := len(f.keys) - 1; k >= 0; k-- { // highest first, because other waiters may know of fewer keys
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

// KeyRead handles the record of key k, as found by a read or after a refused claim. If the record was overdue, the
// driver has already deleted it. own is the id of the current claim, which may have written the record, or "" if that
// claim has already judged the record and does not adopt it.
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

// SubscriptionProven records that the subscription was in place when revision was the last that the leader had stored.
func (f *First) SubscriptionProven(revision uint64) { f.proven, f.asOf = true, revision }

// AllRead records that every key has been passed to [First.KeyRead].
func (f *First) AllRead() { f.all, f.asOf = false, 0 }

// KeyNotRead records that the read of one key got no answer. It reports whether to read all keys immediately instead.
func (f *First) KeyNotRead() bool {
	f.all = f.Counts
	return f.all
}

// ReadFailed records that a read got no answer. The next read follows after pause.
func (f *First) ReadFailed(now clock.Instant, pause time.Duration) {
	f.all, f.due = false, now.Add(pause)
}

// Has reports whether the waiter knows of key k. Other clients may know of more keys.
func (f *First) Has(k int) bool { return k < len(f.keys) }

// RecordNotified handles the notification of a record.
func (f *First) RecordNotified(k int, e record.Entry, own string) {
	x := &f.keys[k]
	if e.Revision > x.Revision {
		x.Entry = e
	}
	if isOwn(e, own) {
		x.do, x.at = Reclaim, 0
	}
}

// TombstoneNotified handles the notification of a tombstone, which any client can forge.
func (f *First) TombstoneNotified(k int, revision uint64) {
	f.keys[k].do, f.keys[k].at = Verify, revision
}

// RecordExpired records that key k's record has run out of time. Claiming the key shows whether it is free.
func (f *First) RecordExpired(k int) { f.keys[k].do, f.keys[k].at = Take, 0 }

// SubscriptionMoved records that another server now serves the subscription.
func (f *First) SubscriptionMoved() { f.reread(0) }

// TimeCame must be called at the time that [First.At] returned. If the record has run out of time, the waiter claims
// the key, which takes no longer than reading it. If the record is overdue, the waiter reads it instead, so that the
// driver deletes it.
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

// Record returns the record of key k, as far as is known.
func (f *First) Record(k int) record.Entry { return f.keys[k].Entry }

// Tracks reports whether the driver tracks the expiry of key k's record. If the record has already run out of time, the
// waiter's timers check it instead.
func (f *First) Tracks(k int, server time.Time) bool {
	return f.Watched && f.keys[k].Live() && f.keys[k].Remaining(server) != 0
}

// Shortest returns the key whose record has the least time left by the estimate of the server's clock. k is negative if
// no key is held, and left is negative if none of the records expires.
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

// At returns the time of the waiter's next read. A notification never postpones that read, because the notification may
// be forged. pause returns how long to wait between a read that is due now and the next one.
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
