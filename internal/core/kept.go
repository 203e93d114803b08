package core

import (
	"math"
	"time"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/record"
)

// Kept is a record that the client keeps alive by renewing it: the record of a lease or of a place in a queue.
//
//	       validity over, replaced, deleted, broken
//	Held -------------------------------------------> Lost, or Ended as planned
//	  |                                                 |
//	  |  EndByHolder                                    |  EndByHolder
//	  +-------------------> Released <------------------+
//
// A renewal expects the last known revision, which is never 0, so it can neither bring back a deleted record nor
// overwrite another client's. Its confirmation takes effect only if it arrives within the validity that it would
// extend, and the new validity counts from when the renewal was sent.
//
// Only proof ends a record early, namely a read from a state that contains the last confirmed write. A hint (a
// notification, or a list without the record) may be forged or outdated, and a refusal may come from a deposed leader.
// Hints and refusals only lead to such a read or to another renewal.
type Kept struct {
	Body    record.Body // body of the next renewal, with the id of the claim
	Granted clock.Terms // of the claim
	Terms   clock.Terms // of the last confirmation
	Want    clock.Terms // of the next renewal

	Valid     Validity
	Last      uint64        // last known revision
	LastSent  clock.Instant // when the write that produced Last was sent
	Break     *string       // who broke the record and why, according to a hint; nil if there was no such hint
	suspected uint64        // highest revision named by hints while the record was not being renewed; 0 if none

	Waiting   int32   // number of goroutines waiting for a confirmation
	phase     float32 // spreads out the renewals that follow a renewal of all records; 0 if there was none
	Retries   uint8   // how often a renewal met another write in flight, capped at 255
	State     State
	Cause     End // how the record first ended; 0 while it is held
	Why       Why // the evidence for Cause
	Kind      record.Kind
	Once      bool // the key is never claimed again
	Abandoned bool
	resolving bool // a read is under way to settle a doubt

	sent        []Renewal     // unanswered renewals, in the order in which they were sent
	n           uint64        // number of the last renewal
	need        uint64        // a renewal with at least this number is wanted now
	requestedAt clock.Instant // when a renewal was last due or sent
	next        clock.Instant // when the next renewal is due

}

// Renewal is a renewal that has not been answered yet.
type Renewal struct {
	n     uint64
	at    clock.Instant
	terms clock.Terms
	paced uint64 // its number among the client's writes
}

// State is the state of a kept record.
type State uint8

const (
	// StateHeld means that the record is within its validity.
	StateHeld State = iota
	// StateLost means that the record ended without a release.
	StateLost
	// StateReleased means that the holder ended the record.
	StateReleased
	// StateEnded means that the record lasted until its requested end.
	StateEnded
)

// End is how a kept record ended.
type End uint8

const (
	// NoEnd means that the record has not ended.
	NoEnd End = iota
	// EndLost means that the record no longer belongs to this client, or may no longer belong to it.
	EndLost
	// EndBroken means that an operator has broken the record.
	EndBroken
	// EndPlanned means that the record reached its requested end.
	EndPlanned
	// EndClosed means that the client was closed.
	EndClosed
	// EndReleased means that the holder has left.
	EndReleased
	// EndHandedOff means that the holder has left the record to another client.
	EndHandedOff
)

// Why is the evidence for an end.
type Why uint8

const (
	// NoReason means that the [End] says enough or that the caller gives the reason.
	NoReason Why = iota
	// Unconfirmed means that no renewal was confirmed within the validity.
	Unconfirmed
	// ConfirmedLate means that a confirmation arrived after the end of the validity.
	ConfirmedLate
	// RecordGone means that the key has no record, or has one from an attempt before the grant.
	RecordGone
	// RecordReplaced means that another claim has been granted.
	RecordReplaced
	// RecordDeleted means that the record was deleted.
	RecordDeleted
	// RecordBroken means that the record was found broken. The record says who broke it.
	RecordBroken
	// BreakHinted means that a hint reported a break, which the record's end now proves.
	BreakHinted
)

// Consequence tells the caller what to do after an event.
type Consequence struct {
	End            End    // the record has just ended this way, which the caller publishes; 0 if it has not
	Read           uint64 // read the record as of this revision and call [Kept.RecordRead]; 0 if no read is needed
	Proven         bool   // the revision in Read was named by a refusal
	Discard        uint64 // delete the record at this revision, because no holder relies on it; see [Consequence.Discards]
	unlessCooldown bool   // do not discard during a minimum hold
	Confirmed      uint64 // number of the renewal that was confirmed; 0 if none was
	Enough         bool   // Confirmed is the renewal that was wanted now, or a later one
	Soon           bool   // renew again soon, because another write is being replicated
	Doubted        bool   // verify the bucket, which may have been deleted along with the record
}

