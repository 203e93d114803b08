package core

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/record"
)

// keptTerms are the terms of the records in these tests: valid for 12 s, renewed every 4.3 s.
var keptTerms = clock.Terms{TTL: 13 * time.Second, Margin: time.Second}

func at(s float64) clock.Instant { return clock.Instant(s * float64(time.Second)) }

// kept returns a lease of the claim "me", granted at revision 10 by a write sent at 0 s.
func kept() *Kept {
	k := &Kept{}
	k.Begin(record.Body{ID: "me", Status: record.StatusHeld}, "lock.l", 10, keptTerms, at(0))
	return k
}

// fixed returns a lease that is not renewed.
func fixed() *Kept {
	k := kept()
	k.Body.Fixed = true
	return k
}

// renewing returns a lease that sent a renewal at 4 s. The next renewal is due much later.
func renewing() *Kept {
	k := kept()
	k.BeginRenewal(at(4), 1)
	k.RenewAfter(at(9))
	return k
}

// renewalOf returns the record written by renewal n of the claim "me".
func renewalOf(revision, n uint64) record.Entry {
	e := stored(revision, "me", 0, record.StatusHeld)
	e.Renewal = n
	return e
}

func acked(revision uint64) Answer { return Answer{Revision: revision} }

// TestKeptToken checks that a lock's first token comes from the revision and that an adopted lock keeps its token.
func TestKeptToken(t *testing.T) {
	require.Equal(t, record.Token(10, 0), kept().Body.Token)
	k := &Kept{}
	k.Begin(record.Body{Token: record.Token(3, 7), Attempt: 2}, "lock.l", 10, keptTerms, at(0))
	require.Equal(t, record.Token(3, 7), k.Body.Token)
	require.Zero(t, k.Body.Attempt)
}

// TestKeptTick checks that a record is renewed in time, again and again while no reply arrives, and ends with its
// validity.
func TestKeptTick(t *testing.T) {
	k := kept()
	next := k.Due()
	require.InDelta(t, 4.3, next.Sub(at(0)).Seconds(), 0.2)
	for _, due := range []struct {
		at    clock.Instant
		renew bool
	}{{next - 1, false}, {next, true}, {next + 1, false}, {next.Add(time.Second), true}, {next.Add(1500 * time.Millisecond), false}} {
		u, renew := k.Tick(due.at)
		require.Zero(t, u)
		require.Equal(t, due.renew, renew, due.at)
	}
	u, renew := k.Tick(at(12))
	require.Equal(t, Consequence{End: EndLost}, u)
	require.False(t, renew)
	require.Equal(t, StateLost, k.State)
	require.Equal(t, Unconfirmed, k.Why)
	u, _ = k.Tick(at(13))
	require.Zero(t, u, "once")
}

// TestKeptDue checks that the caller returns at the end of the validity, no matter what else is due.
func TestKeptDue(t *testing.T) {
	require.Equal(t, at(12), fixed().Due())
	k := kept()
	k.RenewAfter(at(100))
	require.Equal(t, at(12), k.Due())
	k.resolving = true
	k.RenewAfter(at(1))
	require.Equal(t, at(12), k.Due(), "a read decides, not a renewal")
}

// TestKeptCheck checks that anyone who looks sees the end at exactly that instant.
func TestKeptCheck(t *testing.T) {
	k := kept()
	require.Zero(t, k.Check(at(12)-1))
	require.Equal(t, EndLost, k.Check(at(12)).End)
	k = kept()
	k.Valid.Bound(at(6))
	require.Equal(t, EndPlanned, k.Check(at(6)).End)
	require.Equal(t, StateEnded, k.State)
}

// TestKeptRenewed checks that a timely confirmation counts from when its own renewal was sent.
func TestKeptRenewed(t *testing.T) {
	k := kept()
	for i, sent := range []float64{4, 5, 6} {
		n, shorter := k.BeginRenewal(at(sent), uint64(i))
		require.EqualValues(t, i+1, n)
		require.False(t, shorter)
	}
	require.Equal(t, Consequence{Confirmed: 2, Enough: true}, k.AnswerArrived(2, acked(12), at(7)))
	require.Equal(t, at(17), k.Valid.End)
	require.EqualValues(t, 12, k.Last)
	require.Equal(t, at(5), k.LastSent)
	require.Zero(t, k.AnswerArrived(1, acked(11), at(8)), "older than what is confirmed")
	require.EqualValues(t, 12, k.Last)
	require.True(t, k.Unanswered())
	k.RenewalNotSent(3)
	require.False(t, k.Unanswered())
}

