package admin

import (
	"context"
	"fmt"
	"time"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/plain"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/session"
)

// Left is the handle of a lock that no process renews. The lock's record stays in the bucket when
// the process that took the lock ends. Later processes use this handle to extend and release the
// lock.
type Left struct {
	Key   string // the record's
	ID    string // the claim's
	Token uint64
}

// Extended is the result of [Admin.Extend].
type Extended struct {
	TTL    time.Duration
	Margin time.Duration // from the end of the validity to the end of the TTL
	Until  clock.Instant // end of the validity
}

// Valid returns the remaining validity.
func (e Extended) Valid() time.Duration { return e.Until.Sub(clock.Now()) }

// Free returns the minimum time that the lock stays taken if no process extends it.
func (e Extended) Free() time.Duration { return e.Valid() + e.Margin }

// Extend gives the lock a TTL that starts now. It never shortens the time that the lock has left.
// The error matches [session.ErrLost] if the lock was lost, and [session.ErrBroken] if an operator
// broke it. If it matches [bucket.ErrUnavailable] or ctx's error, the server may or may not have
// extended the lock. [core.Extending] defines the states.
func (a *Admin) Extend(ctx context.Context, l Left, ttl time.Duration) (Extended, error) {
	name := l.name()
	ttl, err := clock.RoundTTL(ttl, true)
	if err != nil {
		return Extended{}, fmt.Errorf("extend lock %q: %w", name, err)
	}
	x := core.Extending{Handle: core.Handle{ID: l.ID, Token: l.Token}, TTL: ttl}
	var failed error // the last request's error; nil if it was answered
	for try := 0; ; try++ {
		step, e, err := a.found(ctx, &x, l)
		if err == nil && step == core.HandleWrite {
			step, err = a.extend(ctx, &x, e)
		}
		failed = err
		switch {
		case err != nil:
		case step == core.HandleDone:
			if x.Valid > a.b.Instant() {
				return Extended{TTL: x.Terms.TTL, Margin: x.Terms.Margin, Until: x.Valid}, nil
			}
			return Extended{}, l.ended(core.HandleLate, e)
		case step != core.HandleRead:
			return Extended{}, l.ended(step, e)
		}
		if err := a.pause(ctx, try, failed); err != nil {
			return Extended{}, fmt.Errorf("extend lock %q (token %d): not confirmed: %w", name, l.Token, err)
		}
	}
}

// pause waits before the next try. It returns an error if ctx ends or if another try would fail as
// well. failed is the last request's error.
func (a *Admin) pause(ctx context.Context, try int, failed error) error {
	if bucket.IsAny(failed, bucket.ErrPermission, kvstore.ErrInvalidKey, kvstore.ErrTooLarge) {
		return failed
	}
	err := failed
	if !bucket.IsAny(failed, kvstore.ErrClosed, kvstore.ErrConnectionClosed, kvstore.ErrDraining) {
		if err = clock.Sleep(ctx, clock.ShortBackoff(try)); err == nil {
			return nil
		}
		err = plain.EndOf(ctx)
		if failed != nil {
			err = fmt.Errorf("%w: %w", failed, err)
		}
	}
	return bucket.Unavailable(err)
}

// found reads l's latest record from the leader.
func (a *Admin) found(ctx context.Context, x *core.Extending, l Left) (core.HandleStep, record.Entry, error) {
	e, st, asked, err := a.b.ReadNow(ctx, l.Key, x.AsOf)
	if err != nil {
		return core.HandleRead, record.Entry{}, err
	}
	return x.RecordRead(e, st.Time, asked), e, nil
}

// extend writes e again, with the new TTL.
func (a *Admin) extend(ctx context.Context, x *core.Extending, e record.Entry) (core.HandleStep, error) {
	b := e.Body
	b.Token, b.Attempt, b.Renewal, b.Fixed = e.TokenOrTicket(), 0, b.Renewal+1, true
	b.TTL, b.By = int64(x.Terms.TTL/time.Second), x.By.UnixMilli()
	value, err := b.EncodeKept(e.Revision)
	if err != nil {
		return core.HandleRead, err
	}
	w := kvstore.Write{Key: e.Key, Value: value, Expect: e.Revision, TTL: x.Terms.TTL} //safety:extend-expects
	sent := a.b.Instant()
	revision, err := a.b.Write(ctx, w)
	step := x.WriteAnswered(bucket.AnswerOf(kvstore.Answer{Revision: revision, Err: err}), e.Revision, sent, a.b.Instant())
	return step, err
}

// Release releases the lock. It returns nil if the lock was held until its release. Otherwise the
// error is as for [Admin.Extend], and the record is deleted unless it belongs to another claim or
// its holder renews it.
func (a *Admin) Release(ctx context.Context, l Left) error {
	x := core.Extending{Handle: core.Handle{ID: l.ID, Token: l.Token}, TTL: clock.MinTTL}
	for try := 0; ; try++ {
		step, e, err := a.found(ctx, &x, l)
		switch {
		case err != nil:
			if err = a.pause(ctx, try, err); err != nil {
				return fmt.Errorf("release lock %q (token %d): not confirmed: %w; it will be free when its TTL has passed", l.name(), l.Token, err)
			}
			continue
		case !e.Live() || step == core.HandleTaken || step == core.HandleKept:
			return l.ended(step, e)
		}
		b := e.Body
		b.Token = e.TokenOrTicket()
		r := core.Removal{ID: l.ID, Revision: e.Revision}
		last, err := a.s.RemoveGranted(ctx, l.Key, &b, &r, a.s.ReleaseTimeout)
		switch {
		case err != nil:
			return fmt.Errorf("release lock %q (token %d): %w; it will be free when its TTL has passed", l.name(), l.Token, err)
		case r.Broken != nil:
			return l.ended(core.HandleBroken, *r.Broken)
		case last == core.LostBefore:
			return l.ended(core.HandleGone, e)
		case step != core.HandleWrite: // broken, or late
			return l.ended(step, e)
		}
		return nil
	}
}

func (l Left) name() string {
	k, _ := record.ParseKey(l.Key)
	return k.Name
}

// ended returns the error for a lock that is no longer held.
func (l Left) ended(step core.HandleStep, e record.Entry) error {
	end := session.EndError{Name: l.name(), Token: l.Token, Kind: session.ErrLost}
	switch step {
	case core.HandleBroken:
		end.Kind, end.Why = session.ErrBroken, e.BrokenBecause()
	case core.HandleTaken:
		end.Why = "its record belongs to another claim"
	case core.HandleKept:
		end.Why = "its holder renews it, so this handle is not a script's"
	case core.HandleLate:
		end.Why = "its validity has ended"
	default:
		end.Why = "its record no longer exists"
	}
	return &end
}
