package claim

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/keeper"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
)

// claim is one acquisition: a [core.Claim] and its I/O. It sends the attempts, passes on the answers, and does the
// reads needed to judge them.
type claim struct {
	b     *bucket.Bucket
	k     *keeper.Keeper
	key   string
	guard string

	// Used only by the bid's goroutine.
	draft   *Draft
	forgets []func() // one per attempt, to stop waiting for its answer

	mu     sync.Mutex // guards the fields below; only the bid's goroutine adds attempts
	state  core.Claim
	adopts bool
	errs   map[int]error // errors of answers other than conflicts, by attempt
	wake   chan struct{}
	orphan *keeper.Orphan // the watch for late records, until every attempt is settled
	stop   func()         // stops the watch

	firstForget [1]func() // most claims need only one
}

// claim returns a new claim for the draft.
func (b *Bid) claim() *claim {
	d, cl := &b.Draft, &b.firstClaim
	if cl.b != nil { // the first claim may still get answers
		cl = new(claim)
	}
	id := rand.Text()
	cl.b, cl.k, cl.draft, cl.guard, cl.adopts, cl.wake = b.B, b.K, d, d.Guard, d.Adopts, make(chan struct{}, 1)
	switch {
	case d.Vacant != "": // a vacated key serves only one claim
		cl.key, d.Vacant = d.Vacant, ""
	case d.Body.Status == record.StatusWaiting:
		cl.key = d.Keys.Place(id)
	case d.Guard != "":
		cl.key = d.Keys.Reader(id)
	default:
		cl.key = cmp.Or(d.Slot, d.Keys.Gate)
	}
	cl.state.Begin(id)
	cl.forgets = cl.firstForget[:0]
	return cl
}

// answered handles the answer to attempt n, however late. It runs on one of the store's goroutines.
func (cl *claim) answered(n int, a kvstore.Answer) {
	b := cl.b
	at := b.Instant()
	if a.Err == nil {
		b.Acknowledged(a.Revision)
	}
	answer := bucket.AnswerOf(a)
	cl.mu.Lock()
	// Start the deletion before the wait for the answer ends, so that Close always has one of the two to wait for.
	if cl.state.AnswerArrived(core.Reply{N: n, Answer: answer, At: at}, b.Alone()) {
		cl.k.Discard(cl.key, cl.state.ID, a.Revision)
	}
	if answer.Refusal > core.Conflict {
		if cl.errs == nil {
			cl.errs = make(map[int]error)
		}
		cl.errs[n] = a.Err
	}
	settled := cl.settled()
	cl.mu.Unlock()
	cl.endWatch(settled)
	select {
	case cl.wake <- struct{}{}:
	default:
	}
}

// decided judges the answers received so far until one of them decides the attempt. It returns false if none does.
func (cl *claim) decided(ctx context.Context, newest int, blind bool) (Result, bool) {
	for {
		cl.mu.Lock()
		r, more := cl.state.Next()
		if !more {
			cl.mu.Unlock()
			return Result{}, false
		}
		v, err := cl.state.JudgeReply(r, newest, cl.b.Instant()), cl.errs[r.N]
		cl.mu.Unlock()
		var entry record.Entry
		switch {
		case v.Outcome == core.Refused && blind:
			entry.Revision = v.Revision
			return Result{Outcome: core.Refused, Entry: entry}, true
		case v.Outcome == core.Refused:
			// A state older than the refusal lacks the record that the refusal names.
			if entry, err = cl.b.Read(ctx, cl.refusedBy(), v.Revision); err != nil { //safety:refusal-read
				return Result{Outcome: core.Again, Err: err}, true
			}
			cl.mu.Lock()
			v = cl.state.RecordRead(entry, cl.b.Instant())
			cl.mu.Unlock()
		}
		if v.Outcome != core.Undecided {
			return cl.result(v, entry, err), true
		}
	}
}

// refusedBy returns the key whose revision the server checks.
func (cl *claim) refusedBy() string { return cmp.Or(cl.guard, cl.key) }