// TestKeptLate checks that a confirmation after the end is ignored and its record deleted, unless the work may still be
// stopping or a minimum hold is running.
func TestKeptLate(t *testing.T) {
	k := renewing()
	u := k.AnswerArrived(1, acked(11), at(12))
	require.Equal(t, EndLost, u.End)
	require.EqualValues(t, 11, u.Discard)
	require.Equal(t, ConfirmedLate, k.Why)
	require.True(t, u.Discards(0))
	require.False(t, u.Discards(time.Second))

	k = renewing()
	k.EndUnasked(EndLost, NoReason, at(5))
	require.EqualValues(t, 11, k.AnswerArrived(1, acked(11), at(6)).Discard)
	for _, end := range []End{EndClosed, EndBroken} {
		k = renewing()
		k.EndUnasked(end, NoReason, at(5))
		require.Zero(t, k.AnswerArrived(1, acked(11), at(6)))
	}
	k = renewing()
	k.EndByHolder(EndReleased, at(5))
	require.Zero(t, k.AnswerArrived(1, acked(11), at(6)), "the release deletes what there is")
}

// TestKeptRefused checks that a refused renewal ends nothing. It leads either to a read of a state that contains the
// last confirmation, or to another renewal.
func TestKeptRefused(t *testing.T) {
	for _, c := range []struct {
		name string
		last uint64
		want Consequence
	}{
		{"by a newer record", 11, Consequence{Read: 11, Proven: true}},
		{"by an empty key", 0, Consequence{Read: 10, Proven: true}},
		{"by a leader that was deposed", 9, Consequence{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := renewing()
			require.Equal(t, c.want, k.AnswerArrived(1, refusedBy(c.last), at(5)))
			require.Equal(t, StateHeld, k.State)
			require.Equal(t, c.want.Read > 0, k.resolving)
			require.Zero(t, k.AnswerArrived(1, refusedBy(c.last), at(5)), "one read at a time")
		})
	}
	k := renewing()
	k.BeginRenewal(at(5), 2)
	k.AnswerArrived(1, acked(11), at(5.1))
	require.Zero(t, k.AnswerArrived(2, refusedBy(11), at(5.2)))
	require.Equal(t, at(5.2), k.Due(), "it met the one before it")
	k = renewing()
	require.Equal(t, Consequence{Soon: true}, k.AnswerArrived(1, Answer{Refusal: InFlight}, at(5)))
	require.EqualValues(t, 1, k.Retries)
	require.Zero(t, k.AnswerArrived(1, Answer{Refusal: Unsure}, at(5)))
	k.EndUnasked(EndBroken, NoReason, at(5))
	require.Zero(t, k.AnswerArrived(1, refusedBy(11), at(6)), "it has ended: there is nothing to read")
}

// TestKeptJudged checks what follows from the record found under the lease's key.
func TestKeptJudged(t *testing.T) {
	earlier := stored(12, "me", 2, record.StatusHeld)
	broken := stored(12, "me", 0, record.StatusBroken)
	for _, c := range []struct {
		name  string
		found record.Entry
		want  Consequence
		why   Why
	}{
		{"as known", stored(10, "me", 1, record.StatusHeld), Consequence{}, NoReason},
		{"a renewal without an answer", renewalOf(12, 1), Consequence{Confirmed: 1, Enough: true}, NoReason},
		{"broken", broken, Consequence{End: EndBroken, Doubted: true}, RecordBroken},
		{"an attempt from before the grant", earlier, Consequence{End: EndLost, Discard: 12}, RecordGone},
		{"another claim's", stored(12, "you", 1, record.StatusHeld), Consequence{End: EndLost, Doubted: true}, RecordReplaced},
		{"nothing", record.Entry{}, Consequence{End: EndLost, Doubted: true}, RecordDeleted},
		{"a tombstone", ended(12, "you", record.StatusGone), Consequence{End: EndLost, Doubted: true}, RecordDeleted},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := renewing()
			k.resolving = true
			require.Equal(t, c.want, k.RecordRead(c.found, 12, at(6)))
			require.Equal(t, c.why, k.Why)
			require.False(t, k.resolving)
			if c.why == RecordBroken {
				require.EqualValues(t, 12, k.Last, "its release deletes the broken record")
			}
		})
	}
	require.True(t, renewing().RecordRead(earlier, 12, at(6)).Discards(time.Second), "nobody believes in it")
	k := renewing()
	k.BeginRenewal(at(5), 2)
	k.RecordRead(renewalOf(11, 1), 11, at(6))
	require.Equal(t, at(16), k.Valid.End, "from its own sending")
	k = renewing()
	k.RenewNow(at(5))
	k.Tick(at(5))
	k.BeginRenewal(at(5), 2)
	require.EqualValues(t, 11, k.AnswerArrived(2, refusedBy(11), at(5.1)).Read)
	require.Equal(t, Consequence{Confirmed: 1}, k.RecordRead(renewalOf(11, 1), 11, at(5.2)))
	require.Equal(t, at(5.2), k.Due(), "the refused one was wanted")
	k = renewing()
	require.EqualValues(t, 11, k.RecordRead(renewalOf(11, 1), 11, at(12)).Discard, "found too late")
}

