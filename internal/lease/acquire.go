package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/natslock/locks/kvstore"
)

// Request says what to acquire and how.
type Request struct {
	Kind     Kind
	Mode     Mode
	Name     string
	TTL      time.Duration     // 0: the engine's
	Until    time.Time         // when set: a lease that ends then and is never renewed
	Fixed    bool              // not renewed by the keeper
	MaxWait  time.Duration     // 0: as long as the context
	Meta     map[string]string // shown to whoever inspects the lock
	Detached bool              // the lease's context does not end with the caller's
	Once     bool              // do not wait

	WarnBefore time.Duration // 0: no early warning
	OnWarn     func(*Lease)
}

// acquire is one call under way.
type acquire struct {
	e       *Engine
	req     Request
	spec    spec
	ttl     time.Duration
	gate    string          // the key that has to be free
	encoded string          // the name, in keys
	parent  context.Context // the caller's
	ctx     context.Context // ends the waiting
	begun   Instant
	bid     bid
	sight   *sight
	// shortcut: the tombstone of a first waiter that was granted makes its
	// successor first. Not so where several can be granted at once.
	shortcut bool

	holder      *Entry // last seen
	queue       *int   // how many were queued, when it came
	asOf        uint64 // a revision that the bucket had reached during this call; 0: not asked for
	position    int
	asked       bool   // it came to a request
	queued      bool   // had to, at least once
	place       *Lease // in the queue, when granted from there
	placeStatus Status
}

var (
	errMaxWait   = errors.New("the maximum wait is over")
	errUntilOver = errors.New("the time it was wanted for is over")
	errOnceLimit = errors.New("no answer in time")
)

// Acquire takes the lock req names. It returns the lease, or an error that
// matches one of the package's sentinels: [ErrLocked] only with Once,
// [ErrTimeout] when the context or the maximum wait ended the wait.
func (e *Engine) Acquire(ctx context.Context, req Request) (*Lease, error) {
	encoded, err := EncodeName(req.Name)
	if err != nil {
		return nil, err
	}
	a := &acquire{e: e, req: req, encoded: encoded, parent: ctx, ctx: ctx, begun: e.now()}
	a.spec = spec{kind: req.Kind, name: req.Name, lock: true}
	if req.Kind == RW {
		a.rwKeys()
	} else {
		a.gate, a.shortcut = lockPrefix+encoded, true
	}
	a.spec.key = a.gate
	if err := a.validate(); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, a.gaveUp(context.Cause(ctx))
	}
	if err := e.enter(); err != nil {
		return nil, fmt.Errorf("acquire lock %q: %w", req.Name, err)
	}
	defer e.leave()
	a.asked = true
	if err := e.kinds.check(req.Name, req.Kind); err != nil {
		return nil, err
	}
	if req.Kind == RW && !a.reads() {
		e.shares.closeGate(a.gate)
	}
	limit, reason := req.MaxWait, errMaxWait
	if req.Once {
		limit, reason = min(a.ttl, DefaultReleaseTimeout), errOnceLimit
	}
	if !req.Until.IsZero() {
		var cancel context.CancelFunc
		a.ctx, cancel = context.WithDeadlineCause(a.ctx, req.Until, errUntilOver)
		defer cancel()
	}
	if limit > 0 {
		var cancel context.CancelFunc
		a.ctx, cancel = context.WithTimeoutCause(a.ctx, limit, reason)
		defer cancel()
	}
	a.bid = bid{e: e, ctx: a.ctx, once: req.Once, of: a}
	if req.Once && req.Kind == RW && !a.reads() {
		// Looked for before the gate is taken: a one-shot writer stalls nobody.
		if reader, ok := a.currentReader(); ok {
			return nil, a.locked(verdict{outcome: busy, entry: reader})
		}
	}
	for {
		v := a.run()
		if v.outcome == granted && (req.Kind != RW || a.reads()) {
			l := a.grant(v)
			a.announce(l)
			return l, nil
		}
		if v.outcome == granted {
			l := a.grant(v)
			if v = a.drain(l); v.outcome == 0 {
				a.announce(l)
				return l, nil
			}
			l.leave(StatusGone)
			a.bid.cur, a.place = nil, nil
			if v.outcome == spoilt { // the gate was lost: a new claim queues again
				continue
			}
		}
		a.bid.close()
		return nil, a.fail(v)
	}
}

