package core

import (
	"math"
	"time"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/record"
)

const (
	// silence is for how long a list counts that contained no other client's place: a
	// notification of one may be lost.
	silence = time.Second
	// unanswered is for how long a first write without an answer is joined. The read of the
	// queue before a claim may be older than the claim.
	unanswered = silence - record.Bypass
)

// Others is what a client knows of the places of other clients in the queue of a lock. A client
// with one waiter for a lock knows nothing, and has none: nil. The second waiter subscribes to the
// queue and lists it.
//
// A list shows what came before it, and the subscription what comes after. So a list counts only
// if the subscription was in place when it was requested. An answer of the leader to a write or a
// probe that was sent after the subscription proves that. Another server that takes the subscription
// over ends the proof.
type Others struct {
	Queue     bool // subscribed to
	Gate      bool // subscribed to
	GateAsked bool // for that subscription

	proven   clock.Instant // since when the subscription is known to be in place; 0: it is not
	epoch    uint32        // how often another server has taken it over
	listedAt clock.Instant // when the last list of the queue was requested; 0: never
	from     uint64        // the list was of the places from this revision on
	listing  bool          // a List is under way
	count    uint32        // of the places and gates that have become known
	gate     gate

	places map[string]seat
	gone   map[string]departure
	swept  clock.Instant
}

// seat is the place of another client.
type seat struct {
	ticket uint64
	reads  bool
	until  clock.Instant // the end of its TTL, at the latest
}

// departure is the tombstone of a place, which an older list may still show.
type departure struct {
	revision uint64
	at       clock.Instant
}

// gate is what a client knows of the gate of a lock that it reads: the last record.
type gate struct {
	live     bool          // it is no tombstone
	listedAt clock.Instant // when it was last read beside the queue; 0: never
	revision uint64
	claim    string        // of the last live record
	at       clock.Instant // when it became known
	until    clock.Instant // the end of its TTL, at the latest
}

func (g *gate) inPlace(now clock.Instant) bool { return g.live && now < g.until }

// Subscribed notes a new subscription, to the queue or to the gate.
func (o *Others) Subscribed(gate bool) {
	if gate {
		o.Gate = true
	} else {
		o.Queue = true
	}
	o.proven = 0 // an answer to an earlier write is no proof of this one //safety:gate-subscribed
	o.epoch++
}

// Moved notes that another server serves the subscriptions now.
func (o *Others) Moved() {
	o.proven = 0 //safety:queue-recheck
	o.epoch++
}

// Prove notes that the subscriptions are in place, since an instant at the latest, unless
// another server has taken them over since epoch.
func (o *Others) Prove(since clock.Instant, epoch uint32) {
	if o.proven == 0 && o.epoch == epoch {
		o.proven = since
	}
}

// Proven returns whether the subscriptions are known to be in place, and the epoch for [Others.Prove].
func (o *Others) Proven() (proven bool, epoch uint32) { return o.proven != 0, o.epoch }

// known says whether the places from a ticket on are known: no notification has been
// missed since the last list, and that list is not old.
func (o *Others) known(ticket uint64, now clock.Instant) bool {
	return o != nil && o.from <= ticket && o.fresh(o.listedAt, now, silence) //safety:silence-bounded
}

// fresh says whether a list that was requested at an instant is not older than an age.
func (o *Others) fresh(at, now clock.Instant, age time.Duration) bool {
	// An older list does not show what came between it and the subscription.
	return o.proven != 0 && at != 0 && at >= o.proven && now.Sub(at) < age
}

// news counts the places and the gates that have become known.
func (o *Others) news() uint32 {
	if o == nil {
		return 0
	}
	return o.count
}

// after says whether another client is queued with a later ticket. To a goroutine that
// reads only writers matter: readers pass readers.
func (o *Others) after(ticket uint64, now clock.Instant, reads bool) bool {
	for key, s := range o.places {
		switch {
		case now >= s.until:
			delete(o.places, key)
		case s.ticket > ticket && !(reads && s.reads):
			return true
		}
	}
	return false
}

// unwritten says whether no writer has come since readers joined at a revision: the gate
// has not been in place since, and no writer is queued.
func (o *Others) unwritten(since uint64, now clock.Instant) bool {
	return o.known(0, now) && o.fresh(o.gate.listedAt, now, silence) && //safety:read-joined
		!o.after(0, now, true) && !(o.gate.revision > since && o.gate.inPlace(now))
}

