package call

import (
	"time"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/session"
	"github.com/natslock/locks/kvstore"
)

// head is the first waiter of a queue.
type head struct {
	a      *Call
	place  *session.Place
	watch  kvstore.Watch // nil: the timers remain
	back   backstop
	late   core.Lateness
	expect uint64        // the expectation of the last claim
	due    clock.Instant // the next read: a notification, which can be forged, never puts it off
}

// first waits for the lock at the head of the queue. vacant is the tombstone of the lock, if
// that was free when the queue was listed: a head that has given up leaves a free lock, and the
// next one claims it at once.
func (a *Call) first(place *session.Place, vacant uint64) result {
	a.mailbox.turn(a.Keys.Gate)
	h := head{a: a, place: place, back: backstop{place: a.placeTTL()}, expect: vacant, due: a.c.b.Instant()}
	if w, err := a.c.b.Watch(a.Keys.Gate, a.mailbox.deliver); err == nil {
		defer w.Stop()
		w.Track(kvstore.Record{})
		h.watch = w
	}
	for {
		// Refused while the lock is held. Sent after subscribing, so the leader's
		// answer proves that the subscription is in place.
		r := a.bid.Offer(a.ctx, h.expect)
		switch r.Outcome {
		case free:
			if place.Gone() {
				return result{Outcome: requeue}
			}
		case busy:
			a.saw(r.Entry)
			if a.c.b.Overdue(a.ctx, r.Entry) {
				break
			}
			if r = h.await(); r.Outcome != free {
				return r
			}
		default:
			return r
		}
		h.expect = r.Entry.Revision
	}
}

// await waits until the lock may be free: the entry has the revision to expect. That a holder has
// died shows by the end of its TTL, notified (Expired) or by the timer: then the claim at 0, or at the
// revision of the overdue record, decides.
func (h *head) await() result {
	a, b := h.a, h.a.c.b
	for {
		left := a.known.Holder.Remaining(b.Now())
		if left != 0 && h.watch != nil {
			h.watch.Track(a.known.Holder.Record)
		}
		timer := time.NewTimer(h.schedule(left))
		r, decided := result{}, false
		select {
		case <-a.mailbox.wake:
			r, decided = h.notified()
		case <-timer.C:
			switch {
			case h.place.Gone():
				r, decided = result{Outcome: requeue}, true
			case left == 0 && !a.known.Holder.OverdueAt(b.Now()):
				r, decided = result{Outcome: free}, true // a claim decides
			default:
				r, decided = h.read(0)
			}
		case <-a.ctx.Done():
			r, decided = result{Outcome: ended, Err: a.Over()}, true
		}
		timer.Stop()
		if decided {
			return r
		}
	}
}

// schedule returns how long to wait for notifications before the next read. left is
// what the holder's record has left by the estimate of the server's clock.
func (h *head) schedule(left time.Duration) time.Duration {
	now := h.a.c.b.Instant()
	switch {
	case left == 0 && h.due <= now:
		h.due = now.Add(h.late.Next())
	case left == 0 && h.late == 0:
		h.due = min(h.due, now.Add(h.late.Next()))
	case left == 0:
	default:
		h.late = 0
		if h.due <= now {
			h.due = now.Add(h.back.next())
		}
		if h.watch == nil && left > 0 {
			h.due = min(h.due, now.Add(left))
		}
	}
	return h.due.Sub(now)
}

// answered notes whether a read got an answer. One that got none is repeated soon.
func (h *head) answered(yes bool) {
	if yes {
		h.back.silent = 0
		return
	}
	h.due = h.a.c.b.Instant().Add(h.back.after(false))
}

// notified judges a notification; false: it decides nothing.
func (h *head) notified() (result, bool) {
	a := h.a
	ev, recheck := a.mailbox.take()
	switch {
	case h.place.Gone():
		return result{Outcome: requeue}, true
	case ev.Kind == kvstore.Deleted:
		// Any client may forge that: a claim at the revision of a live
		// record would overwrite it.
		return h.read(ev.Record.Revision)
	case ev.Kind == kvstore.Expired:
		return result{Outcome: free}, true
	case ev.Kind == kvstore.Put:
		a.saw(record.Of(ev.Record))
		r := result{Outcome: free} // to be adopted: the next attempt is refused like the last one
		r.Entry.Revision = h.expect
		return r, a.bid.Mine(a.known.Holder)
	case recheck: // the answer to a claim proves the subscription again
		return result{Outcome: free}, true
	}
	return result{}, false
}

// read reads the lock, as of a state that contains revision; false: it is held.
func (h *head) read(revision uint64) (result, bool) {
	a := h.a
	entry, err := a.c.b.Read(a.ctx, a.Keys.Gate, revision)
	h.answered(err == nil)
	switch {
	case err != nil:
		a.Heard(err)
		return result{}, false
	// A claim at a revision rests on this read, never on a notification.
	case !entry.Live(): //safety:release-verified
		return result{Outcome: free, Entry: entry}, true
	}
	a.Heard(nil)
	a.saw(entry)
	if a.c.b.Overdue(a.ctx, entry) {
		return result{Outcome: free, Entry: entry}, true
	}
	return result{Outcome: free}, a.bid.Mine(entry)
}
