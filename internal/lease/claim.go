package lease

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/natslock/locks/kvstore"
)

// claim is one acquisition: the attempts made under one id, of which at most
// one becomes a lease.
//
// Each attempt is judged alone, by its own expectation and its own sending,
// until the claim is over: granted, given up, or found broken. From then on
// the acknowledgement of another of its attempts only causes the deletion of
// exactly that record, never a grant. So an answer that comes when the lock has
// been given up cannot bring it back.
type claim struct {
	e     *Engine
	spec  spec
	id    string
	of    claimant
	guard string // the literal key the expectation is about; "": the own

	mu       sync.Mutex
	attempts []attempt // number n is attempts[n-1]
	over     bool
	granted  int // the attempt that became the lease
	replies  []reply
	wake     chan struct{}
	sighting *ghost // the watch for late records, until each attempt is answered
	stop     func() // ends it

	// Of most claims that is all there is.
	firstAttempt [1]attempt
	firstReply   [1]reply
}

// claimant is what a claim is made for.
type claimant interface {
	// body is what its records say.
	body() Body
	// terms are those of an attempt made now.
	terms() (terms, error)
	// waited is for the record: how long the lock was queued for, in milliseconds.
	waited() int64
}

type attempt struct {
	n        int
	expect   uint64
	terms    terms
	sent     Instant
	since    int64  // the same in unix milliseconds, for those who look
	waited   int64  // what the record says of that, for them too
	floor    uint64 // highest revision known when it was sent
	answered bool
	doubtful bool // refused, maybe by a leader that was deposed: another may have applied it
	forget   func()
}

type reply struct {
	n      int
	answer kvstore.Answer
	at     Instant
}

// outcome says what came of an attempt.
type outcome uint8

const (
	// granted: acknowledged, or found, in time.
	granted outcome = iota + 1
	// free: refused, but nobody holds the key: a tombstone, or nothing.
	free
	// unread: refused, by what is at the entry's revision, which was not read.
	unread
	// busy: refused, and somebody holds the key.
	busy
	// again: not sent, refused for a passing reason, or without an answer.
	again
	// spoilt: the claim is over without a grant; a new one may be made.
	spoilt
	// failed: trying again will not help.
	failed
	// ended: the wait is over.
	ended
)

// verdict is the outcome of an attempt with what belongs to it.
type verdict struct {
	outcome  outcome
	n        int    // granted: the attempt
	revision uint64 // granted: the record's
	entry    Entry  // free and busy: what is there; unread: its revision
	err      error  // again and failed: why; ended: the cause
}

func (e *Engine) newClaim(s spec, of claimant) *claim {
	c := &claim{e: e, spec: s, id: rand.Text(), of: of, wake: make(chan struct{}, 1)}
	c.attempts, c.replies = c.firstAttempt[:0], c.firstReply[:0]
	return c
}

// send makes an attempt.
func (c *claim) send(expect uint64) (int, error) {
	t, err := c.of.terms()
	if err != nil {
		return 0, err
	}
	c.mu.Lock()
	n := len(c.attempts) + 1
	c.mu.Unlock()
	body := c.of.body()
	body.ID, body.Attempt = c.id, n
	since := time.Now().UnixMilli()
	body.Since = since
	body.Waited = c.of.waited()
	body.TTL = int64(t.ttl / time.Second)
	value, err := body.encode()
	if err != nil {
		return 0, err
	}
	c.mu.Lock()
	c.attempts = append(c.attempts, attempt{n: n, expect: expect, terms: t, floor: c.e.highest.Load(), since: since, waited: body.Waited, sent: c.e.now()})
	c.mu.Unlock()
	forget, err := c.e.kv.Send(kvstore.Write{Key: c.spec.key, Value: value, Expect: expect, Guard: c.guard, TTL: t.ttl},
		func(a kvstore.Answer) { c.answered(n, a) })
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.attempts = c.attempts[:n-1] // never sent
		return 0, err
	}
	c.attempts[n-1].forget = forget
	return n, nil
}

