package session

import (
	"sync"
	"time"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/kvstore"
)

// State is the state of a lease or a place.
type State uint8

const (
	// Held: inside its validity.
	Held State = iota
	// Lost: over without a release.
	Lost
	// Released by its holder.
	Released
	// Ended: over at the time it was taken until.
	Ended
)

// Granted is a claim that the server has granted: what a lease or a place begins as.
type Granted struct {
	Kind     record.Kind
	Once     bool   // the key is never claimed again
	Name     string // the lock's
	Key      string
	Revision uint64      // of the record
	Body     record.Body // repeated by the renewals, with the id of the claim
	Terms    clock.Terms
	Sent     clock.Instant // when the attempt that was granted was sent
}

// kept is a record of this client that is kept alive: of a lease or of a place in a
// queue. Its times obey three rules:
//
//   - a write counts from its sending and ends a margin before its TTL does;
//   - a confirmation that arrives after the current end counts for nothing;
//   - a renewal expects the last revision known, never 0, so it can neither
//     bring back a record that has gone nor overwrite a stranger's.
type kept struct {
	Granted
	s  *Session
	of duties

	mu       sync.Mutex // guards the fields below, but for slot
	valid    core.Validity
	state    State
	together bool      // its next renewal is one of many; see renewer.renewAll
	retries  int32     // of a renewal that met another write; here, a lease stays in its size class
	cause    *EndError // of the end; nil while held
	terms    clock.Terms
	last     uint64        // the last revision known
	lastSent clock.Instant // when the write at last was sent
	renewals renewals
	doubt    doubt
	released chan struct{} // closed when the release is over; nil: it has not begun

	slot slot // the renewer's, under its mutex
}

// duties are what a lease and a place do beside being renewed. All but over are
// called under kept.mu.
type duties interface {
	// automatic says whether the renewer is to renew the record.
	automatic() bool
	// nextDuty is due, or the time of an earlier duty.
	nextDuty(due clock.Instant) clock.Instant
	// perform does the duties that are due.
	perform(now clock.Instant)
	// confirmed follows the confirmation of renewal n.
	confirmed(n uint64)
	// tooLarge follows the refusal of a renewal by its size.
	tooLarge(err error)
	// rest is for how long the record has to keep others out when its holder leaves now.
	rest(now clock.Instant) time.Duration
	// leave takes what is to be ended with the record.
	leave() leavings
	// over ends it, and publishes the event if that is not 0. Without the mutex.
	over(left leavings, event EventType, cause *EndError)
}

// leavings are what a record in its end leaves to be ended.
type leavings struct {
	holders *Holder // of a lease
	watch   kvstore.Watch
	waiting []extension
	onEnd   func()
}

// init makes k the record of g. of is the lease or the place that k is a part of.
func (k *kept) init(s *Session, g Granted, of duties) {
	k.Granted, k.s, k.of = g, s, of
	k.Body.Attempt = 0
	if k.Body.Token == 0 { // else it was adopted //safety:adopted-token
		k.Body.Token = record.TokenOrTicket(g.Key, g.Revision)
	}
	k.terms, k.valid, k.last, k.lastSent = g.Terms, core.ValidFrom(g.Sent, g.Terms), g.Revision, g.Sent
	k.renewals.want, k.renewals.asked = g.Terms, g.Sent
	k.renewals.next = g.Terms.NextRenewal(g.Sent, s.RenewFraction)
	k.slot.index, k.slot.ready = -1, notReady
}

// Status returns the state, what is left of the validity, and the cause of the end. It
// does no I/O, and it reads the clock itself: it is right also where the renewer's
// goroutine has not run yet.
func (k *kept) Status() (State, time.Duration, error) {
	k.mu.Lock()
	var lost ending
	left := k.valid.End.Sub(k.s.b.Instant())
	if k.state == Held && left <= 0 { //safety:state-by-clock
		lost = k.expire()
	}
	state, cause := k.state, k.cause
	k.mu.Unlock()
	lost.finish()
	if cause != nil {
		return state, 0, cause
	}
	return state, left, nil
}

const unconfirmed = "its lease ended without a confirmation from the server"

// Confirmation returns when the last write that the server has acknowledged was
// sent, and at which revision it is stored.
func (k *kept) Confirmation() (sent clock.Instant, revision uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.lastSent, k.last
}