// Discards reports whether to delete the record at revision Discard. rest is what remains of the minimum hold.
func (u Consequence) Discards(rest time.Duration) bool {
	return u.Discard != 0 && (rest <= 0 || !u.unlessCooldown) //safety:cooldown-not-discarded
}

// MinRetry is the shortest time between two renewals of a record.
const MinRetry = 50 * time.Millisecond

// showEvery is the shortest time between two renewals whose only purpose is to publish a change.
const showEvery = 100 * time.Millisecond

// Begin initializes k with the record that a claim was granted under key by a write sent at time sent.
func (k *Kept) Begin(body record.Body, key string, revision uint64, t clock.Terms, sent clock.Instant) {
	k.Body = body
	k.Body.Attempt = 0
	if k.Body.Token == 0 { // not adopted //safety:adopted-token
		k.Body.Token = record.TokenOrTicket(key, revision)
	}
	k.Granted, k.Terms, k.Want, k.Valid = t, t, t, ValidFrom(sent, t)
	k.Last, k.LastSent, k.requestedAt = revision, sent, sent
	k.next = t.NextRenewal(sent)
}

// IsLock reports whether the record belongs to a holder, as opposed to a waiter.
func (k *Kept) IsLock() bool { return k.Body.Status == record.StatusHeld }

// Renews reports whether the record is being renewed. A fixed record is renewed only while goroutines wait for a
// confirmation.
func (k *Kept) Renews() bool {
	return k.State == StateHeld && !k.Abandoned && (!k.Body.Fixed || k.Waiting > 0)
}

// Due returns when to call [Kept.Tick].
func (k *Kept) Due() clock.Instant {
	// The context ends with the validity, whether or not the server answers.
	due := k.Valid.End //safety:due-at-end
	if k.Renews() && !k.resolving {
		due = min(due, k.next)
	}
	return due
}

// Tick ends the record or begins a renewal if either is due.
func (k *Kept) Tick(now clock.Instant) (u Consequence, renew bool) {
	switch {
	case k.State != StateHeld:
	case k.Valid.Over(now):
		u = k.expire(now)
	case k.Renews() && !k.resolving && now >= k.next:
		k.requestedAt, k.next = now, now.Add(max(min(k.Want.TTL, k.Terms.TTL)/15, MinRetry))
		renew = true
	}
	return u, renew
}

// Check ends the record if its validity has ended, for callers that may run before Tick does.
func (k *Kept) Check(now clock.Instant) (u Consequence) {
	if k.State == StateHeld && k.Valid.Over(now) { //safety:state-by-clock
		u = k.expire(now)
	}
	return u
}

// Late returns the time after which a renewal that is due counts as late and takes precedence over all writes that end
// records.
func (k *Kept) Late() clock.Instant { return k.Valid.End.Add(-k.Terms.Validity() / 3) }

// AtRisk reports whether the record is being renewed but two thirds of its validity have passed without a confirmation.
func (k *Kept) AtRisk(now clock.Instant) bool { return k.Renews() && now > k.Late() }

// Lag returns how late the renewal is, or 0 if it is on time.
func (k *Kept) Lag(now clock.Instant) time.Duration {
	if !k.Renews() {
		return 0
	}
	return max(now.Sub(k.Terms.NextRenewal(k.LastSent)), 0)
}

// Enough returns the last renewal if it is unanswered and its confirmation would satisfy all requests. Otherwise it
// returns the zero Renewal.
func (k *Kept) Enough() Renewal {
	if last := len(k.sent) - 1; last >= 0 && k.sent[last].n >= k.need {
		return k.sent[last]
	}
	return Renewal{}
}

// Wanted reports whether a renewal is wanted but has not been sent.
func (k *Kept) Wanted() bool { return k.n < k.need }

// Unanswered reports whether a renewal is under way.
func (k *Kept) Unanswered() bool { return len(k.sent) > 0 }

// Renewal returns the number of the last renewal.
func (k *Kept) Renewal() uint64 { return k.n }

// BeginRenewal begins a renewal. paced is its number among the client's writes. BeginRenewal returns the number of the
// renewal, or 0 if none is to be sent, and reports whether the renewal shortens the validity.
func (k *Kept) BeginRenewal(now clock.Instant, paced uint64) (n uint64, shorter bool) {
	if !k.Renews() || k.resolving {
		return 0, false
	}
	k.n++
	k.sent = append(k.sent, Renewal{n: k.n, at: now, terms: k.Want, paced: paced})
	k.requestedAt = now
	return k.n, k.Valid.RenewalSent(now, k.Want)
}

// RenewalNotSent forgets renewal n, which was not sent after all.
func (k *Kept) RenewalNotSent(n uint64) {
	if i := k.index(n); i >= 0 {
		k.sent = append(k.sent[:i], k.sent[i+1:]...)
	}
}

