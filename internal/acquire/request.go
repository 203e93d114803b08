package acquire

import (
	"context"
	"fmt"
	"time"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/session"
)

var errInvalidTTL = clock.ErrInvalidTTL

// Request says what to acquire and how.
type Request struct {
	Kind     record.Kind
	Mode     record.Mode
	Name     string
	TTL      time.Duration     // 0: the client's
	Until    time.Time         // when set: a lease that ends then and is never renewed
	Fixed    bool              // not renewed by itself
	MaxWait  time.Duration     // 0: as long as the context
	Meta     map[string]string // shown to operators
	Detached bool              // the lease's context does not end with the caller's
	Once     bool              // do not wait
	Patient  bool              // pass no other client, and show Meta in the lease only
	Linger   time.Duration     // keep the lease so long for the next goroutine; 0: do not
	MinHold  time.Duration     // keep others out so long at least; 0: as long as it is held
	Permits  int               // of a semaphore

	WarnBefore time.Duration // 0: no early warning
	OnWarn     func()
}

// acquisition is one call under way.
type acquisition struct {
	c      *Client
	req    Request
	keys   record.Keys
	ttl    time.Duration
	parent context.Context // the caller's
	ctx    context.Context // ends the waiting
	begun  clock.Instant
	asked  bool // it came to a request
	bid    *bid // its own, or that of the member that drove the run before; nil: it has not driven
	member *member
	want   core.Want // what the runs know of it

	// The state of the lock, as far as it is known.
	seen   *shown // when it gave up; nil: nothing
	outage error  // and the word of the server then; nil: that the lock is held, or the run queued
	queue  *int   // the length of the queue when it came; nil: not known
	apart  int    // of those, the places of clients that do not hold the lock
	asOf   uint64 // a revision that the bucket had reached during this call; 0: not asked for
	named  uint64 // by the leader, during this call, as the last revision of the gate; 0: nothing

	knocked     *knock         // nil: it has not asked for an idle lease
	id          string         // of the claim that it gave up
	mailbox     *mailbox       // of the record that it waits for
	queueing    *bid           // for a place that has no answer yet
	place       *session.Place // in the queue
	placeStatus record.Status  // for the tombstone of the place
	passed      record.Entry   // the place at the head, of a claim that was granted out of turn
}

// saw notes the holder of the lock, as far as it is known.
func (a *acquisition) saw(holder record.Entry) {
	s := shown{holder: holder}
	if a.bid != nil { // else another member has driven the run
		a.bid.holder = holder
		s = a.bid.shown
	}
	a.member.run().saw(s)
}

// heard notes what the last request has come to, for the error of a wait that is given up:
// nil where the server has said that the lock is held, or that the run is queued. A request
// that the end of the wait has cut short says nothing.
func (a *acquisition) heard(err error) {
	if err == nil || a.over() == nil {
		a.member.run().hears(err)
	}
}

// waited is how long the call has waited.
func (a *acquisition) waited() time.Duration { return a.c.b.Instant().Sub(a.begun) }

// takeOver makes what another call has come to that of this one, which drives the run on.
func (a *acquisition) takeOver(from *acquisition) {
	a.bid, a.queueing, a.place, a.mailbox = from.bid, from.queueing, from.place, from.mailbox
	if a.bid == nil {
		return
	}
	body := a.body()
	body.Lingers, body.InUse = a.bid.draft.body.Lingers, a.bid.draft.body.InUse // as the claim says
	a.bid.a, a.bid.once, a.bid.draft.body, a.bid.draft.begun = a, a.req.Once, body, a.begun
	// A second join under the same id would overwrite the first one. The late
	// acknowledgement of either has the client delete the record of the other.
	if a.reads() { //safety:join-driven-on
		a.bid.close()
	}
	if a.queueing != nil {
		a.queueing.a = a
	}
}

// withdraw gives up what the call has come to, when no other goes on with it. It waits until
// its records are gone, so that nobody meets the place of a call that has returned.
func (a *acquisition) withdraw() {
	left := append(a.bid.close(), a.queueing.close()...)
	if a.place != nil { //safety:place-withdrawn
		// Not as granted: the successor would take itself for the first, and it need not be.
		gone := a.place.Leave(record.StatusGone) //safety:place-left
		left = append(left, gone)
	}
	a.leaves(left...)
}

// leaves waits until records that the call has given up are gone. The wait for the lock may
// have ended, and does not bound this.
func (a *acquisition) leaves(left ...<-chan struct{}) {
	if a.c.b.Away() || a.outage != nil && a.outage != errUnheard { //safety:gone-awaited
		return // no answer comes soon
	}
	ctx, cancel := context.WithTimeout(a.c.b.Life(), goneWithin) //safety:gone-bounded
	defer cancel()
	for _, gone := range left {
		select {
		case <-gone:
		case <-ctx.Done():
			return
		}
	}
}

// private says whether the lease is for this call only. A lease that rests after its
// holder serves no other goroutine.
func (a *acquisition) private() bool { return a.req.Fixed || a.req.MinHold > 0 } //safety:rest-private

func (a *acquisition) reads() bool { return a.req.Mode == record.Shared }

// drains says whether the lock is granted behind a gate that readers have to leave.
func (a *acquisition) drains() bool { return a.req.Kind == record.RW && !a.reads() }

