package natslock

import (
	"context"
	"fmt"
	"time"

	"github.com/natslock/locks/internal/record"
)

const maxKeep = 365 * 24 * time.Hour

// Once runs the job that name names, unless a client is running it or has done it. The name
// has what makes a run another one: a date, a release, a batch. So a daily job is
// "report.2026-11-28", and the caller says in which time zone that is. Each replica calls
// Once again and again, for example from a ticker of minutes: Once does not wait.
//
// The job runs under the mutex of this name, as in [Client.TryDo]. If fn returns nil, the
// job is done: the lock stays for keep, 1 s to 365 days from then on, and no client gets it.
// Choose a keep that is longer than any caller asks for this name: two days for a daily job.
// If fn returns an error or panics, the lock is free, and the next call runs the job again.
// If the process crashes, the next call after the TTL does. So a job runs until it is done
// once, and never in two places at a time while the lock holds. A job that must not repeat
// what a crashed run has done keeps that with its data: see docs/guide/periodic.md.
//
// Once returns nil if fn ran and the job is done. If fn did not run, the error is that of
// [Client.TryLock]. It matches [ErrDone] and [ErrLocked] if the job is done, and only
// ErrLocked while another call runs the job. If fn ran, the error is fn's joined with that of
// [Lock.Unlock]. An error of Unlock means that the job may run again: the lock was lost, or the
// server has not confirmed that the job is done.
//
// An operator has a job run again by breaking its lock at once. A fn that unlocks l, or hands it off, leaves
// no job that is done.
//
// [TTL], [Meta], [Detached] and [EarlyWarning] are options of the lock. [NoRenew], [Until],
// [Linger] and [MinHold] are refused with [ErrInvalid], and so are a nil fn and another keep.
// [MaxWait] has no effect.
func (c *Client) Once(ctx context.Context, name string, keep time.Duration, fn func(ctx context.Context, l *Lock) error, opts ...LockOption) error {
	cfg, err := c.onceConfig(ctx, keep, fn, opts)
	if err != nil {
		return fmt.Errorf("once, lock %.64q: %w", name, err)
	}
	cfg.req.Name = name
	l, err := c.take(ctx, cfg)
	if err != nil {
		return err
	}
	return l.Do(func(ctx context.Context, l *Lock) error {
		err := fn(ctx, l)
		if err == nil {
			l.holding().Keep(keep) //safety:once-kept
		}
		return err
	})
}

// onceConfig checks the arguments, before any I/O.
func (c *Client) onceConfig(ctx context.Context, keep time.Duration, fn func(context.Context, *Lock) error, opts []LockOption) (cfg lockConfig, err error) {
	if err := c.readyFor(ctx); err != nil {
		return cfg, err
	}
	if cfg, err = lockConfigOf(opts); err != nil {
		return cfg, err
	}
	switch r := &cfg.req; {
	case fn == nil:
		return cfg, errNoFunc
	case keep < time.Second || keep > maxKeep:
		return cfg, invalid("keep", "%v is not in [1s, %v]", keep, maxKeep)
	case r.Fixed || !r.Until.IsZero() || r.Linger != 0 || r.MinHold != 0:
		return cfg, invalid("Once", "goes with none of NoRenew, Until, Linger and MinHold")
	}
	cfg.req.Kind, cfg.req.Once = record.Mutex, true
	// The lease goes to no goroutine that waits: its last record says that the job is done.
	cfg.req.Patient = true //safety:once-alone
	return cfg, nil
}
