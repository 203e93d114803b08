package acquire

import (
	"slices"
	"time"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/session"
	"github.com/natslock/locks/kvstore"
)

const (
	// A place in a queue lives as long as the lock's own TTL, within these bounds. A
	// waiter that dies does not hold up those behind it for long. The place of a
	// waiter that lives outlasts the pauses of a busy machine.
	minPlaceTTL = 5 * time.Second
	maxPlaceTTL = 15 * time.Second
	// goneWithin is how long a call that gives up waits until its records are gone. A few
	// round trips are enough, and nobody notices more.
	goneWithin = 100 * time.Millisecond
)

// wait queues for the lock until a result is final. A run that has a place goes on there.
func (a *acquisition) wait() result {
	if a.mailbox == nil {
		a.mailbox = newMailbox()
	}
	for {
		if a.place == nil {
			begun := a.c.b.Instant()
			if a.queueing == nil {
				if err := a.member.run().inOrder(a); err != nil {
					return result{outcome: ended, err: err}
				}
			}
			if r := a.enqueue(begun); r.outcome != granted {
				return r
			}
		}
		r, first := a.stand(a.place)
		switch a.placeStatus = record.StatusGone; {
		case r.outcome == granted && first:
			a.placeStatus = record.StatusGranted
		case r.outcome == granted:
			a.placeStatus = record.StatusPassed
		case r.outcome == requeue:
			if a.place.Deleted() { // by a waiter that has passed it
				a.bid.evictions++ //safety:evictions-counted
			}
			a.place.Leave(record.StatusGone)
			a.place = nil
			a.member.run().queued(nil, a.member)
			continue
		}
		return r
	}
}

// placeTTL is the TTL of a place in the queue.
func (a *acquisition) placeTTL() time.Duration { return min(max(a.ttl, minPlaceTTL), maxPlaceTTL) }

// enqueue writes a place under a new id, at the tombstone of a place that this client
// has left or under a key of its own. Its revision is the ticket. The client has wanted to
// write since begun.
func (a *acquisition) enqueue(begun clock.Instant) result {
	c := a.c
	var expect uint64
	if a.queueing == nil {
		body := c.b.Body(record.StatusWaiting, a.req.Meta)
		body.Mode, body.Permits, body.Evictions = uint8(a.req.Mode), uint16(a.req.Permits), uint16(a.bid.evictions)
		if a.req.Patient { // every list of the queue would carry them //safety:patient-place
			body.Meta = nil
		}
		a.queueing = &bid{c: c, a: a, begun: begun, draft: draft{name: a.req.Name, keys: a.keys, body: body, ttl: a.placeTTL()}}
		if c.b.Current() { // a list may show what the key had before, otherwise //safety:key-used-again
			a.queueing.draft.vacant, expect = c.b.Recent.Vacancy(c.b.Instant(), a.keys.Place(""))
		}
		a.member.run().queueing()
	}
	for ; ; expect = 0 {
		switch r := a.queueing.offer(expect); r.outcome {
		case granted:
			g := r.grant(a.queueing.cur)
			a.queueing, a.place = nil, c.s.Queue(g, a.mailbox.poke)
			a.member.run().queued(a.place, a.member)
			a.heard(nil)
			a.bid.draft.queued = true
			return r
		case free, busy: // another client deleted it, or wrote under it: never used again
			a.queueing.close()
		case ended: // another member of the run may wait on
			return r
		default:
			a.queueing.close()
			return r
		}
	}
}

// stand waits at a place in the queue. It returns a final result and whether
// the place was the first, or requeue when the place has gone.
func (a *acquisition) stand(place *session.Place) (r result, first bool) {
	pattern := a.keys.Place("*")
	var further uint              // how often the part that was read was too short
	var sure []kvstore.ListOption // the option of a list that shows nobody before this waiter
	var vacant uint64             // the tombstone of the lock, as last listed
	for try := 0; ; {
		up := a.c.b.Online()
		from, at := uint64(0), a.c.b.Instant()
		if sure == nil && !a.c.b.Current() { // a list reads each key anyway
			sure = []kvstore.ListOption{kvstore.Named()}
		}
		if sure == nil {
			from = a.c.long.from(at, pattern, place.Ticket(), further)
		}
		opts := sure
		if sure == nil && from == 0 && !a.counts() { // where one request reads both
			opts = []kvstore.ListOption{kvstore.Beside(a.keys.Gate)}
		}
		// A state without the own place may lack earlier places too.
		queue, tombstone, err := a.c.list(a.ctx, pattern, place.Ticket(), from, opts...) //safety:queue-as-of
		if err != nil {
			if bucket.IsAny(err, bucket.ErrPermission) {
				return result{outcome: failed, err: err}, false
			}
			a.heard(err)
			if err := a.bid.pause(clock.OutageBackoff(try), up); err != nil {
				return result{outcome: ended, err: err}, false
			}
			if place.Gone() { // and queueing again will say what is wrong
				return result{outcome: requeue}, false
			}
			try++
			continue
		}
		if try = 0; sure == nil {
			vacant = tombstone //safety:vacant-claimed
		}
		a.member.run().listed(queue, from, at)
		i := slices.IndexFunc(queue, func(e record.Entry) bool { return e.ID == place.ID() })
		if i < 0 {
			return result{outcome: requeue}, false
		}
		a.heard(nil)
		n := len(queue)
		queue = a.clearBefore(queue[:i])
		pred := len(queue) - 1
		for pred >= 0 && !a.blocks(queue[pred]) { //safety:earlier-first
			pred--
		}
		if from == 0 {
			a.bid.ahead = 1
			for _, e := range queue {
				a.bid.ahead += e.Goroutines()
			}
			a.saw(a.bid.holder)
		}
		switch {
		case pred >= 0 && queue[pred].TokenOrTicket() >= from:
			a.c.long.found(a.c.b.Instant(), pattern, place.Ticket()-queue[pred].TokenOrTicket(), n, from == 0)
			further, sure, vacant = 0, nil, 0
			r = a.follow(place, queue[pred], len(queue) == 1 && from == 0)
		case from > 0: // it is further back, if there is one //safety:part-of-queue
			further++
			continue
		case sure == nil && !a.c.b.Alone(): //safety:first-by-leader
			// A replica that catches up first removes what was overwritten, and stores later
			// what has overwritten it: it lacks the places that were renewed.
			sure = []kvstore.ListOption{kvstore.Named()}
			continue
		default:
			r = result{outcome: compete}
		}
		switch {
		case r.outcome == compete && a.counts():
			return a.firstOfSlots(place), true
		case r.outcome == compete:
			return a.first(place, vacant), true
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
	return append(queue[:first], rest...)
}