// answered takes an answer, however late. It runs on a goroutine of the store.
func (c *claim) answered(n int, a kvstore.Answer) {
	at := c.e.now()
	if a.Err == nil {
		c.e.seen(a.Revision)
	}
	c.mu.Lock()
	// Other refusals than these do not say that the write will never be applied.
	if a.Err == nil || isAny(a.Err, kvstore.ErrConflict, kvstore.ErrInFlight, kvstore.ErrNoStream) {
		c.attempts[n-1].answered = true
		c.attempts[n-1].doubtful = !c.e.kv.Alone() && !final(a.Err, c.attempts[n-1].expect)
	}
	late := c.over
	if !late {
		c.replies = append(c.replies, reply{n: n, answer: a, at: at})
	}
	discard := late && a.Err == nil && n != c.granted
	c.mu.Unlock()
	c.endSighting()
	if discard {
		c.e.discard(c.spec.key, c.id, a.Revision)
	}
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// try makes one attempt and waits until it comes to something. A blind one does
// not read what it was refused for.
func (c *claim) try(ctx context.Context, expect uint64, blind bool) verdict {
	n, err := c.send(expect)
	if err != nil {
		if isAny(err, kvstore.ErrInvalidKey, ErrInvalidTTL, kvstore.ErrClosed) || c.e.life.Err() != nil || !errors.Is(err, ErrUnavailable) {
			return verdict{outcome: failed, err: err}
		}
		return verdict{outcome: again, err: err}
	}
	pause, waited := deniedAfter, deniedAfter
	timer := c.e.timer(pause)
	defer c.e.timerDone(timer)
	for {
		c.mu.Lock()
		var replies []reply
		if len(c.replies) > 0 {
			replies, c.replies = c.replies, nil
		}
		c.mu.Unlock()
		for i, r := range replies {
			if v, ok := c.judge(ctx, r, n, blind); ok {
				c.mu.Lock() // what follows was meant for this claim too
				c.replies = append(replies[i+1:], c.replies...)
				c.mu.Unlock()
				return v
			}
		}
		select {
		case <-c.wake:
		case <-ctx.Done():
			return verdict{outcome: ended, err: context.Cause(ctx)}
		case <-c.e.life.Done():
			return verdict{outcome: ended, err: context.Cause(c.e.life)}
		case <-timer.C:
			if err := c.e.kv.Denied(c.spec.key); err != nil {
				c.denied(n)
				return verdict{outcome: failed, err: err}
			}
			if waited >= answerTimeout {
				return verdict{outcome: again, err: fmt.Errorf("%w: no answer within %v", ErrUnavailable, waited)}
			}
			pause = min(2*pause, answerTimeout-waited)
			waited += pause
			timer.Reset(pause)
		}
	}
}

// denied settles an attempt that the server has refused to pass on. It leaves no
// ghost, and cleaning up after it would only be refused again, hiding the
// refusals of others: the connection keeps the last one.
func (c *claim) denied(n int) {
	c.mu.Lock()
	forget := c.attempts[n-1].forget
	c.attempts[n-1].answered = true
	c.mu.Unlock()
	forget()
}

// deniedAfter is how long an answer may take before a refusal of the subject,
// which is not answered, is looked for; then again at growing intervals.
const deniedAfter = 50 * time.Millisecond

// judge decides by one reply; false: it decides nothing. newest is the number
// of the attempt made last: the refusal of an older one is no news.
func (c *claim) judge(ctx context.Context, r reply, newest int, blind bool) (verdict, bool) {
	err := r.answer.Err
	conflict, refused := errors.AsType[*kvstore.ConflictError](err)
	switch {
	case err == nil:
		return c.take(r.n, r.answer.Revision, r.at), true
	case r.n != newest:
		return verdict{}, false
	case refused:
		if conflict.Last == 0 {
			return verdict{outcome: free}, true
		}
		if blind {
			v := verdict{outcome: unread}
			v.entry.Revision = conflict.Last
			return v, true
		}
		key := c.spec.key
		if c.guard != "" {
			key = c.guard
		}
		entry, err := c.e.read(ctx, key, conflict.Last)
		if err != nil {
			return verdict{outcome: again, err: err}, true
		}
		switch {
		case !entry.Live():
			return verdict{outcome: free, entry: entry}, true
		case !entry.of(c.id):
			return verdict{outcome: busy, entry: entry}, true
		case entry.Status == StatusBroken:
			// Never adopted: an operator has decided against it.
			c.e.discard(c.spec.key, c.id, entry.Revision)
			return verdict{outcome: spoilt}, true
		case !c.open(entry.Attempt):
			return verdict{outcome: busy, entry: entry}, true // not written by us
		}
		// An earlier attempt whose answer was lost: its own sending counts.
		return c.take(entry.Attempt, entry.Revision, c.e.now()), true
	default:
		return verdict{outcome: again, err: err}, true
	}
}

// final says whether an answer settles an attempt, whichever of several servers
// that believe to lead has given it: one that expects a revision which has been
// replaced is refused by all of them.
func final(err error, expect uint64) bool {
	var conflict *kvstore.ConflictError
	if errors.As(err, &conflict) {
		return expect > 0 && conflict.Last > expect
	}
	return !errors.Is(err, kvstore.ErrInFlight)
}

// open says whether attempt n was made and may have been applied unheard. A
// refusal is no proof that it was not, where there are replicas: a leader that
// was deposed refuses what its successor applies. Such an attempt is adopted
// when its record is met; it is not looked for when the claim is over.
func (c *claim) open(n int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return n >= 1 && n <= len(c.attempts) && (!c.attempts[n-1].answered || c.attempts[n-1].doubtful)
}

// take grants attempt n, stored at revision, when it became known in time.
func (c *claim) take(n int, revision uint64, at Instant) verdict {
	c.mu.Lock()
	a := c.attempts[n-1]
	c.mu.Unlock()
	if now := c.e.now(); max(at, now) >= a.terms.end(a.sent) {
		c.e.discard(c.spec.key, c.id, revision)
		return verdict{outcome: spoilt}
	}
	if revision <= a.floor {
		c.e.discard(c.spec.key, c.id, revision)
		return verdict{outcome: failed, err: fmt.Errorf(
			"%w: fencing tokens went backwards, from %d to %d: the bucket was restored from a backup or made again with a clock behind; make it anew with a first_seq above", ErrUnavailable, a.floor, revision)}
	}
	return verdict{outcome: granted, n: n, revision: revision}
}

// close ends the claim; n is the attempt that was granted, or 0. Answers that
// are here already or still to come lead to deletions only.
func (c *claim) close(n int) {
	c.mu.Lock()
	if c.over {
		c.mu.Unlock()
		return
	}
	c.over, c.granted = true, n
	replies := c.replies
	c.replies = nil
	var open []attempt
	var adopted func() // found, so its answer is no longer needed
	for i, a := range c.attempts {
		switch {
		case a.answered || a.forget == nil:
		case i+1 == n:
			adopted = a.forget
			c.attempts[i].answered = true // by the record
		default:
			open = append(open, a)
		}
	}
	c.mu.Unlock()
	for _, r := range replies {
		if r.answer.Err == nil && r.n != n {
			c.e.discard(c.spec.key, c.id, r.answer.Revision)
		}
	}
	if adopted != nil {
		adopted()
	}
	if len(open) > 0 {
		c.haunt(open, n == 0)
	}
}

// haunt looks after attempts without an answer when the claim is over: their
// answers are listened for, their records watched for. When the claim was
// given up, what they expect is taken away from them.
func (c *claim) haunt(open []attempt, givenUp bool) {
	for _, a := range open {
		c.e.ghosts.keep(a.forget)
	}
	c.e.background(func(ctx context.Context) {
		if w, err := c.e.kv.Watch(c.spec.key, c.sighted); err == nil {
			c.watchWhileOpen(w)
		}
		if !givenUp {
			return
		}
		ctx, cancel := context.WithTimeout(ctx, open[len(open)-1].terms.ttl)
		defer cancel()
		taken := make(map[uint64]bool)
		for _, a := range open {
			if !taken[a.expect] {
				taken[a.expect] = true
				c.takeAway(ctx, a)
			}
		}
	})
}

// watchWhileOpen keeps w until each attempt is answered, or for the life of a ghost.
func (c *claim) watchWhileOpen(w kvstore.Watch) {
	c.mu.Lock()
	settled := c.settled()
	if !settled {
		c.sighting, c.stop = &ghost{}, w.Stop
		c.e.ghosts.add(c.sighting, w.Stop)
	}
	c.mu.Unlock()
	if settled {
		w.Stop()
	}
}

// settle notes that an attempt without an answer cannot be applied any more, or has
// been and its record is deleted.
func (c *claim) settle(n int) {
	c.mu.Lock()
	if n >= 1 && n <= len(c.attempts) {
		c.attempts[n-1].answered = true
	}
	c.mu.Unlock()
	c.endSighting()
}

// endSighting ends the watch for late records when each attempt is settled.
func (c *claim) endSighting() {
	c.mu.Lock()
	var sighting *ghost
	if c.sighting != nil && c.settled() {
		sighting, c.sighting = c.sighting, nil
	}
	c.mu.Unlock()
	if sighting != nil {
		c.e.ghosts.lay(sighting)
		c.e.sender.add(c.stop)
	}
}

// settled says whether each attempt has an answer. Under mu.
func (c *claim) settled() bool {
	return !slices.ContainsFunc(c.attempts, func(a attempt) bool { return !a.answered })
}

// takeAway puts a tombstone where the attempt expects none, or finds its
// record and deletes it. For an expectation above 0 that settles the attempt
// for ever; for 0 as long as the tombstone lasts.
func (c *claim) takeAway(ctx context.Context, a attempt) {
	b := Body{Status: StatusGone, ID: c.id, Client: c.e.client}
	body, err := b.encode()
	if err != nil {
		return
	}
	expect, found := a.expect, 0 // found: the attempt whose record is there
	if c.guard != "" {
		// What it expects is the gate's: nothing to take away. What it may have
		// written is here.
		up := c.e.online()
		entry, err := c.e.read(ctx, c.spec.key, 1)
		for try := 0; err != nil; try++ { // the server may be away
			if isAny(err, ErrPermission, kvstore.ErrClosed) || c.e.sleep(ctx, outagePause(try), up) != nil {
				return
			}
			up = c.e.online()
			entry, err = c.e.read(ctx, c.spec.key, 1)
		}
		if !entry.Live() {
			return
		}
		expect, found = entry.Revision, entry.Attempt
	}
	over := func() {
		if found > 0 { // it was applied, and its record is gone
			c.settle(found)
		}
		if a.expect > 0 && c.guard == "" { // a later revision kills it for ever
			c.settle(a.n)
		}
	}
	for try := 0; ; try++ {
		up := c.e.online()
		_, err := c.e.write(ctx, kvstore.Write{Key: c.spec.key, Value: body, Expect: expect, Delete: true})
		var conflict *kvstore.ConflictError
		switch {
		case err == nil:
			over()
			return
		case errors.As(err, &conflict):
			if conflict.Last == 0 {
				return
			}
			entry, err := c.e.read(ctx, c.spec.key, conflict.Last)
			if err == nil && !(entry.of(c.id) && entry.Live()) {
				if final(conflict, expect) {
					over()
				}
				return
			}
			if err == nil {
				expect, found = entry.Revision, entry.Attempt
			}
		case isAny(err, ErrPermission, kvstore.ErrClosed):
			return
		}
		if c.e.sleep(ctx, outagePause(try), up) != nil {
			return
		}
	}
}

// sighted deletes an own record that nobody wants when it shows up.
func (c *claim) sighted(ev kvstore.Event) {
	if ev.Kind != kvstore.Put {
		return
	}
	entry := entryOf(ev.Record)
	c.mu.Lock()
	unwanted := c.over && entry.of(c.id) && entry.Renewal == 0 && entry.Attempt != c.granted &&
		(entry.Status == StatusHeld || entry.Status == StatusWaiting)
	c.mu.Unlock()
	if unwanted {
		// Anybody may forge a notification: the record itself has to say so.
		c.e.background(func(ctx context.Context) {
			if e, err := c.e.read(ctx, c.spec.key, ev.Record.Revision); err == nil && e.of(c.id) && e.Live() && e.Renewal == 0 && e.Attempt != c.granted {
				c.e.discard(c.spec.key, c.id, e.Revision)
			}
		})
	}
}

// lease makes the granted attempt a lease and gives it to the keeper.
func (c *claim) lease(v verdict, init func(l *Lease)) *Lease {
	c.close(v.n)
	c.mu.Lock()
	a := c.attempts[v.n-1]
	c.mu.Unlock()
	body := c.of.body()
	l := &Lease{
		e: c.e, spec: c.spec, id: c.id, token: v.revision,
		status: body.Status, mode: body.Mode, meta: body.Meta, since: a.since, waited: a.waited,
		terms: a.terms, want: a.terms, fixed: body.Fixed,
		end: a.terms.end(a.sent), last: v.revision, lastSent: a.sent, asked: a.sent, index: -1,
		nextRenewal: a.terms.nextRenewal(a.sent, c.e.cfg.RenewFraction),
	}
	init(l)
	c.e.keeper.add(l)
	return l
}
