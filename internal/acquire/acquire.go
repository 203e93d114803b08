package acquire

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/session"
	"github.com/natslock/locks/kvstore"
)

// This file drives one claim: Acquire, drive, atOnce, offer, try, send. member.acquire calls drive,
// hold and enter; claim.go hands the answers to core/claim.go, which judges them. A lock that nobody
// wants takes just this way, with one write to the server.

// Acquire takes the lock that req names. It returns what is held, or an error: a
// [BusyError] (only with Once), a [WaitError] when the context or the maximum wait ended
// the wait, or one that matches another sentinel.
func (c *Client) Acquire(ctx context.Context, req Request) (Holding, error) {
	a, err := c.begin(ctx, req)
	if err != nil {
		return nil, err
	}
	defer c.leave()
	defer a.bound()()
	defer a.unknock()
	if req.Once && !c.runs.rouse(a) && a.drains() {
		// Before the gate is taken: a one-shot writer stalls no reader.
		for reader, ok := a.currentReader(); ok; reader, ok = a.currentReader() {
			if now, gone := a.knock(reader); !gone {
				return nil, a.locked(now)
			}
		}
	}
	m := c.runs.ask(a)
	if err := m.acquire(); err != nil {
		return nil, err
	}
	return m, nil
}

// begin checks a request, and registers the call. The caller leaves.
func (c *Client) begin(ctx context.Context, req Request) (*acquisition, error) {
	a, err := c.prepare(ctx, req)
	if err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, a.gaveUp(context.Cause(ctx))
	}
	if err := a.unfit(); err != nil { // before anything is sent
		return nil, a.gaveUp(err)
	}
	if err := c.enter(); err != nil {
		return nil, fmt.Errorf("acquire lock %q: %w", req.Name, err)
	}
	c.b.Listen()
	a.asked = true
	c.s.Asked()
	if err := c.kinds.check(req.Kind, req.Name); err != nil {
		c.leave()
		return nil, err
	}
	return a, nil
}

// drive gets the lock for a run.
func (a *acquisition) drive(r *run) result {
	a.prepareBid()
	res := result{outcome: busy}
	switch {
	case a.place != nil || a.queueing != nil: // the member that drove it before has come so far
	case !r.Behind:
		r.lingersNext(a)
		res = a.atOnce()
	default:
		res = a.behind(r)
	}
	if res.outcome == merged || res.outcome == granted {
		return res
	}
	defer a.whileGranting()()
	switch {
	case a.req.Once:
		for {
			if res = a.confirmed(res); res.outcome != busy {
				return res
			}
			now, gone := a.knock(res.entry)
			if !gone {
				res.entry = now
				return res
			}
			res = a.survey(a.asOf)
		}
	case res.outcome == free || res.outcome == busy:
		if !res.entry.Zero() {
			a.saw(res.entry)
		}
		return a.wait()
	}
	return res
}

// atOnce tries to take the lock without queueing. That is one write if the client knows
// the state of the lock, or guesses it. Otherwise it reads the lock and its queue first.
func (a *acquisition) atOnce() result {
	if a.counts() {
		return a.survey(0)
	}
	known := a.c.b.Recent.Known(a.c.b.Instant(), a.keys.Gate)
	if a.req.Patient { //safety:patient-bypass
		known.Until = 0
	}
	revision := known.Tombstone
	a.named = 0
	switch {
	// After its own release the client skips a read of the queue only for as long as
	// [record.Bypass]: nobody starves.
	case known.Tombstone == 0 || known.Until != 0: //safety:bypass-bounded
		a.bid.blind, a.bid.until = true, known.Until
		r := a.bid.offer(known.Tombstone)
		a.bid.blind, a.bid.until = false, 0
		if r.outcome != unread {
			return r
		}
		revision, a.named = r.entry.Revision, r.entry.Revision
	}
	return a.survey(revision)
}

// bid repeats attempts, under new claims where one is lost, until something
// decides.
type bid struct {
	c     *Client
	a     *acquisition // the call that makes it: each of a run, in turn
	once  bool         // an unavailable server is an answer
	blind bool         // the record that has refused an attempt is not read
	draft draft
	shown
	cur       *claim
	begun     clock.Instant // of the offer under way, which another member may go on with; 0: none
	evictions int           // how often other waiters have deleted its place
	until     clock.Instant // when its claims begin to pass goroutines that may have queued; 0: they pass none

	firstClaim claim // of most bids that is all there is
}

