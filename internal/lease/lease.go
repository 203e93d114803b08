package lease

import (
	"context"
	"time"

	"github.com/natslock/locks/kvstore"
)

// State is the state of a lease.
type State uint8

const (
	// Held: inside its validity.
	Held State = iota
	// Lost: over without a release.
	Lost
	// Released by its holder.
	Released
	// Ended: over at the time it was taken until.
	Ended
)

// spec is what a lease is of.
type spec struct {
	kind Kind
	name string
	key  string
	lock bool // a lock; otherwise a place in a queue
	once bool // the key is never claimed again
}

// Lease is a record of this client that is kept alive. Its times obey three
// rules:
//
//   - a write counts from its sending and ends a margin before its TTL does;
//   - a confirmation that arrives after the current end counts for nothing;
//   - a renewal expects the last revision known, never 0, so it can neither
//     bring back a record that has gone nor overwrite a stranger's.
type Lease struct {
	e      *Engine
	spec   spec
	id     string
	token  uint64
	status Status // of its renewals' records, and what else they say
	mode   uint8
	meta   map[string]string
	since  int64
	waited int64
	base   context.Context // the acquire's, for observers
	ctx    context.Context
	cancel context.CancelCauseFunc
	onEnd  func() // called once; may be nil

	warnBefore time.Duration
	onWarn     func()

	// All below is under keeper.mu.
	state     State
	cause     *EndError // of the end; nil while held
	terms     terms     // of the last confirmation
	want      terms     // of the next renewal
	fixed     bool      // not renewed, but by Extend
	cap       Instant   // the end of a lease that ends at a given time; else 0
	end       Instant
	last      uint64  // the last revision known
	lastSent  Instant // when the write at last was sent
	announced bool    // told to the observers as granted
	sent      []renewal
	renewals  uint64 // number of the last renewal
	retries   int
	resolving bool    // a refusal is being looked into
	suspected uint64  // the highest revision that a hint has named
	breaker   string  // what a hint said of a break, to name the cause of a proven loss
	asked     Instant // when the last renewal was sent
	abandoned bool    // the handle was dropped
	extending []extension

	nextRenewal Instant
	need        uint64  // a renewal with at least this number is wanted at once
	watchAt     Instant // 0: never, or watching
	watch       kvstore.Watch
	warned      bool
	due         Instant
	index       int

	released chan struct{} // closed when the release is over
	result   error
}

// body is that of renewal n.
func (l *Lease) body(n uint64) Body {
	b := l.e.body(l.status, l.meta)
	b.ID, b.Token, b.Renewal = l.id, l.token, n
	b.Fixed, b.Mode, b.Since, b.Waited = l.fixed, l.mode, l.since, l.waited
	return b
}

// Name returns the lock's name.
func (l *Lease) Name() string { return l.spec.name }

// Kind returns the lock's kind.
func (l *Lease) Kind() Kind { return l.spec.kind }

// ID returns the claim's id.
func (l *Lease) ID() string { return l.id }

// Token returns the fencing token.
func (l *Lease) Token() uint64 { return l.token }

// Context ends with the lease.
func (l *Lease) Context() context.Context { return l.ctx }

// Status returns the state, what is left of the validity, and the cause of
// the end. It does no I/O, and it looks at the clock itself: it is right also
// where the keeper has not come to it yet.
func (l *Lease) Status() (State, time.Duration, error) {
	k := l.e.keeper
	k.mu.Lock()
	var act func()
	left := l.end.Sub(l.e.now())
	if l.state == Held && left <= 0 {
		act = l.expire()
	}
	state, cause := l.state, l.cause
	k.mu.Unlock()
	if act != nil {
		act()
	}
	if cause != nil {
		return state, 0, cause
	}
	return state, left, nil
}

const overdue = "its lease ended without a confirmation from the server"

// renews says whether the keeper is to renew the lease. Under mu.
func (l *Lease) renews() bool {
	return l.state == Held && !l.abandoned && (!l.fixed || len(l.extending) > 0)
}

// schedule computes when the keeper has to look at the lease. Under mu.
func (l *Lease) schedule() {
	l.due = l.end
	if l.renews() && !l.resolving {
		l.due = min(l.due, l.nextRenewal)
	}
	if l.watchAt != 0 {
		l.due = min(l.due, l.watchAt)
	}
	if l.warnBefore > 0 && !l.warned {
		l.due = min(l.due, l.end.Add(-l.warnBefore))
	}
}

