package core

import (
	"maps"
	"math"
	"time"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/record"
)

// Use tracks how the client's goroutines use a lease: one after another, side by side (readers) or, for a while, not at
// all.
type Use struct {
	Grants uint64 // number of holders so far
	Idle   bool   // the lease lingers and has no holder at present

	// The record of a lease is watched only once the lease has been in use for some time, so that short critical
	// sections need no subscription. The record of an idle lease is not watched, because the next goroutine that asks
	// for the lock, or the next renewal, will discover a break.
	Watching bool          // the watch has begun, or never will
	watchAt  clock.Instant // when the watch is to begin; [never] while the lease is idle
	since    clock.Instant // end of the last idle period, or when the lease was first used

	marked clock.Instant // when the body was marked as lingering; 0 if the claim had already marked it
}

const never = clock.Instant(math.MaxInt64)

// Entrant is a goroutine that wants to become a holder of a lease.
type Entrant struct {
	Waited  time.Duration // how long it has waited for the lock
	Queued  bool          // it has waited behind another holder
	Lingers bool          // the client may keep the lease idle afterwards
	Meta    map[string]string
	Wall    int64 // current time, in Unix milliseconds
}

// Admission is the fate of an [Entrant].
type Admission uint8

const (
	// NotHeld means that the lease has ended.
	NotHeld Admission = iota
	// RunsOut means that a holder's handle was dropped, so the lease is no longer renewed.
	RunsOut
	// ConfirmFirst means that a renewal has to be confirmed before the lease can have another holder.
	ConfirmFirst
	// Admitted means that the goroutine is a holder.
	Admitted
)

// Begin puts a lease into use. Its record is watched after watchAfter, or never if watchAfter is negative.
func (l *Use) Begin(now clock.Instant, watchAfter time.Duration) {
	l.since = now
	l.watchAt, l.Watching = now.Add(watchAfter), watchAfter < 0
}

// Admit makes a goroutine a holder of the lease. The server granted the lease to the first holder, and later holders
// are admitted without a message to the server.
func (l *Use) Admit(k *Kept, e Entrant, now clock.Instant, watchAfter time.Duration) (Admission, Consequence) {
	u := k.Check(now)
	switch {
	case k.State != StateHeld: //safety:admitted-inside
		return NotHeld, u
	case k.Abandoned:
		return RunsOut, u
	case l.Grants > 0 && !k.admits(now):
		return ConfirmFirst, u
	}
	l.Grants++
	body := &k.Body
	if l.Grants > 1 {
		waited := int64(0)
		if e.Queued {
			waited = max(e.Waited.Milliseconds(), 1)
		}
		body.Grants, body.Waits = l.Grants, body.Waits+waited
		if !k.Shared() { // a readers' record states when the first of them entered
			body.Since, body.Waited = e.Wall, waited
		}
	}
	if e.Lingers && !body.Lingers {
		body.Lingers, l.marked = true, now
		k.RenewSoon(now)
	}
	body.InUse = body.Lingers
	if l.Idle {
		l.becomeUsed(now, watchAfter)
	}
	// The granted attempt may have been made for another caller. A lease that lingers changes hands often, so only
	// ordinary renewals show its current holder.
	if l.Grants > 1 && !k.Shared() && !body.Lingers || !maps.Equal(body.Meta, e.Meta) {
		body.Meta = e.Meta
		k.RenewSoon(now)
	}
	return Admitted, u
}

// Shared reports whether the record belongs to readers, who hold the lock together.
func (k *Kept) Shared() bool { return record.Mode(k.Body.Mode) == record.Shared }

// renewAhead is the number of the grant at which a new revision is requested, so that the new revision is available by
// the time the current one runs out of numbers.
const renewAhead = record.GrantsPerRevision / 2

