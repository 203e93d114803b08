package core

import (
	"math"
	"time"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/record"
)

// Kept is a record that the client keeps alive by renewals: that of a lease, or of a place in a queue.
//
//	       validity over, replaced, deleted, broken
//	Held -------------------------------------------> Lost, or Ended as planned
//	  |                                                 |
//	  |  Release                                        |  Release
//	  +-------------------> Released <------------------+
//
// A renewal expects the last revision known, never 0, so it can neither bring back a record that has gone nor
// overwrite a stranger's. Its confirmation counts from its own sending, and only inside the validity that it
// would prolong.
//
// What ends a record before its time is proven: by a read as of a state that contains the last confirmation.
// A hint (a notification, a list without the record) may be forged or old, and a leader that was deposed may
// refuse a renewal. Both only lead to that read, or to a renewal.
type Kept struct {
	Body    record.Body // as the next renewal writes it, with the id of the claim
	Granted clock.Terms // of the claim
	Terms   clock.Terms // of the last confirmation
	Want    clock.Terms // of the next renewal

	Valid     Validity
	Last      uint64        // the last revision known
	LastSent  clock.Instant // when the write at Last was sent
	Break     *string       // by whom and why, as a hint has said; nil: by nobody
	suspected uint64        // the highest revision that hints have named while it is not renewed; 0: none

	Waiting   int32   // how many wait for a confirmation
	phase     float32 // of the renewals after one that was sent together with many; 0: it was not
	Retries   uint8   // of a renewal that met another write, at most 255
	State     State
	Cause     End // the first end; 0: it is held
	Why       Why // the evidence for Cause
	Kind      record.Kind
	Once      bool // the key is never claimed again
	Abandoned bool
	resolving bool // a read is to decide

	sent        []Renewal     // without an answer, in the order of their sending
	n           uint64        // number of the last one
	need        uint64        // one with at least this number is wanted at once
	requestedAt clock.Instant // when one was last due or sent
	next        clock.Instant // when the next one is due

	fraction float64 // of the TTL, after which a record is renewed
}

// Renewal is a renewal without an answer yet.
type Renewal struct {
	n     uint64
	at    clock.Instant
	terms clock.Terms
	paced uint64 // its number among those of all records
}

// State is that of a kept record.
type State uint8

const (
	// StateHeld: inside its validity.
	StateHeld State = iota
	// StateLost: over without a release.
	StateLost
	// StateReleased by its holder.
	StateReleased
	// StateEnded: over at the time until which it was taken.
	StateEnded
)

// End says how a kept record has ended.
type End uint8

const (
	// NoEnd: it has not.
	NoEnd End = iota
	// EndLost: it is not this client's any more, or nobody knows.
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
	// NoReason: the end says enough, or the caller gives the reason.
	NoReason Why = iota
	// Unconfirmed: no renewal was confirmed inside the validity.
	Unconfirmed
	// ConfirmedLate: a confirmation came after the end of the validity.
	ConfirmedLate
	// RecordGone: there is nothing, or a record from before the grant.
	RecordGone
	// RecordReplaced: another claim has been granted.
	RecordReplaced
	// RecordDeleted: somebody has deleted it.
	RecordDeleted
	// RecordBroken: the record found says who has broken it.
	RecordBroken
	// BreakHinted: so does Break, and now the end has proven it.
	BreakHinted
)

// Consequence is what the caller does after an event.
type Consequence struct {
	End            End    // it has ended now, so: publish that. 0: it has not
	Read           uint64 // read the record as of this revision, and call [Kept.RecordRead]; 0: do not
	Proven         bool   // of Read: a refusal has named the revision
	Discard        uint64 // delete the record at this revision: nobody believes in it. See [Consequence.Discards]
	unlessCooldown bool   // of Discard: not while a minimum hold lasts
	Confirmed      uint64 // the number of the renewal that is confirmed; 0: none
	Enough         bool   // of Confirmed: it is the renewal that was wanted at once, or a later one
	Soon           bool   // renew again soon: another write is being replicated
	Doubted        bool   // verify the bucket: it may have gone with the record
}

// Discards reports whether the record at Discard is to be deleted. rest is what is left of the minimum hold.
func (u Consequence) Discards(rest time.Duration) bool {
	return u.Discard != 0 && (rest <= 0 || !u.unlessCooldown) //safety:cooldown-not-discarded
}

// MinRetry is the shortest time between two renewals of one record.
const MinRetry = 50 * time.Millisecond

// showEvery is how often at most a record is renewed only to show its holder.
const showEvery = 100 * time.Millisecond

// Begin makes k what a claim was granted under a key, by a write that was sent at a time. It is renewed after
// a fraction of its TTL.
func (k *Kept) Begin(body record.Body, key string, revision uint64, t clock.Terms, sent clock.Instant, fraction float64) {
	k.Body = body
	k.Body.Attempt = 0
	if k.Body.Token == 0 { // else it was adopted //safety:adopted-token
		k.Body.Token = record.TokenOrTicket(key, revision)
	}
	k.Granted, k.Terms, k.Want, k.Valid = t, t, t, ValidFrom(sent, t)
	k.Last, k.LastSent, k.requestedAt, k.fraction = revision, sent, sent, fraction
	k.next = k.nextRenewal(t, sent)
}