// Writers says whether a writer is known to have the gate or to wait.
func (o *Others) Writers(now clock.Instant) bool {
	return o != nil && (o.after(0, now, true) || o.gate.inPlace(now))
}

// seen notes a place of another client, from a notification or from a list that was
// requested at an instant. The list is right about a tombstone that was known before: a
// notification can be forged.
func (o *Others) seen(e record.Entry, listedAt, now clock.Instant) {
	if e.Unreadable || e.Status != record.StatusWaiting {
		return
	}
	if d := o.gone[e.Key]; d.revision > e.Revision && (listedAt == 0 || listedAt <= d.at) { //safety:departure-listed
		return
	}
	if s, known := o.places[e.Key]; !known || s.ticket != e.TokenOrTicket() { // keys are used again
		o.count++
	}
	if o.places == nil {
		o.places = make(map[string]seat)
	}
	o.places[e.Key] = seat{e.TokenOrTicket(), record.Mode(e.Mode) == record.Shared, now.Add(e.Record.TTL + record.OverdueSlack)}
}

// left notes that a place has gone.
func (o *Others) left(key string, revision uint64, now clock.Instant) {
	delete(o.places, key)
	if o.gone == nil {
		o.gone = make(map[string]departure)
	}
	o.gone[key] = departure{revision, now}
	if now.Sub(o.swept) > record.TombstoneLife {
		o.swept = now
		for key, d := range o.gone {
			if now.Sub(d.at) > 2*record.TombstoneLife {
				delete(o.gone, key)
			}
		}
	}
}

// gateSeen notes the record of the gate, from a notification or from a list that was requested
// at an instant. The list is right about what was known before: a notification can be
// forged. own says that it is a record of this client.
func (o *Others) gateSeen(e record.Entry, own bool, listedAt, now clock.Instant) {
	g := &o.gate
	if listedAt != 0 {
		g.listedAt = listedAt
	}
	if e.Revision < g.revision && (listedAt == 0 || listedAt <= g.at) {
		return
	}
	// Nobody joins readers whose join has no answer yet: the writer may have come first.
	if e.Revision > g.revision && !e.Deleted && e.ClaimID() != g.claim { // and not a renewal
		if g.claim = e.ClaimID(); !own {
			o.count++ //safety:gate-news
		}
	}
	g.revision, g.live, g.at = e.Revision, e.Live(), now
	if g.until = now.Add(e.Record.TTL + record.OverdueSlack); e.Record.TTL == 0 {
		g.until = math.MaxInt64
	}
}

// PlaceSeen handles a notification of a place of another client.
func (l *Line) PlaceSeen(o *Others, e record.Entry, now clock.Instant) {
	o.seen(e, 0, now)
	l.othersChanged(now)
}

// PlaceGone handles a notification that a place of another client has gone.
func (o *Others) PlaceGone(key string, revision uint64, now clock.Instant) {
	o.left(key, revision, now)
}

// GateSeen handles a notification of the gate.
func (l *Line) GateSeen(o *Others, e record.Entry, now clock.Instant) {
	o.gateSeen(e, e.Client == l.c.ID, 0, now)
	l.othersChanged(now)
}

// Listed notes what a list of the queue contained from a revision on: the places of other clients
// whose TTL is not over by the server's clock. A gate that is not nil was read beside it. The
// client requested the list at an instant.
func (l *Line) Listed(queue []record.Entry, from uint64, gate *record.Entry, at, now clock.Instant, server time.Time) {
	o := l.Others
	if o == nil {
		return
	}
	for _, e := range queue {
		if e.Client != l.c.ID && !e.OverdueAt(server) {
			o.seen(e, at, now)
		}
	}
	o.listedAt, o.from = at, from
	if gate != nil && o.Gate {
		o.gateSeen(*gate, gate.Client == l.c.ID, at, now)
	}
	l.othersChanged(now) //safety:linger-listed
}

// refresh has the client list the queue before the last list is too old to count. When it is too old,
// the next run that is opened lists.
func (l *Line) refresh(now clock.Instant) {
	o := l.Others
	if o == nil || !o.Queue || o.listing {
		return
	}
	listedAt := o.listedAt
	if o.Gate {
		listedAt = o.gate.listedAt
	}
	if age := now.Sub(listedAt); listedAt == 0 || age < silence/2 || age >= silence {
		return
	}
	o.listing = true
	l.c.do(Effect{Do: List, Line: l})
}

// Refreshed ends a [List].
func (o *Others) Refreshed() { o.listing = false }
