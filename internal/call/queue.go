package call

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/claim"
	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/session"
)

// Wait queues for the lock until the result is final. holder is the lock's last known record.
func (a *Call) Wait(holder record.Entry) claim.Result {
	if !holder.Zero() {
		a.holderSeen(holder)
	}
	a.mailbox = newMailbox()
	for {
		begun := cmp.Or(a.Since, a.c.b.Instant())
		a.Since = 0
		if r := a.enqueue(begun); r.Outcome != granted {
			return r
		}
		a.bid.Placed = true
		r, first := a.waitInQueue(a.place)
		a.bid.Placed = false
		var pause int
		a.placeStatus, pause = a.places.PlaceEnded(r.Outcome, r.Outcome == requeue, first)
		if !a.places.Again {
			return r
		}
		a.place.Leave(a.placeStatus)
		a.place, a.surveyed, a.length = nil, 0, 0
		a.of.Queued(nil)
		if pause > 0 {
			if err := a.bid.Pause(a.ctx, clock.OutageBackoff(pause), a.c.b.Online()); err != nil {
				return result{Outcome: ended, Err: err}
			}
		}
	}
}

// enqueue writes a place with a new id, either over the tombstone of a place that this client has left or under a new
// key. The place's revision is the ticket. begun is when the call began to queue.
func (a *Call) enqueue(begun clock.Instant) result {
	c := a.c
	var expect uint64
	body := c.b.Body(record.StatusWaiting, a.Req.Meta)
	body.Mode, body.Permits, body.Purpose = uint8(a.Req.Mode), record.Permits(a.Req.Permits), a.Req.Purpose
	if a.Req.Patient { // otherwise every list of the queue would carry the metadata //safety:patient-place
		body.Meta = nil
	}
	a.queueing = &claim.Bid{B: c.b, K: c.s.Keeper, Caller: a, Bid: core.Bid{Begun: begun}, Draft: claim.Draft{
		Name: a.Req.Name, Keys: a.Keys, Body: body, TTL: a.placeTTL(), Returns: a.places.Returns,
	}}
	if c.b.Current() { // otherwise a list may show the key's previous record //safety:key-used-again
		a.queueing.Draft.Vacant, expect = c.b.Recent.Vacancy(c.b.Instant(), a.Keys.Place(""))
	}
	a.of.Queueing()
	for ; ; expect = 0 {
		switch r := a.queueing.Offer(a.ctx, expect); r.Outcome {
		case granted:
			g := a.queueing.Grant(r)
			a.queueing, a.place = nil, c.s.Queue(g, a.mailbox.signal)
			a.places.PlaceBegun()
			a.of.Queued(a.place)
			a.RequestAnswered(nil)
			a.bid.Draft.Queued = true
			return r
		case free, busy: // another client deleted the tombstone or wrote this key: use a new key
			a.queueing.Close()
		case ended: // Withdraw will give up the place
			return r
		default:
			a.queueing.Close()
			return r
		}
	}
}

// waitInQueue waits at place until the result is final, or returns requeue if place is gone. first reports whether no
// other place was ahead of it.
func (a *Call) waitInQueue(place *session.Place) (r result, first bool) {
	w := core.Waiter{ID: place.ID(), Ticket: place.Ticket(), Reads: a.Reads()}
	w.Begin(a.surveyed, a.length)
	for try := 0; ; {
		up := a.c.b.Online()
		before, over, read, err := a.readAhead(place, &w, listWithin<<min(try, 2))
		if err != nil {
			if bucket.IsAny(err, bucket.ErrPermission) {
				return result{Outcome: failed, Err: err}, false
			}
			a.RequestAnswered(err)
			if err := a.bid.Pause(a.ctx, clock.OutageBackoff(try), up); err != nil {
				return result{Outcome: ended, Err: err}, false
			}
			if place.Gone() { // queueing again will show what is wrong
				return result{Outcome: requeue}, false
			}
			try++
			continue
		}
		try = 0
		if over < 0 {
			return result{Outcome: requeue}, false
		}
		a.RequestAnswered(nil)
		rest, err := a.c.b.Clear(a.ctx, before[over:])
		if err != nil { // the timers will try again
			a.c.s.Logger.Debug("deleting overdue places failed", "lock", a.Req.Name, "error", err)
		}
		before = append(before[:over], rest...)
		if read.From == 0 && !read.Cut && !read.Named {
			a.known.Ahead = 1
			for _, e := range before {
				a.known.Ahead += e.Goroutines()
			}
			a.holderSeen(a.known.Holder)
		}
		switch standing, ahead := w.Judge(before, read); standing {
		case core.ListOn:
			continue
		case core.Behind:
			if r = a.awaitPredecessor(place, &w, ahead); r.Outcome != compete {
				break
			}
			fallthrough
		case core.Foremost:
			return a.first(place, w.Vacant), ahead.Next
		}
		if r.Outcome != relist {
			return r, false // a grant here is out of turn
		}
		w.PlaceGone(r.Entry.Revision)
	}
}

