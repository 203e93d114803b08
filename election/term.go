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

// Term is a period in which a candidate leads. It comes from [Election.Campaign] or
// [Election.Run]. A zero Term is like a zero [natslock.Lock]: it leads nothing. A Term is safe
// for concurrent use.
type Term struct {
	lock *natslock.Lock
}

// Token returns the fencing token of the term. Tokens rise with every term: see
// [natslock.Lock.Token].
func (t *Term) Token() uint64 { return t.held().Token() }

// Context returns a child of the campaign's context. It ends when the term ends, before
// the server lets the next leader in, or when its parent ends. context.Cause returns the
// reason: see [natslock.Lock.Context].
func (t *Term) Context() context.Context { return t.held().Context() }

// Err returns nil while the term lasts, and then the cause of its context.
func (t *Term) Err() error { return t.held().Err() }

// Remaining returns what is left of the term's validity, or 0 once the term has ended: see
// [natslock.Lock.Remaining].
func (t *Term) Remaining() time.Duration { return t.held().Remaining() }

// held returns the lock, or nil for a Term not made by a campaign.
func (t *Term) held() *natslock.Lock {
	if t == nil {
		return nil
	}
	return t.lock
}

// Proclaim replaces the leader's value for the rest of the term. It returns nil once the
// server has stored it: then [Election.Leader] returns it, and observers are notified.
// The next term begins again with the [Value] of its own Election.
//
// If the value has more than [MaxValue] bytes, the error matches [natslock.ErrInvalid], and
// nothing was sent. If the term has ended, the error is the cause. If ctx ends first, the
// outcome is unknown, and the leader's next renewal stores the value in any case: see
// [natslock.Lock.SetMeta].
func (t *Term) Proclaim(ctx context.Context, value []byte) error {
	if err := checkValue(value); err != nil {
		return fmt.Errorf("proclaim: %w", err)
	}
	if err := t.held().SetMeta(ctx, metaOf(value)); err != nil {
		return fmt.Errorf("proclaim: %w", err)
	}
	return nil
}

// Resign ends the term and its context, and hands over to the candidate that has waited
// longest. It takes one round trip. If the candidate campaigns again, it queues behind all
// others. Further calls return the result of the first.
//
// It returns nil if the term was valid until the call. Otherwise its errors are those of
// [natslock.Lock.Unlock]: if one matches [natslock.ErrLost], another candidate may have
// led before the call. Like Unlock, Resign ignores a ctx that has already ended.
func (t *Term) Resign(ctx context.Context) error {
	if err := t.held().Unlock(ctx); err != nil {
		return fmt.Errorf("resign: %w", err)
	}
	return nil
}

// Run campaigns, calls lead for each term, and campaigns again, until ctx ends. lead's context
// ends when the term does, and the term ends when lead returns or panics. lead must return when
// its context ends: until then this candidate does not campaign. Run continues after a lost
// term, through outages and restarts of the server, and in a bucket that was deleted and
// re-created. A term ends with ctx or, with [Detached], when lead returns.
//
// If lead returns within 10 s, Run pauses before it campaigns again: at most 100 ms at first,
// and up to 10 s if that repeats. There is no pause after a lost term. The client's logger
// gets a warning for each error of lead other than the end of the term's context.
//
// Run always returns an error, joined with the last error of lead if that called for a
// warning. It matches ctx's error and cause if ctx has ended, [natslock.ErrUnavailable] and
// nats.ErrConnectionClosed if the connection was closed for good, and [natslock.ErrClosed],
// [natslock.ErrPermission] or [natslock.ErrInvalid] if another campaign would fail in the same
// way or [OnChange] cannot continue. When Run returns, this candidate has resigned. End ctx
// before [natslock.Client.Close].
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

// serve leads for a term, and resigns. It returns how long lead ran, whether the term was lost
// before the resignation, and lead's error unless that is the end of the term's context.
func (t *Term) serve(lead func(context.Context, *Term) error) (ran time.Duration, lost bool, err error) {
	ctx, begun := t.Context(), time.Now()
	defer func() {
		ran = time.Since(begun)
		if again.IsEnd(ctx, err) {
			err = nil
		}
		lost = errors.Is(t.lock.Err(), natslock.ErrLost)
		_ = t.Resign(ctx) // if it fails, the next candidate waits for the TTL at most
	}()
	if ctx.Err() == nil {
		err = lead(ctx, t)
	}
	return
}
