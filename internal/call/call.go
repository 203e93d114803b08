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
	// A place in a queue lives as long as the lock's own TTL, within these bounds. So a waiter that dies does not hold
	// up those behind it for long, and the place of a live waiter outlasts the pauses of a busy machine.
	minPlaceTTL = 5 * time.Second
	maxPlaceTTL = 15 * time.Second
)

// Call is one call under way.
type Call struct {
	Req       Request
	Keys      record.Keys
	Begun     clock.Instant
	Since     clock.Instant   // the time from which core.NoStreamFor counts; 0 for the first request
	Requested bool            // the call has begun to send requests
	Parent    context.Context // the caller's

	c   *Client
	of  Cohort
	ttl time.Duration
	ctx context.Context // ends the waiting
	bid *claim.Bid      // its own, or a refused founder's; nil before its first claim

	// The state of the lock, as far as known.
	known  LockState
	places core.Places
	queue  *int   // the number of goroutines that were queued when the call last read the queue; nil if not known
	asOf   uint64 // a revision that the bucket had reached during this call; 0 if not read
	named  uint64 // the last revision of the gate that the leader named during this call; 0 if it named none

	// As of the time when it gave up.
	seen   *LockState // nil if it knew nothing
	outage error      // of the last request, or ErrUnanswered; nil if the lock was held, or the cohort queued
	id     string     // the id of the claim that it gave up

	mailbox     *mailbox       // for the record that it waits for
	queueing    *claim.Bid     // the bid for a place, while it has no answer
	surveyed    uint64         // a revision of the state that was read before queueing; 0 if not known
	length      int            // the length of the queue in that state
	place       *session.Place // its place in the queue
	placeStatus record.Status  // for the tombstone of the place
	passed      record.Entry   // the place of the head, if a claim was granted out of turn
}

// LockState is what a call knows about the lock.
type LockState struct {
	Holder record.Entry // zero if not known
	Ahead  int          // the number of goroutines in the queue ahead of the place, plus 1; 0 if not known
}

// Cohort is the goroutine of package cohort that makes the call. The call reports to it.
type Cohort interface {
	// Queueing is called before a place is written: the first one, or another one after a loss.
	Queueing()
	// Queued reports the place, nil once there is none.
	Queued(*session.Place)
	// Listed reports what a list requested at time at has read from revision from on: the part of the queue that
	// contains the place. If cut, more records follow that part.
	Listed(queue []record.Entry, from uint64, cut bool, at clock.Instant)
	// HolderSeen reports what is known about the lock.
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
		t, err := clock.TermsUntil(time.Until(req.Until))
		if err != nil {
			return nil, fmt.Errorf("lock %q until %v: %w", req.Name, req.Until.Format(time.RFC3339), err)
		}
		a.ttl = t.TTL
	case req.TTL != 0:
		if a.ttl, err = clock.RoundTTL(req.TTL, req.Fixed); err != nil {
			return nil, fmt.Errorf("lock %q: %w", req.Name, err)
		}
	}
	if req.MinHold > 0 { // even if the client crashes
		t, err := clock.TermsUntil(req.MinHold)
		if err != nil {
			return nil, fmt.Errorf("lock %q: minimum hold: %w", req.Name, err)
		}
		a.ttl = max(a.ttl, t.TTL) //safety:min-hold-crash
	}
	if validity := clock.NewTerms(a.ttl).Validity(); req.OnWarn != nil && req.Until.IsZero() && req.WarnBefore >= validity {
		return nil, fmt.Errorf("lock %q: %w: EarlyWarning: %v is not shorter than the validity of a lease of %v, which is %v: it would warn after every confirmation",
			req.Name, record.ErrInvalidOption, req.WarnBefore, a.ttl, validity)
	}
	if len(req.Meta) > 0 { // without metadata, a record always fits
		if given, limit, ok := a.body().Fits(c.b.MaxValue()); !ok {
			return nil, fmt.Errorf("lock %q: %w: the metadata make a record larger than %d bytes: it has %d", req.Name, record.ErrInvalidOption, limit, given)
		}
	}
	return a, nil
}

// TTL returns the TTL of the lease.
func (a *Call) TTL() time.Duration { return a.ttl }

// Context returns the context that ends the wait of the call.
func (a *Call) Context() context.Context { return a.ctx }

// Join sets the cohort to which the call reports.
func (a *Call) Join(of Cohort) { a.of = of }

// holderSeen records the holder of the lock, as far as known.
func (a *Call) holderSeen(holder record.Entry) {
	s := LockState{Holder: holder}
	if a.bid != nil { // otherwise another call has claimed
		a.known.Holder = holder
		s = a.known
	}
	a.of.HolderSeen(s)
}

// RequestAnswered records the result of the last request, for the error from a wait that is given up. err is nil if the
// server has answered that the lock is held, or that the cohort is queued. A request cut short by the end of the wait
// says nothing.
func (a *Call) RequestAnswered(err error) {
	if err == nil || a.Over() == nil {
		a.of.Answered(err)
	}
}

// waited returns how long the call has waited.
func (a *Call) waited() time.Duration { return a.c.b.Instant().Sub(a.Begun) }