// TestKeptSuspected checks that a hint ends nothing. It leads to a renewal, or to a read if the record is not renewed.
func TestKeptSuspected(t *testing.T) {
	k := renewing()
	require.Zero(t, k.Suspect(11, at(5)))
	require.Equal(t, at(5), k.Due())
	_, renew := k.Tick(at(5))
	require.True(t, renew)
	require.Zero(t, k.Suspect(12, at(5)))
	require.Equal(t, at(5).Add(MinRetry/2), k.Due(), "a flood of hints is answered slowly")

	k = fixed()
	require.Equal(t, Consequence{Read: 11}, k.Suspect(11, at(5)))
	require.Zero(t, k.Suspect(13, at(5.1)), "one read at a time")
	require.Equal(t, Consequence{Read: 13}, k.RecordRead(stored(10, "me", 1, record.StatusHeld), 11, at(5.2)), "it came during the read")
	require.Zero(t, k.RecordRead(stored(10, "me", 1, record.StatusHeld), 13, at(5.3)))
	k.Suspect(14, at(6))
	k.Trust()
	require.Equal(t, Consequence{Read: 15}, k.Suspect(15, at(7)))
}

// TestKeptNotified checks what follows from a notification of the lease's own record.
func TestKeptNotified(t *testing.T) {
	k := renewing()
	require.Zero(t, k.RecordNotified(renewalOf(11, 1), at(4.1)))
	require.NotEqual(t, at(4.1), k.Due(), "its answer is on the way")
	require.True(t, k.Old(10))
	require.False(t, k.Old(11))
	k.RecordNotified(stored(10, "me", 0, record.StatusBroken), at(4.2))
	require.Nil(t, k.Break, "it shows nothing new")
	broken := stored(11, "me", 0, record.StatusBroken)
	k.RecordNotified(broken, at(5))
	require.Equal(t, at(5), k.Due(), "a renewal is to prove it")
	require.NotNil(t, k.Break)
	u, _ := k.Tick(at(12))
	require.Equal(t, EndBroken, u.End, "lost, and the hint says why")
	k = renewing()
	k.RecordNotified(broken, at(5))
	k.AnswerArrived(1, acked(12), at(5))
	require.NotNil(t, k.Break, "it was sent before")
	n, _ := k.BeginRenewal(at(5), 2)
	k.AnswerArrived(n, acked(13), at(5.5))
	require.Nil(t, k.Break, "a renewal that was sent since is confirmed")
	require.Equal(t, Consequence{Read: 14}, fixed().RecordNotified(stored(14, "you", 1, record.StatusHeld), at(5)))
}

// TestKeptReconnected checks that a reconnect renews all records immediately and spreads later renewals.
func TestKeptReconnected(t *testing.T) {
	k := renewing()
	require.Zero(t, k.Reconnected(at(5), 0.5))
	require.Equal(t, at(5), k.Due())
	n, _ := k.BeginRenewal(at(5), 2)
	require.Equal(t, n, k.Enough().n)
	k.AnswerArrived(n, acked(11), at(5.1))
	require.InDelta(t, 7.15, k.Due().Sub(at(0)).Seconds(), 0.1, "half of the time between two")
	n, _ = k.BeginRenewal(at(7), 3)
	k.AnswerArrived(n, acked(12), at(7.1))
	require.InDelta(t, 11.3, k.Due().Sub(at(0)).Seconds(), 0.2)
	require.Equal(t, Consequence{Read: 10}, fixed().Reconnected(at(5), 0.5))
}

// TestKeptEnough checks that a renewal already under way is not enough to confirm a later change.
func TestKeptEnough(t *testing.T) {
	k := renewing()
	require.EqualValues(t, 1, k.Enough().n)
	k.RenewNow(at(5))
	require.Zero(t, k.Enough())
	require.Equal(t, Consequence{Confirmed: 1}, k.AnswerArrived(1, acked(11), at(5)))
	require.Equal(t, at(5), k.Due(), "it is still due")
}

