package call

import (
	"sync"
	"time"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/session"
	"github.com/natslock/locks/kvstore"
)

// changes are the newest notifications of slots that were not taken yet.
type changes struct {
	box *mailbox // to be poked

	mu      sync.Mutex
	m       map[string]kvstore.Event
	recheck bool
}

func (c *changes) deliver(ev kvstore.Event) {
	c.mu.Lock()
	if ev.Kind == kvstore.Recheck {
		c.recheck = true
	} else if ev.Record.Revision >= c.m[ev.Record.Key].Record.Revision {
		if c.m == nil {
			c.m = make(map[string]kvstore.Event)
		}
		c.m[ev.Record.Key] = ev
	}
	c.mu.Unlock()
	c.box.poke()
}

func (c *changes) take() (m map[string]kvstore.Event, recheck bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m, recheck = c.m, c.recheck
	c.m, c.recheck = nil, false
	return m, recheck
}

// slotHead is the first waiter for the slots.
type slotHead struct {
	head
	all    slots
	events changes
	proven bool // the subscription is in place
}

// firstOfSlots waits for a slot at the head of the queue.
func (a *Call) firstOfSlots(place *session.Place) result {
	h := slotHead{
		head: head{a: a, place: place, back: backstop{place: a.placeTTL()}, due: a.c.b.Instant()},
		all:  make(slots, a.Req.Permits),
	}
	h.events.box = a.mailbox
	a.mailbox.turn("")
	if w, err := a.c.b.Watch(a.Keys.Slots(), h.events.deliver); err == nil {
		defer w.Stop()
		w.Track(kvstore.Record{})
		h.watch = w
	}
	for {
		if r, decided := h.readAll(); decided {
			return r
		}
		if r, decided := h.awaitSlot(); decided {
			return r
		}
	}
}

// readAll reads all slots, and claims what is free. false: that decides nothing.
func (h *slotHead) readAll() (result, bool) {
	a := h.a
	revision, err := h.prove()
	if err == nil {
		var all slots
		if all, _, _, err = a.readSlots(revision, ""); err == nil {
			h.all, h.proven = all, true
		}
	}
	h.answered(err == nil)
	switch {
	case bucket.IsAny(err, bucket.ErrPermission):
		return result{Outcome: failed, Err: err}, true
	case h.place.Gone():
		return result{Outcome: requeue}, true
	case err != nil: // the timers will try again
		a.Heard(err)
		a.c.s.Logger.Debug("read the slots", "semaphore", a.Req.Name, "error", err)
		return result{}, false
	}
	r, decided := h.take(a.seize(h.all, true))
	for k := range h.all {
		h.track(k)
	}
	return r, decided
}

// track has the end of the record of slot k notified. An end that has come is checked by the
// timers.
func (h *slotHead) track(k int) {
	if e := h.all[k]; h.watch != nil && e.Live() && e.Remaining(h.a.c.b.Now()) > 0 {
		h.watch.Track(e.Record)
	}
}

// prove has the leader confirm the subscription, and returns a revision that a list has to
// contain which misses nothing from before.
func (h *slotHead) prove() (revision uint64, err error) {
	if h.proven { //safety:slots-subscribed
		return 0, nil
	}
	if _, err = h.a.c.b.Probe(h.a.ctx, h.a.Keys.Slot(0)); err == nil {
		_, revision, err = h.a.c.AsOf(h.a.ctx)
	}
	return revision, err
}

// take judges what came of claims; false: the slots are held.
func (h *slotHead) take(r result) (result, bool) {
	switch {
	case r.Outcome != free && r.Outcome != busy:
		return r, true
	case h.place.Gone():
		return result{Outcome: requeue}, true
	}
	return result{}, false
}

// awaitSlot waits until all slots are to be read again; false then.
func (h *slotHead) awaitSlot() (result, bool) {
	a, b := h.a, h.a.c.b
	for {
		timer := b.Timer(h.schedule(h.shortest()))
		r, decided, again := result{}, false, false
		select {
		case <-a.mailbox.wake:
			r, decided, again = h.notifiedOfSlots()
		case <-timer.C:
			again = true
		case <-a.ctx.Done():
			r, decided = result{Outcome: ended, Err: a.Over()}, true
		}
		b.TimerDone(timer)
		if decided || again {
			return r, decided
		}
	}
}

// shortest is the shortest time that a record of a slot has left by the estimate of the
// server's clock, and negative if none of them ends. It notes that record as the holder.
func (h *slotHead) shortest() (left time.Duration) {
	now := h.a.c.b.Now()
	left = -1
	for _, e := range h.all {
		if !e.Live() {
			continue
		}
		if d := e.Remaining(now); left < 0 || d >= 0 && d < left {
			left = d
			h.a.known.Holder = e
		}
	}
	h.a.saw(h.a.known.Holder)
	return left
}

// notifiedOfSlots judges the notifications that have come. again: all slots are to be read.
func (h *slotHead) notifiedOfSlots() (r result, decided, again bool) {
	a := h.a
	events, recheck := h.events.take()
	if h.place.Gone() {
		return result{Outcome: requeue}, true, false
	}
	if recheck { // another server serves the subscription now
		h.proven = false
		return result{}, false, true
	}
	for key, ev := range events {
		k, ok := record.ParseKey(key)
		if !ok || k.Slot >= len(h.all) {
			continue
		}
		expect := uint64(0)
		switch ev.Kind {
		case kvstore.Put:
			entry := record.Of(ev.Record)
			if entry.Revision > h.all[k.Slot].Revision {
				h.all[k.Slot] = entry
			}
			if !a.bid.Mine(entry) {
				continue
			}
		case kvstore.Deleted:
			// Any client may forge that: a claim at the revision of a live record would
			// overwrite it.
			entry, err := a.c.b.Read(a.ctx, key, ev.Record.Revision)
			if err != nil {
				again = true
				continue
			}
			h.all[k.Slot] = entry
			if entry.Live() { //safety:slot-release-verified
				continue
			}
			expect = entry.Revision
		}
		if r, decided := h.take(a.claimSlot(h.all, k.Slot, expect)); decided {
			return r, true, false
		}
		h.track(k.Slot)
	}
	return result{}, false, again
}
