package lease

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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
	body   Body            // of its renewals
	base   context.Context // the acquire's, for observers
	ctx    context.Context
	cancel context.CancelCauseFunc
	onEnd  func() // may be nil

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

// renewal is a renewal without an answer yet.
type renewal struct {
	n      uint64
	at     Instant
	terms  terms
	forget func()
}

// extension waits for a renewal later than number after.
type extension struct {
	after uint64
	done  chan error
}

// minRetry is the shortest time between two renewals of one lease.
const minRetry = 50 * time.Millisecond

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
		act = l.lose(ErrLost, overdue)
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
		return l.lose(ErrLost, overdue)
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

// lose ends a held lease and returns what is to be done without the mutex.
// Under mu.
func (l *Lease) lose(kind error, why string) func() {
	if l.state != Held {
		return func() {}
	}
	if l.breaker != "" && kind == ErrLost {
		// Broken so that others got in at once: by now the record is theirs.
		kind, why = ErrBroken, l.breaker
	}
	l.state = Lost
	l.end = min(l.end, l.e.now())
	l.cause = &EndError{Name: l.spec.name, Token: l.token, Kind: kind, Why: why}
	k := l.e.keeper
	k.retire(l)
	k.tellEmpty()
	if l.abandoned || kind == ErrClosed {
		delete(k.leases, l)
	}
	finish, announced := l.finish(), l.announced
	typ := EventLost
	if errors.Is(kind, ErrBroken) {
		typ = EventBroken
	}
	ev := l.event(typ, l.cause)
	return func() {
		if announced { // first, so that who sees the end finds it counted
			l.e.tell(l.base, ev)
		}
		finish(ev.Cause)
	}
}

// finish takes what a lease in its end leaves behind and returns what is to be
// done without the mutex. Under mu.
func (l *Lease) finish() func(cause error) {
	watch, sent, waiting, onEnd := l.watch, l.sent, l.extending, l.onEnd
	l.watch, l.sent, l.extending, l.watchAt = nil, nil, nil, 0
	return func(cause error) {
		l.cancel(cause)
		for _, x := range waiting {
			x.done <- cause
		}
		if watch != nil {
			l.e.sender.add(watch.Stop)
		}
		for _, s := range sent {
			if s.forget != nil { // its answer may still have a record to delete
				l.e.ghosts.keep(s.forget)
			}
		}
		if onEnd != nil {
			onEnd()
		}
	}
}

func (l *Lease) event(t EventType, cause error) Event {
	return Event{Type: t, Kind: l.spec.kind, Name: l.spec.name, ID: l.id, Token: l.token, Cause: cause}
}