// admits reports whether the lease can have another holder now and, if so, numbers the grant.
func (k *Kept) admits(now clock.Instant) bool {
	// A new holder needs time to work.
	if k.Valid.End.Sub(now) < k.Terms.Validity()/3 { //safety:admitted-early
		return false
	}
	// The revision of a renewal would give a reader a higher token than the writer that follows.
	if k.Shared() { //safety:token-of-readers
		return true
	}
	revision, n := record.TokenRevision(k.Body.Token), record.TokenGrant(k.Body.Token)
	switch {
	// Only an acknowledged revision is above all tokens based on earlier revisions.
	case k.Last > revision: //safety:token-revision
		revision, n = k.Last, 0
	case n+1 == record.GrantsPerRevision: //safety:token-full
		return false
	default:
		n++ //safety:token-number
	}
	k.Body.Token = record.Token(revision, n)
	if n == renewAhead {
		k.RenewNow(now)
	}
	return true
}

// becomeUsed records that an idle lease has a holder again. As with any other lease, the watch begins if the holder
// stays for watchAfter. Most holders leave sooner, so they need no subscription.
func (l *Use) becomeUsed(now clock.Instant, watchAfter time.Duration) {
	l.Idle, l.since = false, now
	if !l.Watching && l.watchAt == never {
		l.watchAt = now.Add(watchAfter) //safety:use-watched
	}
}

// BecomeIdle records that no holder is inside or about to be, so the TTL set by Extend is dropped and the watch ends.
// unwatch reports whether the caller has a watch to stop.
func (l *Use) BecomeIdle(k *Kept, now clock.Instant, watchAfter time.Duration) (unwatch bool) {
	l.Idle = true
	if unwatch = l.Watching && watchAfter >= 0; unwatch {
		l.Watching, l.watchAt = false, never
	}
	if k.State == StateHeld { //safety:extend-ends-idle
		k.WantTerms(k.Granted, now)
	}
	return unwatch
}

// WatchDue returns when to call [Use.Watch].
func (l *Use) WatchDue() clock.Instant {
	if l.Watching {
		return never
	}
	return l.watchAt
}

// Watch reports whether to begin watching the record now.
func (l *Use) Watch(now clock.Instant, watchAfter time.Duration) bool {
	switch {
	case l.Watching || now < l.watchAt:
	case l.Idle:
		l.watchAt = never
	case now < l.since.Add(watchAfter): // the lease was idle in the meantime
		l.watchAt = l.since.Add(watchAfter)
	default:
		l.Watching = true
		return true
	}
	return false
}

// Standing returns when the lease ends, or the earliest possible time if it has already ended. mayIdle reports whether
// the record tells other clients that the lease may be idle now.
func (l *Use) Standing(k *Kept, now clock.Instant) (until clock.Instant, mayIdle bool) {
	if k.State != StateHeld || k.Abandoned {
		return math.MinInt64, false
	}
	return k.Valid.End, !k.Valid.Over(now) && k.Body.Lingers && (l.marked == 0 || k.LastSent > l.marked) //safety:linger-shown
}

// Wish is what a holder wants from its lease.
type Wish struct {
	Terms clock.Terms   // set by Extend; zero for the terms of the grant
	Least time.Duration // minimum hold; 0 if there is none
	Since clock.Instant // beginning of the hold
}

// Cooldown returns what is left of the minimum hold. It allows for a clock that runs fast by up to the margin for the
// time measured.
func (w *Wish) Cooldown(now clock.Instant) time.Duration {
	if w.Least == 0 {
		return 0
	}
	held := now.Sub(w.Since)
	return w.Least - held + clock.NewTerms(held).Margin //safety:cooldown-margin
}

// Longer returns the longer of two terms: those that others want and those that this holder wants. w is nil if this
// holder has no wish.
func (w *Wish) Longer(others, granted clock.Terms) clock.Terms {
	t := granted
	// Keep a TTL that covers a minimum hold, in case the holder crashes.
	if w != nil && w.Terms.TTL != 0 && (w.Least == 0 || w.Terms.TTL > t.TTL) { //safety:cooldown-covered
		t = w.Terms
	}
	if t.TTL > others.TTL { //safety:readers-lengthen
		return t
	}
	return others
}

// WantTerms sets the terms of future renewals. If the terms change, a renewal is due immediately.
func (k *Kept) WantTerms(t clock.Terms, now clock.Instant) {
	if k.Want != t { //safety:extend-ends
		k.Want = t
		k.RenewNow(now)
	}
}