func (k *Kept) index(n uint64) int {
	for i := range k.sent {
		if k.sent[i].n == n {
			return i
		}
	}
	return -1
}

// AnswerArrived handles the answer to renewal n.
func (k *Kept) AnswerArrived(n uint64, a Answer, now clock.Instant) (u Consequence) {
	switch {
	case a.Refusal == Acknowledged:
		return k.renewalConfirmed(n, a.Revision, now)
	case k.State != StateHeld:
	case a.Refusal == InFlight:
		k.Retries = min(k.Retries, math.MaxUint8-1) + 1
		u.Soon = true
	case a.Refusal != Conflict:
	case a.Last == 0 || a.Last > k.Last:
		// Read even if the refusal says that the key is empty, because the refusal may come from a deposed leader that
		// has removed a record that has since been renewed. A state that contains the last confirmed write shows the
		// truth.
		if !k.resolving {
			k.resolving, u.Proven = true, true
			u.Read = max(a.Last, k.Last) //safety:renewal-refused
		}
	case a.Last == k.Last && n == k.n && n >= k.need:
		// The server refused this renewal because it stored the preceding one first, and that one has been confirmed in
		// the meantime. What this renewal was meant to confirm is still unconfirmed.
		k.RenewAgain(now)
	}
	return u
}

// renewalConfirmed handles the confirmation of renewal n, which the server has stored at revision.
func (k *Kept) renewalConfirmed(n, revision uint64, now clock.Instant) (u Consequence) {
	switch {
	case k.State == StateReleased:
		return u // the release deletes whatever is there
	case k.State == StateHeld && k.Valid.InTime(now):
		if i := k.index(n); i >= 0 {
			u.Confirmed, u.Enough = n, k.prolong(i, revision)
		}
		return u // confirmed, or superseded by a later confirmation
	case k.State == StateLost && k.Cause != EndLost: //safety:closed-not-deleted
		return u // closed or broken, and the work may still be stopping
	}
	u = k.EndUnasked(EndLost, ConfirmedLate, now)
	u.Discard, u.unlessCooldown = revision, true
	return u
}

// prolong extends the validity, which must not have ended yet, to that of renewal sent[i]. It reports whether that
// renewal satisfies all requests.
func (k *Kept) prolong(i int, revision uint64) (enough bool) {
	s := k.sent[i]
	k.sent = append(k.sent[:0], k.sent[i+1:]...) // earlier ones expect a revision that is no longer the last
	if revision > k.Last {
		k.Last, k.LastSent = revision, s.at
	}
	k.Terms = s.terms
	k.Valid.RenewalConfirmed(s.at, s.terms)
	k.Retries = 0
	if s.n < k.need {
		return false
	}
	k.next = s.terms.NextRenewal(s.at)
	if k.phase > 0 {
		k.next = s.at.Add(time.Duration(float64(k.phase) * float64(k.next.Sub(s.at))))
		k.phase = 0
	}
	k.Break = nil // the record is not broken, whatever a hint said
	return true
}

// RenewNow makes a new renewal due at time at. Confirming a renewal that has already been sent would not cover a later
// change.
func (k *Kept) RenewNow(at clock.Instant) {
	k.need = k.n + 1
	k.next = min(k.next, at)
}

// RenewSoon makes a renewal due in order to publish a change, but not too soon after the last renewal.
func (k *Kept) RenewSoon(now clock.Instant) { k.RenewNow(max(now, k.requestedAt.Add(showEvery))) }

// RenewAgain makes another renewal due at time at, in place of one that was refused.
func (k *Kept) RenewAgain(at clock.Instant) { k.next = min(k.next, at) }

// RenewAfter makes the next renewal due at time at, and no earlier.
func (k *Kept) RenewAfter(at clock.Instant) { k.next = at }

// Reconnected handles a new connection. Whatever was under way on the old one is lost, so all records are renewed
// immediately. phase, which is above 0 and at most 1, is the fraction of the usual interval after which this record is
// renewed again, so that later renewals are spread out.
func (k *Kept) Reconnected(now clock.Instant, phase float32) (u Consequence) {
	if !k.Renews() {
		return k.Suspect(k.Last, now)
	}
	k.phase = phase
	k.RenewNow(now)
	return u
}

// Suspect handles a hint that the record changed at revision.
func (k *Kept) Suspect(revision uint64, now clock.Instant) (u Consequence) {
	if k.Renews() {
		// Respond slowly, in case this is a flood of forged hints.
		k.RenewNow(max(now, k.requestedAt.Add(MinRetry/2)))
		return u
	}
	k.suspected = max(k.suspected, revision)
	if k.State == StateHeld && !k.resolving {
		k.resolving, u.Read = true, revision
	}
	return u
}