// tick does what is due and returns what is to be done without the mutex.
// Under mu.
func (l *Lease) tick(now Instant) func() {
	if now >= l.end {
		return l.expire()
	}
	if l.watchAt != 0 && now >= l.watchAt {
		l.watchAt = 0
		l.e.sender.add(l.startWatch)
	}
	if l.warnBefore > 0 && !l.warned && now >= l.end.Add(-l.warnBefore) {
		l.warn()
	}
	if l.renews() && !l.resolving && now >= l.nextRenewal {
		l.nextRenewal = now.Add(max(min(l.want.ttl, l.terms.ttl)/15, minRetry))
		l.e.sender.add(l.renew)
	}
	return nil
}

// warn gives the early warning, once per confirmation. Under mu.
func (l *Lease) warn() {
	if l.onWarn != nil && !l.warned {
		l.warned = true
		l.e.teller.add(l.onWarn)
	}
}

// expire ends a held lease whose validity is over: as planned, if it was taken until
// that time. Under mu.
func (l *Lease) expire() func() {
	if l.cap != 0 && l.end >= l.cap {
		return l.lose(ErrEnded, "")
	}
	return l.lose(ErrLost, overdue)
}

// lose ends a held lease and returns what is to be done without the mutex.
// Under mu.
func (l *Lease) lose(kind error, why string) func() {
	if l.state != Held {
		return func() {}
	}
	if l.breaker != "" && (kind == ErrLost || kind == ErrEnded) {
		// Broken so that others got in at once: by now the record is theirs.
		kind, why = ErrBroken, l.breaker
	}
	l.state = Lost
	if kind == ErrEnded {
		l.state = Ended
	}
	l.end = min(l.end, l.e.now())
	l.cause = &EndError{Name: l.spec.name, Token: l.token, Kind: kind, Why: why}
	k := l.e.keeper
	k.retire(l)
	k.tellEmpty()
	if l.abandoned || kind == ErrClosed {
		delete(k.leases, l)
	}
	left, announced := l.finish(), l.announced
	typ := EventLost
	switch kind {
	case ErrBroken:
		typ = EventBroken
	case ErrEnded:
		typ = EventEnded
	}
	ev := l.event(typ, l.cause)
	return func() {
		if announced { // first, so that who sees the end finds it counted
			l.e.tell(l.base, ev)
		}
		left.tell(ev.Cause)
	}
}

// leavings are what a lease in its end leaves behind.
type leavings struct {
	l       *Lease
	watch   kvstore.Watch
	sent    []renewal
	waiting []extension
	onEnd   func()
}

// finish takes what the lease leaves behind. Under mu.
func (l *Lease) finish() leavings {
	left := leavings{l, l.watch, l.sent, l.extending, l.onEnd}
	l.watch, l.sent, l.extending, l.onEnd, l.watchAt = nil, nil, nil, nil, 0
	return left
}

// tell ends what depends on the lease. Without the mutex.
func (left leavings) tell(cause error) {
	e := left.l.e
	left.l.cancel(cause)
	for _, x := range left.waiting {
		x.done <- cause
	}
	if left.watch != nil {
		e.sender.add(left.watch.Stop)
	}
	for _, s := range left.sent {
		if s.forget != nil { // its answer may still have a record to delete
			e.ghosts.keep(s.forget)
		}
	}
	if left.onEnd != nil {
		left.onEnd()
	}
}

func (l *Lease) event(t EventType, cause error) Event {
	return Event{Type: t, Kind: l.spec.kind, Name: l.spec.name, ID: l.id, Token: l.token, Cause: cause}
}

// Left returns how much of the validity is left, negative when it has ended.
func (l *Lease) Left() time.Duration {
	k := l.e.keeper
	k.mu.Lock()
	defer k.mu.Unlock()
	return l.end.Sub(l.e.now())
}

// confirmation returns when the last write that the server has acknowledged was
// sent, and at which revision it is stored.
func (l *Lease) confirmation() (sent Instant, revision uint64) {
	k := l.e.keeper
	k.mu.Lock()
	defer k.mu.Unlock()
	return l.lastSent, l.last
}

// Abandon stops the renewals of a lease whose holder has lost its handle, so
// that nobody will ever release it.
func (l *Lease) Abandon() {
	k := l.e.keeper
	k.mu.Lock()
	l.abandoned = true
	held, ttl := l.state == Held, l.terms.ttl
	if l.state != Held {
		delete(k.leases, l)
	}
	k.moved(l)
	k.mu.Unlock()
	if held {
		l.e.log.Warn("a held lock was dropped without Unlock; it is renewed no more and ends by its TTL",
			"lock", l.spec.name, "token", l.token, "ttl", ttl)
	}
}