// result carries out verdict v and turns it into a Result.
func (cl *claim) result(v core.Verdict, entry record.Entry, err error) Result {
	if v.Delete != 0 {
		cl.k.Discard(cl.key, cl.state.ID, v.Delete)
	}
	res := Result{Outcome: v.Outcome, n: v.N, revision: v.Revision}
	switch v.Outcome {
	case core.Free, core.Busy:
		res.Entry = entry
	case core.Again:
		res.Err = err
	case core.Backwards:
		res.Outcome = core.Failed
		cl.mu.Lock()
		floor := cl.state.Attempt(v.N).Floor
		cl.mu.Unlock()
		res.Err = fmt.Errorf(
			"%w: fencing tokens went backwards, from revision %d to %d: the bucket was restored from a backup, or re-created by a client whose clock is behind. Delete the bucket with \"nats stream rm\" and re-create it with \"lockctl init\"", bucket.ErrUnavailable, floor, v.Revision)
		cl.b.WentBackwards(res.Err)
	}
	return res
}

// denied settles attempt n on a subject that this user is not allowed to write to. Such an attempt leaves no orphan.
// Cleaning up after it would be forbidden too and would hide the refusals of other requests, because the connection
// keeps only its last error.
func (cl *claim) denied(n int) {
	cl.mu.Lock()
	cl.state.Settle(n)
	cl.mu.Unlock()
	cl.forgets[n-1]()
}

// try makes one attempt and waits up to within for its outcome. If blind is true, try does not read the record that
// caused a refusal.
func (cl *claim) try(ctx context.Context, expect uint64, blind bool, within time.Duration) Result {
	b := cl.b
	n, err := cl.send(expect)
	switch {
	case err == nil:
	case b.Life().Err() != nil: // checked first, whether or not the server could be reached
		return Result{Outcome: core.Ended, Err: context.Cause(b.Life())}
	case bucket.IsAny(err, kvstore.ErrInvalidKey, clock.ErrInvalidTTL, kvstore.ErrClosed) || !errors.Is(err, bucket.ErrUnavailable):
		return Result{Outcome: core.Failed, Err: err}
	default:
		return Result{Outcome: core.Again, Err: err}
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
			return Result{Outcome: core.Ended, Err: context.Cause(ctx)}
		case <-granting.Done():
			return Result{Outcome: core.Ended, Err: context.Cause(granting)}
		case <-timer.C:
			if err := b.Denied(cl.key); err != nil {
				cl.denied(n)
				return Result{Outcome: core.Failed, Err: err}
			}
			if waited >= within {
				return Result{Outcome: core.Again, Err: fmt.Errorf("%w: no answer within %v", bucket.ErrUnavailable, waited)}
			}
			pause = min(2*pause, within-waited)
			waited += pause
			timer.Reset(pause)
		}
	}
}

// send sends an attempt and returns its number.
func (cl *claim) send(expect uint64) (int, error) {
	b, n := cl.b, cl.state.Attempts()+1
	t, err := cl.draft.terms()
	if err != nil {
		return 0, err
	}
	body := cl.draft.Body
	body.ID, body.Attempt, body.TTL = cl.state.ID, n, int64(t.TTL/time.Second)
	body.Since, body.Waited = time.Now().UnixMilli(), cl.draft.waited(b.Instant())
	value, err := body.EncodeKept(expect)
	if err != nil {
		return 0, err
	}
	if err := cl.sends(core.Attempt{Expect: expect, Terms: t, Floor: b.Highest(), Since: body.Since, Waited: body.Waited, Meta: body.Meta, By: cl.draft.By, Sent: b.Instant()}); err != nil {
		return 0, err
	}
	// If there is a guard, the expected revision is the guard's, so the server refuses a reader that arrives after the
	// gate.
	forget, err := b.Send(kvstore.Write{Key: cl.key, Value: value, Expect: expect, Guard: cl.guard, TTL: t.TTL}, //safety:join-guarded
		func(a kvstore.Answer) { cl.answered(n, a) })
	if err != nil {
		cl.mu.Lock()
		defer cl.mu.Unlock()
		cl.state.AttemptNotSent()
		return 0, err
	}
	cl.forgets = append(cl.forgets, forget)
	return n, nil
}

// sends records an attempt that is about to be sent. It returns an error if the bucket accepts no more records.
func (cl *claim) sends(a core.Attempt) error {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	// A claim that may already have a record, or that frees a place once granted, needs no additional room.
	if !cl.adopts && !cl.draft.Queued && !cl.draft.Returns && cl.state.Unwritten() {
		if err := cl.b.Admits(); err != nil { //safety:room-kept
			return err
		}
	}
	cl.state.AttemptSent(a)
	return nil
}