// Old reports whether a notification about revision is old news. For a held record, that is true only up to the last
// confirmed revision, because a later one may be a break.
func (k *Kept) Old(revision uint64) bool {
	return k.State != StateHeld || revision <= k.Last //safety:break-notified
}

// RecordNotified handles the notification of a record.
func (k *Kept) RecordNotified(e record.Entry, now clock.Instant) (u Consequence) {
	if k.Old(e.Revision) {
		return u
	}
	own := e.From(k.Body.ID)
	if own && e.Status == record.StatusBroken {
		why := e.BrokenBecause()
		k.Break = &why
	}
	if own && e.Live() && e.Status == record.StatusHeld && e.Renewal > 0 && e.Renewal <= k.n {
		return u // one of the client's renewals, whose answer is on its way
	}
	return k.Suspect(e.Revision, now)
}

// RecordRead handles the record under the key, read from a state that contains revision.
func (k *Kept) RecordRead(e record.Entry, revision uint64, now clock.Instant) (u Consequence) {
	k.resolving = false
	found, current := Find(e, k.Body.ID, k.Body.Status, k.Last, k.n)
	switch {
	case k.State != StateHeld:
	case found == AsKnown:
		hint := k.suspected
		k.suspected = 0
		if hint > revision {
			u = k.Suspect(hint, now) // the hint arrived during the read
		} else {
			k.Break = nil // the record is not broken, whatever a hint said
		}
	case found == Confirms:
		u = k.renewalConfirmed(e.Renewal, e.Revision, now) //safety:found-sending
		if k.State == StateHeld && e.Renewal < k.need {
			k.RenewAgain(now) // the refused renewal is still wanted
		}
	case found == FoundBroken:
		k.Last = e.Revision // the release will delete the broken record
		u = k.EndUnasked(EndBroken, RecordBroken, now)
	case found == FoundEarlier:
		u = k.EndUnasked(EndLost, RecordGone, now)
		u.Discard = e.Revision
	case found == FoundReplaced:
		u = k.EndUnasked(EndLost, RecordReplaced, now) //safety:found-replaced
	default:
		u = k.EndUnasked(EndLost, RecordDeleted, now) //safety:found-deleted
	}
	u.Doubted = !current //safety:bucket-doubted
	return u
}

// Trust keeps treating the record as held, because no read could settle a doubt.
func (k *Kept) Trust() { k.resolving, k.suspected = false, 0 }

// expire ends a record whose validity has ended. The end is planned if it is the requested end.
func (k *Kept) expire(now clock.Instant) Consequence {
	if k.Valid.Planned() {
		return k.EndUnasked(EndPlanned, NoReason, now)
	}
	return k.EndUnasked(EndLost, Unconfirmed, now)
}

// EndUnasked ends a held record for a reason other than its holder's request.
func (k *Kept) EndUnasked(end End, why Why, now clock.Instant) Consequence {
	if k.State != StateHeld {
		return Consequence{}
	}
	if k.Break != nil && (end == EndLost || end == EndPlanned) {
		// The operator let the next client in immediately, so the record may belong to another client by now.
		end, why = EndBroken, BreakHinted
	}
	k.State = StateLost
	if end == EndPlanned {
		k.State = StateEnded
	}
	return k.stop(end, why, now)
}

// EndByHolder ends the record on behalf of its holder. u.End is 0 if the record had already ended.
func (k *Kept) EndByHolder(end End, now clock.Instant) (u Consequence) {
	was := k.State
	k.State = StateReleased
	if was == StateHeld {
		u = k.stop(end, NoReason, now)
	}
	return u
}

func (k *Kept) stop(end End, why Why, now clock.Instant) Consequence {
	k.Cause, k.Why = end, why
	k.Valid.End = min(k.Valid.End, now)
	k.sent = nil
	return Consequence{End: end}
}

// Final returns the number of the last renewal, which [Kept.Closing] writes.
func (k *Kept) Final() uint64 { return k.n + 1 }

// Closing returns what the holder leaves behind, which is either a tombstone or a last, fixed renewal. rest is what
// remains of the minimum hold or of the time for which a finished job is kept. Closing returns a renewal if rest is
// positive or the record is handed over. A broken record is always deleted, because the operator's decision prevails.
func (k *Kept) Closing(rest time.Duration, broken bool) (body record.Body, deletes bool) {
	if k.Cause == EndHandedOff {
		rest = k.Granted.TTL
	}
	body = k.Body
	body.Renewal = k.Final()
	broken = broken || k.Cause == EndBroken
	if rest <= 0 || broken { //safety:cooldown-kept
		return body, true
	}
	if k.Cause != EndHandedOff && body.Purpose != record.Job {
		body.Purpose = record.Rest
	}
	body.Fixed, body.Lingers, body.InUse = true, false, false
	body.TTL = int64(clock.CeilSecond(rest) / time.Second)
	return body, false
}
