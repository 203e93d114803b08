package acquire

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/clock"
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

// claim is one acquisition: the attempts made under one id, of which at most
// one becomes a lease.
//
// Each attempt is judged alone, by its own expectation and its own sending,
// until the claim is over: granted, given up, or found broken. From then on
// the acknowledgement of another of its attempts only causes the deletion of
// exactly that record, never a grant. So an answer that comes when the lock has
// been given up cannot bring it back.
type claim struct {
	c     *Client
	draft *draft // the bid's: read on the goroutine of the acquire only
	key   string
	guard string
	id    string

	mu       sync.Mutex // guards what follows
	attempts []attempt  // number n is attempts[n-1]
	over     bool
	adopts   bool
	granted  int // the attempt that became the lease
	replies  []reply
	wake     chan struct{}
	orphan   *session.Orphan // the watch for late records, until each attempt is settled
	stop     func()          // ends it

	// Of most claims that is all there is.
	firstAttempt [1]attempt
	firstReply   [1]reply
}

type attempt struct {
	n        int
	expect   uint64
	terms    clock.Terms
	sent     clock.Instant
	since    int64 // the sending as the record has it, in unix milliseconds
	waited   int64 // and of the wait before it
	meta     map[string]string
	floor    uint64 // highest revision known when it was sent
	answered bool
	acked    bool // acknowledged: the reply decides, as soon as it is judged
	doubtful bool // refused, maybe by a leader that was deposed: another may have applied it
	forget   func()
}

type reply struct {
	n      int
	answer kvstore.Answer
	at     clock.Instant
}

// claim begins a claim of what the draft says.
func (b *bid) claim() *claim {
	d, cl := &b.draft, &b.firstClaim
	if cl.c != nil { // it may have answers to come
		cl = new(claim)
	}
	cl.c, cl.draft, cl.guard, cl.adopts, cl.id, cl.wake = b.c, d, d.guard, d.adopts, rand.Text(), make(chan struct{}, 1)
	switch {
	case d.vacant != "": // a key that was left serves one claim
		cl.key, d.vacant = d.vacant, ""
	case d.body.Status == record.StatusWaiting:
		cl.key = d.keys.Place(cl.id)
	case d.guard != "":
		cl.key = d.keys.Reader(cl.id)
	default:
		cl.key = cmp.Or(d.slot, d.keys.Gate)
	}
	cl.attempts, cl.replies = cl.firstAttempt[:0], cl.firstReply[:0]
	return cl
}

// answered takes an answer, however late. It runs on a goroutine of the store.
func (cl *claim) answered(n int, a kvstore.Answer) {
	b := cl.c.b
	at := b.Instant()
	if a.Err == nil {
		b.Acknowledged(a.Revision)
	}
	cl.mu.Lock()
	// Other refusals than these do not say that the write will never be applied.
	if a.Err == nil || kvstore.NotSent(a.Err) || bucket.IsAny(a.Err, kvstore.ErrConflict, kvstore.ErrInFlight, kvstore.ErrNoStream, kvstore.ErrFull) {
		cl.attempts[n-1].answered, cl.attempts[n-1].acked = true, a.Err == nil
		// A leader that was deposed refuses what its successor may apply.
		cl.attempts[n-1].doubtful = !b.Alone() && !final(a.Err, cl.attempts[n-1].expect) //safety:refusal-doubted
	}
	late := cl.over
	if !late {
		cl.replies = append(cl.replies, reply{n: n, answer: a, at: at})
	}
	// Nobody would release the record of a claim that is over. The deletion begins before the
	// wait for the answer ends: a Close waits for one of them.
	if late && a.Err == nil && n != cl.granted { //safety:over-answered
		cl.c.s.Discard(cl.key, cl.id, a.Revision)
	}
	cl.mu.Unlock()
	cl.endWatch()
	select {
	case cl.wake <- struct{}{}:
	default:
	}
}

// decided judges the answers that have come.
func (cl *claim) decided(ctx context.Context, newest int, blind bool) (result, bool) {
	cl.mu.Lock()
	var replies []reply
	if len(cl.replies) > 0 {
		replies, cl.replies = cl.replies, nil
	}
	cl.mu.Unlock()
	for i, r := range replies {
		if res, ok := cl.judge(ctx, r, newest, blind); ok {
			cl.mu.Lock() // the later ones are for this claim too
			cl.replies = append(replies[i+1:], cl.replies...)
			cl.mu.Unlock()
			return res, true
		}
	}
	return result{}, false
}

// denied settles an attempt that the server has refused to pass on. It leaves no
// orphan, and cleaning up after it would only be refused again, hiding the
// refusals of others: the connection keeps the last one.
func (cl *claim) denied(n int) {
	cl.mu.Lock()
	forget := cl.attempts[n-1].forget
	cl.attempts[n-1].answered = true
	cl.mu.Unlock()
	forget()
}

