package call

import (
	"strings"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/session"
)

// first is the first waiter in a queue. It carries out the steps of [core.First].
type first struct {
	core.First
	a     *Call
	watch kvstore.Watch // nil if subscribing failed, which leaves only the timers
	back  backstop
}

// first waits for the lock once the call has no place ahead of its own to wait for. vacant is the revision of the
// lock's tombstone if the lock was free when the queue was read: when the head of the queue gives up, it leaves the
// lock free, and the next waiter claims it immediately.
func (a *Call) first(place *session.Place, vacant uint64) result {
	b, pattern := a.c.b, a.pattern()
	f := first{a: a, back: backstop{place: a.placeTTL()}, First: core.First{Counts: a.Counts()}}
	a.mailbox.turn(strings.TrimSuffix(pattern, "*"))
	if w, err := b.Watch(pattern, a.mailbox.deliver); err == nil {
		defer w.Stop()
		w.Track(kvstore.Record{})
		f.watch, f.Watched = w, true
	}
	f.Begin(max(a.Req.Permits, 1), vacant, b.Instant())
	for {
		if place.Gone() {
			return result{Outcome: requeue}
		}
		var r result
		switch do, k, revision := f.Next(); do {
		case core.Reclaim, core.Take:
			r = f.claim(k, revision)
		case core.Verify:
			r = f.read(k, revision)
		case core.Prove:
			r = f.prove()
		case core.ReadAll:
			r = f.readAll(revision)
		default:
			r = f.stay()
		}
		if r.Outcome != 0 {
			return r
		}
	}
}

// claim claims key k, which the server refuses while the key is held. The claim is sent after subscribing, so the
// leader's answer to it proves that the subscription is in place.
func (f *first) claim(k int, revision uint64) result {
	f.a.aim(k)
	r := f.a.bid.Offer(f.a.ctx, revision)
	if r.Outcome != free && r.Outcome != busy {
		return r
	}
	f.found(k, f.bury(r.Entry)[0], "")
	return result{}
}

// found passes the record of key k to the core.
func (f *first) found(k int, e record.Entry, own string) {
	f.KeyRead(k, e, own)
	if f.Tracks(k, f.a.c.b.Now()) {
		f.watch.Track(e.Record)
	}
}

// bury deletes the overdue records. If a deletion fails, for example because the bucket is full, a timer makes the
// waiter read that record again.
func (f *first) bury(records ...record.Entry) []record.Entry {
	now, err := f.a.c.b.Bury(f.a.ctx, records...)
	if err != nil {
		f.a.c.s.Logger.Debug("deleting an overdue lock failed", "lock", f.a.Req.Name, "error", err)
	}
	return now
}

func (f *first) read(k int, revision uint64) result {
	e, err := f.a.c.b.Read(f.a.ctx, f.a.key(k), revision)
	switch {
	case err == nil:
		f.answered()
		f.found(k, f.bury(e)[0], f.a.bid.Own())
	case !f.KeyNotRead():
		return f.failed(err)
	}
	return result{}
}

// prove makes the leader confirm the subscription to the slots and report a revision. A list that contains this revision
// misses nothing that happened before the subscription.
func (f *first) prove() result {
	_, err := f.a.c.b.Probe(f.a.ctx, f.a.Keys.Slot(0))
	var revision uint64
	if err == nil {
		_, revision, err = f.a.c.AsOf(f.a.ctx)
	}
	if err != nil {
		return f.failed(err)
	}
	f.SubscriptionProven(revision)
	return result{}
}

func (f *first) readAll(revision uint64) result {
	all, _, _, err := f.a.readSlots(revision, "")
	if err != nil {
		return f.failed(err)
	}
	f.answered()
	f.AllRead()
	for k, e := range f.bury(all...) {
		f.found(k, e, f.a.bid.Own())
	}
	return result{}
}

func (f *first) answered() {
	f.a.RequestAnswered(nil)
	f.back.silent = 0
}

// failed records that a read went unanswered, and schedules another read soon.
func (f *first) failed(err error) result {
	a := f.a
	if f.Counts && bucket.IsAny(err, bucket.ErrPermission) {
		return result{Outcome: failed, Err: err}
	}
	a.RequestAnswered(err)
	a.c.s.Logger.Debug("reading a lock at the head of its queue failed", "lock", a.Req.Name, "error", err)
	f.ReadFailed(a.c.b.Instant(), f.back.after(false))
	return result{}
}

// stay waits until a notification arrives or the next read is due.
func (f *first) stay() result {
	a, b := f.a, f.a.c.b
	if k, _ := f.Shortest(b.Now()); k >= 0 {
		a.holderSeen(f.Record(k))
	}
	timer := b.Timer(f.At(b.Instant(), b.Now(), f.back.next).Sub(b.Instant()))
	defer b.TimerDone(timer)
	select {
	case <-a.mailbox.wake:
		f.notified()
	case <-timer.C:
		f.TimeCame(b.Now())
	case <-a.ctx.Done():
		return result{Outcome: ended, Err: a.Over()}
	}
	return result{}
}

// notified passes the pending notifications to the core.
func (f *first) notified() {
	events, recheck := f.a.mailbox.take()
	for _, ev := range events {
		key, ok := record.ParseKey(ev.Record.Key)
		switch {
		case !ok || !f.Has(key.Slot):
		case ev.Kind == kvstore.Put:
			f.RecordNotified(key.Slot, record.Of(ev.Record), f.a.bid.Own())
		case ev.Kind == kvstore.Deleted:
			f.TombstoneNotified(key.Slot, ev.Record.Revision)
		case ev.Kind == kvstore.Expired:
			f.RecordExpired(key.Slot)
		}
	}
	if recheck {
		f.SubscriptionMoved()
	}
}
