package call

import (
	"github.com/natslock/locks/internal/claim"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
)

// enough limits how many records, beyond the lock's own, a newcomer reads to find out whether it has to queue. If
// tombstones fill the list, the newcomer queues even if the lock is free.
const enough = 8

// survey reads the lock and its queue from a state that contains revision, and claims what is free if no waiter is
// queued. It returns busy with a holder if all keys are held. It returns free if keys were free but other clients
// claimed them first; only a new read can then show whether all are held.
func (a *Call) survey(revision uint64) result {
	b := a.c.b
	at := b.Instant()
	a.queue = nil
	// A state that contains the lock's tombstone contains every waiter that queued before the tombstone was written,
	// and those waiters go first. If no replica can lag, the list need not name the revision, which would cost a second
	// request if the queue is empty.
	opts := []kvstore.ListOption{kvstore.Reached(revision)}
	if b.Alone() { //safety:newcomer-as-of
		revision = 0
	}
	if !a.Req.Once { // a one-shot call reports the queue's length
		opts = append(opts, kvstore.AtMost(max(a.Req.Permits, 1)+enough))
	}
	keys, queue, left, err := a.readAll(revision, opts...)
	if err != nil {
		a.RequestAnswered(err)
		if !a.Req.Once {
			a.surveyed = 1               // the server may be slow because many clients arrived together
			return result{Outcome: busy} // as far as the client knows
		}
		if a.Counts() {
			return a.noAnswer(err)
		}
		if entry, e := b.Read(a.ctx, a.Keys.Gate, revision); e == nil && entry.Live() && !a.bid.Mine(entry) {
			return result{Outcome: busy, Entry: entry} // the queue's length is unknown
		}
		return a.noAnswer(err)
	}
	a.length = len(queue) + left
	if left > 0 && a.Counts() { // the list may lack slots too
		a.RequestAnswered(nil)
		return result{Outcome: busy}
	}
	queue, err = b.Clear(a.ctx, queue)
	a.queue = new(0)
	for _, e := range queue {
		*a.queue += e.Goroutines()
	}
	v := core.Arrival{Keys: keys, Waiting: len(queue), More: left > 0, Own: a.bid.Own()}
	switch {
	case err != nil && a.Req.Once: // an overdue record neither holds the lock nor queues
		return a.noAnswer(err)
	case err != nil:
		a.c.s.Logger.Debug("deleting overdue places failed", "lock", a.Req.Name, "error", err)
		v.More = true
	// A lagging replica may show an overdue record without the waiters that have queued since. So only a one-shot call
	// that reads a current state deletes the record, and other newcomers queue behind it.
	case a.Req.Once && (b.Alone() || a.asOf > 0):
		v.Keys, err = b.Bury(a.ctx, keys...)
	}
	claims, holder := v.Claims()
	if len(claims) == 0 {
		if err != nil && a.Req.Once {
			return a.noAnswer(err)
		}
		if err == nil {
			a.RequestAnswered(nil)
		}
		return result{Outcome: busy, Entry: holder}
	}
	b.Recent.Unqueued(a.Keys.Gate, at)
	a.bid.Until = at.Add(record.Bypass)
	defer func() { a.bid.Until = 0 }()
	for _, c := range claims {
		// A waiter that has queued since the read may use fewer slots. A one-shot call goes ahead anyway, because it
		// cannot queue.
		if a.Counts() && !a.Req.Once && !a.bid.Mine(keys[c.K]) && a.stale() {
			break
		}
		if r := a.claimKey(c.K, c.Expect); r.Outcome != free && r.Outcome != busy || len(keys) == 1 {
			return r
		}
	}
	return result{Outcome: free}
}

// stale reports whether the read that preceded the claims is so old that others may have queued since.
func (a *Call) stale() bool { return a.c.b.Instant() >= a.bid.Until }

// claimKey claims key k for a newcomer at the expected revision. If another client has taken and released the lock in
// the meantime, it claims again at the new tombstone, until the key is held or the read that preceded the claims is too
// old.
//
// The slots may have been read from a lagging replica that did not show the current queue. Even so, no waiter is queued
// for a slot that has not changed since that read, because the first waiter would have claimed it, unless that waiter
// uses fewer slots. So the first claim overtakes no other waiter, but a second one could.
func (a *Call) claimKey(k int, expect uint64) result {
	a.aim(k)
	for {
		r := a.bid.Offer(a.ctx, expect)
		switch {
		case r.Outcome != free:
			return r
		case a.Counts() && a.asOf == 0 && !a.c.b.Alone(): //safety:slot-newcomer
			return r
		case a.stale(): //safety:slot-bypass
			return r
		}
		expect = r.Entry.Revision
	}
}

// readAll reads the lock's keys and its queue in one state that contains revision. left is a lower bound on the number
// of records omitted.
func (a *Call) readAll(revision uint64, opts ...kvstore.ListOption) (keys, queue []record.Entry, left int, err error) {
	if a.Counts() {
		keys, places, left, err := a.readSlots(revision, a.Keys.Place("*"), opts...)
		return keys, record.Queue(places), left, err
	}
	l, err := a.c.b.ListSoon(a.ctx, a.Keys.Place("*"), revision, append(opts, kvstore.Beside(a.Keys.Gate))...)
	if err == nil {
		a.surveyed = max(l.Revision, 1) // an empty state names no revision
	}
	keys = make([]record.Entry, 1)
	if l.Beside.Revision != 0 {
		keys[0] = record.Of(l.Beside)
	}
	return keys, record.Queue(l.Records), leftOut(l), err
}

// leftOut returns a lower bound on the number of records that a list omitted.
func leftOut(l kvstore.Listing) int {
	if l.More {
		return max(l.Left, 1)
	}
	return 0
}

// AtOnce tries to take the lock without queueing. That takes a single write if the client knows the state of the lock,
// or knows nothing and guesses that the lock is new. Otherwise AtOnce first reads the lock and its queue.
func (a *Call) AtOnce() claim.Result {
	if a.Counts() {
		return a.survey(0)
	}
	known := a.c.b.Recent.Known(a.c.b.Instant(), a.Keys.Gate)
	if a.Req.Patient { //safety:patient-bypass
		known.Until = 0
	}
	revision := known.Tombstone
	a.named = 0
	switch {
	// After its own release, a client may skip reading the queue only for [record.Bypass], so that no other client
	// starves.
	case known.Tombstone == 0 || known.Until != 0: //safety:bypass-bounded
		a.bid.Blind, a.bid.Until = true, known.Until
		r := a.bid.Offer(a.ctx, known.Tombstone)
		a.bid.Blind, a.bid.Until = false, 0
		if r.Outcome != refused {
			return r
		}
		revision, a.named = r.Entry.Revision, r.Entry.Revision
	}
	return a.survey(revision)
}