// validate refuses what cannot be, before any I/O.
func (a *acquire) validate() (err error) {
	req := &a.req
	a.ttl = a.e.cfg.TTL
	switch {
	case !req.Until.IsZero():
		req.Fixed = true
		t, err := termsUntil(time.Until(req.Until), a.e.cfg.Margin)
		if err != nil {
			return fmt.Errorf("lock %q until %v: %w", req.Name, req.Until.Format(time.RFC3339), err)
		}
		a.ttl = t.ttl
	case req.TTL != 0:
		if a.ttl, err = RoundTTL(req.TTL, req.Fixed); err != nil {
			return fmt.Errorf("lock %q: %w", req.Name, err)
		}
	}
	if len(req.Meta) == 0 {
		return nil // the rest of a record always fits
	}
	b := a.body()
	if v, err := b.encode(); err != nil || len(v) > maxGiven {
		return fmt.Errorf("lock %q: %w: the metadata makes a record larger than %d bytes", req.Name, ErrInvalidOption, maxGiven)
	}
	return nil
}

// body is the part of a record that all of this client's have.
func (e *Engine) body(s Status, meta map[string]string) Body {
	return Body{
		Status: s, Client: e.client,
		Owner: e.cfg.Owner, Host: e.host, PID: e.pid, Started: e.start, Meta: meta,
	}
}

func (a *acquire) body() Body {
	b := a.e.body(StatusHeld, a.req.Meta)
	b.Fixed, b.Mode = a.req.Fixed, uint8(a.req.Mode)
	return b
}

// waitKey is the key of a place in the queue, by its id.
func (a *acquire) waitKey(id string) string {
	if a.req.Kind == RW {
		return rwaitPrefix + a.encoded + "." + id
	}
	return waitPrefix + a.encoded + "." + id
}

// readerKey is the key of a reader, by its id.
func (a *acquire) readerKey(id string) string { return readerPrefix + a.encoded + "." + id }

// waited is what the record of a claim says of the wait before it.
func (a *acquire) waited() int64 {
	if !a.queued {
		return 0
	}
	return max(a.e.now().Sub(a.begun).Milliseconds(), 1)
}

// terms are those of an attempt made now: what is left until a given end
// shrinks while waiting.
func (a *acquire) terms() (terms, error) {
	if a.req.Until.IsZero() {
		return newTerms(a.ttl, a.e.cfg.Margin), nil
	}
	t, err := termsUntil(time.Until(a.req.Until), a.e.cfg.Margin)
	if err != nil {
		return t, fmt.Errorf("lock %q: its time was over before it was free: %w", a.req.Name, err)
	}
	return t, nil
}

// run tries at once, and queues if it has to and may.
func (a *acquire) run() verdict {
	known := a.e.again(a.gate)
	v := verdict{outcome: unread}
	v.entry.Revision = known.tombstone
	var named uint64 // by the leader, during this call, as the gate's last
	switch {
	case known.queued && !a.req.Once: // behind its own, who know best
		v = verdict{outcome: busy}
	case known.tombstone == 0 || known.unqueued:
		a.bid.blind = true
		v = a.bid.take(known.tombstone)
		a.bid.blind = false
		if v.outcome == unread {
			named = v.entry.Revision
		}
	}
	if v.outcome == unread {
		v = a.enter(v.entry.Revision)
	}
	switch {
	case a.req.Once:
		return a.sure(v, named)
	case v.outcome != free && v.outcome != busy:
		return v
	}
	a.holder = new(v.entry)
	a.sight = newSight()
	return a.wait()
}

// enough is how many records a newcomer reads of a lock and its queue to see that
// it has to queue.
const enough = 16

// enter looks at the lock and its queue, from a state that contains revision, and
// takes it if it is free and nobody is queued.
func (a *acquire) enter(revision uint64) verdict {
	at := a.e.now()
	a.queue = nil
	// Free a moment ago: those queued go first. A state that contains the
	// tombstone has everybody who queued before it; where nothing lags that
	// need not be proven, which costs a request when nothing is there.
	if a.e.kv.Alone() {
		revision = 0
	}
	opts := []kvstore.ListOption{kvstore.Beside(a.gate)}
	if !a.req.Once { // else the length is told
		opts = append(opts, kvstore.AtMost(enough))
	}
	ctx, cancel := answerIn(a.ctx, 2*answerTimeout)
	l, err := a.e.kv.List(ctx, a.waitKey("*"), revision, opts...)
	err = late(a.ctx, ctx, err)
	cancel()
	if err != nil {
		if !a.req.Once {
			return verdict{outcome: busy} // for all that is known
		}
		if entry, e := a.e.read(a.ctx, a.gate, revision); e == nil && entry.Live() && !a.bid.mine(entry) {
			return verdict{outcome: busy, entry: entry} // who queues is not known
		}
		return a.noAnswer(err)
	}
	var entry Entry
	if l.Beside.Revision != 0 {
		entry = entryOf(l.Beside)
	}
	queue, err := a.e.clear(a.ctx, queueOf(l.Records))
	a.queue = new(len(queue))
	held := entry.Live() && !a.bid.mine(entry)
	// An overdue record is older than the queue: a replica that lags may show it
	// without those that are queued, so a waiter queues behind it.
	if held && err == nil && a.req.Once && (a.e.kv.Alone() || a.asOf > 0) {
		var overdue bool
		overdue, err = a.e.askOverdue(a.ctx, entry)
		held = !overdue
	}
	switch {
	case err != nil && a.req.Once: // what is overdue holds and queues nobody
		return a.noAnswer(err)
	case err != nil:
		a.e.log.Debug("delete overdue places", "lock", a.req.Name, "error", err)
		return verdict{outcome: busy, entry: entry}
	case held:
		return verdict{outcome: busy, entry: entry}
	case len(queue) > 0 || l.More:
		return verdict{outcome: busy}
	}
	a.e.emptySeen(a.gate, at)
	v := verdict{outcome: free, entry: entry}
	if a.bid.mine(entry) { // an earlier attempt, to be adopted
		v.entry = Entry{}
	}
	// There can be a newer tombstone: others may be quicker just now.
	for {
		v = a.bid.take(v.entry.Revision)
		if v.outcome != free || a.e.now().Sub(at) >= bypass {
			return v
		}
	}
}

