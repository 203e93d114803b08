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
	// A place in a queue has the TTL of the lock, clamped to these bounds. The maximum keeps a dead waiter from holding
	// up those behind it for long, and the minimum lets a live waiter's place outlast the pauses of a busy machine.
	minPlaceTTL = 5 * time.Second
	maxPlaceTTL = 15 * time.Second
)

// Call is a call to Lock in progress.
type Call struct {
	Req       Request
	Keys      record.Keys
	Begun     clock.Instant
	Since     clock.Instant   // when the core.NoStreamFor period began; 0 to begin it with the first request
	Requested bool            // whether the call has begun to send requests
	Parent    context.Context // the caller's context

	c   *Client
	of  Cohort
	ttl time.Duration
	ctx context.Context // limits the wait
	bid *claim.Bid      // the call's own, or taken over from a refused founder; nil before the first claim

	// What the call knows about the lock.
	known  LockState
	places core.Places
	queue  *int   // number of goroutines queued when the call last read the queue; nil if unknown
	asOf   uint64 // a revision that the bucket is known to have reached during this call; 0 if none was read
	named  uint64 // the gate's last revision as reported by the leader during this call; 0 if it reported none

	// Recorded when the call gives up.
	seen   *LockState // nil if nothing was known
	outage error      // error of the last request, or ErrUnanswered; nil if the lock was held or the cohort queued
	id     string     // the id of the abandoned claim

	mailbox     *mailbox       // notifications about the watched keys
	queueing    *claim.Bid     // the bid for a place, until it is answered
	surveyed    uint64         // a revision of the state read before queueing; 0 if unknown
	length      int            // length of the queue in that state
	place       *session.Place // the call's place in the queue
	placeStatus record.Status  // written to the place's tombstone
	passed      record.Entry   // the place of the head, if the claim was granted out of turn
}

// LockState is what a call knows about the lock.
type LockState struct {
	Holder record.Entry // zero if unknown
	Ahead  int          // number of goroutines queued ahead of the place, plus 1; 0 if unknown
}

// Cohort receives a call's progress reports. Package cohort implements it.
type Cohort interface {
	// Queueing is called before a place is written, whether it is the call's first place or replaces a lost one.
	Queueing()
	// Queued reports the call's place, or nil once it has none.
	Queued(*session.Place)
	// Listed reports the part of the queue that contains the place, read by a list requested at time at and starting at
	// revision from. If cut is true, more records follow that part.
	Listed(queue []record.Entry, from uint64, cut bool, at clock.Instant)
	// HolderSeen reports what is known about the lock.
	HolderSeen(LockState)
	// Answered reports the outcome of the last request.
	Answered(error)
}

// New validates req and returns a call for it. It does no I/O.
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
	if req.MinHold > 0 { // MinHold must be honored even if the client crashes
		t, err := clock.TermsUntil(req.MinHold)
		if err != nil {
			return nil, fmt.Errorf("lock %q: minimum hold: %w", req.Name, err)
		}
		a.ttl = max(a.ttl, t.TTL) //safety:min-hold-crash
	}
	if validity := clock.NewTerms(a.ttl).Validity(); req.OnWarn != nil && req.Until.IsZero() && req.WarnBefore >= validity {
		return nil, fmt.Errorf("lock %q: %w: EarlyWarning: %v is not shorter than %v, the validity of a lease of %v, so it would warn after every confirmation",
			req.Name, record.ErrInvalidOption, req.WarnBefore, validity, a.ttl)
	}
	if len(req.Meta) > 0 { // without metadata, a record always fits
		if given, limit, ok := a.body().Fits(c.b.MaxValue()); !ok {
			return nil, fmt.Errorf("lock %q: %w: with this metadata the record has %d bytes; the limit is %d", req.Name, record.ErrInvalidOption, given, limit)
		}
	}
	return a, nil
}

// TTL returns the TTL of the lease.
func (a *Call) TTL() time.Duration { return a.ttl }

// Context returns the context that ends the call's wait.
func (a *Call) Context() context.Context { return a.ctx }

// Join sets the cohort that the call reports to.
func (a *Call) Join(of Cohort) { a.of = of }

// holderSeen records the lock's holder, as far as it is known, and reports it to the cohort.
func (a *Call) holderSeen(holder record.Entry) {
	s := LockState{Holder: holder}
	if a.bid != nil { // otherwise the claim belongs to another call
		a.known.Holder = holder
		s = a.known
	}
	a.of.HolderSeen(s)
}

// RequestAnswered records the result of the last request, which becomes part of the error if the wait is given up. A
// nil err means the server answered that the lock is held or that the cohort is queued. A request cut short by the end
// of the wait proves nothing and is not recorded.
func (a *Call) RequestAnswered(err error) {
	if err == nil || a.Over() == nil {
		a.of.Answered(err)
	}
}

