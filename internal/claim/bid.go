package claim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/session"
	"github.com/natslock/locks/kvstore"
)

// Outcome says what came of a step towards a lock.
type Outcome uint8

const (
	// Granted: acknowledged, or found, in time.
	Granted Outcome = iota + 1
	// Free: refused, but nobody holds the key: a tombstone, or nothing.
	Free
	// Unread: refused, by a record that was not read; the entry has its revision.
	Unread
	// Busy: refused, and another claim has the key; or others are queued.
	Busy
	// Retry: not sent, refused for a passing reason, or without an answer.
	Retry
	// Lost: the claim is over without a grant; a new one may be made.
	Lost
	// NoRoom: the bucket has no room for the record.
	NoRoom
	// Failed: another try will not help.
	Failed
	// Ended: the wait is over.
	Ended
	// Further is the first outcome that a caller may add.
	Further
)

// Result is an outcome with what belongs to it.
type Result struct {
	Outcome  Outcome
	Entry    record.Entry // Free and Busy: the record; Unread: its revision
	Err      error        // Retry and Failed: why; Ended: the cause
	n        int          // Granted: the attempt
	revision uint64       // Granted: the record's
}

// Caller is the call that a bid is made for: each of a run, in turn.
type Caller interface {
	// Heard takes what the last request has come to: nil where the server has said that the key is
	// held.
	Heard(err error)
}

// Draft is what the claims of a bid have in common.
type Draft struct {
	Name   string // the lock's
	Keys   record.Keys
	Vacant string // the key of the next claim; "": its own
	Slot   string // the key of a semaphore that is claimed; "": its gate is
	Guard  string // the literal key that the expectation is about; "": the own
	Body   record.Body
	TTL    time.Duration
	Until  time.Time // a given end of the lease; zero: none
	Begun  clock.Instant
	Queued bool // it had to, at least once
	Adopts bool // a lock that was handed over
}

// terms are those of an attempt made now: what is left until a given end shrinks
// while waiting.
func (d *Draft) terms(margin float64) (clock.Terms, error) {
	if d.Until.IsZero() {
		return clock.NewTerms(d.TTL, margin), nil
	}
	t, err := clock.TermsUntil(time.Until(d.Until), margin)
	if err != nil {
		return t, fmt.Errorf("lock %q: its time was over before it was free: %w", d.Name, err)
	}
	return t, nil
}

// waited is what the record of a claim says of the wait before it, in milliseconds.
func (d *Draft) waited(now clock.Instant) int64 {
	if !d.Queued {
		return 0
	}
	return max(now.Sub(d.Begun).Milliseconds(), 1)
}

// Bid repeats attempts, under new claims where one is lost, until something decides.
type Bid struct {
	B      *bucket.Bucket
	S      *session.Session
	Caller Caller
	Once   bool // an unavailable server is an answer
	Blind  bool // the record that has refused an attempt is not read
	Draft  Draft
	Until  clock.Instant // when its claims begin to pass goroutines that may have queued; 0: they pass none
	Begun  clock.Instant // of the offer under way, which another member may go on with; 0: none

	cur        *claim
	firstClaim claim // of most bids that is all there is
}

// noStreamFor is how long a bid endures a stream without a leader, electing
// one having been measured to take 4 to 9 s. Silence and a connection that is
// down are waited out: they pass, or the wait's context ends.
const noStreamFor = 15 * time.Second

