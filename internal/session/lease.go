package session

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
)

// Lease is a lock of this client: the record that is kept alive. At most one [Holder] is
// inside at a time, but for readers, who share their lease.
type Lease struct {
	kept

	// The following fields are under the session's mutex.
	use     core.Use
	holders *Holder // the newest of those that are inside, or were when the lease ended; nil: nobody
	watch   kvstore.Watch
	waiting []extension
	onEnd   func() // called once; may be nil

	result *error // of the release, when released is closed; nil: it has none
}

// extension waits for the confirmation of a renewal later than number after.
type extension struct {
	after uint64
	done  chan error
}

// Hold makes a granted claim a lease. A lease with a given end (until is not zero) ends
// then at the latest.
func (s *Session) Hold(g Granted, until time.Time) *Lease {
	l := &Lease{}
	l.init(s, g, l)
	if !until.IsZero() {
		l.Valid.Bound(s.b.Instant().Add(time.Until(until)))
	}
	l.use.Begin(s.b.Instant(), s.WatchAfter)
	s.renewer.add(&l.kept)
	return l
}

// nextDuty is part of [duties]: a lease is watched from some age on, and warns early.
func (l *Lease) nextDuty(due clock.Instant) clock.Instant {
	due = min(due, l.use.WatchDue())
	for h := l.holders; h != nil; h = h.next {
		if h.wishes != nil && h.wishes.warnBefore > 0 && !h.warned {
			due = min(due, l.Valid.End.Add(-h.wishes.warnBefore))
		}
	}
	return due
}

// perform is part of [duties].
func (l *Lease) perform(now clock.Instant) {
	if l.use.Watch(now, l.s.WatchAfter) {
		l.s.Send(l.startWatch)
	}
	for h := l.holders; h != nil; h = h.next {
		if h.wishes != nil && h.wishes.warnBefore > 0 && now >= l.Valid.End.Add(-h.wishes.warnBefore) {
			h.warn()
		}
	}
}

// warn gives the early warning, once per confirmation, on a goroutine of its own: behind an
// observer, or behind the warning of another lock, it would come too late. Under
// mu.
func (h *Holder) warn() {
	if h.wishes != nil && h.wishes.onWarn != nil && !h.warned {
		h.warned = true
		go h.wishes.onWarn()
	}
}

// atRisk warns the holders, and publishes that the lease is at risk for the reason err. Under mu.
func (l *Lease) atRisk(err error) {
	for h := l.holders; h != nil; h = h.next {
		h.warn()
		l.s.Notify(h.parent, h.event(EventAtRisk, err))
	}
}

// refused publishes that the server refuses to renew the lease. That may pass, so the early
// warning comes when it is due. Under mu.
func (l *Lease) refused(err error) {
	err = fmt.Errorf("renew lock %q: %w", l.kept.Name, err)
	for h := l.holders; h != nil; h = h.next {
		l.s.Notify(h.parent, h.event(EventAtRisk, err))
	}
	l.s.warn(`the server refuses to renew a lock, which is lost unless a later renewal is accepted; "lockctl doctor" shows what is wrong`, "lock", l.kept.Name, "token", l.Body.Token,
		"left", l.Valid.End.Sub(l.s.b.Instant()).Round(time.Millisecond), "error", err)
}

// confirmed is part of [duties].
func (l *Lease) confirmed(n uint64) {
	waiting := l.waiting[:0]
	for _, x := range l.waiting {
		if x.after < n {
			x.done <- nil
		} else {
			waiting = append(waiting, x)
		}
	}
	l.waiting, l.Waiting = waiting, int32(len(waiting))
	l.s.notifier.counts[EventRenewed].Add(1) // once, however many are inside
	for h := l.holders; h != nil; h = h.next {
		l.s.Notify(h.parent, h.event(EventRenewed, nil))
		h.warned = false
		if h.wishes != nil && h.wishes.stored != nil && n > h.wishes.stored.after {
			h.wishes.stored = nil
		}
	}
}

// cooldown is part of [duties]: what is left of the minimum hold.
func (l *Lease) cooldown(now clock.Instant) (left time.Duration) {
	for h := l.holders; h != nil; h = h.next {
		if h.wishes != nil {
			left = max(left, h.wishes.Cooldown(now, l.s.Margin))
		}
	}
	return left
}

// leave is part of [duties].
func (l *Lease) leave() leavings {
	left := leavings{holders: l.holders, watch: l.watch, waiting: l.waiting, onEnd: l.onEnd}
	for h := l.holders; h != nil; h = h.next {
		if h.cause == nil {
			h.cause, h.state = l.cause, l.State
		}
	}
	l.watch, l.waiting, l.onEnd, l.use.Watching = nil, nil, nil, true
	return left
}

// over is part of [duties].
func (l *Lease) over(left leavings, event EventType, cause *EndError) {
	// A Close says itself what it has left.
	if left.holders != nil && (event == EventLost || event == EventBroken) && cause.Kind != bucket.ErrClosed {
		l.s.warn("a held lock was lost; the work under it may not be alone any more", "lock", l.kept.Name, "token", cause.Token, "cause", cause)
	}
	for h := left.holders; h != nil; h = h.next {
		h.end(event, cause)
	}
	for _, x := range left.waiting {
		x.done <- cause
	}
	if left.watch != nil {
		l.s.Send(left.watch.Stop)
	}
	if left.onEnd != nil {
		left.onEnd()
	}
}

