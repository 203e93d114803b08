package session

import (
	"context"
	"strconv"
	"time"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/record"
)

// Admission describes a caller to be admitted to a lease.
type Admission struct {
	Parent   context.Context // parent of the holder's context
	Detached bool            // the holder's context does not end with Parent
	Meta     map[string]string
	Begun    clock.Instant // when the wait began
	Queued   bool          // the caller has waited behind another holder
	Lingers  bool          // the client may keep the lease idle afterwards
	Least    time.Duration // the minimum time, starting now, that the lease keeps others out

	// Warn, if not nil, is called once after each confirmation, WarnBefore before the validity ends. It runs on its own
	// goroutine and may run after the end.
	Warn       func()
	WarnBefore time.Duration
}

// Holder is one caller's part in a lease. It ends when the caller leaves or the lease ends.
type Holder struct {
	lease  *Lease
	number uint64 // among the holders of the lease, counting from 1
	token  uint64
	parent context.Context // the acquire's context, for observers
	ctx    context.Context
	cancel context.CancelCauseFunc

	// The following fields are guarded by the keeper's mutex.
	next   *Holder // in the list of holders inside
	wishes *wishes // nil if the holder wants nothing special
	state  State
	warned bool
	cause  *EndError     // why the holder ended; nil while it is inside
	left   clock.Instant // when the holder left a lease that continues; 0 if it did not
}

// wishes holds what a holder wants from its lease. Most holders want nothing special and have no wishes, which keeps a
// Holder small. The mutex guards all fields.
type wishes struct {
	core.Wish
	warnBefore time.Duration // 0 for no early warning
	onWarn     func()
	unstored   []unstored    // SetMeta calls whose metadata has not been confirmed
	crowded    clock.Instant // when the client's goroutines began to wait behind the holder; 0 if none are waiting
	logged     bool          // whether logCrowd has logged the wait
}

// wanted returns the holder's wishes so that they can be changed. The mutex must be held.
func (h *Holder) wanted() *wishes {
	if h.wishes == nil {
		h.wishes = &wishes{}
	}
	return h.wishes
}

// Admit makes a caller a holder of the lease and publishes the grant. The server granted the lease to the first holder.
// Later ones are admitted without a message to the server: readers side by side, others one after another. h is the
// zero Holder, which Admit fills in. If the lease has ended, Admit returns the cause. If it returns false without an
// error, the lease has to be confirmed first: see [Lease.Renewed].
func (l *Lease) Admit(h *Holder, a Admission) (admitted bool, err error) {
	base := a.Parent
	if a.Detached {
		base = context.WithoutCancel(a.Parent)
	}
	ctx, cancel := context.WithCancelCause(base) // outside the mutex, because the context may be the user's
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
	l.s.Notify(h.parent, ev) // ahead of any event for its end
	return true, nil
}

// shared reports whether readers share the lease.
func (l *Lease) shared() bool { return l.Shared() }

// warn gives the early warning, once per confirmation. It does so on a separate goroutine, because a warning queued
// behind an observer or another lock's warning would come too late. The mutex must be held.
func (h *Holder) warn() {
	if h.wishes != nil && h.wishes.onWarn != nil && !h.warned {
		h.warned = true
		go h.wishes.onWarn()
	}
}

// wish returns what the holder wants from the lease, or nil if it wants nothing special. The mutex must be held.
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
		ev.ID = h.ID() // for every holder but the first, ID has to build a string
	}
	return ev
}

// Keep makes the release leave the record in place as a finished job's record, so that others stay out for d from now
// on. It does nothing if the lease has ended.
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

// ID returns the holder's id, which is the claim's id for the first holder, with a number appended for later ones.
func (h *Holder) ID() string {
	id := h.lease.Body.ID
	if h.number > 1 {
		id += "." + strconv.FormatUint(h.number, 10)
	}
	return id
}

// Token returns the fencing token.
func (h *Holder) Token() uint64 { return h.token }

// Context returns the holder's context, which ends when the holder does.
func (h *Holder) Context() context.Context { return h.ctx }

// Status returns the state, the remaining validity, and the cause of the end. It does no I/O and reads the clock
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

// Left returns the remaining validity, which is negative if it has ended.
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

// Leave ends the holder's part in a lease that continues. The context ends first, because the work under it must not
// overlap with the next holder's. Leave returns nil if the lease was valid at time now, when the caller began to leave,
// and otherwise the cause of the end.
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

// Release ends the lease along with the holder: see [Lease.Release].
func (h *Holder) Release(ctx context.Context) error { return h.lease.Release(ctx) }

// Retire ends the lease along with the holder but leaves the record in place: see [Lease.Retire].
func (h *Holder) Retire() error { return h.lease.Retire() }

// Abandon lets the lease run out because its holder's handle was dropped: see [Lease.Abandon].
func (h *Holder) Abandon() { h.lease.Abandon() }

// end ends the holder's context after publishing event. The event comes first, so that the counts include an end before
// any caller can see it. The mutex must not be held.
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
