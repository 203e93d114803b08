package acquire

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
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/session"
	"github.com/natslock/locks/kvstore"
)

// draft is what the claims of a bid have in common.
type draft struct {
	name   string // the lock's
	keys   record.Keys
	vacant string // the key of the next claim; "": its own
	slot   string // the key of a semaphore that is claimed; "": its gate is
	guard  string // the literal key that the expectation is about; "": the own
	body   record.Body
	ttl    time.Duration
	until  time.Time // a given end of the lease; zero: none
	begun  clock.Instant
	queued bool // it had to, at least once
	adopts bool // a lock that was handed over
}

// terms are those of an attempt made now: what is left until a given end shrinks
// while waiting.
func (d *draft) terms(margin float64) (clock.Terms, error) {
	if d.until.IsZero() {
		return clock.NewTerms(d.ttl, margin), nil
	}
	t, err := clock.TermsUntil(time.Until(d.until), margin)
	if err != nil {
		return t, fmt.Errorf("lock %q: its time was over before it was free: %w", d.name, err)
	}
	return t, nil
}

// waited is what the record of a claim says of the wait before it, in milliseconds.
func (d *draft) waited(now clock.Instant) int64 {
	if !d.queued {
		return 0
	}
	return max(now.Sub(d.begun).Milliseconds(), 1)
}

// claim is one acquisition: what [core.Claim] needs around it. It sends the attempts, hands over the
// answers, and reads what the judgement asks for.
type claim struct {
	c     *Client
	draft *draft // the bid's: read on the goroutine of the acquire only
	key   string
	guard string

	mu      sync.Mutex // guards what follows
	state   core.Claim
	adopts  bool
	forgets []func()      // of each attempt: its answer is not needed any more
	errs    map[int]error // of the answers to be judged that are neither yes nor no
	wake    chan struct{}
	orphan  *session.Orphan // the watch for late records, until each attempt is settled
	stop    func()          // ends it

	firstForget [1]func() // of most claims that is all there is
}

// claim begins a claim of what the draft says.
func (b *bid) claim() *claim {
	d, cl := &b.draft, &b.firstClaim
	if cl.c != nil { // it may have answers to come
		cl = new(claim)
	}
	id := rand.Text()
	cl.c, cl.draft, cl.guard, cl.adopts, cl.wake = b.c, d, d.guard, d.adopts, make(chan struct{}, 1)
	switch {
	case d.vacant != "": // a key that was left serves one claim
		cl.key, d.vacant = d.vacant, ""
	case d.body.Status == record.StatusWaiting:
		cl.key = d.keys.Place(id)
	case d.guard != "":
		cl.key = d.keys.Reader(id)
	default:
		cl.key = cmp.Or(d.slot, d.keys.Gate)
	}
	cl.state.Begin(id)
	cl.forgets = cl.firstForget[:0]
	return cl
}

// answerOf says what an answer means for an attempt.
func answerOf(a kvstore.Answer) core.Answer {
	conflict, refused := errors.AsType[*kvstore.ConflictError](a.Err)
	switch {
	case a.Err == nil:
		return core.Answer{Revision: a.Revision}
	case refused:
		return core.Answer{Refusal: core.Conflict, Last: conflict.Last}
	case errors.Is(a.Err, kvstore.ErrInFlight):
		return core.Answer{Refusal: core.InFlight}
	case errors.Is(a.Err, kvstore.ErrFull):
		return core.Answer{Refusal: core.Full}
	case kvstore.NotSent(a.Err), errors.Is(a.Err, kvstore.ErrNoStream):
		return core.Answer{Refusal: core.Never}
	}
	return core.Answer{Refusal: core.Unsure}
}