// noStreamFor is how long a bid endures a stream without a leader, electing
// one having been measured to take 4 to 9 s. Silence and a connection that is
// down are waited out: they pass, or the wait's context ends.
const noStreamFor = 15 * time.Second

// offer bids for the key at the expected revision. It returns granted, free
// with a tombstone, busy, unread, failed or ended; and requeue where the bucket has no room for the
// claim of a waiter. Then its place is the room that there is: it gives that up, and is admitted to
// the queue again when the bucket has room.
func (b *bid) offer(expect uint64) (decided result) {
	if b.begun == 0 {
		b.begun = b.c.b.Instant()
	}
	defer func() {
		if decided.outcome != ended && decided.outcome != failed {
			b.begun = 0
		}
	}()
	// The backoff of an outage counts the tries in a row that were not answered: when
	// it is over, attempts from before it may turn up and be lost.
	silent, losses, flights := 0, 0, 0
	for try := 0; ; try++ {
		if try > 0 && b.bypasses(expect) && b.c.b.Instant() >= b.until { //safety:bypass-repeated
			return result{outcome: free}
		}
		up := b.c.b.Online()
		if err := context.Cause(b.c.b.Granting()); err != nil {
			return result{outcome: ended, err: err}
		}
		if b.cur == nil {
			b.cur = b.claim()
		}
		r := b.cur.try(b.a.ctx, expect, b.blind)
		var pause time.Duration
		switch r.outcome {
		case free:
			if r.entry.Revision != 0 || b.draft.adopts { // nothing is left to adopt //safety:adopt-never-free
				return r
			}
			expect = 0 // the tombstone has expired
			if try < 3 {
				continue
			}
			pause = clock.ShortBackoff(try)
		case lost:
			// An answer to an earlier attempt may have arrived: it must not become a grant.
			b.close() //safety:over-closed
			silent = 0
			if losses++; losses <= 3 {
				continue
			}
			pause = clock.OutageBackoff(losses)
		case retry:
			b.a.heard(r.err)
			if b.cur.guard != "" && !errors.Is(r.err, kvstore.ErrInFlight) { //safety:join-new-id
				b.close() // a join without an answer is repeated under a new id
			}
			switch {
			case errors.Is(r.err, kvstore.ErrFull) && b == b.a.bid && b.a.place != nil: //safety:place-makes-room
				b.close()
				return result{outcome: requeue, err: r.err}
			case bucket.IsAny(r.err, bucket.ErrPermission, kvstore.ErrTooLarge), b.once && !errors.Is(r.err, kvstore.ErrInFlight),
				errors.Is(r.err, kvstore.ErrNoStream) && b.c.b.Instant().Sub(b.begun) > noStreamFor:
				return result{outcome: failed, err: r.err}
			case errors.Is(r.err, kvstore.ErrInFlight):
				pause = clock.InFlightBackoff(flights)
				flights++
			default:
				pause = clock.OutageBackoff(silent)
				silent++
			}
		case busy:
			b.a.heard(nil)
			return r
		case failed: // a claim that has deleted its record is over, whichever member goes on
			b.close()
			return r
		default:
			return r
		}
		if b.bypasses(expect) { // it queues then, and not later
			pause = min(pause, max(b.until.Sub(b.c.b.Instant()), time.Millisecond))
		}
		if err := b.pause(pause, up); err != nil {
			return result{outcome: ended, err: err}
		}
	}
}

// bypasses says whether a claim may pass goroutines that have queued since the queue was seen empty. A
// mutex without a record has no queue: its first waiter would have taken it. A slot can have one,
// whose first waiter knows of fewer slots.
func (b *bid) bypasses(expect uint64) bool {
	if b.draft.slot != "" { //safety:slot-bypass-empty
		return b.until != 0
	}
	return b.until != 0 && expect != 0
}

// pause waits for d or a connection that has come back (up is [bucket.Bucket.Online]
// from before the failure), the end of the wait, or of the client.
func (b *bid) pause(d time.Duration, up <-chan struct{}) error {
	ctx := b.a.ctx
	if ctx.Err() != nil { // whatever else is due
		return context.Cause(ctx)
	}
	t := time.NewTimer(d)
	defer t.Stop()
	granting := b.c.b.Granting()
	select {
	case <-t.C:
		return nil
	case <-up:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-granting.Done():
		return context.Cause(granting)
	}
}

