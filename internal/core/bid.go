package core

import (
	"time"

	"github.com/natslock/locks/internal/clock"
)

// Bid repeats the attempts to write one record until its outcome is decided.
type Bid struct {
	Once    bool // fail if the server is unavailable
	Guarded bool // a join
	Slot    bool // a permit of a semaphore
	Placed  bool // made by a waiter that has a place
	Adopts  bool // to take over a lock that was handed over

	Until clock.Instant // from then on its claims could pass goroutines that have queued; 0 if they never could
	Begun clock.Instant // when the offer under way began, which another call may continue; 0 if there is none

	// unmapped is when servers stopped taking its writes although the stream had a leader; 0 if the last try ended
	// otherwise.
	unmapped clock.Instant

	// The rest belongs to the offer under way.
	tries, losses, flights, full int
	// silent counts consecutive tries without an answer. After an outage, attempts from before it may turn up late, are
	// lost, and end the count.
	silent int
}

// NoStreamFor limits how long a bid tolerates a stream without a leader: elections took 4 to 9 s when measured. A bid
// waits out silence and a broken connection: either they pass, or the context of the wait ends.
const NoStreamFor = 15 * time.Second

// fullTries limits a waiter's claims for which the bucket has no room. Other records may end in the meantime. If there
// is still no room, the waiter gives up its place.
const fullTries = 3

// learnFor is the time that servers, and reconnecting gateways and leaf nodes, need to learn who takes writes to a
// subject. A missing permission ends elections and workers, so a bid is in no hurry to report one. Meanwhile
// unmappedPause is the lowest try number for its backoff.
const (
	learnFor      = 2 * time.Second
	unmappedPause = 4
)

// Trouble is the reason that an attempt decided nothing.
type Trouble uint8

const (
	// Silence: not sent, or not answered.
	Silence Trouble = iota
	// Replicating: another write of the key is being replicated.
	Replicating
	// Leaderless: the stream has no leader.
	Leaderless
	// Unmapped: no server takes writes to the subject, although the stream has a leader.
	Unmapped
	// NoSpace: the bucket has no room for the record.
	NoSpace
	// Hopeless: another attempt would fail too.
	Hopeless
)

// Backoff selects the pause before the next attempt.
type Backoff uint8

const (
	// None: no pause.
	None Backoff = iota
	// Short is a pause of [clock.ShortBackoff].
	Short
	// Outage is a pause of [clock.OutageBackoff].
	Outage
	// Flight is a pause of [clock.InFlightBackoff].
	Flight
)

// Repeat tells what to do after an attempt.
type Repeat struct {
	Decided Outcome // the outcome of the bid; Undecided if it needs another attempt
	Closes  bool    // the claim is over: the next attempt belongs to a new one
	Backoff Backoff // before the next attempt
	N       int     // the argument of Backoff
}

// Begin begins an offer.
func (b *Bid) Begin(now clock.Instant) {
	b.tries, b.losses, b.flights, b.full, b.silent = 0, 0, 0, 0, 0
	if b.Begun == 0 {
		b.Begun = now
	}
}

// MayPass reports whether the next attempt, which expects revision expect, could pass goroutines that have queued since
// the queue was seen empty. The caller of the offer is responsible for its first attempt.
func (b *Bid) MayPass(expect uint64, now clock.Instant) bool {
	b.tries++
	return b.tries > 1 && b.Bypasses(expect) && now >= b.Until //safety:bypass-repeated
}

// Bypasses reports whether a claim may pass goroutines that have queued since the queue was seen empty. While a mutex
// has no record (expect is 0), no waiter is queued: the first one would have claimed it. A free slot proves less: a
// first waiter that knows of fewer slots may be queued.
func (b *Bid) Bypasses(expect uint64) bool {
	if b.Slot { //safety:slot-bypass-empty
		return b.Until != 0
	}
	return b.Until != 0 && expect != 0
}

// Patience returns the factor by which the next attempt waits longer for its answer than the first. It exceeds 1 only
// for a join. An unanswered join is repeated under a new id, and what it left behind has to be removed, so each
// repetition adds work for a slow server. Other claims need no patience: their next attempt has the same id, so the
// answer to any of their attempts still decides, if it arrives inside the validity of that attempt.
func (b *Bid) Patience() time.Duration {
	if b.Once || !b.Guarded {
		return 1
	}
	return 1 << min(b.silent, 1)
}

// AttemptEnded handles outcome o of an attempt; why is the reason if o is Again. tombstone is the revision of a free
// key's tombstone, 0 if it has none.
func (b *Bid) AttemptEnded(o Outcome, why Trouble, tombstone uint64, now clock.Instant) (r Repeat) {
	defer func() {
		if r.Decided != Undecided && r.Decided != Ended && r.Decided != Failed {
			b.Begun = 0
		}
	}()
	switch {
	case o != Again || why != Unmapped:
		b.unmapped = 0
	case b.unmapped == 0:
		b.unmapped = now
	}
	switch {
	case o == Free && tombstone == 0 && !b.Adopts: // the expected tombstone has expired //safety:adopt-never-free
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
	case o == Failed: // a claim that has deleted its record is over, even if another call takes over the bid
		return Repeat{Decided: Failed, Closes: true}
	case o != Again:
		return Repeat{Decided: o}
	}
	if b.Guarded && why != Replicating { // an unanswered join is repeated under a new id //safety:join-new-id
		r.Closes = true
	}
	switch {
	case why == NoSpace && b.Placed && b.full >= fullTries: // only its place can make room //safety:place-makes-room
		return Repeat{Decided: NoRoom, Closes: true}
	case why == Unmapped && now.Sub(b.unmapped) < learnFor: // the leader may have changed just now //safety:unmapped-lasting
		r.Backoff, r.N = Outage, max(b.silent, unmappedPause)
	case why == Unmapped, why == Hopeless, b.Once && why != Replicating, why == Leaderless && now.Sub(b.Begun) > NoStreamFor:
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
