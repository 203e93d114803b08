package session

import (
	"cmp"
	"context"
	"errors"
	"hash/maphash"
	"time"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/kvstore"
)

// failed is why the last renewal was not confirmed, as far as is known.
func (r *renewals) failed() error {
	if r.failure == nil {
		return nil
	}
	return *r.failure
}

func (r *renewals) fail(err error) { r.failure = &err }

// why is what is known of a lack of confirmations, for the text of an error.
func (r *renewals) why() string {
	if r.failed() == nil {
		return ""
	}
	return ": its renewal failed: " + r.failed().Error()
}

// hashSeed makes the phases of two clients differ.
var hashSeed = maphash.MakeSeed()

// minRetry is the shortest time between two renewals of one record.
const minRetry = 50 * time.Millisecond

// renewals are those of one record. Under kept.mu.
type renewals struct {
	want    clock.Terms // of the next one
	sent    []renewal   // without an answer, in the order of their sending
	n       uint64      // number of the last one
	asked   clock.Instant
	next    clock.Instant // when the next one is due
	need    uint64        // one with at least this number is wanted at once
	failure *error        // why the last one was not confirmed, as far as is known; nil: not known
}

// renewal is a renewal without an answer yet.
type renewal struct {
	n      uint64
	at     clock.Instant
	terms  clock.Terms
	forget func()
	paced  uint64 // its number among those of all records
}

// enough is a renewal without an answer that is the one that is wanted; zero: none is.
func (r *renewals) enough() renewal {
	if last := len(r.sent) - 1; last >= 0 && r.sent[last].n >= r.need {
		return r.sent[last]
	}
	return renewal{}
}

