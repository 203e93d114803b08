package natslock

import (
	"context"
	"fmt"
	"time"

	"github.com/natslock/locks/internal/record"
)

const maxKeep = 365 * 24 * time.Hour

// Once runs the job called name, unless a client is running it or has done it. Include the run's
// key in the name, such as the date in "report.2026-11-28". Once does not wait, so call it every
// few minutes in each replica: see docs/guide/periodic.md.
//
// fn runs under the mutex of this name. If it returns nil, the job is done, and no client gets
// the lock for keep, 1 s to 365 days, which must outlast every call for this name. If fn returns
// an error or panics, the next call runs the job again, and after a crash the first call after
// the TTL does. If fn unlocks l or hands it off, the job does not count as done. No two runs
// hold the lock at the same time, but a run may repeat work done by a crashed one.
//
// Once returns nil if fn ran and the job is done. If fn did not run, the error is that of
// [Client.TryLock]: it matches [ErrDone] and [ErrLocked] if the job is done, and only ErrLocked
// while another call runs it. If fn ran, the error is fn's joined with that of [Lock.Unlock],
// and the job may run again. Once refuses [NoRenew], [Until], [Linger] and [MinHold].
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

// onceConfig checks the arguments without any I/O.
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
		return cfg, invalid("keep", "%v is not between 1s and %v", keep, maxKeep)
	case r.Fixed || !r.Until.IsZero() || r.Linger != 0 || r.MinHold != 0:
		return cfg, invalid("Once", "cannot be combined with NoRenew, Until, Linger or MinHold")
	}
	cfg.req.Kind, cfg.req.Once = record.Mutex, true
	// Do not pass the lease on to a waiting goroutine: the lease's last record says that the job
	// is done.
	cfg.req.Patient = true //safety:once-alone
	return cfg, nil
}
