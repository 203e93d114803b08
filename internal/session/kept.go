package session

import (
	"fmt"
	"time"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
)

// State is the state of a lease or a place.
type State = core.State

// The states: see [core.State].
const (
	Held     = core.StateHeld
	Lost     = core.StateLost
	Released = core.StateReleased
	Ended    = core.StateEnded
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
// queue. Its state and its rules are those of [core.Kept]; kept performs what they ask for.
type kept struct {
	s  *Session
	of duties

	Name     string
	Key      string
	Revision uint64 // the first one

	// The following fields are under the session's mutex.
	core.Kept
	cause    *EndError     // of the end; nil while held
	failure  *error        // why the last renewal was not confirmed, as far as is known; nil: not known
	flights  []flight      // renewals without an answer
	released chan struct{} // closed when the release is over; nil: it has not begun

	slot slot // the renewer's
}

// flight is a renewal without an answer. forget ends the wait for that.
type flight struct {
	n      uint64
	forget func()
}

// duties are what a lease and a place do beside being renewed. All but over are
// called under the mutex.
type duties interface {
	// nextDuty returns the time of the next duty, or due if that is earlier.
	nextDuty(due clock.Instant) clock.Instant
	// perform does the duties that are due.
	perform(now clock.Instant)
	// confirmed handles the confirmation of renewal n.
	confirmed(n uint64)
	// tooLarge handles the refusal of a renewal by its size.
	tooLarge(err error)
	// cooldown is for how long the record has to keep others out when its holder leaves now.
	cooldown(now clock.Instant) time.Duration
	// leave takes out what has to be ended together with the record.
	leave() leavings
	// over ends what leave has taken out, and publishes the event if that is not 0. Without the mutex.
	over(left leavings, event EventType, cause *EndError)
}

// leavings are what has to be ended together with a record.
type leavings struct {
	holders *Holder // of a lease
	watch   kvstore.Watch
	waiting []extension
	onEnd   func()
}

// init makes k the record of g. of is the lease or the place that k is a part of.
func (k *kept) init(s *Session, g Granted, of duties) {
	k.s, k.of, k.Kind, k.Once, k.Name, k.Key, k.Revision = s, of, g.Kind, g.Once, g.Name, g.Key, g.Revision
	k.Begin(g.Body, g.Key, g.Revision, g.Terms, g.Sent, s.RenewFraction)
	k.slot.index, k.slot.ready = -1, core.NotReady
}

// Status returns the state, what is left of the validity, and the cause of the end. It
// does no I/O, and it reads the clock itself: it is right also where the renewer's
// goroutine has not run yet.
func (k *kept) Status() (State, time.Duration, error) {
	k.s.mu.Lock()
	now := k.s.b.Instant()
	over := k.check(now)
	state, left, cause := k.State, k.Valid.End.Sub(now), k.cause
	k.s.mu.Unlock()
	over.finish()
	if cause != nil {
		return state, 0, cause
	}
	return state, left, nil
}

// check ends the record if its validity is over. Under mu.
func (k *kept) check(now clock.Instant) (over ending) {
	if u := k.Check(now); u.End != core.NoEnd {
		over = k.apply(u, "")
	}
	return over
}

// Confirmation returns when the last write that the server has acknowledged was
// sent, and at which revision it is stored.
func (k *kept) Confirmation() (sent clock.Instant, revision uint64) {
	k.s.mu.Lock()
	defer k.s.mu.Unlock()
	return k.LastSent, k.Last
}

// moved has the renewer reschedule the record after a change of its times. Under mu.
func (k *kept) moved() {
	if k.State == Held {
		k.s.renewer.schedule(k, k.of.nextDuty(k.Due()))
	}
}

// tick does what is due.
func (k *kept) tick(now clock.Instant) {
	k.s.mu.Lock()
	if k.State != Held {
		k.s.mu.Unlock()
		return
	}
	u, renew := k.Tick(now)
	if k.State == Held {
		k.of.perform(now)
	}
	if renew {
		k.s.renewer.want(k, k.Late(), k.Valid.End, k.Enough())
	}
	over := k.apply(u, "")
	k.s.mu.Unlock()
	over.finish()
}

// apply performs a [core.Consequence]. why is the reason of an end, if the caller knows it. The
// caller calls [ending.finish] when it has released the mutex. Under mu.
func (k *kept) apply(u core.Consequence, why string) (over ending) {
	if u.Confirmed > 0 {
		over.answered = k.forget(u.Confirmed)
		over.k = k
		k.failure = nil
		if u.Enough {
			k.s.renewer.pace.Drop(k) // it does not wait for its turn any more
		}
		k.of.confirmed(u.Confirmed)
	}
	if u.Soon {
		k.RenewAfter(k.s.b.Instant().Add(clock.InFlightBackoff(int(k.Retries))))
	}
	if u.End != core.NoEnd {
		over = k.end(u.End, why)
	}
	if u.Discard > 0 && u.Discards(k.of.cooldown(k.s.b.Instant())) {
		over.k, over.discard = k, u.Discard
	}
	if u.Read > 0 {
		k.s.resolveLater(k, u.Read, u.Proven)
	}
	k.moved()
	return over
}

// lose ends a record that is held. Under mu.
func (k *kept) lose(end core.End, why string) ending {
	return k.apply(k.Lose(end, core.NoReason, k.s.b.Instant()), why)
}

// release ends the record by its holder, with end as its cause. Under mu.
func (k *kept) release(end core.End) ending {
	return k.end(k.Release(end, k.s.b.Instant()).End, "")
}

// sentinels of the ends.
var sentinels = [...]error{
	core.EndLost: ErrLost, core.EndBroken: ErrBroken, core.EndPlanned: ErrEnded, core.EndClosed: bucket.ErrClosed,
	core.EndReleased: ErrReleased, core.EndHandedOff: ErrHandedOff,
}

// events of the ends.
var events = [...]EventType{
	core.EndLost: EventLost, core.EndBroken: EventBroken, core.EndPlanned: EventEnded, core.EndClosed: EventLost,
	core.EndReleased: EventReleased, core.EndHandedOff: EventReleased,
}

// end returns the ending of the record, whose cause it derives from end if there is none yet. Under mu.
func (k *kept) end(end core.End, why string) ending {
	if k.cause == nil {
		if why == "" || k.Why == core.BreakHinted {
			why = k.reason()
		}
		k.cause = &EndError{Name: k.Name, Token: k.Body.Token, Kind: sentinels[end], Why: why}
	}
	k.s.renewer.remove(k)
	over := ending{k: k, ended: true, event: events[end], cause: k.cause, left: k.of.leave(), flights: k.flights}
	k.flights = nil
	return over
}

// reason is the evidence for the end, in words. Under mu.
func (k *kept) reason() string {
	switch k.Why {
	case core.Unconfirmed:
		why := "its lease ended without a confirmation from the server" + k.failed()
		if k.slot.ready != core.NotReady {
			why += ": its renewal still waited, because the service answers fewer than are due"
		}
		return why
	case core.ConfirmedLate:
		return "the confirmation of its renewal came after its validity had ended"
	case core.RecordGone:
		return "its record is gone"
	case core.RecordDeleted:
		return "its record was deleted"
	case core.BreakHinted:
		return *k.Break
	}
	return ""
}

// ending is the end of a record that is still to be published. The zero value is
// none.
type ending struct {
	k       *kept
	ended   bool
	event   EventType // 0: none
	cause   *EndError
	left    leavings
	flights []flight
	// answered are renewals whose answers nobody waits for any more.
	answered []flight
	discard  uint64 // the revision of a record that must not count; 0: there is none
}

// finish publishes the end. It deletes the record to discard, so that nobody has to wait for the end
// of its TTL. Without the mutex.
func (e ending) finish() {
	if e.k == nil {
		return
	}
	for _, f := range e.answered {
		if f.forget != nil {
			f.forget()
		}
	}
	for _, f := range e.flights {
		if f.forget != nil { // its answer may still have a record to delete
			e.k.s.Await(&Orphan{}, f.forget)
		}
	}
	if e.ended {
		e.k.of.over(e.left, e.event, e.cause)
	}
	if e.discard > 0 {
		e.k.s.Discard(e.k.Key, e.k.Body.ID, e.discard)
	}
}

// SetSize sets how many goroutines the record stands for. The next renewal writes it.
func (k *kept) SetSize(n int) {
	k.s.mu.Lock()
	defer k.s.mu.Unlock()
	k.Body.Size = int32(n)
}

// failed says why renewals were not confirmed, for the text of an error; "" if that is not known. Under mu.
func (k *kept) failed() string {
	if k.failure == nil {
		return ""
	}
	return fmt.Sprintf(": its renewal failed: %v", *k.failure)
}