func (k *Kept) nextRenewal(t clock.Terms, sent clock.Instant) clock.Instant {
	return t.NextRenewal(sent, k.fraction)
}

// IsLock reports whether the record is that of a holder, and not of a waiter.
func (k *Kept) IsLock() bool { return k.Body.Status == record.StatusHeld }

// Renews reports whether the record is renewed: a fixed one is so only while somebody waits for that.
func (k *Kept) Renews() bool {
	return k.State == StateHeld && !k.Abandoned && (!k.Body.Fixed || k.Waiting > 0)
}

// Due is when [Kept.Tick] has to be called.
func (k *Kept) Due() clock.Instant {
	// At the end of the validity the context ends, whether the server answers or not.
	due := k.Valid.End //safety:due-at-end
	if k.Renews() && !k.resolving {
		due = min(due, k.next)
	}
	return due
}

// Tick does what is due: the end, or a renewal.
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

// Late is from when on a renewal that is due is late, so that it goes before all writes that end records.
func (k *Kept) Late() clock.Instant { return k.Valid.End.Add(-k.Terms.Validity() / 3) }

// AtRisk reports whether the record is renewed, and two thirds of its validity have passed without a confirmation.
func (k *Kept) AtRisk(now clock.Instant) bool { return k.Renews() && now > k.Late() }

// Lag is by how much the renewal of the record is late.
func (k *Kept) Lag(now clock.Instant) time.Duration {
	if !k.Renews() {
		return 0
	}
	return max(now.Sub(k.nextRenewal(k.Terms, k.LastSent)), 0)
}

// Enough is the last renewal, if it has no answer yet and its confirmation would do for what is wanted; zero: none.
func (k *Kept) Enough() Renewal {
	if last := len(k.sent) - 1; last >= 0 && k.sent[last].n >= k.need {
		return k.sent[last]
	}
	return Renewal{}
}

// Wanted reports whether a renewal is wanted that has not been sent.
func (k *Kept) Wanted() bool { return k.n < k.need }

// Unanswered reports whether a renewal is on its way.
func (k *Kept) Unanswered() bool { return len(k.sent) > 0 }

// Renewal is the number of the last renewal.
func (k *Kept) Renewal() uint64 { return k.n }

// BeginRenewal begins a renewal, which is write number paced of the client. It returns the renewal's number, 0 if none is to
// be sent, and whether the validity is shorter from now on.
func (k *Kept) BeginRenewal(now clock.Instant, paced uint64) (n uint64, shorter bool) {
	if !k.Renews() || k.resolving {
		return 0, false
	}
	k.n++
	k.sent = append(k.sent, Renewal{n: k.n, at: now, terms: k.Want, paced: paced})
	k.requestedAt = now
	return k.n, k.Valid.RenewalSent(now, k.Want)
}

// RenewalNotSent takes that renewal n was not sent.
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

// AnswerArrived takes the answer to renewal n.
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
		// Also where nothing is there any more: a leader that was deposed refuses as well, and may have
		// removed what was renewed since. A state that contains the last confirmation shows the truth.
		if !k.resolving {
			k.resolving, u.Proven = true, true
			u.Read = max(a.Last, k.Last) //safety:renewal-refused
		}
	case a.Last == k.Last && n == k.n && n >= k.need:
		// A renewal sent just before this one, and confirmed since, made the server refuse it. What this one
		// was to confirm is still unconfirmed.
		k.RenewAgain(now)
	}
	return u
}

// renewalConfirmed takes a renewal that the server has stored at a revision.
func (k *Kept) renewalConfirmed(n, revision uint64, now clock.Instant) (u Consequence) {
	switch {
	case k.State == StateReleased:
		return u // the release deletes whatever there is
	case k.State == StateHeld && k.Valid.InTime(now):
		if i := k.index(n); i >= 0 {
			u.Confirmed, u.Enough = n, k.prolong(i, revision)
		}
		return u // confirmed, or older than what is confirmed already
	case k.State == StateLost && k.Cause != EndLost: //safety:closed-not-deleted
		return u // closed: the work may still be stopping
	}
	u = k.EndUnasked(EndLost, ConfirmedLate, now)
	u.Discard, u.unlessCooldown = revision, true
	return u
}

// prolong moves the validity to that of the renewal sent[i], inside the validity. It reports whether that is the
// one that was wanted, or a later one.
func (k *Kept) prolong(i int, revision uint64) (enough bool) {
	s := k.sent[i]
	k.sent = append(k.sent[:0], k.sent[i+1:]...) // those before expect a revision that is no longer the last
	if revision > k.Last {
		k.Last, k.LastSent = revision, s.at
	}
	k.Terms = s.terms
	k.Valid.RenewalConfirmed(s.at, s.terms)
	k.Retries = 0
	if s.n < k.need {
		return false
	}
	k.next = k.nextRenewal(s.terms, s.at)
	if k.phase > 0 {
		k.next = s.at.Add(time.Duration(float64(k.phase) * float64(k.next.Sub(s.at))))
		k.phase = 0
	}
	k.Break = nil // the record is not broken, whatever a hint said
	return true
}