// judge decides by one reply; false: it decides nothing. newest is the number
// of the attempt made last: the refusal of an older one is no news.
func (cl *claim) judge(ctx context.Context, r reply, newest int, blind bool) (result, bool) {
	err := r.answer.Err
	conflict, refused := errors.AsType[*kvstore.ConflictError](err)
	switch {
	case err == nil:
		return cl.take(r.n, r.answer.Revision, r.at), true
	case r.n != newest:
		return result{}, false
	case !refused:
		return result{outcome: retry, err: err}, true
	case conflict.Last == 0:
		return result{outcome: free}, true
	case blind:
		res := result{outcome: unread}
		res.entry.Revision = conflict.Last
		return res, true
	}
	key := cl.key
	if cl.guard != "" {
		key = cl.guard
	}
	// A state older than the refusal does not have the record that the refusal names.
	entry, err := cl.c.b.Read(ctx, key, conflict.Last) //safety:refusal-read
	switch {
	case err != nil:
		return result{outcome: retry, err: err}, true
	case !entry.Live():
		return result{outcome: free, entry: entry}, true
	// The record of another claim is never adopted.
	case !entry.From(cl.id): //safety:stranger
		return result{outcome: busy, entry: entry}, true
	case entry.Status == record.StatusBroken: //safety:broken-not-adopted
		// Never adopted: an operator has decided against it.
		cl.c.s.Discard(cl.key, cl.id, entry.Revision)
		return result{outcome: lost}, true
	case cl.acknowledged(entry.Attempt): //safety:acknowledged-first
		return result{}, false // the refusal was quicker than that
	case !cl.open(entry.Attempt):
		return result{outcome: busy, entry: entry}, true // not written by this client
	}
	// An earlier attempt whose answer was lost: its own sending counts.
	return cl.take(entry.Attempt, entry.Revision, cl.c.b.Instant()), true //safety:own-sending
}

// final says whether an answer settles an attempt, whichever server gave it. Several
// servers may believe to lead. All of them refuse an attempt that expects a revision
// which has been replaced.
func final(err error, expect uint64) bool {
	var conflict *kvstore.ConflictError
	if errors.As(err, &conflict) {
		return expect > 0 && conflict.Last > expect
	}
	return !bucket.IsAny(err, kvstore.ErrInFlight, kvstore.ErrFull)
}

// unwritten says whether no attempt can have left a record.
func (cl *claim) unwritten() bool {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	return !slices.ContainsFunc(cl.attempts, func(a attempt) bool { return !a.answered || a.doubtful }) //safety:room-refused
}

// open says whether attempt n was made and may have been applied without an answer.
// Where there are replicas, a refusal is no proof that it was not: a leader that was
// deposed refuses a write that its successor applies. Such an attempt is adopted when
// its record is met. It is not searched for when the claim is over.
func (cl *claim) open(n int) bool {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	return n >= 1 && n <= len(cl.attempts) && (!cl.attempts[n-1].answered || cl.attempts[n-1].doubtful) //safety:attempt-open
}

// acknowledged says whether the server has acknowledged attempt n. Its reply is among those
// that are still to be judged.
func (cl *claim) acknowledged(n int) bool {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	return n >= 1 && n <= len(cl.attempts) && cl.attempts[n-1].acked
}

// take grants attempt n, stored at revision, when it became known in time.
func (cl *claim) take(n int, revision uint64, at clock.Instant) result {
	cl.mu.Lock()
	a := cl.attempts[n-1]
	cl.mu.Unlock()
	// The record may have ended since, and another client may hold the lock.
	if now := cl.c.b.Instant(); max(at, now) >= a.terms.End(a.sent) { //safety:late-answer
		cl.c.s.Discard(cl.key, cl.id, revision)
		return result{outcome: lost}
	}
	// A resource that checks tokens has to see them rise.
	if revision <= a.floor { //safety:tokens-forward
		cl.c.s.Discard(cl.key, cl.id, revision)
		return result{outcome: failed, err: fmt.Errorf(
			"%w: fencing tokens went backwards, from revision %d to %d: the bucket was restored from a backup, or re-created by a client whose clock is behind. Re-create it with a higher first_seq", bucket.ErrUnavailable, a.floor, revision)}
	}
	return result{outcome: granted, n: n, revision: revision}
}

// grant ends the claim that r has granted, and returns what it has become.
func (r result) grant(cl *claim) session.Granted {
	cl.close(r.n)
	cl.mu.Lock()
	a := cl.attempts[r.n-1]
	cl.mu.Unlock()
	body := cl.draft.body
	body.ID, body.Since, body.Waited, body.Meta = cl.id, a.since, a.waited, a.meta
	return session.Granted{
		Kind: cl.draft.keys.Kind, Name: cl.draft.name, Key: cl.key, Once: cl.guard != "", Revision: r.revision,
		Body: body, Terms: a.terms, Sent: a.sent,
	}
}
