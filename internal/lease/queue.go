package lease

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/natslock/locks/kvstore"
)

// A queue is the wait records of a lock in the order of their tickets: the
// revisions at which they were first written. The first waiter watches the lock,
// every other waiter watches its predecessor, so one release wakes one waiter
// however many there are. After subscribing the waiter sends a write that the
// stream's leader refuses: that answer proves that the subscription is in place.
// Timers back up every notification: losing one costs time, never the lock.

const (
	// A place in a queue lives as long as the lock's own TTL, within these bounds: a
	// waiter that dies does not hold up those behind it for long, and the place of
	// one that lives outlasts the pauses of a busy machine.
	minPlaceTTL = 5 * time.Second
	maxPlaceTTL = 15 * time.Second
	// idleFor is how long a waiter sees the lock free before it takes it out
	// of turn: a paused first waiter holds nobody up.
	idleFor = 1200 * time.Millisecond
	// idleLook is how often it looks meanwhile: more often than a tombstone
	// lives, so that no change goes unseen.
	idleLook = 400 * time.Millisecond
)

// backstop yields the pauses after which a waiter reads by itself: soon at first,
// then about as often as its place is renewed.
type backstop struct {
	place time.Duration // its TTL
	tries int
}

func (b *backstop) next() time.Duration {
	early := [...]time.Duration{20 * time.Millisecond, 100 * time.Millisecond, 500 * time.Millisecond}
	if b.tries++; b.tries <= len(early) {
		return early[b.tries-1]
	}
	return b.place/3 + rand.N(b.place/30)
}

// lateness yields the pauses after which a waiter checks a record whose TTL is over
// by the estimate of the server's clock: short ones while the server may only be a
// moment late, longer ones when it has not removed an overdue record and no claim
// has got it either.
type lateness int

func (o *lateness) next() time.Duration {
	*o++
	switch {
	case *o <= 15: // 300 ms in all, which is overdueSlack
		return 20 * time.Millisecond
	case *o <= 25:
		return 100 * time.Millisecond
	}
	return time.Second
}

// sight is a waiter's view of the key it watches: the newest event that it has
// not taken yet, and a wake channel. Wake-ups coalesce; what has happened does
// not get lost, because tombstones and ends are newer than what they end. That
// holds for one key: the end of a record is an event at the revision it was
// written at, which may be older than what was seen of the key watched before.
// Events are not compared with those taken: a forged one may name any revision.
type sight struct {
	mu      sync.Mutex
	key     string
	ev      kvstore.Event
	recheck bool
	wake    chan struct{}
}

func newSight() *sight { return &sight{wake: make(chan struct{}, 1)} }

// turn begins to look at key and forgets what was seen of another.
func (s *sight) turn(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.key, s.ev, s.recheck = key, kvstore.Event{}, false
}

func (s *sight) deliver(ev kvstore.Event) {
	s.mu.Lock()
	switch {
	case ev.Kind == kvstore.Recheck:
		s.recheck = true
	case ev.Record.Key == s.key && ev.Record.Revision >= s.ev.Record.Revision:
		s.ev = ev
	default:
		s.mu.Unlock()
		return
	}
	s.mu.Unlock()
	s.poke()
}

func (s *sight) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *sight) take() (ev kvstore.Event, recheck bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ev, recheck = s.ev, s.recheck
	s.ev, s.recheck = kvstore.Event{}, false
	return ev, recheck
}

// step is what a waiter does next.
type step uint8

const (
	relist   step = iota // look where in the queue it stands
	compete              // it is first
	requeue              // its place is gone
	finished             // the verdict is final
)

// wait queues for the lock until a verdict is final.
func (a *acquire) wait() verdict {
	for {
		place, v := a.enqueue()
		if place == nil {
			return v
		}
		a.e.waits(a.gate, 1)
		v, first := a.stand(place)
		a.e.waits(a.gate, -1)
		switch {
		case v.outcome == granted && first:
			a.place, a.placeStatus = place, StatusGranted
		case v.outcome == granted:
			a.place, a.placeStatus = place, StatusGone
		default:
			place.leave(StatusGone)
		}
		if v.outcome != 0 {
			return v
		}
	}
}

