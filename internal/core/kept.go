package core

import (
	"math"
	"time"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/record"
)

// Kept is a record that the client keeps alive by renewals: the record of a lease, or of a place in a queue.
//
//	       validity over, replaced, deleted, broken
//	Held -------------------------------------------> Lost, or Ended as planned
//	  |                                                 |
//	  |  EndByHolder                                    |  EndByHolder
//	  +-------------------> Released <------------------+
//
// A renewal expects the last revision known, never 0, so it can neither bring back a deleted record nor overwrite a
// stranger's. Its confirmation counts from its own sending, and only if it arrives inside the validity that it would
// prolong.
//
// Only proof ends a record before its time: a read as of a state that contains the last confirmation. A hint (a
// notification, a list without the record) may be forged or old, and a deposed leader may refuse a renewal. Both lead
// only to such a read, or to a renewal.
type Kept struct {
	Body    record.Body // the body of the next renewal, with the id of the claim
	Granted clock.Terms // of the claim
	Terms   clock.Terms // of the last confirmation
	Want    clock.Terms // of the next renewal

	Valid     Validity
	Last      uint64        // the last revision known
	LastSent  clock.Instant // when the write at Last was sent
	Break     *string       // who broke it and why, according to a hint; nil if no hint said so
	suspected uint64        // the highest revision that hints named while the record was not renewed; 0 if they named none

	Waiting   int32   // the number of goroutines waiting for a confirmation
	phase     float32 // spreads the renewals after one that was sent together with many; 0 if there was none
	Retries   uint8   // how often a renewal met another write in flight, at most 255
	State     State
	Cause     End // how it ended first; 0 while it is held
	Why       Why // the evidence for Cause
	Kind      record.Kind
	Once      bool // the key is never claimed again
	Abandoned bool
	resolving bool // a read is to settle a doubt

	sent        []Renewal     // the renewals without an answer, in the order of sending
	n           uint64        // the number of the last renewal
	need        uint64        // a renewal with at least this number is wanted at once
	requestedAt clock.Instant // when a renewal was last due or sent
	next        clock.Instant // when the next renewal is due

}

// Renewal is a renewal that has no answer yet.
type Renewal struct {
	n     uint64
	at    clock.Instant
	terms clock.Terms
	paced uint64 // its number among the writes of the client
}

// State is the state of a kept record.
type State uint8

const (
	// StateHeld: inside its validity.
	StateHeld State = iota
	// StateLost: ended without a release.
	StateLost
	// StateReleased: ended by its holder.
	StateReleased
	// StateEnded: ended at the time until which it was taken.
	StateEnded
)

// End is the way a kept record ended.
type End uint8

const (
	// NoEnd: it has not ended.
	NoEnd End = iota
	// EndLost: the record is no longer this client's, or may not be.
	EndLost
	// EndBroken: an operator has broken it.
	EndBroken
	// EndPlanned: its time is over.
	EndPlanned
	// EndClosed: its client was closed.
	EndClosed
	// EndReleased: its holder has left.
	EndReleased
	// EndHandedOff: its holder has left it to another client.
	EndHandedOff
)

// Why is the evidence for an end.
type Why uint8

const (
	// NoReason: the End says enough, or the caller gives the reason.
	NoReason Why = iota
	// Unconfirmed: no renewal was confirmed inside the validity.
	Unconfirmed
	// ConfirmedLate: a confirmation came after the end of the validity.
	ConfirmedLate
	// RecordGone: the key has no record, or one from an attempt before the grant.
	RecordGone
	// RecordReplaced: another claim has been granted.
	RecordReplaced
	// RecordDeleted: it was deleted.
	RecordDeleted
	// RecordBroken: the record found says who has broken it.
	RecordBroken
	// BreakHinted: a hint said that it was broken, and its end now proves that.
	BreakHinted
)

// Consequence tells the caller what to do after an event.
type Consequence struct {
	End            End    // the record has ended now: publish this end. 0 if it has not
	Read           uint64 // read the record as of this revision, and call [Kept.RecordRead]; 0 if no read is needed
	Proven         bool   // a refusal has named the revision Read
	Discard        uint64 // delete the record at this revision, because no holder relies on it: see [Consequence.Discards]
	unlessCooldown bool   // do not discard while a minimum hold lasts
	Confirmed      uint64 // the number of the renewal that is confirmed; 0 if none is
	Enough         bool   // Confirmed is the renewal that was wanted at once, or a later one
	Soon           bool   // renew again soon: another write is being replicated
	Doubted        bool   // verify the bucket: it may have been deleted with the record
}

// Discards reports whether to delete the record at Discard. rest is what is left of the minimum hold.
func (u Consequence) Discards(rest time.Duration) bool {
	return u.Discard != 0 && (rest <= 0 || !u.unlessCooldown) //safety:cooldown-not-discarded
}