// renew sends a renewal, which is number paced of all. It runs on the goroutine that sends,
// and returns whether it has sent one.
func (k *kept) renew(paced uint64) bool {
	k.mu.Lock()
	if !k.renews() || k.doubt.resolving {
		k.mu.Unlock()
		return false
	}
	r := &k.renewals
	r.n++
	n, t, expect := r.n, r.want, k.last
	silent := len(r.sent) > 0
	body := k.Body
	body.Renewal, body.TTL = n, int64(t.TTL/time.Second)
	now := k.s.b.Instant()
	r.sent = append(r.sent, renewal{n: n, at: now, terms: t, paced: paced})
	r.asked = now
	if k.valid.Renewing(now, t) {
		k.moved()
	}
	k.mu.Unlock()

	value, err := body.EncodeKept(expect)
	var forget func()
	if err == nil {
		forget, err = k.s.b.Send(kvstore.Write{Key: k.Key, Value: value, Expect: expect, TTL: t.TTL}, func(a kvstore.Answer) { k.renewed(n, a, paced, now) })
	}
	denied := error(nil)
	if silent { // the server does not answer a write that it forbids
		denied = k.s.b.Denied(k.Key)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if failure := cmp.Or(err, denied); failure != nil {
		k.failed(failure)
	}
	for i := range r.sent {
		if r.sent[i].n == n {
			if err != nil { // nothing was sent
				r.sent = append(r.sent[:i], r.sent[i+1:]...)
				if errors.Is(err, kvstore.ErrTooLarge) {
					k.of.tooLarge(err)
				}
			} else {
				r.sent[i].forget = forget
			}
			return err == nil
		}
	}
	if forget != nil && k.state != Held {
		k.s.Await(&Orphan{}, forget)
	}
	return err == nil
}

// renewed takes the answer to renewal n, number paced of all, which was sent at sent. It runs
// on a goroutine of the store.
func (k *kept) renewed(n uint64, a kvstore.Answer, paced uint64, sent clock.Instant) {
	now := k.s.b.Instant()
	k.s.renewer.hear(paced, sent, now, kvstore.NotSent(a.Err))
	k.mu.Lock()
	var conflict *kvstore.ConflictError
	var late lateConfirmation
	r := &k.renewals
	switch {
	case a.Err == nil:
		k.s.b.Acknowledged(a.Revision)
		late = k.confirmed(n, a.Revision, now)
	case k.state != Held:
	case errors.As(a.Err, &conflict):
		switch {
		case (conflict.Last == 0 || conflict.Last > k.last) && !k.doubt.resolving:
			// Also where nothing is there any more: a leader that was deposed
			// refuses as well, and may have removed what was renewed since. A
			// state that contains the last confirmation shows the truth.
			at := max(conflict.Last, k.last) //safety:renewal-refused
			k.doubt.resolving = true
			k.s.Background(func(ctx context.Context) { k.resolve(ctx, at, true) })
		case conflict.Last == k.last && n == r.n && n >= r.need:
			// It met a renewal sent just before it, which has been confirmed
			// since. Its own reason is still to be confirmed.
			k.renewAgain(now)
		}
	case errors.Is(a.Err, kvstore.ErrTooLarge):
		k.of.tooLarge(a.Err)
	case errors.Is(a.Err, kvstore.ErrInFlight):
		k.retries++
		r.next = now.Add(clock.InFlightBackoff(int(k.retries)))
		r.fail(cmp.Or(r.failed(), a.Err))
		k.moved()
	default:
		k.failed(a.Err)
	}
	k.mu.Unlock()
	late.finish()
}

// failed notes why a renewal will not be confirmed. The next one is tried as ever. The client
// warns once of a server that refuses to renew a lock, whatever the reason: a bucket that is
// full or sealed, a size, a permission. An outage is none. Under mu.
func (k *kept) failed(err error) {
	r, before := &k.renewals, k.renewals.failed()
	r.fail(err)
	if l, ok := k.of.(*Lease); ok && k.state == Held && !kvstore.Refused(before) && kvstore.Refused(err) {
		l.refused(err)
	}
}

// lateConfirmation is one that came after the end it would have prolonged. The
// zero value is none.
type lateConfirmation struct {
	ending   ending
	k        *kept // nil: its record stays
	revision uint64
}

// finish deletes the record that nobody believes in, so that nobody has to wait for
// it. Without the mutex.
func (l lateConfirmation) finish() {
	l.ending.finish()
	if l.k != nil {
		l.k.s.Discard(l.k.Key, l.k.Body.ID, l.revision)
	}
}

// confirmed takes an acknowledged renewal. Under mu.
func (k *kept) confirmed(n, revision uint64, now clock.Instant) lateConfirmation {
	switch {
	case k.state == Released:
		return lateConfirmation{} // the release deletes whatever there is
	case k.state == Held && k.valid.InTime(now):
		for i, s := range k.renewals.sent {
			if s.n == n {
				k.prolong(i, revision)
				break
			}
		}
		return lateConfirmation{} // confirmed, or older than what is confirmed already
	case k.state == Lost && k.cause.Kind != ErrLost: //safety:closed-not-deleted
		return lateConfirmation{} // closed: the work may still be stopping
	}
	late := lateConfirmation{ending: k.lose(ErrLost, "the confirmation of its renewal came after its validity had ended")}
	if k.of.rest(now) <= 0 { // else it keeps others out until the minimum hold is over //safety:rest-not-discarded
		late.k, late.revision = k, revision
	}
	return late
}

// prolong moves the validity to that of the renewal sent[i], now stored at revision.
// Under mu, inside the validity.
func (k *kept) prolong(i int, revision uint64) {
	r := &k.renewals
	s := r.sent[i]
	for _, done := range r.sent[:i+1] {
		if done.forget != nil {
			done.forget() // confirmed, or expecting a revision that is no longer the last
		}
	}
	r.sent = append(r.sent[:0], r.sent[i+1:]...)
	if revision > k.last {
		k.last, k.lastSent = revision, s.at
	}
	k.terms = s.terms
	k.valid.Renewed(s.at, s.terms)
	k.retries, r.failure = 0, nil
	if s.n >= r.need {
		k.s.renewer.renewed(k)
		r.next = s.terms.NextRenewal(s.at, k.s.RenewFraction)
		if k.together {
			k.together = false
			part := float64(maphash.String(hashSeed, k.Key)>>32) / (1 << 32)
			r.next = s.at.Add(time.Duration(part * float64(r.next.Sub(s.at))))
		}
		k.doubt.breaker = "" // the record is not broken, whatever a hint said
	}
	k.of.confirmed(s.n)
	k.moved()
}

// renewNow makes a renewal due at an instant. The renewal is sent after this moment:
// the answer to one that is on its way already would not show a later change.
// Under mu.
func (k *kept) renewNow(at clock.Instant) {
	k.renewals.need = k.renewals.n + 1
	k.renewals.next = min(k.renewals.next, at)
	k.moved()
}

// renewAgain makes another renewal due at once, in place of one that was refused.
// Under mu.
func (k *kept) renewAgain(now clock.Instant) {
	k.renewals.next = min(k.renewals.next, now)
	k.moved()
}
