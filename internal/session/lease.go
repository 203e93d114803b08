package session

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/keeper"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/plain"
	"github.com/natslock/locks/internal/record"
)

// State is the state of a lease or a place.
type State = core.State

// States of a lease or a place. See [core.State].
const (
	Held     = core.StateHeld
	Lost     = core.StateLost
	Released = core.StateReleased
	Ended    = core.StateEnded
)

// Lease is one of this client's locks: a record that is kept alive. At most one [Holder] is inside at a time, except
// that readers share their lease.
//
// Once the record has ended, holders, watch, waiting and onEnd no longer change, so [Lease.Over] can read them without
// the mutex.
type Lease struct {
	keeper.Record
	s *Session

	// The following fields are guarded by the keeper's mutex.
	use     core.Use
	holders *Holder // the newest holder that is inside, or was when the lease ended; nil if there is none
	watch   kvstore.Watch
	waiting []extension
	onEnd   func()    // called once; may be nil
	cause   *EndError // why the lease ended; nil while it is held

	result *error // the error of a completed release; nil if there is none
}

// extension is a wait for the confirmation of a renewal numbered higher than after.
type extension struct {
	after uint64
	done  chan error
}

// Hold turns a granted claim into a lease. If until is not zero, the lease ends no later than that.
func (s *Session) Hold(g keeper.Granted, until time.Time) *Lease {
	l := &Lease{s: s}
	s.Make(&l.Record, g, l)
	if !until.IsZero() {
		l.Valid.Bound(s.b.Instant().Add(time.Until(until)))
	}
	l.use.Begin(s.b.Instant(), s.WatchAfter)
	s.Take(&l.Record)
	return l
}

// sentinels maps each end to its error.
var sentinels = [...]error{
	core.EndLost: ErrLost, core.EndBroken: ErrBroken, core.EndPlanned: ErrEnded, core.EndClosed: bucket.ErrClosed,
	core.EndReleased: ErrReleased, core.EndHandedOff: ErrHandedOff,
}

// events maps each end to its event.
var events = [...]EventType{
	core.EndLost: EventLost, core.EndBroken: EventBroken, core.EndPlanned: EventEnded, core.EndClosed: EventLost,
	core.EndReleased: EventReleased, core.EndHandedOff: EventReleased,
}

// NextDuty implements [keeper.Owner]. Besides being renewed, a lease has two duties: it starts to watch its record once it
// has been held for a while, and it warns the holders that asked to be told before its validity ends.
func (l *Lease) NextDuty(due clock.Instant) clock.Instant {
	due = min(due, l.use.WatchDue())
	for h := l.holders; h != nil; h = h.next {
		if h.wishes != nil && h.wishes.warnBefore > 0 && !h.warned {
			due = min(due, l.Valid.End.Add(-h.wishes.warnBefore))
		}
	}
	return due
}

// Perform implements [keeper.Owner].
func (l *Lease) Perform(now clock.Instant) {
	if l.use.Watch(now, l.s.WatchAfter) {
		l.s.Send(l.startWatch)
	}
	for h := l.holders; h != nil; h = h.next {
		if h.wishes != nil && h.wishes.warnBefore > 0 && now >= l.Valid.End.Add(-h.wishes.warnBefore) {
			h.warn()
		}
	}
}

// Confirmed implements [keeper.Owner].
func (l *Lease) Confirmed(n uint64) {
	waiting := l.waiting[:0]
	for _, x := range l.waiting {
		if x.after < n {
			x.done <- nil
		} else {
			waiting = append(waiting, x)
		}
	}
	l.waiting, l.Waiting = waiting, int32(len(waiting))
	l.s.notifier.counts[EventRenewed].Add(1) // once, no matter how many holders there are
	for h := l.holders; h != nil; h = h.next {
		l.s.Notify(h.parent, h.event(EventRenewed, nil))
		h.warned = false
		for h.wishes != nil && len(h.wishes.unstored) > 0 && n > h.wishes.unstored[0].after {
			h.wishes.unstored = h.wishes.unstored[1:]
		}
		h.logCrowd()
	}
}