// MinRetry is the shortest time between two renewals of one record.
const MinRetry = 50 * time.Millisecond

// showEvery is the shortest time between two renewals that only show a holder.
const showEvery = 100 * time.Millisecond

// Begin makes k the record that a claim was granted under key, by a write sent at time sent.
func (k *Kept) Begin(body record.Body, key string, revision uint64, t clock.Terms, sent clock.Instant) {
	k.Body = body
	k.Body.Attempt = 0
	if k.Body.Token == 0 { // if it was not adopted //safety:adopted-token
		k.Body.Token = record.TokenOrTicket(key, revision)
	}
	k.Granted, k.Terms, k.Want, k.Valid = t, t, t, ValidFrom(sent, t)
	k.Last, k.LastSent, k.requestedAt = revision, sent, sent
	k.next = t.NextRenewal(sent)
}

// IsLock reports whether the record is a holder's, not a waiter's.
func (k *Kept) IsLock() bool { return k.Body.Status == record.StatusHeld }

// Renews reports whether the record is renewed. A fixed record is renewed only while a goroutine waits for a
// confirmation.
func (k *Kept) Renews() bool {
	return k.State == StateHeld && !k.Abandoned && (!k.Body.Fixed || k.Waiting > 0)
}

// Due returns the time at which to call [Kept.Tick].
func (k *Kept) Due() clock.Instant {
	// The context ends with the validity, whether the server answers or not.
	due := k.Valid.End //safety:due-at-end
	if k.Renews() && !k.resolving {
		due = min(due, k.next)
	}
	return due
}

// Tick ends the record, or begins a renewal, if either is due.
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

// Check ends a record whose validity is over, for a caller that asks before Tick is called.
func (k *Kept) Check(now clock.Instant) (u Consequence) {
	if k.State == StateHeld && k.Valid.Over(now) { //safety:state-by-clock
		u = k.expire(now)
	}
	return u
}

// Late returns the time after which a due renewal counts as late, and goes ahead of all writes that end records.
func (k *Kept) Late() clock.Instant { return k.Valid.End.Add(-k.Terms.Validity() / 3) }

// AtRisk reports whether the record is renewed, and two thirds of its validity have passed without a confirmation.
func (k *Kept) AtRisk(now clock.Instant) bool { return k.Renews() && now > k.Late() }

// Lag returns the delay of a late renewal, 0 if none is late.
func (k *Kept) Lag(now clock.Instant) time.Duration {
	if !k.Renews() {
		return 0
	}
	return max(now.Sub(k.Terms.NextRenewal(k.LastSent)), 0)
}

// Enough returns the last renewal if it has no answer yet and its confirmation would satisfy what is wanted; zero
// otherwise.
func (k *Kept) Enough() Renewal {
	if last := len(k.sent) - 1; last >= 0 && k.sent[last].n >= k.need {
		return k.sent[last]
	}
	return Renewal{}
}

// Wanted reports whether a renewal is wanted but not sent yet.
func (k *Kept) Wanted() bool { return k.n < k.need }

// Unanswered reports whether a renewal is under way.
func (k *Kept) Unanswered() bool { return len(k.sent) > 0 }

// Renewal returns the number of the last renewal.
func (k *Kept) Renewal() uint64 { return k.n }

// BeginRenewal begins a renewal, as the client's write number paced. It returns the number of the renewal, 0 if none is
// to be sent, and whether it shortens the validity.
func (k *Kept) BeginRenewal(now clock.Instant, paced uint64) (n uint64, shorter bool) {
	if !k.Renews() || k.resolving {
		return 0, false
	}
	k.n++
	k.sent = append(k.sent, Renewal{n: k.n, at: now, terms: k.Want, paced: paced})
	k.requestedAt = now
	return k.n, k.Valid.RenewalSent(now, k.Want)
}

// RenewalNotSent notes that renewal n was not sent.
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
		// The read is needed even if the key is empty: a deposed leader also refuses, and may have removed what has
		// been renewed since. A state that contains the last confirmation shows the truth.
		if !k.resolving {
			k.resolving, u.Proven = true, true
			u.Read = max(a.Last, k.Last) //safety:renewal-refused
		}
	case a.Last == k.Last && n == k.n && n >= k.need:
		// The server refused this renewal because of one that was sent just before it and has been confirmed since.
		// What this one was to confirm is still unconfirmed.
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
		return u // confirmed, or older than what is confirmed
	case k.State == StateLost && k.Cause != EndLost: //safety:closed-not-deleted
		return u // closed or broken: the work may still be stopping
	}
	u = k.EndUnasked(EndLost, ConfirmedLate, now)
	u.Discard, u.unlessCooldown = revision, true
	return u
}

