package call

import (
	"strings"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/session"
	"github.com/natslock/locks/kvstore"
)

// first is the first waiter of a queue: it takes the steps that [core.First] asks for.
type first struct {
	core.First
	a     *Call
	watch kvstore.Watch // nil: the timers remain
	back  backstop
}

// first waits for the lock at the head of the queue. vacant is the tombstone of the lock, if
// that was free when the queue was listed: a head that has given up leaves a free lock, and the
// next one claims it at once.
func (a *Call) first(place *session.Place, vacant uint64) result {
	b, pattern := a.c.b, a.pattern()
	h := first{a: a, back: backstop{place: a.placeTTL()}, First: core.First{Counts: a.Counts()}}
	a.mailbox.turn(strings.TrimSuffix(pattern, "*"))
	if w, err := b.Watch(pattern, a.mailbox.deliver); err == nil {
		defer w.Stop()
		w.Track(kvstore.Record{})
		h.watch, h.Watched = w, true
	}
	h.Begin(max(a.Req.Permits, 1), vacant, b.Instant())
	for {
		if place.Gone() {
			return result{Outcome: requeue}
		}
		var r result
		switch do, k, revision := h.Next(); do {
		case core.Adopt, core.Take:
			r = h.claim(k, revision)
		case core.Verify:
			r = h.read(k, revision)
		case core.Prove:
			r = h.prove()
		case core.ReadAll:
			r = h.readAll(revision)
		default:
			r = h.stay()
		}
		if r.Outcome != 0 {
			return r
		}
	}
}

// claim claims key k. It is refused while that is held. It is sent after subscribing, so the leader's
// answer proves that the subscription is in place.
func (h *first) claim(k int, revision uint64) result {
	h.a.aim(k)
	r := h.a.bid.Offer(h.a.ctx, revision)
	if r.Outcome != free && r.Outcome != busy {
		return r
	}
	h.found(k, r.Entry, "")
	return result{}
}

// found reports the record of key k.
func (h *first) found(k int, e record.Entry, own string) {
	a, b := h.a, h.a.c.b
	h.Found(k, e, e.Live() && b.Overdue(a.ctx, e), own)
	if h.Tracks(k, b.Now()) {
		h.watch.Track(e.Record)
	}
}

// read reads key k.
func (h *first) read(k int, revision uint64) result {
	e, err := h.a.c.b.Read(h.a.ctx, h.a.key(k), revision)
	switch {
	case err == nil:
		h.answered()
		h.found(k, e, h.a.bid.Own())
	case !h.Unread():
		return h.failed(err)
	}
	return result{}
}

// prove has the leader confirm the subscription to the slots, and name a revision that a list has to
// contain which misses nothing from before.
func (h *first) prove() result {
	_, err := h.a.c.b.Probe(h.a.ctx, h.a.Keys.Slot(0))
	var revision uint64
	if err == nil {
		_, revision, err = h.a.c.AsOf(h.a.ctx)
	}
	if err != nil {
		return h.failed(err)
	}
	h.Proved(revision)
	return result{}
}

// readAll reads all slots.
func (h *first) readAll(revision uint64) result {
	all, _, _, err := h.a.readSlots(revision, "")
	if err != nil {
		return h.failed(err)
	}
	h.answered()
	h.FoundAll()
	for k, e := range all {
		h.found(k, e, h.a.bid.Own())
	}
	return result{}
}

func (h *first) answered() {
	h.a.Heard(nil)
	h.back.silent = 0
}

// failed reports a read without an answer. It is repeated soon.
func (h *first) failed(err error) result {
	a := h.a
	if h.Counts && bucket.IsAny(err, bucket.ErrPermission) {
		return result{Outcome: failed, Err: err}
	}
	a.Heard(err)
	a.c.s.Logger.Debug("read a lock at the head of its queue", "lock", a.Req.Name, "error", err)
	h.Failed(a.c.b.Instant(), h.back.after(false))
	return result{}
}

// stay waits for notifications and for the next read.
func (h *first) stay() result {
	a, b := h.a, h.a.c.b
	if k, _ := h.Shortest(b.Now()); k >= 0 {
		a.saw(h.Record(k))
	}
	timer := b.Timer(h.At(b.Instant(), b.Now(), h.back.next).Sub(b.Instant()))
	defer b.TimerDone(timer)
	select {
	case <-a.mailbox.wake:
		h.notified()
	case <-timer.C:
		h.Due(b.Now())
	case <-a.ctx.Done():
		return result{Outcome: ended, Err: a.Over()}
	}
	return result{}
}

// notified reports the notifications that have come.
func (h *first) notified() {
	events, recheck := h.a.mailbox.take()
	for _, ev := range events {
		key, ok := record.ParseKey(ev.Record.Key)
		switch {
		case !ok || !h.Has(key.Slot):
		case ev.Kind == kvstore.Put:
			h.Put(key.Slot, record.Of(ev.Record), h.a.bid.Own())
		case ev.Kind == kvstore.Deleted:
			h.Deleted(key.Slot, ev.Record.Revision)
		case ev.Kind == kvstore.Expired:
			h.Expired(key.Slot)
		}
	}
	if recheck {
		h.Moved()
	}
}
