package natslock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/record"
)

const (
	minPeriod = time.Second
	maxPeriod = 365 * 24 * time.Hour
	// earlyTick is how long before a period, at most, a call counts for it.
	earlyTick = time.Second
	// maxSkew is the greatest difference between the wall clocks of a client and of the
	// server with which a period is run.
	maxSkew = 30 * time.Second
	// periodGrace is how long the record of a period lasts longer than clocks may differ:
	// the clocks of the servers do not agree to the last second either.
	periodGrace = 5 * time.Second
)

// OncePer runs fn if no client has run it in this period yet. So a job runs at most once
// per hour, day or other period, in the replica of a service that is first. OncePer does
// not wait. Each replica calls it once in every period or more often, for example from a
// ticker. A name belongs to one job, and all its callers pass the same period: 1 s to 365
// days.
//
// Periods begin where [time.Time.Truncate] rounds to: hours and days at those of UTC, weeks
// on Mondays. Days of another time zone are not 24 h long when it changes to summer time and
// back: two ticks of a daily schedule in local time can be in one period, and the second does
// not run then. Give the schedule in UTC, or use a shorter period, such as half of it. The caller's wall clock says which period it is. Timers may be early, so a
// call in the last second before a period counts for that period. For periods below 10 s it
// is the last tenth. begin is the beginning of the period, in UTC: use it instead of the
// time of day. The lock has the name of the job followed by begin, as in
// "reports.daily.20261122T000000Z". Package admin shows it as held until after the
// period, also when fn has returned.
//
// OncePer returns true if fn ran, with fn's error. It returns false and no error if another
// call has taken the period. A period counts as used from the moment fn begins. If fn fails
// or panics, or the process crashes, fn does not run again in it. The context of fn ends
// with the lock: 35 s after the period, or 5 s and half a period if that is less. If fn
// returns later, or the lock was lost or broken before, OncePer joins an error that matches
// [ErrEnded], [ErrLost], [ErrBroken] or [ErrClosed]. Runs of two periods can overlap: to
// exclude that, call [Client.Do] in fn.
//
// The wall clocks of callers may differ. OncePer compares the caller's with the server's
// before it runs fn. They may be 30 s apart, or half a period if that is less, and the
// period must not be over by the server's clock. Otherwise OncePer returns false and an
// error that matches [ErrClock]. Every other error that comes with false is that of
// [Client.TryLock], or matches [ErrUnavailable] because the server named no time.
//
// The promise is at most once, under three conditions. The bucket keeps what it has
// acknowledged, and the clocks of its servers agree to 5 s. Nobody calls [Lock.Unlock] on
// l. No operator breaks the lock at once or deletes its record. It
// is no promise that fn runs. A period in which no caller gets an answer is left out, and a
// lost answer or a crash can use a period up.
//
// [Meta], [Detached] and [EarlyWarning] are options of the lock. [TTL], [NoRenew], [Until],
// [Linger] and [MinHold] are refused with [ErrInvalid], and so are a nil fn and
// another period. [MaxWait] has no effect.
func (c *Client) OncePer(ctx context.Context, name string, period time.Duration, fn func(ctx context.Context, begin time.Time, l *Lock) error, opts ...LockOption) (ran bool, err error) {
	cfg, err := c.onceConfig(name, period, fn, opts)
	if err == nil && ctx == nil {
		err = errNoContext
	}
	if err != nil {
		return false, fmt.Errorf("once per %v, %.64q: %w", period, name, err)
	}
	now := c.now().Round(0)
	begin := now.Add(min(period/10, earlyTick)).UTC().Truncate(period)
	end := begin.Add(period)
	skew := min(period/2, maxSkew)
	// Under the name of the job alone, the lock would still be taken at the next tick.
	cfg.req.Name = name + "." + begin.Format("20060102T150405Z") //safety:once-name
	// A client whose clock is behind takes the next period for this one for so long.
	lasts := end.Sub(now) + (skew + periodGrace) //safety:once-lasts
	cfg.req.Until = time.Now().Round(0).Add(lasts)
	l, err := c.take(ctx, cfg)
	switch {
	case errors.Is(err, ErrLocked):
		return false, nil
	case err != nil:
		return false, err
	}
	if err := c.inPeriod(ctx, end, skew); err != nil {
		_ = l.Unlock(ctx) // nothing has run: another client may
		return false, fmt.Errorf("once per %v, lock %q: %w", period, cfg.req.Name, err)
	}
	// The record stays: nobody else is to run fn in this period.
	return true, run(func() error { return fn(l.Context(), begin, l) }, l.retire) //safety:once-stays
}

// onceConfig checks the arguments, before any I/O.
func (c *Client) onceConfig(name string, period time.Duration, fn func(context.Context, time.Time, *Lock) error, opts []LockOption) (cfg lockConfig, err error) {
	if err := c.ready(); err != nil {
		return cfg, err
	}
	if _, err := record.EncodeName(name); err != nil {
		return cfg, err
	}
	if cfg, err = lockConfigOf(opts); err != nil {
		return cfg, err
	}
	switch r := &cfg.req; {
	case fn == nil:
		return cfg, errNoFunc
	case period < minPeriod || period > maxPeriod:
		return cfg, invalid("period", "%v is not in [%v, %v]", period, minPeriod, maxPeriod)
	case r.TTL != 0 || r.Fixed || !r.Until.IsZero() || r.Linger != 0 || r.MinHold != 0:
		return cfg, invalid("OncePer", "goes with none of TTL, NoRenew, Until, Linger and MinHold")
	}
	cfg.req.Kind, cfg.req.Once, cfg.req.Purpose = record.Mutex, true, record.Job
	return cfg, nil
}

// inPeriod says whether this client may run a period that it has taken. Its clock and the
// server's must not be further apart than skew: its record may end too early. And the
// period must not be over by the server's clock: the record of an earlier run may be gone.
func (c *Client) inPeriod(ctx context.Context, end time.Time, skew time.Duration) error {
	before := c.now().Round(0)
	st, err := c.bucket.Leader(ctx, bucket.AnswerTimeout)
	if err != nil {
		return fmt.Errorf("ask the server for the time: %w", bucket.Unavailable(err))
	}
	after := c.now().Round(0)
	switch ahead, behind := after.Sub(st.Time), st.Time.Sub(before); {
	case ahead > skew: //safety:once-ahead
		return fmt.Errorf("%w: it may be %v ahead of the server's, %v at most are allowed: set it", ErrClock, ahead.Round(time.Millisecond), skew)
	case behind > skew: //safety:once-behind
		return fmt.Errorf("%w: it may be %v behind the server's, %v at most are allowed: set it", ErrClock, behind.Round(time.Millisecond), skew)
	case !st.Time.Before(end): //safety:once-over
		return fmt.Errorf("%w: by the server's, the period ended %v ago: set it", ErrClock, st.Time.Sub(end).Round(time.Millisecond))
	}
	return nil
}