// prolong extends the validity, which must not be over yet, to that of renewal sent[i]. It reports whether this is the
// renewal that was needed, or a later one.
func (k *Kept) prolong(i int, revision uint64) (enough bool) {
	s := k.sent[i]
	k.sent = append(k.sent[:0], k.sent[i+1:]...) // the earlier ones expect a revision that is no longer the last
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

// RenewNow makes a new renewal due at time at. The answer to one already sent would not show a later change.
func (k *Kept) RenewNow(at clock.Instant) {
	k.need = k.n + 1
	k.next = min(k.next, at)
}

// RenewSoon makes a renewal due to show a change, but not too often.
func (k *Kept) RenewSoon(now clock.Instant) { k.RenewNow(max(now, k.requestedAt.Add(showEvery))) }

// RenewAgain makes another renewal due at time at, to replace one that was refused.
func (k *Kept) RenewAgain(at clock.Instant) { k.next = min(k.next, at) }

// RenewAfter makes the next renewal due at time at, and not before.
func (k *Kept) RenewAfter(at clock.Instant) { k.next = at }

// Reconnected handles a new connection: whatever was under way on the old one is lost. All records are renewed at
// once. phase, which is above 0 and at most 1, is the fraction of the usual interval after which the record is renewed
// again, so that later renewals are spread out.
func (k *Kept) Reconnected(now clock.Instant, phase float32) (u Consequence) {
	if !k.Renews() {
		return k.Suspect(k.Last, now)
	}
	k.phase = phase
	k.RenewNow(now)
	return u
}

// Suspect handles a hint, naming revision, that the record has changed.
func (k *Kept) Suspect(revision uint64, now clock.Instant) (u Consequence) {
	if k.Renews() {
		// Answer a flood of forged hints slowly.
		k.RenewNow(max(now, k.requestedAt.Add(MinRetry/2)))
		return u
	}
	k.suspected = max(k.suspected, revision)
	if k.State == StateHeld && !k.resolving {
		k.resolving, u.Read = true, revision
	}
	return u
}

// Old reports whether a notification about revision brings nothing new. While the lock is held, that is so only up to
// the last confirmed revision: a later one may be a break.
func (k *Kept) Old(revision uint64) bool {
	return k.State != StateHeld || revision <= k.Last //safety:break-notified
}

// RecordNotified handles the record in a notification.
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
		return u // a renewal of its own; the answer is on its way
	}
	return k.Suspect(e.Revision, now)
}

// RecordRead handles the record under the key, read as of a state that contains revision.
func (k *Kept) RecordRead(e record.Entry, revision uint64, now clock.Instant) (u Consequence) {
	k.resolving = false
	found, current := Find(e, k.Body.ID, k.Body.Status, k.Last, k.n)
	switch {
	case k.State != StateHeld:
	case found == AsKnown:
		hint := k.suspected
		k.suspected = 0
		if hint > revision {
			u = k.Suspect(hint, now) // the hint came during the read
		} else {
			k.Break = nil // the record is not broken, whatever a hint said
		}
	case found == Confirms:
		u = k.renewalConfirmed(e.Renewal, e.Revision, now) //safety:found-sending
		if k.State == StateHeld && e.Renewal < k.need {
			k.RenewAgain(now) // the refused renewal was wanted
		}
	case found == FoundBroken:
		k.Last = e.Revision // the release deletes the broken record
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

// Trust keeps the record held when no read could settle a doubt.
func (k *Kept) Trust() { k.resolving, k.suspected = false, 0 }

// expire ends a record whose validity is over: as planned, if it was taken until that time.
func (k *Kept) expire(now clock.Instant) Consequence {
	if k.Valid.Planned() {
		return k.EndUnasked(EndPlanned, NoReason, now)
	}
	return k.EndUnasked(EndLost, Unconfirmed, now)
}

// EndUnasked ends a held record without its holder's request.
func (k *Kept) EndUnasked(end End, why Why, now clock.Instant) Consequence {
	if k.State != StateHeld {
		return Consequence{}
	}
	if k.Break != nil && (end == EndLost || end == EndPlanned) {
		// It was broken immediately, so others got in at once: by now the record is theirs.
		end, why = EndBroken, BreakHinted
	}
	k.State = StateLost
	if end == EndPlanned {
		k.State = StateEnded
	}
	return k.stop(end, why, now)
}

// EndByHolder ends the record for its holder. u.End is 0 if the record had ended before.
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

// Closing returns what the holder leaves behind: a tombstone, or a last renewal, which is fixed. It leaves the renewal
// for a hand-over, or if rest is left of the minimum hold or of the time for which a finished job is kept. A broken
// record is always deleted: the operator has decided.
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
