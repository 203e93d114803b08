package acquire

import (
	"fmt"
	"time"

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

// counts says whether the acquire is of a semaphore.
func (a *acquisition) counts() bool { return a.req.Kind == record.Semaphore }

// checkPermits checks what only a semaphore has, and what it cannot have.
func checkPermits(req Request) error {
	switch {
	case req.Kind != record.Semaphore:
		return nil
	case req.Permits < 1 || req.Permits > record.MaxPermits:
		return fmt.Errorf("semaphore %q: %w: %d permits, it can have 1 to %d", req.Name, record.ErrInvalidOption, req.Permits, record.MaxPermits)
	case req.Linger > 0:
		return fmt.Errorf("semaphore %q: %w: a permit cannot linger", req.Name, record.ErrInvalidOption)
	}
	return nil
}

// await waits for the end of the place that a permit was granted from. Other permits may
// be free, and a one-shot acquire must not take the place for that of a waiter. Without an
// answer it waits for a quarter of the lease's validity at most.
func (a *acquisition) await(left <-chan struct{}, l *session.Lease) {
	_, validity, _ := l.Status()
	a.deleted(left, min(bucket.AnswerTimeout, validity/4)) //safety:place-wait
}

// deleted waits for the end of a record that the acquire leaves, for a time at most.
func (a *acquisition) deleted(gone <-chan struct{}, within time.Duration) {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-gone:
	case <-timer.C:
	case <-a.ctx.Done():
	}
}

// aim has the next claim be of slot k. A claim of another slot is over: an answer to it
// that comes later must not become a second grant.
func (a *acquisition) aim(k int) {
	key := a.keys.Slot(k)
	if a.bid.cur != nil && a.bid.cur.key != key { //safety:slot-claim-closed
		a.bid.close()
	}
	a.bid.draft.slot = key
}

// slots are the records of the slots that an acquire knows of, tombstones included. The
// record of a slot that has none is zero.
type slots []record.Entry

// readSlots lists the slots, and what is under another pattern ("" for nothing), in one
// state that contains a revision. A user that may not do so with one request reads the
// slots first: the rest is then from a state that contains them.
func (a *acquisition) readSlots(revision uint64, beside string, opts ...kvstore.ListOption) (all slots, rest []kvstore.Record, more bool, err error) {
	b, pattern := a.c.b, a.keys.Slots()
	opts = append(opts, kvstore.Tombstones())
	if beside != "" {
		opts = append(opts, kvstore.Also(beside))
	}
	l, err := b.ListSoon(a.ctx, pattern, revision, opts...)
	if err != nil && beside != "" && a.over() == nil {
		if l, err = b.ListSoon(a.ctx, pattern, revision, kvstore.Tombstones()); err == nil {
			var other kvstore.Listing
			other, err = b.ListSoon(a.ctx, beside, max(revision, l.Revision)) //safety:slots-first
			l.Records = append(l.Records, other.Records...)
		}
	}
	if err != nil {
		return nil, nil, false, err
	}
	all = make(slots, a.req.Permits)
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
func (a *acquisition) surveySlots(revision uint64) result {
	b := a.c.b
	at := b.Instant()
	a.queue = nil
	opts := []kvstore.ListOption{kvstore.Reached(revision)}
	if b.Alone() {
		revision = 0
	}
	if !a.req.Once { // else the length is reported
		opts = append(opts, kvstore.AtMost(a.req.Permits+enough))
	}
	all, places, more, err := a.readSlots(revision, a.keys.Place("*"), opts...)
	switch {
	case err != nil && a.req.Once:
		return a.noAnswer(err)
	case err != nil:
		a.heard(err)
		return result{outcome: busy} // for all that is known
	case more:
		a.heard(nil)
		a.c.long.isLong(at, a.keys.Place("*"))
		return result{outcome: busy}
	}
	queue, err := b.Clear(a.ctx, record.Queue(places))
	if err != nil {
		if a.req.Once { // an overdue record neither holds nor queues
			return a.noAnswer(err)
		}
		a.c.s.Logger.Debug("delete overdue places", "semaphore", a.req.Name, "error", err)
		return result{outcome: busy}
	}
	a.queue = new(int)
	for _, e := range queue {
		*a.queue += e.Goroutines()
	}
	if len(queue) > 0 { //safety:slot-newcomer-queues
		a.heard(nil)
		return result{outcome: busy}
	}
	a.bid.until = at.Add(record.Bypass)
	defer func() { a.bid.until = 0 }()
	// A replica that lags may show an overdue record without the waiters for it, so a
	// newcomer that can wait queues behind it.
	return a.seize(all, a.req.Once && (b.Alone() || a.asOf > 0))
}

// seize claims a free slot, the highest first. It returns busy with a holder if all of them are
// held. It returns free if one was free, and another client has been quicker: then a new read
// shows whether that was the last one. Overdue records count as free if expired says so.
func (a *acquisition) seize(all slots, expired bool) result {
	for k, e := range all {
		if a.bid.mine(e) { // an earlier attempt, to be adopted
			if r := a.claimSlot(all, k, 0); r.outcome != free && r.outcome != busy {
				return r
			}
		}
	}
	res := result{outcome: busy}
	for k := len(all) - 1; k >= 0; k-- {
		if a.stale() {
			return result{outcome: free}
		}
		e := all[k]
		held := e.Live()
		if held && expired {
			overdue, err := a.c.b.AskOverdue(a.ctx, e)
			if err != nil && a.req.Once {
				return a.noAnswer(err)
			}
			held = !overdue
		}
		if held { //safety:slot-held
			a.heard(nil)
			res.entry = e
			continue
		}
		if r := a.claimSlot(all, k, e.Revision); r.outcome != free && r.outcome != busy {
			return r
		}
		res.outcome = free
	}
	if res.outcome == free {
		res.entry = record.Entry{}
	}
	return res
}

// stale says whether the read that the claims rest on is too old: others may have queued.
func (a *acquisition) stale() bool { return a.bid.until != 0 && a.c.b.Instant() >= a.bid.until }

// claimSlot claims slot k at an expected revision, and at the tombstones that the server
// names, until the slot is held: all has its record then. It returns free when it may not
// go on: the place has gone, or the read that the claim rests on is too old.
//
// A newcomer may have read a replica that lags, and has not seen the queue of now. A slot
// that nobody has claimed since that state has no queue, since its first waiter would have taken
// it, unless that knows of fewer slots. So the newcomer's claim at what it read passes nobody
// else, and it makes no other.
func (a *acquisition) claimSlot(all slots, k int, expect uint64) result {
	a.aim(k)
	for {
		r := a.bid.offer(expect)
		switch r.outcome {
		case free, busy:
			all[k], expect = r.entry, r.entry.Revision
		default:
			return r
		}
		if a.place == nil && a.asOf == 0 && !a.c.b.Alone() { //safety:slot-newcomer
			return r
		}
		if r.outcome == busy || a.place != nil && a.place.Gone() || a.stale() { //safety:slot-bypass
			return r
		}
	}
}