// RenewNow makes a renewal due at a time. It is sent after this moment: the answer to one that is on its way
// already would not show a later change.
func (k *Kept) RenewNow(at clock.Instant) {
	k.need = k.n + 1
	k.next = min(k.next, at)
}

// RenewSoon has a renewal show what has changed, but not too often.
func (k *Kept) RenewSoon(now clock.Instant) { k.RenewNow(max(now, k.requestedAt.Add(showEvery))) }

// RenewAgain makes another renewal due at a time, in place of one that was refused.
func (k *Kept) RenewAgain(at clock.Instant) { k.next = min(k.next, at) }

// RenewAfter makes the next renewal due at a time, and not before.
func (k *Kept) RenewAfter(at clock.Instant) { k.next = at }

// Reconnected takes that the connection is back: what was on its way when it broke is lost. All records are
// renewed at once, and the renewals after that are spread again, over the time between two by phase, which is
// above 0 and at most 1.
func (k *Kept) Reconnected(now clock.Instant, phase float32) (u Consequence) {
	if !k.Renews() {
		return k.Suspect(k.Last, now)
	}
	k.phase = phase
	k.RenewNow(now)
	return u
}

// Suspect acts on a hint that the record has changed, which named a revision.
func (k *Kept) Suspect(revision uint64, now clock.Instant) (u Consequence) {
	if k.Renews() {
		// A flood of forged hints is answered slowly.
		k.RenewNow(max(now, k.requestedAt.Add(MinRetry/2)))
		return u
	}
	k.suspected = max(k.suspected, revision)
	if k.State == StateHeld && !k.resolving {
		k.resolving, u.Read = true, revision
	}
	return u
}

// Old reports whether a notification of a revision shows nothing new. It does so only up to the last confirmed revision:
// a later one may be a break.
func (k *Kept) Old(revision uint64) bool {
	return k.State != StateHeld || revision <= k.Last //safety:break-notified
}

// RecordNotified takes the record of a notification.
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
		return u // the own renewal; its answer is on the way
	}
	return k.Suspect(e.Revision, now)
}

// RecordRead takes the record under the key, read as of a state that contains a revision.
func (k *Kept) RecordRead(e record.Entry, revision uint64, now clock.Instant) (u Consequence) {
	k.resolving = false
	found, current := Find(e, k.Body.ID, k.Body.Status, k.Last, k.n)
	switch {
	case k.State != StateHeld:
	case found == AsKnown:
		hint := k.suspected
		k.suspected = 0
		if hint > revision {
			u = k.Suspect(hint, now) // it came during the read
		} else {
			k.Break = nil // the record is not broken, whatever a hint said
		}
	case found == Confirms:
		u = k.renewalConfirmed(e.Renewal, e.Revision, now) //safety:found-sending
		if k.State == StateHeld && e.Renewal < k.need {
			k.RenewAgain(now) // the refused one was wanted
		}
	case found == FoundBroken:
		k.Last = e.Revision // its release deletes the broken record
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

// Trust keeps the record as held where no read could decide a doubt.
func (k *Kept) Trust() { k.resolving, k.suspected = false, 0 }

// expire ends a record whose validity is over: as planned, if it was taken until that time.
func (k *Kept) expire(now clock.Instant) Consequence {
	if k.Valid.Planned() {
		return k.EndUnasked(EndPlanned, NoReason, now)
	}
	return k.EndUnasked(EndLost, Unconfirmed, now)
}

// EndUnasked ends a record that is held.
func (k *Kept) EndUnasked(end End, why Why, now clock.Instant) Consequence {
	if k.State != StateHeld {
		return Consequence{}
	}
	if k.Break != nil && (end == EndLost || end == EndPlanned) {
		// Broken immediately, so that others got in at once: the record is theirs by now.
		end, why = EndBroken, BreakHinted
	}
	k.State = StateLost
	if end == EndPlanned {
		k.State = StateEnded
	}
	return k.stop(end, why, now)
}

// EndByHolder ends the record by its holder. End is 0 where it had ended before.
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

// Closing returns what the holder leaves: a tombstone, or its last renewal, which is fixed, where it hands the lock over or
// rest is left of its minimum hold. A broken record is deleted in any case: the operator has decided.
func (k *Kept) Closing(rest time.Duration, broken bool) (body record.Body, deletes bool) {
	purpose := record.Rest
	if k.Cause == EndHandedOff {
		purpose, rest = k.Body.Purpose, k.Granted.TTL
	}
	body = k.Body
	body.Renewal = k.Final()
	broken = broken || k.Cause == EndBroken
	if rest <= 0 || broken { //safety:cooldown-kept
		return body, true
	}
	body.Purpose, body.Fixed, body.Lingers, body.InUse = purpose, true, false, false
	body.TTL = int64(clock.CeilSecond(rest) / time.Second)
	return body, false
}
