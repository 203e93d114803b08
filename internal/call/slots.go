package call

import (
	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/session"
	"github.com/natslock/locks/kvstore"
)

// A semaphore is the mutex's machinery with several keys to claim. Each permit is a slot,
// and a claim of a slot is like that of a mutex: the server refuses a second holder. So no
// number of clients, and no fault, makes more holders than there are slots.
//
// The queue is one for all slots, and strictly first come, first served: only the first waiter
// claims slots, and newcomers queue behind whoever waits. Clients may know of different numbers
// of permits. A client claims slots below its own number only. The first waiter waits for one of
// those, and all others wait behind it, also while a slot is free that it does not know of.
// Newcomers claim the highest free slot, so that waiters that know of fewer find theirs.
//
// Each goroutine has a place of its own: runs hand a lease on, and here several leases of
// a client go on at once.

// await waits for the end of the place that a permit was granted from. Other permits may
// be free, and a one-shot acquire must not take the place for that of a waiter. Without an
// answer it waits for a quarter of the lease's validity at most.
func (a *Call) await(left <-chan struct{}, l *session.Lease) {
	_, validity, _ := l.Status()
	a.deleted(left, min(bucket.AnswerTimeout, validity/4)) //safety:place-wait
}

// key is key k of the lock.
func (a *Call) key(k int) string {
	if a.Counts() {
		return a.Keys.Slot(k)
	}
	return a.Keys.Gate
}

// aim has the next claim be of key k.
func (a *Call) aim(k int) {
	if a.Counts() {
		a.bid.Aim(a.Keys.Slot(k))
	}
}

// pattern is that of the keys of the lock.
func (a *Call) pattern() string {
	if a.Counts() {
		return a.Keys.Slots()
	}
	return a.Keys.Gate
}

// slots are the records of the slots that an acquire knows of, tombstones included. The
// record of a slot that has none is zero.
type slots []record.Entry

// readSlots lists the slots, and what is under another pattern ("" for nothing), in one
// state that contains a revision. A user that may not do so with one request reads the
// slots first: the rest is then from a state that contains them.
func (a *Call) readSlots(revision uint64, beside string, opts ...kvstore.ListOption) (all slots, rest []kvstore.Record, more bool, err error) {
	b, pattern := a.c.b, a.Keys.Slots()
	opts = append(opts, kvstore.Tombstones())
	if beside != "" {
		opts = append(opts, kvstore.Also(beside))
	}
	l, err := b.ListSoon(a.ctx, pattern, revision, opts...)
	if err != nil && beside != "" && a.Over() == nil {
		if l, err = b.ListSoon(a.ctx, pattern, revision, kvstore.Tombstones()); err == nil {
			var other kvstore.Listing
			other, err = b.ListSoon(a.ctx, beside, max(revision, l.Revision)) //safety:slots-first
			l.Records = append(l.Records, other.Records...)
		}
	}
	if err != nil {
		return nil, nil, false, err
	}
	all = make(slots, a.Req.Permits)
	for _, r := range l.Records {
		switch k, ok := record.ParseKey(r.Key); {
		case ok && k.Prefix == record.SlotPrefix:
			if k.Slot < len(all) {
				all[k.Slot] = record.Of(r)
			}
		case !r.Deleted:
			rest = append(rest, r)
		}
	}
	return all, rest, l.More, nil
}

// surveySlots reads the slots and the queue, from a state that contains revision, and
// claims a free slot that no waiter is to have.
func (a *Call) surveySlots(revision uint64) result {
	b := a.c.b
	at := b.Instant()
	a.queue = nil
	opts := []kvstore.ListOption{kvstore.Reached(revision)}
	if b.Alone() {
		revision = 0
	}
	if !a.Req.Once { // else the length is reported
		opts = append(opts, kvstore.AtMost(a.Req.Permits+enough))
	}
	all, places, more, err := a.readSlots(revision, a.Keys.Place("*"), opts...)
	switch {
	case err != nil && a.Req.Once:
		return a.noAnswer(err)
	case err != nil:
		a.Heard(err)
		return result{Outcome: busy} // for all that is known
	case more:
		a.Heard(nil)
		a.c.long.isLong(at, a.Keys.Place("*"))
		return result{Outcome: busy}
	}
	queue, err := b.Clear(a.ctx, record.Queue(places))
	if err != nil {
		if a.Req.Once { // an overdue record neither holds nor queues
			return a.noAnswer(err)
		}
		a.c.s.Logger.Debug("delete overdue places", "semaphore", a.Req.Name, "error", err)
		return result{Outcome: busy}
	}
	a.queue = new(int)
	for _, e := range queue {
		*a.queue += e.Goroutines()
	}
	if len(queue) > 0 { //safety:slot-newcomer-queues
		a.Heard(nil)
		return result{Outcome: busy}
	}
	a.bid.Until = at.Add(record.Bypass)
	defer func() { a.bid.Until = 0 }()
	// A replica that lags may show an overdue record without the waiters for it, so a
	// newcomer that can wait queues behind it.
	return a.seize(all, a.Req.Once && (b.Alone() || a.asOf > 0))
}

// seize claims a free slot for a newcomer, the highest first. It returns busy with a holder if all of them are
// held. It returns free if one was free, and another client has been quicker: then a new read
// shows whether that was the last one. Overdue records count as free if expired says so.
func (a *Call) seize(all slots, expired bool) result {
	for k, e := range all {
		if a.bid.Mine(e) { // an earlier attempt, to be adopted
			if r := a.claimSlot(k, 0); r.Outcome != free && r.Outcome != busy {
				return r
			}
		}
	}
	res := result{Outcome: busy}
	for k := len(all) - 1; k >= 0; k-- {
		if a.stale() {
			return result{Outcome: free}
		}
		e := all[k]
		held := e.Live()
		if held && expired {
			overdue, err := a.c.b.AskOverdue(a.ctx, e)
			if err != nil && a.Req.Once {
				return a.noAnswer(err)
			}
			held = !overdue
		}
		if held { //safety:slot-held
			a.Heard(nil)
			res.Entry = e
			continue
		}
		if r := a.claimSlot(k, e.Revision); r.Outcome != free && r.Outcome != busy {
			return r
		}
		res.Outcome = free
	}
	if res.Outcome == free {
		res.Entry = record.Entry{}
	}
	return res
}

// stale says whether the read that the claims rest on is too old: others may have queued.
func (a *Call) stale() bool { return a.c.b.Instant() >= a.bid.Until }

// claimSlot claims slot k for a newcomer at an expected revision, and at the tombstones that the
// server names, until the slot is held or the read that the claim rests on is too old.
//
// That read may be of a replica that lags, which has not seen the queue of now. A slot
// that nobody has claimed since that state has no queue, since its first waiter would have taken
// it, unless that knows of fewer slots. So the newcomer's claim at what it read passes nobody
// else, and it makes no other.
func (a *Call) claimSlot(k int, expect uint64) result {
	a.aim(k)
	for {
		r := a.bid.Offer(a.ctx, expect)
		switch {
		case r.Outcome != free:
			return r
		case a.asOf == 0 && !a.c.b.Alone(): //safety:slot-newcomer
			return r
		case a.stale(): //safety:slot-bypass
			return r
		}
		expect = r.Entry.Revision
	}
}

// enough is how many records a newcomer reads of a lock and its queue to see that
// it has to queue.
const enough = 16
