package core

import (
	"time"

	"github.com/natslock/locks/internal/clock"
)

// Bid repeats attempts to write one record until the outcome is decided.
type Bid struct {
	Once    bool // fail if the server is unavailable
	Guarded bool // the bid is a reader's join
	Slot    bool // the bid is for a semaphore permit
	Placed  bool // the bidder has a place in the queue
	Adopts  bool // the bid takes over a lock that was handed over

	Until clock.Instant // time from which a claim could overtake queued goroutines; 0 if it never could
	Begun clock.Instant // start of the current offer, which another call may continue; 0 if there is none

	// unmapped is when servers stopped accepting the bid's writes although the stream had a leader, or 0 if the last
	// attempt did not end that way.
	unmapped clock.Instant

	// The remaining fields belong to the current offer.
	tries, losses, flights, full int
	// silent counts consecutive attempts without an answer. After an outage, attempts sent before it may be
	// acknowledged late and be lost, which resets the count.
	silent int
}

// NoStreamFor limits how long a bid tolerates a stream without a leader. Elections took 4 to 9 s when measured. Silence
// and broken connections need no limit, because either they pass or the context of the wait ends.
const NoStreamFor = 15 * time.Second

// fullTries limits how often a waiter retries a claim for which the bucket has no room. Other records may expire in the
// meantime, but if there is still no room after the last try, the waiter gives up its place.
const fullTries = 3

// learnFor is how long servers, and reconnecting gateways and leaf nodes, may need to learn who accepts writes to a
// subject. A bid is in no hurry to report a missing permission, because doing so ends elections and workers. Until
// learnFor has passed, the bid backs off with a try number of at least unmappedPause.
const (
	learnFor      = 2 * time.Second
	unmappedPause = 4
)

// Trouble is the reason that an attempt decided nothing.
type Trouble uint8

const (
	// Silence means that the attempt was not sent or not answered.
	Silence Trouble = iota
	// Replicating means that another write to the key is being replicated.
	Replicating
	// Leaderless means that the stream has no leader.
	Leaderless
	// Unmapped means that no server accepts writes to the subject although the stream has a leader.
	Unmapped
	// NoSpace means that the bucket has no room for the record.
	NoSpace
	// Hopeless means that another attempt would fail too.
	Hopeless
)

// Backoff selects the pause before the next attempt.
type Backoff uint8

const (
	// None is no pause.
	None Backoff = iota
	// Short is a pause of [clock.ShortBackoff].
	Short
	// Outage is a pause of [clock.OutageBackoff].
	Outage
	// Flight is a pause of [clock.InFlightBackoff].
	Flight
)

// Repeat is what a bid does after an attempt.
type Repeat struct {
	Decided Outcome // the bid's outcome; Undecided if it needs another attempt
	Closes  bool    // the claim is over, so the next attempt belongs to a new one
	Backoff Backoff // the pause before the next attempt
	N       int     // the argument to Backoff
}

// Begin starts an offer, or continues one that another call began.
func (b *Bid) Begin(now clock.Instant) {
	b.tries, b.losses, b.flights, b.full, b.silent = 0, 0, 0, 0, 0
	if b.Begun == 0 {
		b.Begun = now
	}
}

// MayPass reports whether the next attempt, which expects revision expect, could overtake goroutines that have queued
// since the queue was last seen empty. It returns false for the first attempt of an offer, for which the caller is
// responsible.
func (b *Bid) MayPass(expect uint64, now clock.Instant) bool {
	b.tries++
	return b.tries > 1 && b.Bypasses(expect) && now >= b.Until //safety:bypass-repeated
}

// Bypasses reports whether a claim could overtake goroutines that have queued since the queue was last seen empty.
// While a mutex has no record (expect is 0), no waiter is queued, because the first waiter would have claimed the
// mutex. A free semaphore slot proves less, because the first waiter may know of fewer slots.
func (b *Bid) Bypasses(expect uint64) bool {
	if b.Slot { //safety:slot-bypass-empty
		return b.Until != 0
	}
	return b.Until != 0 && expect != 0
}

// Patience returns the factor by which the next attempt extends the usual wait for its answer. The factor exceeds 1
// only for a join. An unanswered join is repeated under a new id, and whatever it left behind has to be removed, so
// each repetition adds work for a slow server. Other claims need no patience, because they repeat attempts under the
// same id, and the answer to any attempt still decides if it arrives within that attempt's validity.
func (b *Bid) Patience() time.Duration {
	if b.Once || !b.Guarded {
		return 1
	}
	return 1 << min(b.silent, 1)
}

// AttemptEnded handles outcome o of an attempt. why is the reason if o is Again. tombstone is the revision of a free
// key's tombstone, or 0 if the key has none.
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
		// An answer to an earlier attempt may have arrived in the meantime. It must not become a grant.
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
	if b.Guarded && why != Replicating { // repeat an unanswered join under a new id //safety:join-new-id
		r.Closes = true
	}
	switch {
	case why == NoSpace && b.Placed && b.full >= fullTries: // only giving up its place can make room //safety:place-makes-room
		return Repeat{Decided: NoRoom, Closes: true}
	case why == Unmapped && now.Sub(b.unmapped) < learnFor: // the leader may have just changed //safety:unmapped-lasting
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
