package call

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/claim"
	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/session"
)

const (
	// A place in a queue lives as long as the lock's own TTL, within these bounds. A
	// waiter that dies does not hold up those behind it for long. The place of a
	// waiter that lives outlasts the pauses of a busy machine.
	minPlaceTTL = 5 * time.Second
	maxPlaceTTL = 15 * time.Second
)

// Call is one call under way.
type Call struct {
	Req       Request
	Keys      record.Keys
	Begun     clock.Instant
	Since     clock.Instant   // of the time in which the stream may have no leader; 0: the first request
	Requested bool            // the call has begun to send requests
	Parent    context.Context // the caller's

	c   *Client
	of  Cohort
	ttl time.Duration
	ctx context.Context // ends the waiting
	bid *claim.Bid      // its own, or that of a founder that was refused; nil: it has claimed nothing yet

	// The state of the lock, as far as it is known.
	known  LockState
	places core.Places
	queue  *int   // how many goroutines were queued when it read the queue last; nil: not known
	asOf   uint64 // a revision that the bucket had reached during this call; 0: not read
	named  uint64 // by the leader, during this call, as the last revision of the gate; 0: nothing

	// When it gave up.
	seen   *LockState // nil: nothing
	outage error      // the failure of the last request, or ErrUnanswered; nil: the lock was held, or the cohort queued
	id     string     // of the claim that it gave up

	mailbox     *mailbox       // of the record that it waits for
	queueing    *claim.Bid     // for a place that has no answer yet
	surveyed    uint64         // a revision of the state that was read before that; 0: not known
	length      int            // of the queue then
	place       *session.Place // in the queue
	placeStatus record.Status  // for the tombstone of the place
	passed      record.Entry   // the place at the head, of a claim that was granted out of turn
}

// LockState is what a call knows of the lock.
type LockState struct {
	Holder record.Entry // zero: not known
	Ahead  int          // goroutines in the queue before the place, and 1; 0: not known
}

// Cohort is what a call reports to: the goroutine of package cohort that makes the call.
type Cohort interface {
	// Queueing is called before a place is written: the first one, or another one after that was lost.
	Queueing()
	// Queued reports the place; nil: there is none any more.
	Queued(*session.Place)
	// Listed reports what a list of the queue contained from a revision on. If it was cut off, that is only the
	// beginning. The list contains the place, and the call requested it at a time.
	Listed(queue []record.Entry, from uint64, cut bool, at clock.Instant)
	// HolderSeen reports what is known of the lock.
	HolderSeen(LockState)
	// Answered reports the outcome of the last request.
	Answered(error)
}