// TestKeptClosing checks which record a holder leaves behind.
func TestKeptClosing(t *testing.T) {
	closing := func(end End, rest time.Duration, broken bool) (record.Body, bool) {
		k := renewing()
		k.Body.Lingers, k.Body.InUse = true, true
		k.EndByHolder(end, at(5))
		body, deletes := k.Closing(rest, broken)
		require.EqualValues(t, 2, body.Renewal)
		require.EqualValues(t, 2, k.Final())
		require.Equal(t, record.StatusHeld, body.Status)
		return body, deletes
	}
	_, deletes := closing(EndReleased, 0, false)
	require.True(t, deletes)
	last, deletes := closing(EndReleased, 1500*time.Millisecond, false)
	require.EqualValues(t, 2, last.TTL)
	require.Equal(t, record.Rest, last.Purpose)
	require.Equal(t, []bool{true, false, false}, []bool{last.Fixed, last.Lingers, last.InUse})
	require.False(t, deletes)
	_, deletes = closing(EndReleased, time.Second, true)
	require.True(t, deletes, "the operator has decided")
	last, deletes = closing(EndHandedOff, 0, false)
	require.True(t, last.Fixed)
	require.EqualValues(t, 13, last.TTL)
	require.False(t, deletes)
	require.NotEqual(t, record.Rest, last.Purpose)
	k := renewing()
	k.Body.Purpose = record.Job
	k.EndByHolder(EndReleased, at(5))
	last, _ = k.Closing(time.Second, false)
	require.Equal(t, record.Job, last.Purpose)
	k = renewing()
	k.EndUnasked(EndBroken, NoReason, at(5))
	k.EndByHolder(EndReleased, at(5))
	_, deletes = k.Closing(time.Second, false)
	require.True(t, deletes)
}

// TestUseAdmits checks that a goroutine enters only within the validity, with at least a third of it left, and gets a
// number of its own.
func TestUseAdmits(t *testing.T) {
	admit := func(k *Kept, l *Use, s float64) Admission {
		a, _ := l.Admit(k, Entrant{}, at(s), time.Second)
		return a
	}
	k, l := kept(), &Use{}
	require.Equal(t, Admitted, admit(k, l, 11), "the first one at any time: the server has granted it")
	require.Equal(t, ConfirmFirst, admit(k, l, 8.1))
	require.Equal(t, Admitted, admit(k, l, 8))
	require.Equal(t, record.Token(10, 1), k.Body.Token)
	require.EqualValues(t, 2, k.Body.Grants)
	k.Abandoned = true
	require.Equal(t, RunsOut, admit(k, l, 8))

	a, u := (&Use{}).Admit(kept(), Entrant{}, at(12), time.Second)
	require.Equal(t, NotHeld, a)
	require.Equal(t, EndLost, u.End)
	k = kept()
	k.EndUnasked(EndBroken, NoReason, at(1))
	require.Equal(t, NotHeld, admit(k, &Use{}, 2))
}

// TestUseTokens checks that tokens rise from grant to grant, restart with each confirmed revision, and stop before they
// reach those of the next revision.
func TestUseTokens(t *testing.T) {
	k := kept()
	last := k.Body.Token
	for n := 1; n < record.GrantsPerRevision; n++ {
		require.True(t, k.admits(at(1)))
		require.Greater(t, k.Body.Token, last)
		last = k.Body.Token
	}
	require.Less(t, last, record.Token(11, 0))
	require.Equal(t, at(1), k.Due(), "the next revision was asked for in time")
	require.False(t, k.admits(at(1)))
	n, _ := k.BeginRenewal(at(1), 1)
	k.AnswerArrived(n, acked(12), at(1.1))
	require.True(t, k.admits(at(1.2)))
	require.Equal(t, record.Token(12, 0), k.Body.Token)
	k.Body.Mode = uint8(record.Shared)
	require.True(t, k.admits(at(1.3)))
	require.Equal(t, record.Token(12, 0), k.Body.Token, "readers share theirs")
}