// logCrowd logs once that goroutines of the client have waited behind the holder for a whole TTL. One of them may be
// the holder itself, because a lock is not reentrant. The mutex must be held.
func (h *Holder) logCrowd() {
	l, now := h.lease, h.lease.s.b.Instant()
	switch waiting := l.Body.Size - 1; {
	case waiting <= 0:
		if h.wishes != nil {
			h.wishes.crowded = 0
		}
	case h.wishes == nil || h.wishes.crowded == 0:
		h.wanted().crowded = now
	case !h.wishes.logged && now.Sub(h.wishes.crowded) >= l.Terms.TTL:
		h.wishes.logged = true
		l.s.log(slog.LevelInfo, "goroutines of this client are waiting for a lock that the client itself holds; if the holder's own goroutine is one of them, it has deadlocked",
			"lock", l.Name, "token", h.token, "waiting", waiting)
	}
}

// AtRisk implements [keeper.Owner].
func (l *Lease) AtRisk(err error) {
	for h := l.holders; h != nil; h = h.next {
		h.warn()
		l.s.Notify(h.parent, h.event(EventAtRisk, err))
	}
	if l.s.b.Gone() { // nothing will be confirmed anymore
		l.failWaiting(err)
	}
}

// Refused implements [keeper.Owner]. The refusal may be temporary, so the early warning comes only when it is due.
func (l *Lease) Refused(err error) {
	err = fmt.Errorf("renew lock %q: %w", l.Name, err)
	for h := l.holders; h != nil; h = h.next {
		l.s.Notify(h.parent, h.event(EventAtRisk, err))
	}
	l.s.warn(`the server refused to renew a lock, which will be lost unless a later renewal is accepted; "lockctl doctor" shows what is wrong`, "lock", l.Name, "token", l.Body.Token,
		"left", l.Valid.End.Sub(l.s.b.Instant()).Round(time.Millisecond), "error", err)
}

// NoRoom implements [keeper.Owner]. It restores the metadata from before the SetMeta call that made the record too
// large. All waiting calls get the error.
func (l *Lease) NoRoom(n uint64, err error) (smaller bool) {
	for h := l.holders; h != nil; h = h.next {
		if h.wishes == nil || len(h.wishes.unstored) == 0 || n <= h.wishes.unstored[0].after {
			continue
		}
		l.Body.Meta, h.wishes.unstored = h.wishes.unstored[0].before, nil
		l.failWaiting(err)
		l.RenewNow(l.s.b.Instant())
		smaller = true
	}
	return smaller
}

// failWaiting ends all waits for a confirmation with err. The mutex must be held.
func (l *Lease) failWaiting(err error) {
	for _, x := range l.waiting {
		x.done <- fmt.Errorf("renew lock %q: %w", l.Name, err)
	}
	l.waiting, l.Waiting = nil, 0
}

// Cooldown implements [keeper.Owner]. It returns the remainder of the minimum hold.
func (l *Lease) Cooldown(now clock.Instant) (left time.Duration) {
	for h := l.holders; h != nil; h = h.next {
		if h.wishes != nil {
			left = max(left, h.wishes.Cooldown(now))
		}
	}
	return left
}

// NoteEnd implements [keeper.Owner].
func (l *Lease) NoteEnd(end core.End, why string) {
	if l.Why == core.Unconfirmed && l.Body.Fixed && !l.Abandoned && l.Waiting == 0 && l.Failed() == "" {
		why = "its lease is not renewed and was not extended in time"
	}
	l.cause = &EndError{Name: l.Name, Token: l.Body.Token, Kind: sentinels[end], Why: why}
	for h := l.holders; h != nil; h = h.next {
		if h.cause == nil {
			h.cause, h.state = l.cause, l.State
		}
	}
}

// Over implements [keeper.Owner].
func (l *Lease) Over() {
	event := events[l.Cause]
	// There is no warning for EndClosed, because Close reports those locks itself.
	if l.holders != nil && (l.Cause == core.EndLost || l.Cause == core.EndBroken) {
		l.s.warn("a held lock was lost; another client may hold it now", "lock", l.Name, "token", l.cause.Token, "cause", l.cause)
	}
	for h := l.holders; h != nil; h = h.next {
		h.end(event, l.cause)
	}
	for _, x := range l.waiting {
		x.done <- l.cause
	}
	if l.watch != nil {
		l.s.Send(l.watch.Stop)
	}
	if l.onEnd != nil {
		l.onEnd()
	}
}