// Offer bids for the key at the expected revision. It returns Granted, Free with a tombstone, Busy,
// Unread, Failed or Ended; and NoRoom where the bucket has no room for the claim of a waiter. Then its
// place is the room that there is: it gives that up, and is admitted to the queue again when the
// bucket has room.
func (b *Bid) Offer(ctx context.Context, expect uint64) (decided Result) {
	if b.Begun == 0 {
		b.Begun = b.B.Instant()
	}
	defer func() {
		if decided.Outcome != Ended && decided.Outcome != Failed {
			b.Begun = 0
		}
	}()
	// The backoff of an outage counts the tries in a row that were not answered: when
	// it is over, attempts from before it may turn up and be lost.
	silent, losses, flights := 0, 0, 0
	for try := 0; ; try++ {
		if try > 0 && b.bypasses(expect) && b.B.Instant() >= b.Until { //safety:bypass-repeated
			return Result{Outcome: Free}
		}
		up := b.B.Online()
		if err := context.Cause(b.B.Granting()); err != nil {
			return Result{Outcome: Ended, Err: err}
		}
		if b.cur == nil {
			b.cur = b.claim()
		}
		r := b.cur.try(ctx, expect, b.Blind)
		var pause time.Duration
		switch r.Outcome {
		case Free:
			if r.Entry.Revision != 0 || b.Draft.Adopts { // nothing is left to adopt //safety:adopt-never-free
				return r
			}
			expect = 0 // the tombstone has expired
			if try < 3 {
				continue
			}
			pause = clock.ShortBackoff(try)
		case Lost:
			// An answer to an earlier attempt may have arrived: it must not become a grant.
			b.Close() //safety:over-closed
			silent = 0
			if losses++; losses <= 3 {
				continue
			}
			pause = clock.OutageBackoff(losses)
		case Retry:
			b.Caller.Heard(r.Err)
			if b.cur.guard != "" && !errors.Is(r.Err, kvstore.ErrInFlight) { //safety:join-new-id
				b.Close() // a join without an answer is repeated under a new id
			}
			switch {
			case errors.Is(r.Err, kvstore.ErrFull) && b.Draft.Queued: //safety:place-makes-room
				b.Close()
				return Result{Outcome: NoRoom, Err: r.Err}
			case bucket.IsAny(r.Err, bucket.ErrPermission, kvstore.ErrTooLarge), b.Once && !errors.Is(r.Err, kvstore.ErrInFlight),
				errors.Is(r.Err, kvstore.ErrNoStream) && b.B.Instant().Sub(b.Begun) > noStreamFor:
				return Result{Outcome: Failed, Err: r.Err}
			case errors.Is(r.Err, kvstore.ErrInFlight):
				pause = clock.InFlightBackoff(flights)
				flights++
			default:
				pause = clock.OutageBackoff(silent)
				silent++
			}
		case Busy:
			b.Caller.Heard(nil)
			return r
		case Failed: // a claim that has deleted its record is over, whichever member goes on
			b.Close()
			return r
		default:
			return r
		}
		if b.bypasses(expect) { // it queues then, and not later
			pause = min(pause, max(b.Until.Sub(b.B.Instant()), time.Millisecond))
		}
		if err := b.Pause(ctx, pause, up); err != nil {
			return Result{Outcome: Ended, Err: err}
		}
	}
}

// bypasses says whether a claim may pass goroutines that have queued since the queue was seen empty. A
// mutex without a record has no queue: its first waiter would have taken it. A slot can have one,
// whose first waiter knows of fewer slots.
func (b *Bid) bypasses(expect uint64) bool {
	if b.Draft.Slot != "" { //safety:slot-bypass-empty
		return b.Until != 0
	}
	return b.Until != 0 && expect != 0
}

// Pause waits for d or a connection that has come back (up is [bucket.Bucket.Online]
// from before the failure), the end of the wait, or of the client.
func (b *Bid) Pause(ctx context.Context, d time.Duration, up <-chan struct{}) error {
	if ctx.Err() != nil { // whatever else is due
		return context.Cause(ctx)
	}
	t := time.NewTimer(d)
	defer t.Stop()
	granting := b.B.Granting()
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

// Close gives up a claim that is not granted: see [claim.close].
func (b *Bid) Close() (gone []<-chan struct{}) {
	if b != nil && b.cur != nil {
		gone = b.cur.close(0)
		b.cur = nil
	}
	return gone
}

// Mine says whether the record is that of an earlier attempt of the bid, which
// came to be applied late: the next attempt will adopt it.
func (b *Bid) Mine(e record.Entry) bool { return b.cur != nil && e.Live() && e.From(b.cur.state.ID) } //safety:own-record

// Own is the id of the claim under way; "": there is none.
func (b *Bid) Own() string {
	if b.cur == nil {
		return ""
	}
	return b.cur.state.ID
}

// Aim has the next claim be of a slot's key. A claim of another key is over: an answer to it that comes
// later must not become a second grant.
func (b *Bid) Aim(key string) {
	if b.cur != nil && b.cur.key != key { //safety:slot-claim-closed
		b.Close()
	}
	b.Draft.Slot = key
}

// Grant ends the claim that r has granted, and returns what it has become.
func (b *Bid) Grant(r Result) session.Granted {
	cl := b.cur
	b.cur = nil
	cl.close(r.n)
	cl.mu.Lock()
	a := cl.state.Attempt(r.n)
	cl.mu.Unlock()
	body := cl.draft.Body
	body.ID, body.Since, body.Waited, body.Meta = cl.state.ID, a.Since, a.Waited, a.Meta
	return session.Granted{
		Kind: cl.draft.Keys.Kind, Name: cl.draft.Name, Key: cl.key, Once: cl.guard != "", Revision: r.revision,
		Body: body, Terms: a.Terms, Sent: a.Sent,
	}
}
