package session

import (
	"context"
	"strconv"
	"time"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/record"
)

// Admission is what a caller brings to a lease.
type Admission struct {
	Parent   context.Context // of the holder's context
	Detached bool            // from the end of Parent
	Meta     map[string]string
	Begun    clock.Instant // of the wait
	Queued   bool          // it has waited behind another holder
	Lingers  bool          // the client may keep the lease idle afterwards
	Least    time.Duration // the shortest time for which the lease keeps others out, from now on

	// Warn is called once after each confirmation, WarnBefore before the end of the validity, on a goroutine of its
	// own, or never if it is nil. It may run after the end.
	Warn       func()
	WarnBefore time.Duration
}

// Holder is one caller's part in a lease. It ends when the caller leaves or the lease ends.
type Holder struct {
	lease  *Lease
	number uint64 // among the holders of the lease, from 1
	token  uint64
	parent context.Context // the acquire's, for observers
	ctx    context.Context
	cancel context.CancelCauseFunc

	// The following fields are under the keeper's mutex.
	next   *Holder // in the list of those inside
	wishes *wishes // nil if it wants nothing special from the lease
	state  State
	warned bool
	cause  *EndError     // of the end; nil while inside
	left   clock.Instant // when it left a lease that goes on; 0 if it did not
}

// wishes are what a holder wants from its lease. Most holders want nothing and have none, which keeps a Holder small.
// Under the mutex.
type wishes struct {
	core.Wish
	warnBefore time.Duration // 0 for no early warning
	onWarn     func()
	unstored   []unstored    // the SetMeta calls whose metadata are not confirmed
	crowded    clock.Instant // since when goroutines of the client have waited behind the holder; 0 if none do
	logged     bool          // that they do
}

// wanted returns the wishes of the holder, for a change. Under the mutex.
func (h *Holder) wanted() *wishes {
	if h.wishes == nil {
		h.wishes = &wishes{}
	}
	return h.wishes
}

// Admit makes a caller a holder of the lease, and publishes the grant. The server has granted the lease to the first
// holder. Later ones are admitted without a message: readers side by side, others one after another. h is the zero
// Holder, which Admit fills in. If the lease has ended, Admit returns the cause. If it returns false without an error,
// the lease has to be confirmed first: see [Lease.Renewed].
func (l *Lease) Admit(h *Holder, a Admission) (admitted bool, err error) {
	base := a.Parent
	if a.Detached {
		base = context.WithoutCancel(a.Parent)
	}
	ctx, cancel := context.WithCancelCause(base) // calls methods of a context that may be the user's
	defer func() {
		if !admitted {
			cancel(nil)
		}
	}()
	l.s.Lock()
	defer l.s.Unlock()
	now := l.s.b.Instant()
	waited := now.Sub(a.Begun)
	entrant := core.Entrant{Waited: waited, Queued: a.Queued, Lingers: a.Lingers, Meta: a.Meta, Wall: time.Now().UnixMilli()}
	switch admission, u := l.use.Admit(&l.Kept, entrant, now, l.s.WatchAfter); admission {
	case core.NotHeld:
		if u.End != core.NoEnd {
			l.Apply(u, "")
		}
		return false, l.cause
	case core.RunsOut:
		return false, errAbandoned
	case core.ConfirmFirst:
		return false, nil
	}
	h.lease, h.number, h.token, h.parent = l, l.use.Grants, l.Body.Token, a.Parent
	h.ctx, h.cancel = ctx, cancel
	h.next, l.holders = l.holders, h
	if a.Least > 0 {
		h.wanted().Least, h.wanted().Since = a.Least, now
	}
	if a.Warn != nil {
		h.wanted().warnBefore, h.wanted().onWarn = a.WarnBefore, a.Warn
	}
	l.wanted()
	ev := h.event(EventGranted, nil)
	ev.Waited = waited
	l.s.Notify(h.parent, ev) // before an event of its end
	return true, nil
}

// shared reports whether the lease is that of readers, who are inside together.
func (l *Lease) shared() bool { return l.Shared() }

// warn gives the early warning, once per confirmation, on a goroutine of its own: behind an
// observer, or behind the warning of another lock, it would come too late. Under the mutex.
func (h *Holder) warn() {
	if h.wishes != nil && h.wishes.onWarn != nil && !h.warned {
		h.warned = true
		go h.wishes.onWarn()
	}
}