// renew sends a renewal. It runs on the engine's sender.
func (l *Lease) renew() {
	k := l.e.keeper
	k.mu.Lock()
	if !l.renews() || l.resolving {
		k.mu.Unlock()
		return
	}
	l.renewals++
	n, t, expect := l.renewals, l.want, l.last
	body := l.body
	body.Renewal = n
	body.TTL = int64(t.ttl / time.Second)
	now := l.e.now()
	l.sent = append(l.sent, renewal{n: n, at: now, terms: t})
	l.asked = now
	if end := t.end(now); end < l.end {
		// From here on the record may have the shorter life.
		l.end = end
		k.moved(l)
	}
	k.mu.Unlock()

	value, err := body.encode()
	var forget func()
	if err == nil {
		forget, err = l.e.kv.Send(kvstore.Write{Key: l.spec.key, Value: value, Expect: expect, TTL: t.ttl}, func(a kvstore.Answer) { l.renewed(n, a) })
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := range l.sent {
		if l.sent[i].n == n {
			if err != nil { // nothing was sent
				l.sent = append(l.sent[:i], l.sent[i+1:]...)
			} else {
				l.sent[i].forget = forget
			}
			return
		}
	}
	if forget != nil && l.state != Held {
		l.e.ghosts.keep(forget)
	}
}

// renewed takes the answer to renewal n. It runs on a goroutine of the store.
func (l *Lease) renewed(n uint64, a kvstore.Answer) {
	k := l.e.keeper
	k.mu.Lock()
	now := l.e.now()
	var conflict *kvstore.ConflictError
	var act func()
	switch {
	case a.Err == nil:
		l.e.seen(a.Revision)
		act = l.confirmed(n, a.Revision, now)
	case l.state != Held:
	case errors.As(a.Err, &conflict):
		switch {
		case (conflict.Last == 0 || conflict.Last > l.last) && !l.resolving:
			// Also where nothing is there any more: a leader that was deposed
			// refuses as well, and may have removed what was renewed since. A
			// state that contains the last confirmation tells.
			at := max(conflict.Last, l.last)
			l.resolving = true
			l.e.background(func(ctx context.Context) { l.resolve(ctx, at, true) })
		case conflict.Last == l.last && n == l.renewals && n >= l.need:
			// It met a renewal sent just before it, which has been confirmed
			// since; what asked for it is still to be confirmed.
			l.again(now)
		}
	case errors.Is(a.Err, kvstore.ErrInFlight):
		l.retries++
		l.nextRenewal = now.Add(inFlightPause(l.retries))
		k.moved(l)
	}
	k.mu.Unlock()
	if act != nil {
		act()
	}
}

// inFlightPause is how long to wait before a write that met another one in
// flight is tried again: jittered, or two of them meet again and again.
func inFlightPause(try int) time.Duration {
	d := time.Millisecond << min(try, 6)
	return d/2 + rand.N(d)
}

// confirmed takes an acknowledged renewal. Under mu.
func (l *Lease) confirmed(n, revision uint64, now Instant) func() {
	switch {
	case l.state == Released:
		return nil // the release deletes whatever there is
	case l.state == Held && now < l.end:
		for i, s := range l.sent {
			if s.n == n {
				l.extend(i, revision)
				return nil
			}
		}
		return nil // older than what is confirmed already
	case l.state == Lost && l.cause.Kind != ErrLost:
		return nil // closed: the work may still be stopping
	}
	// Too late to believe in; deleted, so that nobody has to wait for it.
	lose := l.lose(ErrLost, "the confirmation of its renewal came after its validity had ended")
	return func() {
		lose()
		l.e.discard(l.spec.key, l.id, revision)
	}
}

// extend moves the validity to that of the renewal sent[i], now stored at
// revision. Under mu, inside validity.
func (l *Lease) extend(i int, revision uint64) {
	s := l.sent[i]
	for _, done := range l.sent[:i+1] {
		if done.forget != nil {
			done.forget() // confirmed, or expecting a revision that is no longer the last
		}
	}
	l.sent = append(l.sent[:0], l.sent[i+1:]...)
	if revision > l.last {
		l.last, l.lastSent = revision, s.at
	}
	l.terms = s.terms
	l.end = max(l.end, s.terms.end(s.at))
	if l.cap != 0 {
		l.end = min(l.end, l.cap)
	}
	l.retries, l.warned = 0, false
	if s.n >= l.need {
		l.nextRenewal = s.at.Add(s.terms.renewAfter(l.e.cfg.RenewFraction))
	}
	waiting := l.extending[:0]
	for _, x := range l.extending {
		if x.after < s.n {
			x.done <- nil
		} else {
			waiting = append(waiting, x)
		}
	}
	l.extending = waiting
	l.e.keeper.moved(l)
	if l.announced {
		l.e.tell(l.base, l.event(EventRenewed, nil))
	}
}

// renewNow makes a renewal due that is sent after this moment: the answer to
// one that is on its way already would not show what has happened since. Under
// mu.
func (l *Lease) renewNow(at Instant) {
	l.need = l.renewals + 1
	l.nextRenewal = min(l.nextRenewal, at)
	l.e.keeper.moved(l)
}

// again makes another renewal due at once, in place of one that was refused.
// Under mu.
func (l *Lease) again(now Instant) {
	l.nextRenewal = min(l.nextRenewal, now)
	l.e.keeper.moved(l)
}

// suspect acts on a hint that the record is not what it should be. A hint may
// be forged: what ends the lease is a refused renewal, or for a lease that is
// not renewed a read at least as new as the revision of the hint. Under mu.
func (l *Lease) suspect(revision uint64) {
	if l.renews() {
		// A flood of forged hints is answered slowly.
		l.renewNow(max(l.e.now(), l.asked.Add(minRetry/2)))
		return
	}
	l.suspected = max(l.suspected, revision)
	if l.state == Held && !l.resolving {
		l.resolving = true
		l.e.background(func(ctx context.Context) { l.resolve(ctx, revision, false) })
	}
}

// resolve reads the record after a refusal or a hint that named revision and
// judges the lease by it.
func (l *Lease) resolve(ctx context.Context, revision uint64, proven bool) {
	for try := 0; ; try++ {
		_, left, cause := l.Status()
		if cause != nil {
			return
		}
		rctx, cancel := context.WithTimeout(ctx, min(left, time.Second<<min(try, 3)))
		entry, err := l.e.read(rctx, l.spec.key, revision)
		cancel()
		if err == nil {
			l.found(entry)
			return
		}
		if !proven && try >= 3 || ctx.Err() != nil {
			l.settle()
			return
		}
		if sleep(ctx, inFlightPause(try)) != nil {
			return
		}
	}
}

// settle ends a look at the record that showed nothing.
func (l *Lease) settle() {
	k := l.e.keeper
	k.mu.Lock()
	l.resolving, l.suspected = false, 0
	k.moved(l)
	k.mu.Unlock()
}

// found judges the lease by the record under its key.
func (l *Lease) found(entry Entry) {
	k := l.e.keeper
	k.mu.Lock()
	l.resolving = false
	act := func() {}
	own := entry.of(l.id)
	switch {
	case l.state != Held:
	case own && entry.Live() && entry.Status == StatusHeld && entry.Revision <= l.last:
		k.moved(l) // as it should be
		if l.suspected > entry.Revision {
			l.suspect(l.suspected) // a hint came while this was read
		}
	case own && entry.Live() && entry.Status == StatusHeld && entry.Renewal > 0 && entry.Renewal <= l.renewals:
		// A renewal whose answer was lost. Its own sending counts.
		act = l.confirmed(entry.Renewal, entry.Revision, l.e.now())
		if act == nil {
			act = func() {}
			if entry.Renewal < l.need { // the refused one was asked for
				l.again(l.e.now())
			}
			k.moved(l)
		}
	case own && entry.Status == StatusBroken:
		l.last = entry.Revision // its release deletes the broken record
		act = l.lose(ErrBroken, entry.brokenBy())
	case own && entry.Live():
		// An acquisition record: an attempt from before the grant that landed
		// after the granted record had gone.
		act = l.lose(ErrLost, "its record is gone")
		lose := act
		act = func() { lose(); l.e.discard(l.spec.key, l.id, entry.Revision) }
	case entry.Live():
		act = l.lose(ErrLost, fmt.Sprintf("its record was replaced at revision %d", entry.Revision))
	default:
		act = l.lose(ErrLost, "its record was deleted")
	}
	k.mu.Unlock()
	act()
}

// startWatch subscribes to the own record. The renewal that follows proves
// that the subscription is in place and that nothing was missed before. It
// runs on the engine's sender.
func (l *Lease) startWatch() {
	w, err := l.e.kv.Watch(l.spec.key, l.notified)
	if err != nil {
		return // told of a break by the next renewal
	}
	k := l.e.keeper
	k.mu.Lock()
	if l.state == Held {
		l.watch = w
		l.suspect(l.last)
		w = nil
	}
	k.mu.Unlock()
	if w != nil {
		w.Stop()
	}
}

// notified takes a change of the own record.
func (l *Lease) notified(ev kvstore.Event) {
	switch ev.Kind {
	case kvstore.Put, kvstore.Deleted:
	default:
		return
	}
	entry := entryOf(ev.Record)
	k := l.e.keeper
	k.mu.Lock()
	defer k.mu.Unlock()
	if l.state != Held || ev.Record.Revision <= l.last {
		return
	}
	if entry.of(l.id) && entry.Status == StatusBroken {
		l.breaker = entry.brokenBy()
	}
	if entry.of(l.id) && entry.Live() && entry.Status == StatusHeld && entry.Renewal > 0 && entry.Renewal <= l.renewals {
		return // the own renewal; its answer is on the way
	}
	l.suspect(ev.Record.Revision)
}

// Extend renews the lease now and waits for the confirmation. ttl 0 keeps the
// TTL. When ctx ends first the outcome is unknown and the lease as valid as
// before, or as the shorter TTL asked for makes it.
func (l *Lease) Extend(ctx context.Context, ttl time.Duration) error {
	var t terms
	if ttl != 0 {
		rounded, err := RoundTTL(ttl, l.fixed)
		if err != nil {
			return err
		}
		t = newTerms(rounded, l.e.cfg.Margin)
	}
	if _, _, cause := l.Status(); cause != nil {
		return cause
	}
	k := l.e.keeper
	k.mu.Lock()
	if l.cap != 0 {
		k.mu.Unlock()
		return fmt.Errorf("%w: lock %q was taken until a given time and cannot be extended", ErrInvalidTTL, l.spec.name)
	}
	if ttl != 0 {
		l.want = t
	}
	k.mu.Unlock()
	return l.confirm(ctx)
}

// confirm renews the lease now and waits for the confirmation.
func (l *Lease) confirm(ctx context.Context) error {
	k := l.e.keeper
	k.mu.Lock()
	if l.state != Held {
		k.mu.Unlock()
		return l.cause
	}
	x := extension{after: l.renewals, done: make(chan error, 1)}
	l.extending = append(l.extending, x)
	l.renewNow(l.e.now())
	k.mu.Unlock()
	select {
	case err := <-x.done:
		return err
	case <-ctx.Done():
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := range l.extending {
		if l.extending[i].done == x.done {
			l.extending = append(l.extending[:i], l.extending[i+1:]...)
			break
		}
	}
	k.moved(l)
	return fmt.Errorf("extend lock %q: not confirmed: %w", l.spec.name, endOf(ctx))
}

// Left returns how much of the validity is left, negative when it has ended.
func (l *Lease) Left() time.Duration {
	k := l.e.keeper
	k.mu.Lock()
	defer k.mu.Unlock()
	return l.end.Sub(l.e.now())
}

// confirmation returns when the last write that the server has acknowledged was
// sent, at which revision it is stored, and the lease's margin.
func (l *Lease) confirmation() (sent Instant, revision uint64, margin time.Duration) {
	k := l.e.keeper
	k.mu.Lock()
	defer k.mu.Unlock()
	return l.lastSent, l.last, l.terms.margin
}

// Abandon stops the renewals of a lease whose holder has lost its handle, so
// that nobody will ever release it.
func (l *Lease) Abandon() {
	k := l.e.keeper
	k.mu.Lock()
	l.abandoned = true
	held, ttl := l.state == Held, l.terms.ttl
	if l.state == Lost {
		delete(k.leases, l)
	}
	k.moved(l)
	k.mu.Unlock()
	if held {
		l.e.log.Warn("a held lock was dropped without Unlock; it is renewed no more and ends by its TTL",
			"lock", l.spec.name, "token", l.token, "ttl", ttl)
	}
}
