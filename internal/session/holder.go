package session

import (
	"context"
	"errors"
	"maps"
	"strconv"
	"time"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/record"
)

const (
	// renewAhead is the grant on one revision that asks for the next revision, so that
	// it is there when the numbers of this one run out.
	renewAhead = record.GrantsPerRevision / 2
	// showEvery is how often at most a lease is renewed only to show its holder.
	showEvery = 100 * time.Millisecond
)

// Admission is what a caller brings to a lease.
type Admission struct {
	Parent   context.Context // of the holder's context
	Detached bool            // from the end of Parent
	Meta     map[string]string
	Begun    clock.Instant // of the wait
	Queued   bool          // it has waited behind another holder
	Lingers  bool          // the client may keep the lease idle afterwards
	Least    time.Duration // for how long the lease keeps others out at least, from now on

	// Warn is called once after each confirmation, WarnBefore before the end of the
	// validity, on a goroutine of its own; nil: never. It may come to run after the end.
	Warn       func()
	WarnBefore time.Duration
}

// Holder is one caller's part in a lease. It ends when the caller leaves, and with the
// lease.
type Holder struct {
	lease  *Lease
	number uint64 // of the holders of the lease, from 1
	token  uint64
	parent context.Context // the acquire's, for observers
	ctx    context.Context
	cancel context.CancelCauseFunc

	// The following fields are under the lease's mu.
	next   *Holder // of those inside
	asked  *asked  // nil: nothing
	state  State
	warned bool
	cause  *EndError     // of the end; nil while inside
	left   clock.Instant // when it left a lease that goes on; 0: it has not
}

// asked is what a holder has asked of its lease. Most holders ask for nothing, and a lease
// stays in its size class. Under the lease's mu.
type asked struct {
	terms      clock.Terms   // by Extend; zero: those of the grant
	least      time.Duration // of the hold; 0: as long as the holder wants
	since      clock.Instant // the beginning of that
	warnBefore time.Duration // 0: no early warning
	onWarn     func()
	hint       chan struct{} // see Hint; nil: none yet
	stored     *stored       // beside other metadata on their way; nil: there are none
}

// asks returns what the holder has asked for, to be changed. Under the lease's mu.
func (h *Holder) asks() *asked {
	if h.asked == nil {
		h.asked = &asked{}
	}
	return h.asked
}

// Admit makes a caller a holder of the lease, and publishes the grant. The server has
// granted the lease to the first holder. The next ones are admitted without a message:
// readers beside each other, others one after the other. h is the zero Holder, to be used
// if admitted is true. Admit returns the cause when the lease has ended. Without one, and
// false, the lease has to be confirmed first: see [Lease.Renewed].
func (l *Lease) Admit(h *Holder, a Admission) (admitted bool, err error) {
	base := a.Parent
	if a.Detached {
		base = context.WithoutCancel(a.Parent)
	}
	var lost ending
	defer func() { lost.finish() }()
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.s.b.Instant()
	if l.state == Held && l.valid.Over(now) {
		lost = l.expire()
	}
	switch {
	case l.state != Held: //safety:admitted-inside
		return false, l.cause
	case l.abandoned:
		return false, errAbandoned
	case l.grants > 0 && !l.admits(now):
		return false, nil
	}
	l.grants++
	h.lease, h.number, h.token, h.parent = l, l.grants, l.Body.Token, a.Parent
	waiting := now.Sub(a.Begun)
	if l.grants > 1 {
		waited := int64(0)
		if a.Queued {
			waited = max(waiting.Milliseconds(), 1)
		}
		l.Body.Grants, l.Body.Waits = l.grants, l.Body.Waits+waited
		if !l.shared() { // the record of readers says since when there are any
			l.Body.Since, l.Body.Waited = time.Now().UnixMilli(), waited
		}
	}
	h.ctx, h.cancel = context.WithCancelCause(base)
	h.next, l.holders = l.holders, h
	if a.Least > 0 {
		h.asks().least, h.asks().since = a.Least, now
	}
	if a.Lingers && !l.Body.Lingers {
		l.Body.Lingers, l.marked = true, now
		l.renewSoon()
	}
	if l.Body.Lingers {
		l.Body.InUse = max(l.Body.InUse, 1)
	}
	if l.idle {
		l.used(now)
	}
	// The attempt that was granted may have been another caller's. A lease that lingers is
	// taken often, and an ordinary renewal shows its holder.
	if l.grants > 1 && !l.shared() && !l.Body.Lingers || !maps.Equal(l.Body.Meta, a.Meta) {
		l.show(a)
	}
	l.wanted()
	if a.Warn != nil {
		h.asks().warnBefore, h.asks().onWarn = a.WarnBefore, a.Warn
		l.moved()
	}
	ev := h.event(EventGranted, nil)
	ev.Waited = waiting
	l.s.Notify(h.parent, ev) // before an event of its end
	return true, nil
}

// shared says whether the lease is that of readers, who are inside together.
func (l *Lease) shared() bool { return record.Mode(l.Body.Mode) == record.Shared }

// errAbandoned says that a lease runs out, since the handle of a holder was dropped.
var errAbandoned = errors.New("the handle of its holder was dropped")