// ID returns the id of the claim.
func (l *Lease) ID() string { return l.Body.ID }

// Status is like [keeper.Record.Status] but also returns the cause of the end.
func (l *Lease) Status() (State, time.Duration, error) {
	state, left := l.Record.Status()
	if state == Held {
		return state, left, nil
	}
	return state, 0, l.cause
}

// Ended reports whether the lease has ended, or is running out.
func (l *Lease) Ended(now clock.Instant) bool {
	l.s.Lock()
	defer l.s.Unlock()
	return l.State != Held || l.Abandoned || l.Valid.Over(now)
}

// Validity returns the end of the lease's validity, or the earliest possible time if the lease has ended. mayIdle
// reports whether the record tells other clients that the lease may be idle now.
func (l *Lease) Validity(now clock.Instant) (until clock.Instant, mayIdle bool) {
	l.s.Lock()
	defer l.s.Unlock()
	return l.use.Standing(&l.Kept, now)
}

// OnEnd arranges for fn to be called when the lease ends. It returns false if the lease has already ended.
func (l *Lease) OnEnd(fn func()) (held bool) {
	l.s.Lock()
	defer l.s.Unlock()
	if l.State != Held {
		return false
	}
	if before := l.onEnd; before != nil {
		l.onEnd = func() { before(); fn() }
	} else {
		l.onEnd = fn
	}
	return true
}

// Idle notes that no holder is inside, or about to be.
func (l *Lease) Idle() {
	l.s.Lock()
	defer l.s.Unlock()
	if l.use.BecomeIdle(&l.Kept, l.s.b.Instant(), l.s.WatchAfter) && l.State == Held {
		if l.watch != nil {
			l.s.Send(l.watch.Stop)
		}
		l.watch = nil
	}
	l.Moved()
}

// Abandon stops renewing a lease whose holder's handle was dropped, so that no caller will ever release it.
func (l *Lease) Abandon() {
	l.s.Lock()
	l.Abandoned = true
	held, ttl, token := l.State == Held, l.Terms.TTL, l.Body.Token
	l.Moved()
	l.s.Unlock()
	if held {
		// Don't use warn here: this runs on a runtime goroutine, which may be outside the synctest bubble.
		l.s.Logger.Warn("a held lock was dropped without Unlock; it is no longer renewed and will expire with its TTL",
			"lock", l.Name, "token", token, "ttl", ttl)
	}
}

// Confirm renews the lease immediately and waits for the confirmation.
func (l *Lease) Confirm(ctx context.Context) error { return l.confirm(ctx, true) }

// Renewed waits for the next confirmation of the lease or for the end of the client. It renews the lease if no renewal
// is in flight.
func (l *Lease) Renewed(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(l.s.b.Life(), cancel)()
	return l.confirm(ctx, false)
}

// Keep renews the lease on time, even a fixed one, until stop is called. While a renewal is unanswered, stop does
// nothing and returns false, because the server may store that renewal when no process knows about it anymore.
func (l *Lease) Keep() (stop func() (stopped bool)) {
	l.s.Lock()
	defer l.s.Unlock()
	if l.State != Held {
		return func() bool { return true }
	}
	x := extension{after: math.MaxUint64, done: make(chan error, 1)} // no renewal can end this wait
	l.waiting = append(l.waiting, x)
	l.Waiting++
	l.Moved()
	return func() bool { return l.forget(x, true) }
}

// forget ends a wait for a confirmation. If settled is true, it does nothing and returns false while the lease is held
// and a renewal is unanswered.
func (l *Lease) forget(x extension, settled bool) bool {
	l.s.Lock()
	defer l.s.Unlock()
	if l.State != Held {
		return true
	}
	if settled && l.Unanswered() { //safety:kept-settled
		return false
	}
	for i := range l.waiting {
		if l.waiting[i].done == x.done {
			l.waiting = append(l.waiting[:i], l.waiting[i+1:]...)
			l.Waiting--
			break
		}
	}
	if !l.Renews() && l.Wanted() { // a read replaces the renewal that would have checked a hint
		l.Apply(l.Suspect(l.Last, l.s.b.Instant()), "")
	}
	l.Moved()
	return true
}