// renews says whether the renewer is to renew the record. Under mu.
func (k *kept) renews() bool { return k.state == Held && k.of.automatic() }

// due is when the renewer has to come back to the record. Under mu.
func (k *kept) due() clock.Instant {
	// At the end of the validity the context ends, whether the server answers or not.
	due := k.valid.End //safety:due-at-end
	if k.renews() && !k.doubt.resolving {
		due = min(due, k.renewals.next)
	}
	return k.of.nextDuty(due)
}

// moved has the renewer come at the right time after a change. Under mu.
func (k *kept) moved() {
	if k.state == Held {
		k.s.renewer.schedule(k, k.due())
	}
}

// tick does what is due.
func (k *kept) tick(now clock.Instant) {
	k.mu.Lock()
	if k.state != Held {
		k.mu.Unlock()
		return
	}
	var lost ending
	if k.valid.Over(now) {
		lost = k.expire()
	} else {
		k.of.perform(now)
		if r := &k.renewals; k.renews() && !k.doubt.resolving && now >= r.next {
			r.asked, r.next = now, now.Add(max(min(r.want.TTL, k.terms.TTL)/15, minRetry))
			k.s.renewer.want(k, k.valid.End.Add(-k.terms.Validity()/3), k.valid.End, r.enough())
		}
		k.moved()
	}
	k.mu.Unlock()
	lost.finish()
}

// expire ends a record whose validity is over: as planned, if it was taken until that
// time. Under mu.
func (k *kept) expire() ending {
	if k.valid.Planned() {
		return k.lose(ErrEnded, "")
	}
	why := unconfirmed + k.renewals.why()
	if k.s.renewer.waits(k) {
		why += ": its renewal still waited, because the service answers fewer than are due"
	}
	return k.lose(ErrLost, why)
}

// lose ends a record that is held. The caller finishes the ending without the mutex.
// Under mu.
func (k *kept) lose(kind error, why string) ending {
	if k.state != Held {
		return ending{}
	}
	if k.doubt.breaker != "" && (kind == ErrLost || kind == ErrEnded) {
		// Broken so that others got in at once: by now the record is theirs.
		kind, why = ErrBroken, k.doubt.breaker
	}
	state, event := Lost, EventLost
	switch kind {
	case ErrBroken:
		event = EventBroken
	case ErrEnded:
		state, event = Ended, EventEnded
	}
	k.state = state
	return k.stop(event, &EndError{Name: k.Name, Token: k.Body.Token, Kind: kind, Why: why})
}

// release ends the record by its holder, with kind as its cause. Under mu.
func (k *kept) release(kind error) ending {
	event := EventType(0)
	if k.state == Held {
		event = EventReleased
	}
	k.state = Released
	cause := k.cause
	if cause == nil {
		cause = &EndError{Name: k.Name, Token: k.Body.Token, Kind: kind}
	}
	return k.stop(event, cause)
}

// stop ends the validity and takes what is to be ended with it. Under mu.
func (k *kept) stop(event EventType, cause *EndError) ending {
	k.valid.End = min(k.valid.End, k.s.b.Instant())
	k.cause = cause
	k.s.renewer.remove(k)
	e := ending{k: k, event: event, cause: cause, left: k.of.leave(), sent: k.renewals.sent}
	k.renewals.sent = nil
	return e
}

// ending is the end of a record that is still to be published. The zero value is
// none.
type ending struct {
	k     *kept
	event EventType // 0: none
	cause *EndError
	left  leavings
	sent  []renewal
}

// finish publishes the end. Without the mutex.
func (e ending) finish() {
	if e.k == nil {
		return
	}
	for _, r := range e.sent {
		if r.forget != nil { // its answer may still have a record to delete
			e.k.s.Await(&Orphan{}, r.forget)
		}
	}
	e.k.of.over(e.left, e.event, e.cause)
}

// tombstone is the value of the record's tombstone.
func (k *kept) tombstone(status record.Status) ([]byte, error) {
	k.mu.Lock()
	body := k.Body // goroutines may still join the run of a place that is left
	k.mu.Unlock()
	return k.s.b.Tombstone(status, body)
}

// SetSize sets how many goroutines the record stands for. The next renewal writes it.
func (k *kept) SetSize(n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.Body.Size = int32(n)
}

// isLock says whether the record is that of a holder, and not of a waiter.
func (k *kept) isLock() bool { return k.Body.Status == record.StatusHeld }