// queuing is the claimant of a place in the queue.
type queuing struct {
	a *acquire
	t terms
}

func (q queuing) terms() (terms, error) { return q.t, nil }
func (q queuing) waited() int64         { return 0 }

func (q queuing) body() Body {
	b := q.a.e.body(StatusWaiting, q.a.req.Meta)
	b.Mode = uint8(q.a.req.Mode)
	return b
}

// placeTTL is the TTL of a place in the queue.
func (a *acquire) placeTTL() time.Duration { return min(max(a.ttl, minPlaceTTL), maxPlaceTTL) }

// enqueue writes a wait record under a new id, at the tombstone of a place that
// this client has left or under a key of its own. Its revision is the ticket.
func (a *acquire) enqueue() (*Lease, verdict) {
	var vacant string
	var expect uint64
	if a.e.kv.Current() { // a list may show what the key had before, otherwise
		vacant, expect = a.e.vacancy(a.waitKey(""))
	}
	b := bid{e: a.e, ctx: a.ctx, of: bidderFunc(func() *claim {
		c := a.e.newClaim(a.spec, queuing{a, newTerms(a.placeTTL(), a.e.cfg.Margin)})
		c.spec.lock = false
		if c.spec.key = vacant; vacant == "" {
			c.spec.key = a.waitKey(c.id)
		}
		vacant = "" // once
		return c
	})}
	for ; ; expect = 0 {
		v := b.take(expect)
		switch v.outcome {
		case granted:
			place := b.cur.lease(v, func(l *Lease) {
				l.base = a.parent
				l.cancel = func(error) {}
				l.onEnd = a.sight.poke
			})
			a.queued = true
			a.e.tell(a.parent, place.event(EventQueued, nil))
			return place, v
		case free, busy: // somebody deleted it, or wrote under it: never used again
			b.close()
		default:
			b.close()
			return nil, v
		}
	}
}

// stand waits at a place in the queue. It returns a final verdict and whether
// the place was the first, or the zero verdict when the place has gone.
func (a *acquire) stand(place *Lease) (verdict, bool) {
	next := relist
	pattern, whole := a.waitKey("*"), false
	for try := 0; ; {
		var v verdict
		switch next {
		case relist:
			up := a.e.online()
			from := uint64(0)
			if !whole {
				from = a.e.reach(pattern, place.token)
			}
			queue, err := a.e.waiters(a.ctx, pattern, place.token, from)
			if err != nil {
				if isAny(err, ErrPermission) {
					return verdict{outcome: failed, err: err}, false
				}
				if err := a.bid.pause(outagePause(try), up); err != nil {
					return verdict{outcome: ended, err: err}, false
				}
				if place.ended() { // and enqueuing again will say what is wrong
					next = requeue
				}
				try++
				continue
			}
			try = 0
			i := slices.IndexFunc(queue, func(e Entry) bool { return e.ID == place.id })
			if i < 0 {
				next = requeue
				continue
			}
			n := len(queue)
			queue = a.clearBefore(queue[:i])
			pred := len(queue) - 1
			for pred >= 0 && !a.blocks(queue[pred]) {
				pred--
			}
			if from == 0 {
				a.position = len(queue) + 1
			}
			switch {
			case pred >= 0 && queue[pred].TokenOrTicket() >= from:
				a.e.reached(pattern, place.token-queue[pred].TokenOrTicket(), n, from == 0)
				whole = false
				next, v = a.follow(place, queue[pred])
			case from > 0: // it is further back, if there is one
				whole = true
			default:
				next = compete
			}
		case compete:
			next, v = a.first(place)
			if next == finished {
				return v, true
			}
		case requeue:
			return verdict{}, false
		}
		if next == finished {
			return v, false // out of turn, if at all
		}
	}
}