// wish returns what the holder wants from the lease, nil if nothing. Under the mutex.
func (h *Holder) wish() *core.Wish {
	if h.wishes == nil {
		return nil
	}
	return &h.wishes.Wish
}

func (h *Holder) event(t EventType, cause error) Event {
	l := h.lease
	ev := Event{Type: t, Kind: l.Kind, Name: l.Name, Token: h.token, Cause: cause}
	if l.s.notifier.observe != nil {
		ev.ID = h.ID() // for every holder but the first, the id has to be made
	}
	return ev
}

// Keep makes the release leave the record of a finished job, so that others stay out for d from now on. It does nothing
// if the lease has ended.
func (h *Holder) Keep(d time.Duration) {
	l := h.lease
	l.s.Lock()
	defer l.s.Unlock()
	if l.State == Held { //safety:once-held
		h.wanted().Least, h.wanted().Since = d, l.s.b.Instant()
		l.Body.Purpose = record.Job
	}
}

// Lease returns the holder's lease.
func (h *Holder) Lease() *Lease { return h.lease }

// Name returns the lock's name.
func (h *Holder) Name() string { return h.lease.Name }

// Key returns the key of the lease.
func (h *Holder) Key() string { return h.lease.Key }

// ID returns the holder's id: the claim's for the first holder, with a number for later ones.
func (h *Holder) ID() string {
	id := h.lease.Body.ID
	if h.number > 1 {
		id += "." + strconv.FormatUint(h.number, 10)
	}
	return id
}

// Token returns the fencing token.
func (h *Holder) Token() uint64 { return h.token }

// Context returns a context that ends with the holder's part.
func (h *Holder) Context() context.Context { return h.ctx }

// Status returns the state, what is left of the validity, and the cause of the end. It does no I/O, and reads the clock
// itself.
func (h *Holder) Status() (State, time.Duration, error) {
	l := h.lease
	_, left, _ := l.Status()
	l.s.Lock()
	defer l.s.Unlock()
	if h.cause != nil {
		return h.state, 0, h.cause
	}
	return Held, left, nil
}

// Left returns what is left of the validity, negative if it has ended.
func (h *Holder) Left() time.Duration {
	l := h.lease
	l.s.Lock()
	defer l.s.Unlock()
	end := l.Valid.End
	if h.left != 0 {
		end = h.left
	}
	return end.Sub(l.s.b.Instant())
}

// Leave ends the holder's part in a lease that continues. The context ends first: the work under it must not meet the
// next holder. Leave returns nil if the lease was valid at time now, when the caller began to leave, and otherwise the
// cause of the end.
func (h *Holder) Leave(now clock.Instant) error {
	l := h.lease
	l.s.Lock()
	l.EndIfOver(now) //safety:leave-judged
	cause := h.cause
	if cause == nil {
		h.cause = &EndError{Name: l.Name, Token: h.token, Kind: ErrReleased}
		h.left = now
		p := &l.holders
		for *p != h {
			p = &(*p).next
		}
		*p, h.next = h.next, nil
		if l.holders == nil {
			l.Body.InUse = false
		}
		l.wanted()
	}
	h.state = Released
	l.s.Unlock()
	if cause != nil {
		h.cancel(cause) // another goroutine may still be publishing the end
		return cause
	}
	h.end(EventReleased, h.cause) //safety:leave-context-first
	return nil
}

// Release ends the lease with its holder: see [Lease.Release].
func (h *Holder) Release(ctx context.Context) error { return h.lease.Release(ctx) }

// Retire ends the lease with its holder, and leaves the record: see [Lease.Retire].
func (h *Holder) Retire() error { return h.lease.Retire() }

// Abandon lets the lease run out, because the handle of its holder was dropped. See [Lease.Abandon].
func (h *Holder) Abandon() { h.lease.Abandon() }

// end publishes the end of the holder's part. The event comes first, so that the counts contain an end before any
// caller can see it. Without the mutex.
func (h *Holder) end(event EventType, cause *EndError) {
	if event != 0 {
		var why error
		if event != EventReleased {
			why = cause
		}
		h.lease.s.Notify(h.parent, h.event(event, why))
	}
	h.cancel(cause)
}