// confirm waits for the confirmation of a renewal: one sent from now on if fresh is true, otherwise any.
func (l *Lease) confirm(ctx context.Context, fresh bool) error {
	l.s.Lock()
	if l.State != Held {
		cause := l.cause
		l.s.Unlock()
		return cause
	}
	if l.s.b.Gone() {
		l.s.Unlock()
		return fmt.Errorf("renew lock %q: %w: connection closed", l.Name, bucket.ErrUnavailable)
	}
	x := extension{done: make(chan error, 1)}
	if fresh {
		x.after = l.Renewal()
	}
	l.waiting = append(l.waiting, x)
	l.Waiting++
	if fresh || !l.Unanswered() {
		l.RenewNow(l.s.b.Instant())
		l.Moved()
	}
	l.s.Unlock()
	select {
	case err := <-x.done:
		return err
	case <-ctx.Done():
	}
	l.forget(x, false)
	l.s.Lock()
	defer l.s.Unlock()
	return fmt.Errorf("renew lock %q: %w: not confirmed%s: %w", l.Name, bucket.ErrUnavailable, l.Failed(), plain.EndOf(ctx))
}

// startWatch subscribes to the lease's record. The renewal that follows proves that the subscription is in place and
// that no change before it was missed. startWatch runs on the keeper's sender.
func (l *Lease) startWatch() {
	w, err := l.s.b.Watch(l.Key, l.notified)
	if err != nil {
		return // the next renewal will reveal a break
	}
	l.s.Lock()
	if l.State == Held && l.use.Watching && l.watch == nil {
		l.watch = w
		l.Apply(l.Suspect(l.Last, l.s.b.Instant()), "")
		w = nil
	}
	l.s.Unlock()
	if w != nil {
		w.Stop()
	}
}

// notified handles a change to the lease's record.
func (l *Lease) notified(ev kvstore.Event) {
	if ev.Kind != kvstore.Put && ev.Kind != kvstore.Deleted {
		return
	}
	l.s.Lock()
	old := l.Old(ev.Record.Revision)
	l.s.Unlock()
	if old { // nearly always a notification of the client's own renewal, whose answer arrived first
		return
	}
	entry := record.Of(ev.Record)
	l.s.Lock()
	defer l.s.Unlock()
	l.Apply(l.RecordNotified(entry, l.s.b.Instant()), "")
}

// errAbandoned means that a lease is running out because a holder's handle was dropped.
var errAbandoned = errors.New("its holder's handle was dropped")

// wanted renews the lease immediately if its holders want a different TTL. The longest TTL wins, and a TTL set by
// Extend lasts until its holder ends. The mutex must be held.
func (l *Lease) wanted() {
	var longest clock.Terms
	for h := l.holders; h != nil; h = h.next {
		longest = h.wish().Longer(longest, l.Granted)
	}
	if l.holders != nil {
		l.WantTerms(longest, l.s.b.Instant())
	}
	l.Moved()
}

// Judge returns, for each of the client's leases with this name, a function that ends the lease immediately. That
// function calls change with the lease's key. change modifies the record and returns what is there now: a record or
// tombstone of another claim, a broken record, or nothing. Without Judge, the client would learn of the change from a
// notification or a renewal. The lease of a writer that is waiting for readers is left out, because no holder is
// inside.
func (s *Session) Judge(name string) (ends []func(change func(key string) kvstore.Record)) {
	s.Each(func(k *keeper.Record) {
		if l, ok := k.Owner().(*Lease); ok && k.Name == name && (l.holders != nil || l.use.Idle) {
			ends = append(ends, l.endBy)
		}
	})
	return ends
}

func (l *Lease) endBy(change func(key string) kvstore.Record) {
	ended := make(chan struct{})
	if !l.OnEnd(func() { close(ended) }) {
		return
	}
	r := change(l.Key)
	l.RecordRead(record.Of(r), r.Revision)
	<-ended // a renewal may have discovered the change at the same time
}