// clearBefore returns the places before the own one, without the overdue ones right
// before it. The others are deleted by the waiters behind them.
func (a *acquire) clearBefore(queue []Entry) []Entry {
	first, estimate := len(queue), a.e.kv.Now()
	for first > 0 && queue[first-1].overdue(estimate) {
		first--
	}
	rest, err := a.e.clear(a.ctx, queue[first:])
	if err != nil { // the timers will tell
		a.e.log.Debug("delete overdue places", "lock", a.req.Name, "error", err)
	}
	return slices.Concat(queue[:first], rest) // the list is shared
}

// ended says whether the place is gone.
func (l *Lease) ended() bool {
	_, _, cause := l.Status()
	return cause != nil
}

// follow waits behind the predecessor.
func (a *acquire) follow(place *Lease, pred Entry) (step, verdict) {
	a.sight.turn(pred.Key)
	w, err := a.e.kv.Watch(pred.Key, a.sight.deliver)
	if err == nil { // else the timers remain
		defer w.Stop()
		w.Track(kvstore.Record{}) // also when a clock says that the record is over
	}
	back := backstop{place: a.placeTTL()}
	idle := idleness{}
	late := lateness(0)
	proven := false
	look := func() (there bool, gate *Entry, pause time.Duration) {
		var entry Entry
		var err error
		if proven {
			entry, gate, err = a.e.readBeside(a.ctx, pred, a.gate)
		} else {
			// As the leader has it, from a state no older than the subscription.
			var last uint64
			last, err = a.e.probe(a.ctx, pred.Key)
			proven = err == nil
			if entry = pred; proven && last != pred.Revision {
				entry, err = a.e.read(a.ctx, pred.Key, last)
			}
		}
		pause = back.next()
		if err != nil {
			return true, nil, pause // not known; the timers will tell
		}
		// Another claim may have its key by now, behind all that have queued since.
		there = entry.Live() && entry.ID == pred.ID
		if there && entry.Remaining(a.e.kv.Now()) == 0 {
			pause = late.next()
			rest, err := a.e.clear(a.ctx, []Entry{entry})
			there = err != nil || len(rest) > 0
		} else if late = 0; w != nil {
			w.Track(entry.Record)
		}
		return there, gate, pause
	}
	there, _, pause := look()
	if !there {
		return relist, verdict{}
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		select {
		case <-a.sight.wake:
			ev, recheck := a.sight.take()
			switch {
			case place.ended():
				return requeue, verdict{}
			case ev.Kind == kvstore.Deleted:
				if body, err := decodeBody(ev.Record.Value); err == nil && body.Status == StatusGranted && body.ID == pred.ID && a.shortcut {
					return compete, verdict{}
				}
				return relist, verdict{}
			case ev.Kind == kvstore.Put && entryOf(ev.Record).ID != pred.ID:
				return relist, verdict{} // its tombstone was overtaken
			case ev.Kind == kvstore.Expired || recheck:
				proven = proven && !recheck // another server serves the subscription now
				timer.Reset(0)
			}
		case <-timer.C:
			if place.ended() {
				return requeue, verdict{}
			}
			var gate *Entry
			if there, gate, pause = look(); !there {
				return relist, verdict{}
			}
			if gate != nil && a.idleFor(&idle, *gate) {
				// Its turn or not, the lock has been free for a while.
				switch v := a.bid.take(idle.revision); v.outcome {
				case free, busy:
					idle = idleness{}
				default:
					return finished, v
				}
			}
			if idle.since != 0 {
				pause = min(pause, idleLook)
			}
			timer.Reset(pause)
		case <-a.ctx.Done():
			return finished, verdict{outcome: ended, err: context.Cause(a.ctx)}
		case <-a.e.life.Done():
			return finished, verdict{outcome: ended, err: context.Cause(a.e.life)}
		}
	}
}

// idleness is since when the lock was seen free, and with what tombstone.
type idleness struct {
	since    Instant
	revision uint64
}