// answered takes an answer, however late. It runs on a goroutine of the store.
func (cl *claim) answered(n int, a kvstore.Answer) {
	b := cl.c.b
	at := b.Instant()
	if a.Err == nil {
		b.Acknowledged(a.Revision)
	}
	answer := answerOf(a)
	cl.mu.Lock()
	// The deletion begins before the wait for the answer ends: a Close waits for one of them.
	if cl.state.Answered(core.Reply{N: n, Answer: answer, At: at}, b.Alone()) {
		cl.c.s.Discard(cl.key, cl.state.ID, a.Revision)
	}
	if answer.Refusal > core.Conflict {
		if cl.errs == nil {
			cl.errs = make(map[int]error)
		}
		cl.errs[n] = a.Err
	}
	cl.mu.Unlock()
	cl.endWatch()
	select {
	case cl.wake <- struct{}{}:
	default:
	}
}

// decided judges the answers that have come, until one decides.
func (cl *claim) decided(ctx context.Context, newest int, blind bool) (result, bool) {
	for {
		cl.mu.Lock()
		r, more := cl.state.Next()
		if !more {
			cl.mu.Unlock()
			return result{}, false
		}
		v, err := cl.state.Judge(r, newest, cl.c.b.Instant()), cl.errs[r.N]
		cl.mu.Unlock()
		var entry record.Entry
		switch {
		case v.Outcome == core.Refused && blind:
			entry.Revision = v.Revision
			return result{outcome: unread, entry: entry}, true
		case v.Outcome == core.Refused:
			// A state older than the refusal does not have the record that the refusal names.
			if entry, err = cl.c.b.Read(ctx, cl.refusedBy(), v.Revision); err != nil { //safety:refusal-read
				return result{outcome: retry, err: err}, true
			}
			cl.mu.Lock()
			v = cl.state.Found(entry, cl.c.b.Instant())
			cl.mu.Unlock()
		}
		if v.Outcome != core.Undecided {
			return cl.result(v, entry, err), true
		}
	}
}

// refusedBy is the key whose record refuses the attempts.
func (cl *claim) refusedBy() string { return cmp.Or(cl.guard, cl.key) }

// outcomes are those of a verdict for the way of the acquire.
var outcomes = [...]outcome{
	core.Granted: granted, core.Again: retry, core.Free: free, core.Busy: busy, core.Lost: lost, core.Backwards: failed,
}

// result performs a verdict.
func (cl *claim) result(v core.Verdict, entry record.Entry, err error) result {
	if v.Delete != 0 {
		cl.c.s.Discard(cl.key, cl.state.ID, v.Delete)
	}
	res := result{outcome: outcomes[v.Outcome], n: v.N, revision: v.Revision}
	switch v.Outcome {
	case core.Free, core.Busy:
		res.entry = entry
	case core.Again:
		res.err = err
	case core.Backwards:
		cl.mu.Lock()
		floor := cl.state.Attempt(v.N).Floor
		cl.mu.Unlock()
		res.err = fmt.Errorf(
			"%w: fencing tokens went backwards, from revision %d to %d: the bucket was restored from a backup, or re-created by a client whose clock is behind. Re-create it with a higher first_seq", bucket.ErrUnavailable, floor, v.Revision)
	}
	return res
}

// denied settles an attempt that the server has refused to pass on. It leaves no
// orphan, and cleaning up after it would only be refused again, hiding the
// refusals of others: the connection keeps the last one.
func (cl *claim) denied(n int) {
	cl.mu.Lock()
	forget := cl.forgets[n-1]
	cl.state.Settle(n)
	cl.mu.Unlock()
	forget()
}

// grant ends the claim that r has granted, and returns what it has become.
func (r result) grant(cl *claim) session.Granted {
	cl.close(r.n)
	cl.mu.Lock()
	a := cl.state.Attempt(r.n)
	cl.mu.Unlock()
	body := cl.draft.body
	body.ID, body.Since, body.Waited, body.Meta = cl.state.ID, a.Since, a.Waited, a.Meta
	return session.Granted{
		Kind: cl.draft.keys.Kind, Name: cl.draft.name, Key: cl.key, Once: cl.guard != "", Revision: r.revision,
		Body: body, Terms: a.Terms, Sent: a.Sent,
	}
}