// admits says whether the lease can have another holder now, and numbers its grant. Under
// mu.
func (l *Lease) admits(now clock.Instant) bool {
	// A holder that begins needs time to work in.
	if l.valid.End.Sub(now) < (l.terms.TTL-l.terms.Margin)/3 { //safety:admitted-early
		return false
	}
	// A renewal's revision would put a reader above the writer after it.
	if l.shared() { //safety:token-of-readers
		return true
	}
	revision, n := record.TokenRevision(l.Body.Token), record.TokenGrant(l.Body.Token)
	switch {
	// Only an acknowledged revision is above all tokens granted on the ones before.
	case l.last > revision: //safety:token-revision
		revision, n = l.last, 0
	case n+1 == record.GrantsPerRevision: //safety:token-full
		return false
	default:
		n++ //safety:token-number
	}
	l.Body.Token = record.Token(revision, n)
	if n == renewAhead {
		l.renewNow(now)
	}
	return true
}

// show has the next renewal show the holder, and that renewal come soon. Under mu.
func (l *Lease) show(a Admission) {
	l.Body.Meta = a.Meta
	l.renewSoon()
}

// renewSoon has a renewal show what has changed, but not too often. Under mu.
func (l *Lease) renewSoon() { l.renewNow(max(l.s.b.Instant(), l.renewals.asked.Add(showEvery))) }

// wanted has the lease renewed at once when its holders want another TTL: the longest one
// counts, and that of an Extend ends with its holder. Under mu.
func (l *Lease) wanted() {
	var longest clock.Terms
	for h := l.holders; h != nil; h = h.next {
		t := l.kept.Terms
		// The TTL that covers a minimum hold stays: the holder may crash.
		if x := h.asked; x != nil && x.terms.TTL != 0 && (x.least == 0 || x.terms.TTL > t.TTL) { //safety:rest-covered
			t = x.terms
		}
		if t.TTL > longest.TTL { //safety:readers-lengthen
			longest = t
		}
	}
	if r := &l.renewals; l.holders != nil && r.want != longest { //safety:extend-ends
		r.want = longest
		l.renewNow(l.s.b.Instant())
	}
}

func (h *Holder) event(t EventType, cause error) Event {
	l := h.lease
	ev := Event{Type: t, Kind: l.Kind, Name: l.kept.Name, Token: h.token, Cause: cause}
	if l.s.notifier.observe != nil {
		ev.ID = h.ID() // which is made for each holder but the first
	}
	return ev
}

// Lease returns the lease that the holder has a part in.
func (h *Holder) Lease() *Lease { return h.lease }

// Hint returns a channel that stays the holder's, and whether no call has done so before.
func (h *Holder) Hint() (hint chan struct{}, first bool) {
	h.lease.mu.Lock()
	defer h.lease.mu.Unlock()
	x := h.asks()
	if first = x.hint == nil; first {
		x.hint = make(chan struct{})
	}
	return x.hint, first
}

// Name returns the lock's name.
func (h *Holder) Name() string { return h.lease.kept.Name }

// Key returns the key of the lease.
func (h *Holder) Key() string { return h.lease.Granted.Key }

// ID returns the holder's id: that of the claim for its first holder, with a number for
// the next ones.
func (h *Holder) ID() string {
	id := h.lease.Body.ID
	if h.number > 1 {
		id += "." + strconv.FormatUint(h.number, 10)
	}
	return id
}

// Token returns the fencing token.
func (h *Holder) Token() uint64 { return h.token }

// Context ends with the holder's part.
func (h *Holder) Context() context.Context { return h.ctx }

// Status returns the state, what is left of the validity, and the cause of the end. It
// does no I/O, and it reads the clock itself.
func (h *Holder) Status() (State, time.Duration, error) {
	l := h.lease
	_, left, _ := l.Status()
	l.mu.Lock()
	defer l.mu.Unlock()
	if h.cause != nil {
		return h.state, 0, h.cause
	}
	return Held, left, nil
}

// Left returns how much of the validity is left, negative when it has ended.
func (h *Holder) Left() time.Duration {
	l := h.lease
	l.mu.Lock()
	defer l.mu.Unlock()
	end := l.valid.End
	if h.left != 0 {
		end = h.left
	}
	return end.Sub(l.s.b.Instant())
}

// Leave ends the holder's part in a lease that goes on. The context ends first: the work
// under it must not meet the next holder. It returns nil when the call that began now came
// inside the validity, and otherwise the cause of the end.
func (h *Holder) Leave(now clock.Instant) error {
	l := h.lease
	l.mu.Lock()
	var lost ending
	if l.state == Held && l.valid.Over(now) { //safety:leave-judged
		lost = l.expire()
	}
	cause := h.cause
	if cause == nil {
		h.cause = &EndError{Name: l.kept.Name, Token: h.token, Kind: ErrReleased}
		h.left = now
		p := &l.holders
		for *p != h {
			p = &(*p).next
		}
		*p, h.next = h.next, nil
		if l.holders == nil {
			l.Body.InUse = 0
		}
		l.wanted()
	}
	h.state = Released
	l.mu.Unlock()
	lost.finish()
	if cause != nil {
		return cause
	}
	h.end(EventReleased, h.cause) //safety:leave-context-first
	return nil
}

// Release ends the lease with its holder: see [Lease.Release].
func (h *Holder) Release(ctx context.Context) error { return h.lease.Release(ctx) }

// Retire ends the lease with its holder, and leaves the record: see [Lease.Retire].
func (h *Holder) Retire() error { return h.lease.Retire() }

// Abandon has the lease run out: the handle of its holder was dropped. See
// [Lease.Abandon].
func (h *Holder) Abandon() { h.lease.Abandon() }

// end publishes the end of the holder's part. The event comes first: the counts contain
// an end before anybody can see it. Without the mutex.
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