// idleFor says whether the lock, read a moment ago, has been free for long enough,
// with jitter by rank, to be claimed out of turn at idle.revision.
func (a *acquire) idleFor(idle *idleness, entry Entry) bool {
	if a.bid.mine(entry) {
		idle.revision = 0
		return true
	}
	if entry.Live() && !a.e.overdue(a.ctx, entry) {
		a.holder = new(entry)
		*idle = idleness{}
		return false
	}
	now := a.e.now()
	if idle.since == 0 || (entry.Revision != 0 && entry.Revision != idle.revision) {
		*idle = idleness{since: now, revision: entry.Revision}
		return false
	}
	idle.revision = entry.Revision
	rank := time.Second
	if a.position > 0 { // known, so far
		rank = min(time.Duration(a.position)*20*time.Millisecond, rank)
	}
	return now.Sub(idle.since) >= idleFor+rank+rand.N(rank+1)
}

// first waits for the lock at the head of the queue.
func (a *acquire) first(place *Lease) (step, verdict) {
	a.sight.turn(a.gate)
	w, err := a.e.kv.Watch(a.gate, a.sight.deliver)
	if err == nil {
		defer w.Stop()
		w.Track(kvstore.Record{})
	}
	back := backstop{place: a.placeTTL()}
	late := lateness(0)
	due := a.e.now() // the next read: a notification, which can be forged, never puts it off
	for expect := uint64(0); ; {
		// Refused while the lock is held. Sent after subscribing, so the leader's
		// answer proves that the subscription is in place.
		v := a.bid.take(expect)
		switch v.outcome {
		case free:
			if place.ended() {
				return requeue, verdict{}
			}
			expect = v.entry.Revision
			continue
		case busy:
			a.holder = new(v.entry)
			if a.e.overdue(a.ctx, v.entry) {
				expect = v.entry.Revision
				continue
			}
		default:
			return finished, v
		}
		for waiting := true; waiting; {
			now := a.e.now()
			left := a.holder.Remaining(a.e.kv.Now())
			if left == 0 {
				switch {
				case due <= now:
					due = now.Add(late.next())
				case late == 0:
					due = min(due, now.Add(late.next()))
				}
			} else {
				late = 0
				if due <= now {
					due = now.Add(back.next())
				}
				if w != nil {
					w.Track(a.holder.Record)
				} else if left > 0 {
					due = min(due, now.Add(left))
				}
			}
			timer := time.NewTimer(due.Sub(now))
			select {
			case <-a.sight.wake:
				ev, recheck := a.sight.take()
				switch {
				case place.ended():
					timer.Stop()
					return requeue, verdict{}
				case ev.Kind == kvstore.Deleted:
					// Anybody may forge that: a claim at the revision of a live
					// record would overwrite it.
					expect, waiting = a.look(ev.Record.Revision)
				case ev.Kind == kvstore.Expired:
					expect, waiting = 0, false
				case ev.Kind == kvstore.Put:
					a.holder = new(entryOf(ev.Record))
					waiting = !a.bid.mine(*a.holder)
				case recheck: // the answer to a claim proves the subscription again
					expect, waiting = 0, false
				}
			case <-timer.C:
				if place.ended() {
					return requeue, verdict{}
				}
				if left == 0 && !a.holder.overdue(a.e.kv.Now()) {
					expect, waiting = 0, false // a claim decides
				} else {
					expect, waiting = a.look(0)
				}
			case <-a.ctx.Done():
				timer.Stop()
				return finished, verdict{outcome: ended, err: context.Cause(a.ctx)}
			case <-a.e.life.Done():
				timer.Stop()
				return finished, verdict{outcome: ended, err: context.Cause(a.e.life)}
			}
			timer.Stop()
		}
	}
}

// look reads the lock, as of a state that contains revision, and says whether to
// go on waiting, or else with which expectation to claim it.
func (a *acquire) look(revision uint64) (expect uint64, waiting bool) {
	entry, err := a.e.read(a.ctx, a.gate, revision)
	if err != nil {
		return 0, true
	}
	if entry.Live() {
		a.holder = new(entry)
		if a.e.overdue(a.ctx, entry) {
			return entry.Revision, false
		}
		return 0, !a.bid.mine(entry)
	}
	return entry.Revision, false
}

// mine says whether the record is that of an earlier attempt of the bid, which
// came to be applied late: the next attempt will adopt it.
func (b *bid) mine(e Entry) bool { return b.cur != nil && e.Live() && e.of(b.cur.id) }