func (a *Call) waited() time.Duration { return a.c.b.Instant().Sub(a.Begun) }

// TakeOver makes the call continue the claim of a founder that was refused.
func (a *Call) TakeOver(from *Call) {
	a.bid, a.known, a.surveyed, a.length = from.bid, from.known, from.surveyed, from.length
	from.bid = nil // from may have to claim again
	body := a.body()
	body.Lingers, body.InUse = a.bid.Draft.Body.Lingers, a.bid.Draft.Body.InUse // keep what the claim says
	a.bid.Caller, a.bid.Once, a.bid.Draft.Body, a.bid.Draft.Begun = a, a.Req.Once, body, a.Begun
}

// GivesUp records what was known when the call gave up. claims is true if the pending claim is the call's own.
func (a *Call) GivesUp(seen *LockState, outage error, claims bool) {
	a.seen, a.outage = seen, outage
	if claims && a.bid != nil {
		a.id = a.bid.Own()
	}
}

// Withdraw gives up the call's place and claim. It waits until their records are deleted, so that no client finds the
// place of a call that has returned.
func (a *Call) Withdraw() {
	left := append(a.bid.Close(), a.queueing.Close()...)
	if a.place != nil { //safety:place-withdrawn
		// StatusGranted would make the successor consider itself first, although it may not be.
		gone := a.place.Leave(record.StatusGone) //safety:place-left
		left = append(left, gone)
	}
	a.leaves(left...)
}

// Unused releases a lease that has admitted no goroutine. A writer does not return before its gate is deleted, so that
// the gate cannot stall readers that arrive afterwards. A one-shot writer can afford to wait longer for the deletion.
func (a *Call) Unused(gate *session.Lease) {
	gone := gate.Leave(record.StatusGone)
	if a.Req.Once { //safety:refused-gate-gone
		a.deleted(gone, bucket.AnswerTimeout)
	} else {
		a.leaves(gone) //safety:drained-gate-gone
	}
}

// Await waits until the place where the call waited is deleted.
func (a *Call) Await(gone <-chan struct{}) { a.leaves(gone) }

// leaves waits until the records the call has given up are deleted. It ignores the call's context, which may have
// ended.
func (a *Call) leaves(left ...<-chan struct{}) {
	if a.c.b.Away() || a.outage != nil && a.outage != ErrUnanswered { //safety:gone-awaited
		return // an answer is unlikely to come soon
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

// Private reports whether the lease serves this call alone. Other goroutines cannot share a lease with a minimum hold,
// because a cooldown follows each holder.
func (a *Call) Private() bool { return a.Req.Fixed || a.Req.MinHold > 0 } //safety:cooldown-private

// Reads reports whether the call is for a reader.
func (a *Call) Reads() bool { return a.Req.Mode == record.Shared }

// Drains reports whether the call first takes a gate and is granted the lock once the readers have left.
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

// Prepare creates the call's bid if it has none. A call that only waits in its cohort's FIFO needs none.
func (a *Call) Prepare() {
	if a.bid != nil {
		return
	}
	a.bid = &claim.Bid{B: a.c.b, K: a.c.s.Keeper, Caller: a, Bid: core.Bid{Once: a.Req.Once, Begun: a.Since}, Draft: claim.Draft{
		Name: a.Req.Name, Keys: a.Keys, Body: a.body(), TTL: a.ttl, Until: a.Req.Until, Begun: a.Begun,
	}}
	if a.Reads() { // each claim is a separate reader, which the gate must admit
		a.bid.Draft.Guard = a.Keys.Gate
	}
}

// Bound applies the request's limits to the wait. The caller must call cancel when the wait is over.
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

// WhileGranting ends the call's requests as well as its waits when [bucket.Bucket.Granting] ends, because a bucket may
// be unfit precisely because it does not answer writes. The caller must call end. The fast path of an uncontended lock
// skips this.
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

// ask asks the leader for a revision that the bucket has reached.
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

// Over returns the reason the wait is over, or nil if it continues.
func (a *Call) Over() error {
	if a.ctx.Err() != nil {
		return context.Cause(a.ctx)
	}
	return context.Cause(a.c.b.Granting())
}

// Unfit returns the reason the bucket is unfit, or nil if the client knows of none.
func (a *Call) Unfit() error {
	if err := context.Cause(a.c.b.Granting()); errors.Is(err, kvstore.ErrBucketConfig) {
		return err
	}
	return nil
}

// Counts reports whether the call is for a semaphore.
func (a *Call) Counts() bool { return a.Req.Kind == record.Semaphore }

// deleted waits until a record that the call has left is deleted, within has passed, or the call's context ends.
func (a *Call) deleted(gone <-chan struct{}, within time.Duration) {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-gone:
	case <-timer.C:
	case <-a.ctx.Done():
	}
}

func (a *Call) placeTTL() time.Duration { return min(max(a.ttl, minPlaceTTL), maxPlaceTTL) }