// ID returns the id of the claim.
func (l *Lease) ID() string { return l.Body.ID }

// Ended says whether the lease has ended, or is to run out.
func (l *Lease) Ended(now clock.Instant) bool {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	return !l.holdsAt(now)
}

// holdsAt says whether the lease goes on at an instant. Under mu.
func (l *Lease) holdsAt(now clock.Instant) bool {
	return l.State == Held && !l.Abandoned && !l.Valid.Over(now)
}

// OnEnd has fn called when the lease ends; false when it has ended already.
func (l *Lease) OnEnd(fn func()) (held bool) {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
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

// Abandon stops the renewals of a lease of which a holder has lost its handle, so
// that nobody will ever release it.
func (l *Lease) Abandon() {
	l.s.mu.Lock()
	l.Abandoned = true
	held, ttl, token := l.State == Held, l.Terms.TTL, l.Body.Token
	l.moved()
	l.s.mu.Unlock()
	if held {
		// Not by warn: this goroutine is the runtime's, and may be outside of a bubble.
		l.s.Logger.Warn("a held lock was dropped without Unlock; it is renewed no more and ends by its TTL",
			"lock", l.kept.Name, "token", token, "ttl", ttl)
	}
}

// Confirm renews the lease now and waits for the confirmation.
func (l *Lease) Confirm(ctx context.Context) error { return l.confirm(ctx, true) }

// Renewed waits for the next confirmation of the lease, or for the end of the client. It
// renews the lease if no renewal is on its way.
func (l *Lease) Renewed(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(l.s.b.Life(), cancel)()
	return l.confirm(ctx, false)
}

// Keep has the lease renewed in time, also a fixed one, until stop is called. stop does nothing, and returns
// false, while the answer to a renewal is still to come: that may be stored when nobody knows of it any more.
func (l *Lease) Keep() (stop func() (stopped bool)) {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	x := extension{after: math.MaxUint64, done: make(chan error, 1)} // which no renewal ends
	l.waiting = append(l.waiting, x)
	l.Waiting++
	l.moved()
	return func() bool { return l.forget(x, true) }
}

// forget ends a wait for a confirmation. If settled is true, it does nothing and returns false while the lease is
// held and the answer to a renewal is still to come.
func (l *Lease) forget(x extension, settled bool) bool {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	if settled && l.State == Held && l.Unanswered() { //safety:kept-settled
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
		l.apply(l.kept.Suspect(l.Last, l.s.b.Instant()), "")
	}
	l.moved()
	return true
}

// confirm waits for a confirmation: of a renewal that is sent from now on, or of any.
func (l *Lease) confirm(ctx context.Context, fresh bool) error {
	l.s.mu.Lock()
	if l.State != Held {
		cause := l.cause
		l.s.mu.Unlock()
		return cause
	}
	x := extension{done: make(chan error, 1)}
	if fresh {
		x.after = l.Renewal()
	}
	l.waiting = append(l.waiting, x)
	l.Waiting++
	if fresh || !l.Unanswered() {
		l.RenewNow(l.s.b.Instant())
		l.moved()
	}
	l.s.mu.Unlock()
	select {
	case err := <-x.done:
		return err
	case <-ctx.Done():
	}
	l.forget(x, false)
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	return fmt.Errorf("renew lock %q: %w: not confirmed%s: %w", l.kept.Name, bucket.ErrUnavailable, l.failed(), bucket.EndOf(ctx))
}

// startWatch subscribes to the own record. The renewal that follows proves
// that the subscription is in place and that nothing was missed before. It
// runs on the goroutine that sends.
func (l *Lease) startWatch() {
	w, err := l.s.b.Watch(l.Key, l.notified)
	if err != nil {
		return // the next renewal shows a break
	}
	l.s.mu.Lock()
	if l.State == Held && l.use.Watching && l.watch == nil {
		l.watch = w
		l.apply(l.kept.Suspect(l.Last, l.s.b.Instant()), "")
		w = nil
	}
	l.s.mu.Unlock()
	if w != nil {
		w.Stop()
	}
}

// notified takes a change of the own record.
func (l *Lease) notified(ev kvstore.Event) {
	if ev.Kind != kvstore.Put && ev.Kind != kvstore.Deleted {
		return
	}
	l.s.mu.Lock()
	old := l.Old(ev.Record.Revision)
	l.s.mu.Unlock()
	if old { // most are: of an own renewal whose answer was quicker
		return
	}
	entry := record.Of(ev.Record)
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	l.apply(l.kept.Notified(entry, l.s.b.Instant()), "") // which ends nothing
}

// Entry returns the record as the client knows it, for errors and views.
func (l *Lease) Entry() record.Entry {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	age := l.s.b.Instant().Sub(l.LastSent)
	return record.Entry{
		Record: kvstore.Record{Key: l.Key, Revision: l.Last, TTL: l.Terms.TTL, Time: l.s.b.Now().Add(-age)},
		Body:   l.Body,
	}
}
