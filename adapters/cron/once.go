package cronlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/natslock/locks/natslock"
)

// DefaultMinHold is the default for [MinHold].
const DefaultMinHold = 5 * time.Second

// Option configures [Once] and [OnceFunc].
type Option func(*job)

// MinHold makes each run hold its lock for at least d after the grant, even if the job
// returns sooner: see [natslock.MinHold]. The default is [DefaultMinHold], and 0 means no
// minimum. A job that runs more often than every 10 s needs a smaller d, because its lock
// would otherwise still be held at the next tick. If natslock rejects d, the job never
// runs, and [OnError] gets [natslock.ErrInvalid].
func MinHold(d time.Duration) Option {
	return func(j *job) { j.minHold = d }
}

// OnError sets the function that receives errors, which cron itself has no way to report:
//
//   - An error that matches [natslock.ErrLocked] means that another replica has the tick.
//     It is a *[natslock.LockedError], which names that replica.
//   - Any other error of [natslock.Client.TryLock], such as [natslock.ErrUnavailable],
//     means that this replica did not run the job.
//   - [natslock.ErrLost] or [natslock.ErrBroken] means that the lock ended during the job,
//     so another replica may run it at the same time. fn is called immediately, while the
//     job is still running.
//   - When a run ends, fn gets the error from OnceFunc's function, joined with that of
//     [natslock.Lock.Unlock]. A loss that was already reported to fn is not reported again
//     on its own.
//
// By default, cron.DefaultLogger logs every error except ErrLocked. fn may be called
// concurrently from several goroutines. The unlock waits for fn to return, so fn must not
// wait for the job.
//
// A nil fn keeps the default.
func OnError(fn func(error)) Option {
	return func(j *job) {
		if fn != nil {
			j.onError = fn
		}
	}
}

// Context sets the job's context: OnceFunc's function gets a child of ctx. Once ctx has
// ended, no new run begins, and OnError gets an error that matches [natslock.ErrTimeout]
// and ctx's error. Cancel ctx to stop the jobs that cron.Cron.Stop waits for. The default,
// kept if ctx is nil, never ends.
func Context(ctx context.Context) Option {
	return func(j *job) {
		if ctx != nil {
			j.ctx = ctx
		}
	}
}

// LockOptions sets options for each run's lock, such as [natslock.TTL] or [natslock.Meta].
// [natslock.Linger] and [natslock.Until] require MinHold(0).
func LockOptions(opts ...natslock.LockOption) Option {
	return func(j *job) { j.opts = append(j.opts, opts...) }
}

// Once returns a cron.JobWrapper for a job that every replica of a service schedules, so
// that only one of them runs each tick. It does no I/O. name is the lock's name and belongs
// to one job, so do not use it for another job, and do not pass Once to cron.WithChain,
// which wraps all jobs.
//
// The job has no context, so it keeps running if its lock is lost: see [OnError] and
// [OnceFunc]. If the job panics, its lock is released and the panic reaches the wrapper
// around Once, such as cron.Recover.
func Once(locks natslock.Locker, name string, opts ...Option) cron.JobWrapper {
	return func(inner cron.Job) cron.Job {
		if inner == nil {
			return OnceFunc(locks, name, nil, opts...)
		}
		return OnceFunc(locks, name, func(context.Context, *natslock.Lock) error {
			inner.Run()
			return nil
		}, opts...)
	}
}

// OnceFunc returns a cron.Job that runs fn once per tick, on one of the replicas that
// schedule the job. It does no I/O. name is the lock's name and belongs to one job.
//
// If locks or fn is nil, the job never runs, and OnError gets an error that matches
// [natslock.ErrInvalid]. Nil options are ignored.
//
// ctx ends with the lock, or with the parent set by [Context]. fn must then return, because
// another replica may get the lock. fn's error goes to [OnError].
func OnceFunc(locks natslock.Locker, name string, fn func(ctx context.Context, l *natslock.Lock) error, opts ...Option) cron.Job {
	j := &job{locks: locks, name: name, fn: fn, ctx: context.Background(), minHold: DefaultMinHold}
	j.onError = func(err error) {
		if !errors.Is(err, natslock.ErrLocked) {
			cron.DefaultLogger.Error(err, "job with a lock failed", "name", name)
		}
	}
	for _, opt := range opts {
		if opt != nil {
			opt(j)
		}
	}
	if j.minHold != 0 {
		j.opts = append([]natslock.LockOption{natslock.MinHold(j.minHold)}, j.opts...)
	}
	return j
}

type job struct {
	locks   natslock.Locker
	name    string
	fn      func(ctx context.Context, l *natslock.Lock) error
	ctx     context.Context
	minHold time.Duration
	opts    []natslock.LockOption
	onError func(error)
}

// Run runs the job for one tick, unless another replica has the lock.
func (j *job) Run() {
	if j.locks == nil || j.fn == nil {
		j.onError(fmt.Errorf("job with lock %q: %w: the locks or the function is nil", j.name, natslock.ErrInvalid))
		return
	}
	lock, err := j.locks.TryLock(j.ctx, j.name, j.opts...)
	if err != nil {
		j.onError(err)
		return
	}
	var failed error // fn's error
	reported, watched := false, make(chan struct{})
	stop := context.AfterFunc(lock.Context(), func() {
		defer close(watched)
		if lock.Remaining() > 0 { // only the parent context has ended
			return
		}
		if err := lock.Err(); !errors.Is(err, natslock.ErrReleased) {
			reported = true
			j.onError(err)
		}
	})
	err = lock.Do(func(ctx context.Context, l *natslock.Lock) error {
		defer func() { // even after a panic
			if !stop() {
				<-watched
			}
		}()
		failed = j.fn(ctx, l)
		return failed
	})
	if err != nil && (failed != nil || !reported) {
		j.onError(err)
	}
}