// grant makes the lease. What the caller was shown last is where it begins.
func (a *acquire) grant(v verdict) *Lease {
	l := a.bid.cur.lease(v, func(l *Lease) {
		l.base = a.parent
		parent := a.parent
		if a.req.Detached {
			parent = context.WithoutCancel(parent)
		}
		l.ctx, l.cancel = context.WithCancelCause(parent)
		if !a.req.Until.IsZero() {
			l.cap = a.e.now().Add(time.Until(a.req.Until))
			l.end = min(l.end, l.cap)
		}
		if d := a.e.cfg.WatchAfter; d >= 0 {
			l.watchAt = a.e.now().Add(d)
		}
	})
	if a.place != nil {
		a.place.leave(a.placeStatus)
	}
	return l
}

// announce makes the lease its caller's: from here on it is told of.
func (a *acquire) announce(l *Lease) {
	k := a.e.keeper
	k.mu.Lock()
	l.announced = true
	if a.req.OnWarn != nil {
		l.warnBefore = a.req.WarnBefore
		l.onWarn = func() { a.req.OnWarn(l) }
	}
	k.moved(l)
	k.mu.Unlock()
	ev := l.event(EventGranted, nil)
	ev.Waited = a.e.now().Sub(a.begun)
	a.e.tell(a.parent, ev)
}

// fail puts the end of an acquire that was not granted into words.
func (a *acquire) fail(v verdict) error {
	switch v.outcome {
	case free, busy:
		return a.locked(v)
	case ended:
		return a.gaveUp(v.err)
	}
	if a.ctx.Err() != nil && !isAny(v.err, ErrPermission, ErrInvalidTTL, errSlowLink) {
		return a.gaveUp(context.Cause(a.ctx)) // whatever it failed with meanwhile
	}
	return fmt.Errorf("acquire lock %q: %w", a.req.Name, v.err)
}

// locked is the answer to a one-shot acquire of a lock that is held or queued
// for.
func (a *acquire) locked(v verdict) error {
	err := &BusyError{Name: a.req.Name}
	if v.entry.Live() {
		err.Holder = v.entry
		err.Own = v.entry.Client == a.e.client
	}
	if a.queue != nil {
		err.Queued = *a.queue
	} else if queue, listErr := a.e.waiters(a.ctx, a.waitKey("*"), a.asOf, 0); listErr == nil {
		err.Queued = len(queue)
	}
	return err
}

func (a *acquire) gaveUp(cause error) error {
	waited := a.e.now().Sub(a.begun)
	var err error
	switch {
	case errors.Is(cause, ErrClosed), a.e.life.Err() != nil && errors.Is(cause, ErrUnavailable):
		err = fmt.Errorf("acquire lock %q: %w", a.req.Name, cause)
	case errors.Is(cause, errOnceLimit):
		err = fmt.Errorf("acquire lock %q: %w: no answer within %v", a.req.Name, ErrUnavailable, waited.Round(time.Millisecond))
	default:
		w := &WaitError{Name: a.req.Name, Waited: waited, Position: a.position}
		if a.holder != nil {
			w.Holder = *a.holder
		}
		if !errors.Is(cause, errMaxWait) {
			w.Cause = cause
			if a.parent.Err() != nil {
				w.Cause = endOf(a.parent)
			}
			if a.req.Once && a.asked { // it waits for nothing but answers
				w.Cause = fmt.Errorf("%w: %w: no usable answer by then", w.Cause, ErrUnavailable)
			}
		}
		err = w
	}
	ev := Event{Type: EventGaveUp, Kind: a.spec.kind, Name: a.spec.name, Waited: waited, Cause: err}
	if a.bid.cur != nil {
		ev.ID = a.bid.cur.id
	}
	a.e.tell(a.parent, ev)
	return err
}
