package core

import (
	"time"

	"github.com/natslock/locks/internal/clock"
)

// Bid is how the attempts to write one record are repeated until something decides.
type Bid struct {
	Once    bool // an unavailable server is an answer
	Guarded bool // a join
	Slot    bool // a permit of a semaphore
	Placed  bool // by a waiter that has a place
	Adopts  bool // a lock that was handed over

	Until clock.Instant // when its claims begin to pass goroutines that may have queued; 0: they pass none
	Begun clock.Instant // of the offer under way, which another call may go on with; 0: none

	// Of the offer under way.
	tries, losses, flights, full int
	// silent counts the tries in a row that were not answered: when an outage is over, attempts from before
	// it may turn up and be lost.
	silent int
}

// NoStreamFor is how long a bid endures a stream without a leader, electing
// one having been measured to take 4 to 9 s. Silence and a connection that is
// down are waited out: they pass, or the wait's context ends.
const NoStreamFor = 15 * time.Second

// fullTries is how often a waiter repeats a claim for which the bucket has no room before it gives up
// its place to make room. Other records may end meanwhile.
const fullTries = 3

// Trouble is why an attempt decided nothing.
type Trouble uint8

const (
	// Silence: no answer, or not sent.
	Silence Trouble = iota
	// Replicating: another write of the key is being replicated.
	Replicating
	// Leaderless: the stream has no leader.
	Leaderless
	// NoSpace: the bucket has no room for the record.
	NoSpace
	// Hopeless: another attempt would fail too.
	Hopeless
)

// Backoff says which pause comes before the next attempt.
type Backoff uint8

const (
	// None: no pause.
	None Backoff = iota
	// Short: of [clock.ShortBackoff].
	Short
	// Outage: of [clock.OutageBackoff].
	Outage
	// Flight: of [clock.InFlightBackoff].
	Flight
)

// Repeat says what to do after an attempt.
type Repeat struct {
	Decided Outcome // of the bid; Undecided: another attempt
	Closes  bool    // the claim is over: the next attempt is that of a new one
	Backoff Backoff // before the next attempt
	N       int     // of the backoff
}

// Begin begins an offer.
func (b *Bid) Begin(now clock.Instant) {
	b.tries, b.losses, b.flights, b.full, b.silent = 0, 0, 0, 0, 0
	if b.Begun == 0 {
		b.Begun = now
	}
}

// MayPass reports whether the next attempt, at an expectation, could pass goroutines that have queued since the
// queue was seen empty. The caller of the offer answers for its first attempt.
func (b *Bid) MayPass(expect uint64, now clock.Instant) bool {
	b.tries++
	return b.tries > 1 && b.Bypasses(expect) && now >= b.Until //safety:bypass-repeated
}

// Bypasses reports whether a claim may pass goroutines that have queued since the queue was seen empty. While a
// mutex has no record (expect is 0), nobody is queued: the first waiter would have claimed it. Behind a free
// slot a first waiter can be queued that knows of fewer slots.
func (b *Bid) Bypasses(expect uint64) bool {
	if b.Slot { //safety:slot-bypass-empty
		return b.Until != 0
	}
	return b.Until != 0 && expect != 0
}

// Patience returns the factor by which the next attempt waits longer for its answer than the first one. Only a join waits
// longer, since it is repeated under a new id, and what it has left behind is taken away: a server that is late has more to
// do by each. The answer to any attempt of another claim decides it, however late.
func (b *Bid) Patience() time.Duration {
	if b.Once || !b.Guarded {
		return 1
	}
	return 1 << min(b.silent, 1)
}

// AttemptEnded takes the outcome of an attempt, and the reason where that is Again. tombstone is the revision that a
// free key has; 0: none.
func (b *Bid) AttemptEnded(o Outcome, why Trouble, tombstone uint64, now clock.Instant) (r Repeat) {
	defer func() {
		if r.Decided != Undecided && r.Decided != Ended && r.Decided != Failed {
			b.Begun = 0
		}
	}()
	switch {
	case o == Free && tombstone == 0 && !b.Adopts: // the tombstone that was expected has expired //safety:adopt-never-free
		if b.tries > 3 {
			r.Backoff, r.N = Short, b.tries-1
		}
		return r
	case o == Lost:
		// An answer to an earlier attempt may have arrived: it must not become a grant.
		r.Closes = true //safety:over-closed
		b.silent = 0
		if b.losses++; b.losses > 3 {
			r.Backoff, r.N = Outage, b.losses
		}
		return r
	case o == Failed: // a claim that has deleted its record is over, whichever call goes on
		return Repeat{Decided: Failed, Closes: true}
	case o != Again:
		return Repeat{Decided: o}
	}
	if b.Guarded && why != Replicating { // a join without an answer is repeated under a new id //safety:join-new-id
		r.Closes = true
	}
	switch {
	case why == NoSpace && b.Placed && b.full >= fullTries: // its place is the room that there is //safety:place-makes-room
		return Repeat{Decided: NoRoom, Closes: true}
	case why == Hopeless, b.Once && why != Replicating, why == Leaderless && now.Sub(b.Begun) > NoStreamFor:
		r.Decided = Failed
	case why == Replicating:
		r.Backoff, r.N = Flight, b.flights
		b.flights++
	default:
		r.Backoff, r.N = Outage, b.silent
		b.silent++
		if why == NoSpace {
			b.full++
		}
	}
	return r
}