// prepare checks a request, before any I/O.
func (c *Client) prepare(ctx context.Context, req Request) (*acquisition, error) {
	encoded, err := record.EncodeName(req.Name)
	if err != nil {
		return nil, err
	}
	if err := checkPermits(req); err != nil {
		return nil, err
	}
	a := &acquisition{c: c, req: req, keys: record.KeysOf(req.Kind, encoded), parent: ctx, ctx: ctx, begun: c.b.Instant(), ttl: c.s.TTL}
	if c.runs.core.Most == 0 {
		a.req.Linger = 0
	}
	switch {
	case !req.Until.IsZero():
		a.req.Fixed = true
		t, err := clock.TermsUntil(time.Until(req.Until), c.s.Margin)
		if err != nil {
			return nil, fmt.Errorf("lock %q until %v: %w", req.Name, req.Until.Format(time.RFC3339), err)
		}
		a.ttl = t.TTL
	case req.TTL != 0:
		if a.ttl, err = clock.RoundTTL(req.TTL, req.Fixed); err != nil {
			return nil, fmt.Errorf("lock %q: %w", req.Name, err)
		}
	}
	if req.MinHold > 0 { // also if the client crashes
		t, err := clock.TermsUntil(req.MinHold, c.s.Margin)
		if err != nil {
			return nil, fmt.Errorf("lock %q: minimum hold: %w", req.Name, err)
		}
		a.ttl = max(a.ttl, t.TTL) //safety:min-hold-crash
	}
	if validity := clock.NewTerms(a.ttl, c.s.Margin).Validity(); req.OnWarn != nil && req.Until.IsZero() && req.WarnBefore >= validity {
		return nil, fmt.Errorf("lock %q: %w: EarlyWarning: %v is not shorter than the validity of a lease of %v, which is %v: it would warn after every confirmation",
			req.Name, record.ErrInvalidOption, req.WarnBefore, a.ttl, validity)
	}
	if len(req.Meta) > 0 { // the rest of a record always fits
		if given, limit, ok := a.body().Fits(c.b.MaxValue()); !ok {
			return nil, fmt.Errorf("lock %q: %w: the metadata make a record larger than %d bytes: it has %d", req.Name, record.ErrInvalidOption, limit, given)
		}
	}
	a.want = core.Want{TTL: a.ttl, Mode: a.req.Mode, Meta: a.req.Meta, Private: a.private(), Once: a.req.Once, Patient: a.req.Patient}
	return a, nil
}

// body is what the record of a claim says.
func (a *acquisition) body() record.Body {
	body := a.c.b.Body(record.StatusHeld, a.req.Meta)
	body.Fixed, body.Mode, body.Permits = a.req.Fixed, uint8(a.req.Mode), uint16(a.req.Permits)
	if a.req.Linger > 0 {
		body.Lingers, body.InUse = true, 1
	}
	return body
}

// prepareBid makes the bid of a call that drives its run. The others need none.
func (a *acquisition) prepareBid() {
	if a.bid != nil {
		return
	}
	a.bid = &bid{c: a.c, a: a, once: a.req.Once, draft: draft{
		name: a.req.Name, keys: a.keys, body: a.body(), ttl: a.ttl, until: a.req.Until, begun: a.begun,
	}}
	if a.reads() { // each claim is a reader of its own, which the gate must admit
		a.bid.draft.guard = a.keys.Gate
	}
}

// bound bounds the wait by the request. The caller ends it.
func (a *acquisition) bound() (cancel func()) {
	cancel = func() {}
	if !a.req.Until.IsZero() {
		a.ctx, cancel = context.WithDeadlineCause(a.ctx, a.req.Until, errUntilOver)
	}
	limit, reason := a.req.MaxWait, ErrMaxWait
	if a.req.Once {
		limit, reason = min(a.ttl, session.DefaultReleaseTimeout), errOnceLimit
	}
	if limit > 0 {
		outer := cancel
		ctx, inner := context.WithTimeoutCause(a.ctx, limit, reason)
		a.ctx, cancel = ctx, func() { inner(); outer() }
	}
	return cancel
}

// whileGranting has the requests of the call end with [bucket.Bucket.Granting], too, and not
// only its waits: a bucket may be unfit because it answers no write. The caller ends it. A
// lock that nobody wants goes without.
func (a *acquisition) whileGranting() (end func()) {
	outer, granting := a.ctx, a.c.b.Granting()
	ctx, cancel := context.WithCancelCause(outer)
	stop := context.AfterFunc(granting, func() { cancel(context.Cause(granting)) }) //safety:unfit-ends-requests
	a.ctx = ctx
	return func() {
		stop()
		cancel(nil)
		a.ctx = outer
	}
}

// outcome says what came of a step towards a lock.
type outcome uint8

const (
	// granted: acknowledged, or found, in time. Of a drain: no reader is left.
	granted outcome = iota + 1
	// free: refused, but nobody holds the key: a tombstone, or nothing.
	free
	// unread: refused, by a record that was not read; the entry has its revision.
	unread
	// busy: refused, and another claim has the key; or others are queued.
	busy
	// retry: not sent, refused for a passing reason, or without an answer.
	retry
	// lost: the claim is over without a grant; a new one may be made.
	lost
	// relist: the predecessor has gone; the queue is to be read again.
	relist
	// compete: the place is the first of the queue.
	compete
	// merged: the members of the run are those of another one now.
	merged
	// requeue: the place in the queue has gone.
	requeue
	// failed: another try will not help.
	failed
	// ended: the wait is over.
	ended
)

// result is an outcome with what belongs to it.
type result struct {
	outcome  outcome
	n        int          // granted: the attempt
	revision uint64       // granted: the record's
	entry    record.Entry // free and busy: the record; unread: its revision
	err      error        // retry and failed: why; ended: the cause
}
