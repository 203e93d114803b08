package claim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/keeper"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
)

// Result is the outcome of an attempt or a bid.
type Result struct {
	Outcome  core.Outcome
	Entry    record.Entry // the record, if Free or Busy; only its revision, if Refused
	Err      error        // the reason, if Again, NoRoom or Failed; the cause, if Ended
	n        int          // the number of the granted attempt, if Granted
	revision uint64       // the record's revision, if Granted
}

// Caller is the call that a bid is made for. Another call may take its place.
type Caller interface {
	// RequestAnswered handles the result of the last request. A nil err means that the server has answered that the key
	// is held.
	RequestAnswered(err error)
}

// Draft holds what all claims of a bid have in common.
type Draft struct {
	Name    string // the lock's name
	Keys    record.Keys
	Vacant  string // the key for the next claim; "" to generate one
	Slot    string // the semaphore slot to claim; "" to claim the gate
	Guard   string // the literal key whose revision is expected; "" for the claim's own key
	Body    record.Body
	TTL     time.Duration
	Until   time.Time // the requested end of the lease; zero if none
	Begun   clock.Instant
	Queued  bool          // the call has had to queue at least once
	Returns bool          // the claim uses the room of a record that this call gave up
	Adopts  bool          // the claim takes over a lock that was handed over
	By      clock.Instant // see [core.Attempt]
}

// terms returns the terms of an attempt made now. If the lease has a requested end, the TTL shrinks as the call waits.
func (d *Draft) terms() (clock.Terms, error) {
	if d.Until.IsZero() {
		return clock.NewTerms(d.TTL), nil
	}
	t, err := clock.TermsUntil(time.Until(d.Until))
	if err != nil {
		return t, fmt.Errorf("lock %q: the requested end of the lease passed before the lock was free: %w", d.Name, err)
	}
	return t, nil
}

// waited returns how long the call has waited, in milliseconds, as stated in the claim's record.
func (d *Draft) waited(now clock.Instant) int64 {
	if !d.Queued {
		return 0
	}
	return max(now.Sub(d.Begun).Milliseconds(), 1)
}

// Bid repeats attempts, starting a new claim whenever one is lost, until the outcome is decided; see [core.Bid].
type Bid struct {
	core.Bid
	B      *bucket.Bucket
	K      *keeper.Keeper
	Caller Caller
	Blind  bool // do not read the record that caused a refusal
	Draft  Draft

	cur        *claim
	firstClaim claim // most bids need only one
}

// Offer bids for the key at the expected revision. It returns Granted, Free, Busy, Refused, Failed or Ended, or NoRoom
// if the bucket has no room for the claim of a queued waiter (Placed). Free comes with the tombstone to expect next, or
// with the zero entry if another attempt could overtake queued goroutines or if nothing is left to adopt.
func (b *Bid) Offer(ctx context.Context, expect uint64) Result {
	b.Guarded, b.Slot, b.Adopts = b.Draft.Guard != "", b.Draft.Slot != "", b.Draft.Adopts
	b.Begin(b.B.Instant())
	for {
		if b.MayPass(expect, b.B.Instant()) {
			b.Begun = 0
			return Result{Outcome: core.Free}
		}
		up := b.B.Online()
		if err := context.Cause(b.B.Granting()); err != nil {
			return Result{Outcome: core.Ended, Err: err}
		}
		if b.cur == nil {
			b.cur = b.claim()
		}
		key := b.cur.key
		r := b.cur.try(ctx, expect, b.Blind, b.Patience()*bucket.AnswerTimeout)
		switch r.Outcome {
		case core.Again:
			b.Caller.RequestAnswered(r.Err)
		case core.Busy:
			b.Caller.RequestAnswered(nil)
		case core.Free:
			expect = 0
		}
		why := troubleOf(r.Err)
		if why == core.Leaderless && b.B.Led(ctx) {
			why = core.Unmapped
		}
		next := b.AttemptEnded(r.Outcome, why, r.Entry.Revision, b.B.Instant())
		if next.Closes {
			b.Close()
		}
		if next.Decided == core.Failed && why == core.Unmapped {
			r.Err = fmt.Errorf("%w: no server accepts writes to \"$KV.%s.%s\", although the bucket has a leader: either this connection's account does not import the subject or the bucket's account does not export it. Use a lock name that both cover, or extend the import and export",
				bucket.ErrPermission, b.B.Bucket(), key)
		}
		if next.Decided != core.Undecided {
			r.Outcome = next.Decided
			return r
		}
		if next.Backoff == core.None {
			continue
		}
		pause := backoffs[next.Backoff](next.N)
		if b.Bypasses(expect) { // the bid ends at Until, and the caller queues
			pause = min(pause, max(b.Until.Sub(b.B.Instant()), time.Millisecond))
		}
		if err := b.Pause(ctx, pause, up); err != nil {
			return Result{Outcome: core.Ended, Err: err}
		}
	}
}

var backoffs = [...]func(int) time.Duration{
	core.Short: clock.ShortBackoff, core.Outage: clock.OutageBackoff, core.Flight: clock.InFlightBackoff,
}

func troubleOf(err error) core.Trouble {
	switch {
	case errors.Is(err, kvstore.ErrFull):
		return core.NoSpace
	case bucket.IsAny(err, bucket.ErrPermission, kvstore.ErrTooLarge):
		return core.Hopeless
	case errors.Is(err, kvstore.ErrInFlight):
		return core.Replicating
	case errors.Is(err, kvstore.ErrNoStream):
		return core.Leaderless
	}
	return core.Silence
}

// Pause waits until d has passed, the connection comes back, ctx ends, or the client stops granting locks. up is the
// result of [bucket.Bucket.Online] from before the failure.
func (b *Bid) Pause(ctx context.Context, d time.Duration, up <-chan struct{}) error {
	if ctx.Err() != nil { // takes precedence if several are ready
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

// Close gives up the current claim, if there is one; see [claim.close].
func (b *Bid) Close() (gone []<-chan struct{}) {
	if b != nil && b.cur != nil {
		gone = b.cur.close(0)
		b.cur = nil
	}
	return gone
}

// Mine reports whether e is the record of an earlier attempt of the bid that was applied late. The next attempt will
// adopt it.
func (b *Bid) Mine(e record.Entry) bool { return b.cur != nil && e.Live() && e.From(b.cur.state.ID) }

// Own returns the id of the current claim, or "" if there is none.
func (b *Bid) Own() string {
	if b.cur == nil {
		return ""
	}
	return b.cur.state.ID
}

// Aim sets the slot for the next claim. It closes a claim for any other slot, because a late answer must not turn that
// claim into a second grant.
func (b *Bid) Aim(key string) {
	if b.cur != nil && b.cur.key != key { //safety:slot-claim-closed
		b.Close()
	}
	b.Draft.Slot = key
}

// Grant ends the claim that was granted with result r and returns the grant.
func (b *Bid) Grant(r Result) keeper.Granted {
	cl := b.cur
	b.cur = nil
	cl.close(r.n)
	cl.mu.Lock()
	a := cl.state.Attempt(r.n)
	cl.mu.Unlock()
	body := cl.draft.Body
	body.ID, body.Since, body.Waited, body.Meta = cl.state.ID, a.Since, a.Waited, a.Meta
	return keeper.Granted{
		Kind: cl.draft.Keys.Kind, Name: cl.draft.Name, Key: cl.key, Once: cl.guard != "", Revision: r.revision,
		Body: body, Terms: a.Terms, Sent: a.Sent,
	}
}