// TakeOver makes this call continue the claim of a founder that was refused.
func (a *Call) TakeOver(from *Call) {
	a.bid, a.known, a.surveyed, a.length = from.bid, from.known, from.surveyed, from.length
	from.bid = nil // it may have to claim anew
	body := a.body()
	body.Lingers, body.InUse = a.bid.Draft.Body.Lingers, a.bid.Draft.Body.InUse // as the claim says
	a.bid.Caller, a.bid.Once, a.bid.Draft.Body, a.bid.Draft.Begun = a, a.Req.Once, body, a.Begun
}

// GivesUp records what was known when the call gave up. claims reports whether the claim under way is its own.
func (a *Call) GivesUp(seen *LockState, outage error, claims bool) {
	a.seen, a.outage = seen, outage
	if claims && a.bid != nil {
		a.id = a.bid.Own()
	}
}

// Withdraw gives up the place and the claim of the call. It waits until its records are gone, so that no client meets
// the place of a call that has returned.
func (a *Call) Withdraw() {
	left := append(a.bid.Close(), a.queueing.Close()...)
	if a.place != nil { //safety:place-withdrawn
		// Not StatusGranted: the successor would then consider itself first, which it need not be.
		gone := a.place.Leave(record.StatusGone) //safety:place-left
		left = append(left, gone)
	}
	a.leaves(left...)
}

// Unused releases a lease that has admitted no goroutine. A writer returns only when its gate is gone, so that the gate
// stalls no reader that arrives then. A one-shot writer, which has time, waits longer for that.
func (a *Call) Unused(gate *session.Lease) {
	gone := gate.Leave(record.StatusGone)
	if a.Req.Once { //safety:refused-gate-gone
		a.deleted(gone, bucket.AnswerTimeout)
	} else {
		a.leaves(gone) //safety:drained-gate-gone
	}
}

// Await waits until the record with which the call has waited is gone.
func (a *Call) Await(gone <-chan struct{}) { a.leaves(gone) }

// leaves waits until the records that the call has given up are gone. The context of the call may have ended, so it
// does not limit this wait.
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

// Private reports whether the lease is for this call only. A lease with a cooldown after its holder does not serve
// other goroutines.
func (a *Call) Private() bool { return a.Req.Fixed || a.Req.MinHold > 0 } //safety:cooldown-private

// Reads reports whether the call is for a reader.
func (a *Call) Reads() bool { return a.Req.Mode == record.Shared }

// Drains reports whether the lock is granted behind a gate, when the readers have left.
func (a *Call) Drains() bool { return a.Req.Kind == record.RW && !a.Reads() }

// body returns the body of a claim's record.
func (a *Call) body() record.Body {
	body := a.c.b.Body(record.StatusHeld, a.Req.Meta)
	body.Fixed, body.Mode, body.Permits = a.Req.Fixed, uint8(a.Req.Mode), record.Permits(a.Req.Permits)
	body.Purpose = a.Req.Purpose
	if a.Req.Linger > 0 {
		body.Lingers, body.InUse = true, true
	}
	return body
}

// Prepare creates the bid of a call that claims. A call that only waits in its FIFO needs none.
func (a *Call) Prepare() {
	if a.bid != nil {
		return
	}
	a.bid = &claim.Bid{B: a.c.b, K: a.c.s.Keeper, Caller: a, Bid: core.Bid{Once: a.Req.Once, Begun: a.Since}, Draft: claim.Draft{
		Name: a.Req.Name, Keys: a.Keys, Body: a.body(), TTL: a.ttl, Until: a.Req.Until, Begun: a.Begun,
	}}
	if a.Reads() { // each claim is a reader of its own, which the gate must admit
		a.bid.Draft.Guard = a.Keys.Gate
	}
}

// Bound limits the wait as the request says. The caller lifts the limit with cancel.
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

// WhileGranting makes [bucket.Bucket.Granting] end the requests of the call too, not only its waits: a bucket may be
// unfit because it answers no write. The caller calls end. The fast path of an uncontended lock does without this.
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

// ask makes the leader name a revision that the bucket has reached.
func (a *Call) ask() error {
	st, err := a.c.b.Leader(a.ctx, 2*bucket.AnswerTimeout)
	a.asOf = max(a.asOf, st.LastRevision)
	return err
}

// noAnswer returns the result for a failed request: ended if the wait is over, otherwise failed.
func (a *Call) noAnswer(err error) result {
	if cause := a.Over(); cause != nil {
		return result{Outcome: ended, Err: cause}
	}
	return result{Outcome: failed, Err: err}
}

// Over returns the cause of the end of the wait, nil if the wait continues.
func (a *Call) Over() error {
	if a.ctx.Err() != nil {
		return context.Cause(a.ctx)
	}
	return context.Cause(a.c.b.Granting())
}

// Unfit returns the reason why the bucket is unfit, nil if the client knows of none.
func (a *Call) Unfit() error {
	if err := context.Cause(a.c.b.Granting()); errors.Is(err, kvstore.ErrBucketConfig) {
		return err
	}
	return nil
}

// Counts reports whether the call is for a semaphore.
func (a *Call) Counts() bool { return a.Req.Kind == record.Semaphore }

// deleted waits, for at most within, for the end of a record that the call leaves.
func (a *Call) deleted(gone <-chan struct{}, within time.Duration) {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-gone:
	case <-timer.C:
	case <-a.ctx.Done():
	}
}

// placeTTL returns the TTL of a place in the queue.
func (a *Call) placeTTL() time.Duration { return min(max(a.ttl, minPlaceTTL), maxPlaceTTL) }