// New checks a request, before any I/O.
func (c *Client) New(ctx context.Context, req Request) (*Call, error) {
	encoded, err := record.EncodeName(req.Name)
	if err != nil {
		return nil, err
	}
	if err := checkPermits(req); err != nil {
		return nil, err
	}
	a := &Call{c: c, Req: req, Keys: record.KeysOf(req.Kind, encoded), Parent: ctx, ctx: ctx, Begun: c.b.Instant(), ttl: c.s.TTL}
	if !c.lingers {
		a.Req.Linger = 0
	}
	switch {
	case !req.Until.IsZero():
		a.Req.Fixed = true
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
	return a, nil
}

// TTL is that of the lease.
func (a *Call) TTL() time.Duration { return a.ttl }

// Context ends the wait of the call.
func (a *Call) Context() context.Context { return a.ctx }

// Join sets what the call reports to.
func (a *Call) Join(of Cohort) { a.of = of }

// holderSeen notes the holder of the lock, as far as it is known.
func (a *Call) holderSeen(holder record.Entry) {
	s := LockState{Holder: holder}
	if a.bid != nil { // else another call has claimed
		a.known.Holder = holder
		s = a.known
	}
	a.of.HolderSeen(s)
}

// RequestAnswered notes the outcome of the last request, for the error of a wait that is given up:
// nil where the server has said that the lock is held, or that the cohort is queued. A request
// that the end of the wait has cut short says nothing.
func (a *Call) RequestAnswered(err error) {
	if err == nil || a.Over() == nil {
		a.of.Answered(err)
	}
}

// waited is how long the call has waited.
func (a *Call) waited() time.Duration { return a.c.b.Instant().Sub(a.Begun) }

// TakeOver has this call go on with the claim of a founder that was refused.
func (a *Call) TakeOver(from *Call) {
	a.bid, a.known, a.surveyed, a.length = from.bid, from.known, from.surveyed, from.length
	from.bid = nil // it may have to claim anew
	body := a.body()
	body.Lingers, body.InUse = a.bid.Draft.Body.Lingers, a.bid.Draft.Body.InUse // as the claim says
	a.bid.Caller, a.bid.Once, a.bid.Draft.Body, a.bid.Draft.Begun = a, a.Req.Once, body, a.Begun
}

// GivesUp notes what was known when the call gave up. claims reports whether the claim under way is its own.
func (a *Call) GivesUp(seen *LockState, outage error, claims bool) {
	a.seen, a.outage = seen, outage
	if claims && a.bid != nil {
		a.id = a.bid.Own()
	}
}

// Withdraw gives up the place and the claim of the call. It waits until
// its records are gone, so that nobody meets the place of a call that has returned.
func (a *Call) Withdraw() {
	left := append(a.bid.Close(), a.queueing.Close()...)
	if a.place != nil { //safety:place-withdrawn
		// Not StatusGranted: by that the successor would take itself for the first, which it need not be.
		gone := a.place.Leave(record.StatusGone) //safety:place-left
		left = append(left, gone)
	}
	a.leaves(left...)
}

// Unused releases a lease that has admitted nobody. A writer returns when its gate is gone:
// it stalls no reader that comes then. A one-shot writer, which has time, waits longer for that.
func (a *Call) Unused(gate *session.Lease) {
	gone := gate.Leave(record.StatusGone)
	if a.Req.Once { //safety:refused-gate-gone
		a.deleted(gone, bucket.AnswerTimeout)
	} else {
		a.leaves(gone) //safety:drained-gate-gone
	}
}

// Await waits until what the call has waited with is gone.
func (a *Call) Await(gone <-chan struct{}) { a.leaves(gone) }

// leaves waits until records that the call has given up are gone. The wait for the lock may
// have ended, and does not bound this.
func (a *Call) leaves(left ...<-chan struct{}) {
	if a.c.b.Away() || a.outage != nil && a.outage != ErrUnanswered { //safety:gone-awaited
		return // no answer comes soon
	}
	ctx, cancel := context.WithTimeout(a.c.b.Life(), claim.GoneWithin) //safety:gone-bounded
	defer cancel()
	for _, gone := range left {
		select {
		case <-gone:
		case <-ctx.Done():
			return
		}
	}
}

// Private reports whether the lease is for this call only. A lease that has a cooldown after its
// holder serves no other goroutine.
func (a *Call) Private() bool { return a.Req.Fixed || a.Req.MinHold > 0 } //safety:cooldown-private

// Reads reports whether the call is for a reader.
func (a *Call) Reads() bool { return a.Req.Mode == record.Shared }

// Drains reports whether the lock is granted behind a gate that readers have to leave.
func (a *Call) Drains() bool { return a.Req.Kind == record.RW && !a.Reads() }

// body is what the record of a claim says.
func (a *Call) body() record.Body {
	body := a.c.b.Body(record.StatusHeld, a.Req.Meta)
	body.Fixed, body.Mode, body.Permits = a.Req.Fixed, uint8(a.Req.Mode), record.Permits(a.Req.Permits)
	body.Purpose = a.Req.Purpose
	if a.Req.Linger > 0 {
		body.Lingers, body.InUse = true, true
	}
	return body
}

// Prepare makes the bid of a call that claims. A call that only waits in its FIFO needs none.
func (a *Call) Prepare() {
	if a.bid != nil {
		return
	}
	a.bid = &claim.Bid{B: a.c.b, K: a.c.s.Keeper, Caller: a, Bid: core.Bid{Once: a.Req.Once, Begun: a.Since}, Draft: claim.Draft{
		Name: a.Req.Name, Keys: a.Keys, Body: a.body(), TTL: a.ttl, Margin: a.c.s.Margin, Until: a.Req.Until, Begun: a.Begun,
	}}
	if a.Reads() { // each claim is a reader of its own, which the gate must admit
		a.bid.Draft.Guard = a.Keys.Gate
	}
}

// Bound bounds the wait by the request. The caller ends it.
func (a *Call) Bound() (cancel func()) {
	cancel = func() {}
	if !a.Req.Until.IsZero() {
		a.ctx, cancel = context.WithDeadlineCause(a.ctx, a.Req.Until, errUntilOver)
	}
	limit, reason := a.Req.MaxWait, ErrMaxWait
	if a.Req.Once {
		limit, reason = min(a.ttl, session.DefaultReleaseTimeout), errOnceLimit
	}
	if limit > 0 {
		outer := cancel
		ctx, inner := context.WithTimeoutCause(a.ctx, limit, reason)
		a.ctx, cancel = ctx, func() { inner(); outer() }
	}
	return cancel
}

// WhileGranting has [bucket.Bucket.Granting] end the requests of the call, too, and not only its
// waits: a bucket may be unfit because it answers no write. The caller calls end. The fast way
// of a lock that nobody else wants does without this.
func (a *Call) WhileGranting() (end func()) {
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

// ask has the leader name a revision that the bucket has reached.
func (a *Call) ask() error {
	st, err := a.c.b.Leader(a.ctx, 2*bucket.AnswerTimeout)
	a.asOf = max(a.asOf, st.LastRevision)
	return err
}

// noAnswer is the result of a failed request: the end of the wait, if that has come.
func (a *Call) noAnswer(err error) result {
	if cause := a.Over(); cause != nil {
		return result{Outcome: ended, Err: cause}
	}
	return result{Outcome: failed, Err: err}
}

// Over is the cause of the end of the wait, if that has come.
func (a *Call) Over() error {
	if a.ctx.Err() != nil {
		return context.Cause(a.ctx)
	}
	return context.Cause(a.c.b.Granting())
}

// Unfit is why the bucket is unfit, if the client knows that.
func (a *Call) Unfit() error {
	if err := context.Cause(a.c.b.Granting()); errors.Is(err, kvstore.ErrBucketConfig) {
		return err
	}
	return nil
}

// Counts reports whether the call is for a semaphore.
func (a *Call) Counts() bool { return a.Req.Kind == record.Semaphore }

// deleted waits for the end of a record that the call leaves, for a time at most.
func (a *Call) deleted(gone <-chan struct{}, within time.Duration) {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-gone:
	case <-timer.C:
	case <-a.ctx.Done():
	}
}

// placeTTL is the TTL of a place in the queue.
func (a *Call) placeTTL() time.Duration { return min(max(a.ttl, minPlaceTTL), maxPlaceTTL) }
