package acquire

import (
	"slices"
	"time"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/session"
)

const (
	// A place in a queue lives as long as the lock's own TTL, within these bounds. A
	// waiter that dies does not hold up those behind it for long. The place of a
	// waiter that lives outlasts the pauses of a busy machine.
	minPlaceTTL = 5 * time.Second
	maxPlaceTTL = 15 * time.Second
)

// wait queues for the lock until a result is final.
func (a *acquisition) wait() result {
	a.mailbox = newMailbox()
	recent := &a.c.b.Recent
	for {
		place, r := a.enqueue()
		if place == nil {
			return r
		}
		recent.Waits(a.keys.Gate, 1)
		r, first := a.stand(place)
		recent.Waits(a.keys.Gate, -1)
		switch {
		case r.outcome == granted && first:
			a.place, a.placeStatus = place, record.StatusGranted
		case r.outcome == granted:
			a.place, a.placeStatus = place, record.StatusGone
		default:
			// Not as granted: the successor would take itself for the first, and it need not be.
			place.Leave(record.StatusGone) //safety:place-left
		}
		if r.outcome != requeue {
			return r
		}
	}
}

// placeTTL is the TTL of a place in the queue.
func (a *acquisition) placeTTL() time.Duration { return min(max(a.ttl, minPlaceTTL), maxPlaceTTL) }

// enqueue writes a place under a new id, at the tombstone of a place that
// this client has left or under a key of its own. Its revision is the ticket.
func (a *acquisition) enqueue() (*session.Place, result) {
	c := a.c
	body := c.b.Body(record.StatusWaiting, a.req.Meta)
	body.Mode = uint8(a.req.Mode)
	b := bid{c: c, ctx: a.ctx, draft: draft{name: a.req.Name, keys: a.keys, body: body, ttl: a.placeTTL()}}
	var expect uint64
	if c.b.Current() { // a list may show what the key had before, otherwise //safety:key-used-again
		b.draft.vacant, expect = c.b.Recent.Vacancy(c.b.Instant(), a.keys.Place(""))
	}
	for ; ; expect = 0 {
		r := b.offer(expect)
		switch r.outcome {
		case granted:
			g := r.grant(b.cur)
			place := c.s.Queue(g, a.mailbox.poke)
			a.bid.draft.queued = true
			c.s.Notify(a.parent, session.Event{Type: session.EventQueued, Kind: g.Kind, Name: g.Name, ID: g.ID, Token: place.Ticket()})
			return place, r
		case free, busy: // another client deleted it, or wrote under it: never used again
			b.close()
		default:
			b.close()
			return nil, r
		}
	}
}

// stand waits at a place in the queue. It returns a final result and whether
// the place was the first, or requeue when the place has gone.
func (a *acquisition) stand(place *session.Place) (r result, first bool) {
	pattern, whole := a.keys.Place("*"), false
	for try := 0; ; {
		up := a.c.b.Online()
		from := uint64(0)
		if !whole {
			from = a.c.lists.from(pattern, place.Ticket())
		}
		// A state without the own place may lack earlier places too.
		queue, err := a.c.lists.queue(a.ctx, pattern, place.Ticket(), from) //safety:queue-as-of
		if err != nil {
			if bucket.IsAny(err, bucket.ErrPermission) {
				return result{outcome: failed, err: err}, false
			}
			if err := a.bid.pause(clock.OutageBackoff(try), up); err != nil {
				return result{outcome: ended, err: err}, false
			}
			if place.Gone() { // and queueing again will say what is wrong
				return result{outcome: requeue}, false
			}
			try++
			continue
		}
		try = 0
		i := slices.IndexFunc(queue, func(e record.Entry) bool { return e.ID == place.ID() })
		if i < 0 {
			return result{outcome: requeue}, false
		}
		n := len(queue)
		queue = a.clearBefore(queue[:i])
		pred := len(queue) - 1
		for pred >= 0 && !a.blocks(queue[pred]) { //safety:earlier-first
			pred--
		}
		if from == 0 {
			a.position = len(queue) + 1
		}
		switch {
		case pred >= 0 && queue[pred].TokenOrTicket() >= from:
			a.c.lists.found(pattern, place.Ticket()-queue[pred].TokenOrTicket(), n, from == 0)
			whole = false
			r = a.follow(place, queue[pred])
		case from > 0: // it is further back, if there is one //safety:part-of-queue
			whole = true
			continue
		default:
			r = result{outcome: compete}
		}
		if r.outcome == compete {
			return a.first(place), true
		}
		if r.outcome != relist {
			return r, false // out of turn, if at all
		}
	}
}

// blocks says whether a waiter that came earlier has to go first.
func (a *acquisition) blocks(earlier record.Entry) bool {
	return !a.reads() || record.Mode(earlier.Mode) == record.Exclusive //safety:queue-rule
}

// clearBefore returns the places before the own one, without the overdue ones right
// before it. The others are deleted by the waiters behind them.
func (a *acquisition) clearBefore(queue []record.Entry) []record.Entry {
	first, estimate := len(queue), a.c.b.Now()
	for first > 0 && queue[first-1].OverdueAt(estimate) {
		first--
	}
	rest, err := a.c.b.Clear(a.ctx, queue[first:])
	if err != nil { // the timers will try again
		a.c.s.Logger.Debug("delete overdue places", "lock", a.req.Name, "error", err)
	}
	return slices.Concat(queue[:first], rest) // the list is shared
}