// close gives up a claim that is not granted: see [claim.close].
func (b *bid) close() (gone []<-chan struct{}) {
	if b != nil && b.cur != nil {
		gone = b.cur.close(0)
		b.cur = nil
	}
	return gone
}

// mine says whether the record is that of an earlier attempt of the bid, which
// came to be applied late: the next attempt will adopt it.
func (b *bid) mine(e record.Entry) bool { return b.cur != nil && e.Live() && e.From(b.cur.state.ID) } //safety:own-record

// own is the id of the claim under way; "": there is none.
func (b *bid) own() string {
	if b.cur == nil {
		return ""
	}
	return b.cur.state.ID
}

// try makes one attempt and waits until it comes to something. A blind one does
// not read the record it was refused for.
func (cl *claim) try(ctx context.Context, expect uint64, blind bool) result {
	b := cl.c.b
	n, err := cl.send(expect)
	switch {
	case err == nil:
	case b.Life().Err() != nil: // also where the server could not be reached
		return result{outcome: ended, err: context.Cause(b.Life())}
	case bucket.IsAny(err, kvstore.ErrInvalidKey, errInvalidTTL, kvstore.ErrClosed) || !errors.Is(err, bucket.ErrUnavailable):
		return result{outcome: failed, err: err}
	default:
		return result{outcome: retry, err: err}
	}
	pause, waited := bucket.DeniedAfter, bucket.DeniedAfter
	timer := b.Timer(pause)
	defer b.TimerDone(timer)
	granting := b.Granting() //safety:unfit-ends-claims
	for {
		if r, decided := cl.decided(ctx, n, blind); decided {
			return r
		}
		select {
		case <-cl.wake:
		case <-ctx.Done():
			return result{outcome: ended, err: context.Cause(ctx)}
		case <-granting.Done():
			return result{outcome: ended, err: context.Cause(granting)}
		case <-timer.C:
			if err := b.Denied(cl.key); err != nil {
				cl.denied(n)
				return result{outcome: failed, err: err}
			}
			if waited >= bucket.AnswerTimeout {
				return result{outcome: retry, err: fmt.Errorf("%w: no answer within %v", bucket.ErrUnavailable, waited)}
			}
			pause = min(2*pause, bucket.AnswerTimeout-waited)
			waited += pause
			timer.Reset(pause)
		}
	}
}

// send makes an attempt and returns its number.
func (cl *claim) send(expect uint64) (int, error) {
	b := cl.c.b
	// A claim that may have a record already, or has a place, which it frees, adds nothing.
	cl.mu.Lock()
	adds := !cl.adopts && !cl.draft.queued && cl.state.Unwritten()
	n := cl.state.Attempts() + 1
	cl.mu.Unlock()
	if adds {
		if err := b.Admits(); err != nil { //safety:room-kept
			return 0, err
		}
	}
	t, err := cl.draft.terms(cl.c.s.Margin)
	if err != nil {
		return 0, err
	}
	body := cl.draft.body
	body.ID, body.Attempt, body.TTL = cl.state.ID, n, int64(t.TTL/time.Second)
	body.Since, body.Waited = time.Now().UnixMilli(), cl.draft.waited(b.Instant())
	value, err := body.EncodeKept(expect)
	if err != nil {
		return 0, err
	}
	cl.mu.Lock()
	cl.state.Send(core.Attempt{Expect: expect, Terms: t, Floor: b.Highest(), Since: body.Since, Waited: body.Waited, Meta: body.Meta, Sent: b.Instant()})
	cl.mu.Unlock()
	// The expectation is about the guard, where there is one: the server refuses a reader
	// that comes after the gate.
	forget, err := b.Send(kvstore.Write{Key: cl.key, Value: value, Expect: expect, Guard: cl.guard, TTL: t.TTL}, //safety:join-guarded
		func(a kvstore.Answer) { cl.answered(n, a) })
	cl.mu.Lock()
	defer cl.mu.Unlock()
	if err != nil {
		cl.state.Unsend()
		return 0, err
	}
	cl.forgets = append(cl.forgets, forget)
	return n, nil
}

// hold makes the lease of a granted claim. The place it was granted from has done its
// duty.
func (a *acquisition) hold(g session.Granted) *session.Lease {
	l := a.c.s.Hold(g, a.req.Until)
	if a.place != nil {
		a.evict()
		left := a.place.Leave(a.placeStatus)
		if a.counts() {
			a.await(left, l) //safety:place-awaited
		}
	}
	a.bid.cur, a.place = nil, nil
	return l
}
