package election

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/natslock/locks/internal/again"
	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/plain"
	"github.com/natslock/locks/natslock"
)

// Term is a period during which a candidate leads. [Election.Campaign] returns one, and
// [Election.Run] passes one to its function. It is safe for concurrent use. A zero Term behaves
// like a zero [natslock.Lock]: it leads nothing.
type Term struct {
	lock *natslock.Lock
}

// Token returns the term's fencing token, which is higher than that of every earlier term: see
// [natslock.Lock.Token].
func (t *Term) Token() uint64 { return t.held().Token() }

// Context returns the term's context, a child of the campaign's context. It ends when its parent
// does or when the term does, which is before the server admits the next leader. context.Cause
// returns the reason: see [natslock.Lock.Context].
func (t *Term) Context() context.Context { return t.held().Context() }

// Err returns nil during the term, and the cause of the term's context afterwards.
func (t *Term) Err() error { return t.held().Err() }

// Remaining returns how much of the term's validity is left, or 0 once the term has ended: see
// [natslock.Lock.Remaining].
func (t *Term) Remaining() time.Duration { return t.held().Remaining() }

// held returns the term's lock, or nil for a Term that did not come from a campaign.
func (t *Term) held() *natslock.Lock {
	if t == nil {
		return nil
	}
	return t.lock
}

// Proclaim replaces the leader's value for the rest of the term. Once it has returned nil, the
// server has stored the value: [Election.Leader] returns it, and observers are notified. The next
// term starts with the [Value] of its own Election again.
//
// If value has more than [MaxValue] bytes, the error matches [natslock.ErrInvalid], and nothing
// was sent. If the term has ended, the error matches the cause. If ctx ends first, the outcome is
// unknown, but the leader's next renewal stores the value anyway: see [natslock.Lock.SetMeta].
func (t *Term) Proclaim(ctx context.Context, value []byte) error {
	if err := checkValue(value); err != nil {
		return fmt.Errorf("proclaim: %w", err)
	}
	if err := t.held().SetMeta(ctx, metaOf(value)); err != nil {
		return fmt.Errorf("proclaim: %w", err)
	}
	return nil
}

// Resign ends the term and its context, and hands over to the candidate that has waited longest.
// It takes one round trip. A candidate that campaigns again after resigning joins the back of the
// queue. Further calls return the result of the first.
//
// Resign returns nil if the term was valid until the call and the server has confirmed the
// resignation. Otherwise its errors are those of [natslock.Lock.Unlock]: if one matches
// [natslock.ErrLost], another candidate may have led before the call. Like Unlock, Resign works
// even if ctx has already ended.
func (t *Term) Resign(ctx context.Context) error {
	if err := t.held().Unlock(ctx); err != nil {
		return fmt.Errorf("resign: %w", err)
	}
	return nil
}

// Run campaigns, calls lead for each term it wins, and campaigns again, until ctx ends. lead's
// context ends when the term does, and the term ends when lead returns or panics. lead must
// return when its context ends, because this candidate does not campaign again until it does.
// When ctx ends, so does the current term, unless the election is [Detached]: then the term ends
// when lead returns. Run survives lost terms, outages, server restarts, and a bucket that is
// deleted and re-created.
//
// If lead returns within 10 s, Run pauses before it campaigns again: at most 100 ms at first, and
// up to 10 s if that keeps happening. It does not pause after a lost term. The client's logger
// gets a warning for each error that lead returns, unless the error merely reports the end of the
// term's context.
//
// Run always returns an error. If ctx has ended, it matches ctx's error and cause. If the
// connection was closed for good, it matches [natslock.ErrUnavailable] and
// nats.ErrConnectionClosed. If another campaign would fail in the same way or [OnChange] cannot
// continue, it matches [natslock.ErrClosed], [natslock.ErrPermission] or [natslock.ErrInvalid].
// If the outcome of lead's last call was logged as a warning, its error is joined to Run's. By
// the time Run returns, this candidate has resigned. Cancel ctx before calling
// [natslock.Client.Close].
func (e *Election) Run(ctx context.Context, lead func(ctx context.Context, t *Term) error) error {
	if err := e.ready(ctx); err != nil {
		return err
	}
	if lead == nil {
		return fmt.Errorf("election %.512q: %w: the function to run is nil", e.name, natslock.ErrInvalid)
	}
	parent := ctx
	ctx, stop := e.report(parent)
	defer stop()
	var led error // from the last call of lead
	for short, failed := 0, 0; ; {
		var pause time.Duration
		t, err := e.Campaign(ctx)
		switch {
		case err == nil:
			failed = 0
			var lost bool
			var ran time.Duration
			ran, lost, led = t.serve(lead)
			if led != nil {
				again.Logger(e.c).Warn("the leader's work failed", "election", e.name, "token", t.Token(), "error", led)
			}
			switch {
			case lost:
			case ran >= again.Long:
				short = 0
			default:
				pause = again.Pause(short)
				short++
			}
		case ctx.Err() != nil:
		case again.Final(err):
			return plain.Join(err, led)
		default:
			pause = again.Pause(failed)
			failed++
		}
		switch {
		case ctx.Err() == nil && clock.Sleep(ctx, pause) == nil:
		case parent.Err() == nil: // OnChange cannot continue
			return plain.Join(context.Cause(ctx), led)
		default:
			return plain.Join(fmt.Errorf("election %.512q: %w", e.name, plain.EndOf(parent)), led)
		}
	}
}

// serve leads for one term and then resigns. It returns how long lead ran, whether the term was
// lost before serve resigned, and lead's error unless that merely reports the end of the term's
// context.
func (t *Term) serve(lead func(context.Context, *Term) error) (ran time.Duration, lost bool, err error) {
	ctx, begun := t.Context(), time.Now()
	defer func() {
		ran = time.Since(begun)
		if again.IsEnd(ctx, err) {
			err = nil
		}
		lost = errors.Is(t.lock.Err(), natslock.ErrLost)
		_ = t.Resign(ctx) // on failure, the next candidate waits at most one TTL
	}()
	if ctx.Err() == nil {
		err = lead(ctx, t)
	}
	return
}