// listWithin limits how long a waiter waits for its first list. Repeated lists get up to four times as long, because
// each one adds to the load on a slow server.
const listWithin = 2 * bucket.AnswerTimeout

// readAhead reads the places ahead of the waiter's, or only the known places that are left. before[over:] are
// overdue; over is negative if the waiter's place is gone.
func (a *Call) readAhead(place *session.Place, w *core.Waiter, within time.Duration) (before []record.Entry, over int, read core.Read, err error) {
	b := a.c.b
	read.Alone = b.Alone()
	there := false
	if known := w.Known(); len(known) > 0 && !w.Lists() {
		l, err := b.ListWithin(a.ctx, within, place.Key, w.AsOf, kvstore.Also(known...), kvstore.Tombstones())
		if err == nil {
			read.Named = true
			if before, over, there = w.KnownRead(entries(l.Records), read.Alone, b.Now()); !there {
				over = -1
			}
			return before, over, read, nil
		}
		if !errors.Is(err, kvstore.ErrApart) {
			return nil, 0, read, err
		}
		w.Forget()
	}
	if !b.Current() && w.Reach != core.Named { // the list would read each key anyway
		w.Reach = core.Named
	}
	at := b.Instant()
	from, most, singly := w.Extent()
	opts := []kvstore.ListOption{kvstore.From(from), kvstore.AtMost(most)}
	if singly {
		opts[1] = kvstore.AtMost(1)
	}
	switch {
	case w.Reach == core.Named:
		opts = append(opts, kvstore.Named())
	case from == 0 && !a.Counts(): // one request reads the queue and the gate
		opts = append(opts, kvstore.Beside(a.Keys.Gate))
	}
	// A state that lacks the waiter's place may also lack places ahead of it.
	l, err := b.ListWithin(a.ctx, within, a.Keys.Place("*"), w.AsOf, opts...) //safety:queue-as-of
	if err != nil {
		return nil, 0, read, err
	}
	var vacant uint64
	if l.Beside.Deleted { // claiming at a live record's revision would replace that record //safety:vacant-read
		vacant = l.Beside.Revision
	}
	for n := 1; singly && n < most && !l.Whole && l.Revision+1 < w.Ticket; n++ {
		next, err := b.ListWithin(a.ctx, within, a.Keys.Place("*"), w.AsOf, kvstore.From(l.Revision+1), kvstore.AtMost(1))
		if err != nil {
			return nil, 0, read, err
		}
		// A renewed place may be in both states, in which case the later state wins.
		l.Records = slices.DeleteFunc(l.Records, func(r kvstore.Record) bool {
			return slices.ContainsFunc(next.Records, func(n kvstore.Record) bool { return n.Key == r.Key })
		})
		l.Records, l.Revision, l.Whole = append(l.Records, next.Records...), next.Revision, next.Whole
	}
	if l.Whole {
		from, w.Reach = 0, max(w.Reach, core.Whole)
	}
	queue := record.Queue(l.Records)
	read.From, read.Cut = from, l.More
	a.of.Listed(queue, from, l.More, at)
	if before, over, there = w.QueueListed(queue, l.More, vacant, b.Now()); !there {
		over = -1
	}
	return before, over, read, nil
}

func entries(records []kvstore.Record) []record.Entry {
	all := make([]record.Entry, len(records))
	for i, r := range records {
		all[i] = record.Of(r)
	}
	return all
}

// Hold turns a granted claim into a lease, and gives up the place where the call waited, if any.
func (a *Call) Hold(r claim.Result) *session.Lease {
	l := a.c.s.Hold(a.bid.Grant(r), a.Req.Until)
	if a.place != nil {
		a.evict()
		left := a.place.Leave(a.placeStatus)
		if a.Counts() {
			a.await(left, l) //safety:place-awaited
		}
	}
	a.place = nil
	return l
}