// TestUseShown checks what the record shows about its holders.
func TestUseShown(t *testing.T) {
	k, l := kept(), &Use{}
	l.Admit(k, Entrant{Lingers: true}, at(1), time.Second)
	require.True(t, k.Body.Lingers)
	require.True(t, k.Body.InUse)
	until, idle := l.Standing(k, at(1))
	require.Equal(t, at(12), until)
	require.False(t, idle, "the record does not say so yet")
	n, _ := k.BeginRenewal(at(1), 1)
	k.AnswerArrived(n, acked(11), at(1.1))
	_, idle = l.Standing(k, at(1.2))
	require.False(t, idle, "sent at the same instant")
	n, _ = k.BeginRenewal(at(2), 2)
	k.AnswerArrived(n, acked(12), at(2.1))
	_, idle = l.Standing(k, at(2.2))
	require.True(t, idle)
	_, idle = l.Standing(k, at(14))
	require.False(t, idle)
	k.Abandoned = true
	until, _ = l.Standing(k, at(2.2))
	require.EqualValues(t, math.MinInt64, until)

	k, l = kept(), &Use{}
	l.Admit(k, Entrant{Meta: map[string]string{"a": "b"}}, at(1), time.Second)
	require.Equal(t, "b", k.Body.Meta["a"])
	require.Equal(t, at(1), k.Due(), "shown soon")
}

// TestUseWatched checks that a lease is watched after a holder has stayed for a second, but not while it is idle.
func TestUseWatched(t *testing.T) {
	k, l := kept(), &Use{}
	l.Begin(at(0), time.Second)
	require.Equal(t, at(1), l.WatchDue())
	require.False(t, l.Watch(at(0.9), time.Second))
	require.True(t, l.Watch(at(1), time.Second))
	require.False(t, l.Watch(at(2), time.Second), "once")
	require.True(t, l.BecomeIdle(k, at(3), time.Second))
	require.Equal(t, never, l.WatchDue())
	require.False(t, l.BecomeIdle(k, at(3), time.Second))
	l.Admit(k, Entrant{}, at(4), time.Second)
	require.False(t, l.Watch(at(4.9), time.Second))
	require.True(t, l.Watch(at(5), time.Second), "a second after it was used again")

	l = &Use{}
	l.Begin(at(0), time.Second)
	l.BecomeIdle(k, at(0.5), time.Second)
	l.Admit(k, Entrant{}, at(0.6), time.Second)
	require.False(t, l.Watch(at(1), time.Second))
	require.Equal(t, at(1.6), l.WatchDue())
	l.BecomeIdle(k, at(1.2), time.Second)
	require.False(t, l.Watch(at(1.6), time.Second))
	require.Equal(t, never, l.WatchDue())
	l = &Use{}
	l.Begin(at(0), -1)
	require.Equal(t, never, l.WatchDue())
}

// TestWish checks that the longest TTL requested by a holder wins, and that a TTL covering a minimum hold is kept.
func TestWish(t *testing.T) {
	of := func(s int) clock.Terms { return clock.Terms{TTL: time.Duration(s) * time.Second} }
	var none *Wish
	require.Equal(t, of(15), none.Longer(clock.Terms{}, of(15)))
	require.Equal(t, of(5), (&Wish{Terms: of(5)}).Longer(clock.Terms{}, of(15)))
	require.Equal(t, of(15), (&Wish{Terms: of(5)}).Longer(of(15), of(15)), "a reader shortens no lease of others")
	require.Equal(t, of(60), (&Wish{Terms: of(60)}).Longer(of(15), of(15)))
	require.Equal(t, of(15), (&Wish{Terms: of(5), Least: time.Second}).Longer(clock.Terms{}, of(15)))
	require.Equal(t, of(60), (&Wish{Terms: of(60), Least: time.Second}).Longer(clock.Terms{}, of(15)))

	k := kept()
	k.WantTerms(keptTerms, at(1))
	require.NotEqual(t, at(1), k.Due())
	k.WantTerms(of(60), at(1))
	require.Equal(t, at(1), k.Due())
	k.BeginRenewal(at(1), 1)
	k.RenewAfter(at(9))
	(&Use{}).BecomeIdle(k, at(2), time.Second)
	require.Equal(t, keptTerms, k.Want, "an idle lease has the TTL of its grant")
	require.Equal(t, at(2), k.Due())
}

// TestWishRest checks that a minimum hold allows for a fast clock.
func TestWishRest(t *testing.T) {
	w := &Wish{Least: 10 * time.Second, Since: at(1)}
	require.Equal(t, 6*time.Second+clock.NewTerms(4*time.Second).Margin, w.Cooldown(at(5)))
	require.Negative(t, w.Cooldown(at(20)))
	require.Zero(t, (&Wish{}).Cooldown(at(5)))
}
