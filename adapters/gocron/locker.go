package gocronlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/natslock/locks/natslock"
)

// DefaultMinHold is the default for [MinHold].
const DefaultMinHold = 5 * time.Second

// Option configures a [Locker].
type Option func(*Locker)

// MinHold makes the Locker hold each lock for at least d after the grant, even if the job
// returns sooner: see [natslock.MinHold]. The default is [DefaultMinHold], and 0 means no
// minimum. A job that runs more often than every 10 s needs a smaller d, because its lock
// would otherwise still be held at the next tick, and gocron would skip that tick. If
// natslock rejects d, each call to Lock returns [natslock.ErrInvalid].
func MinHold(d time.Duration) Option {
	return func(l *Locker) { l.minHold = d }
}

// OnError sets the function that receives the errors that gocron discards. If a lock is
// lost or broken during a run, fn is called immediately, while the job is still running.
// Otherwise, if the unlock fails, fn is called with its error. It is called at most once
// per run. name is the job's name. The default does nothing, but the client's logger warns
// of losses: see [natslock.WithLogger].
//
// The errors are those of [natslock.Lock.Unlock]. If one matches [natslock.ErrLost],
// another scheduler may have run the job at the same time. fn does not receive errors from
// Lock, because gocron passes those to the listener gocron.AfterLockError.
//
// fn may be called concurrently from several goroutines. The unlock waits until fn returns,
// so fn must not wait for the run or for the scheduler to shut down.
//
// A nil fn keeps the default.
func OnError(fn func(name string, err error)) Option {
	return func(l *Locker) {
		if fn != nil {
			l.onError = fn
		}
	}
}

// LockOptions sets options for each lock, such as [natslock.TTL] or [natslock.Meta].
// [natslock.Linger] and [natslock.Until] require MinHold(0).
func LockOptions(opts ...natslock.LockOption) Option {
	return func(l *Locker) { l.opts = append(l.opts, opts...) }
}

// Locker is a gocron.Locker that takes a lock for each run of a job. Create it with
// [NewLocker]. It is safe for concurrent use, and several schedulers may share it.
type Locker struct {
	locks   natslock.Locker
	minHold time.Duration
	opts    []natslock.LockOption
	onError func(name string, err error)

	mu   sync.Mutex
	runs map[string]*run // by job name; nil while Lock waits for the server
}

var _ gocron.Locker = (*Locker)(nil)

// NewLocker returns a Locker for gocron.WithDistributedLocker, or for the job option
// gocron.WithDistributedJobLocker. It does no I/O and does not need to be closed. Shut down
// the schedulers before calling [natslock.Client.Close].
//
// A job's lock is named after the job. Name jobs with gocron.WithName, for example
// "billing.report". Otherwise gocron uses the name of the function, such as
// "main.main.func1", which another service might use too.
func NewLocker(locks natslock.Locker, opts ...Option) *Locker {
	l := &Locker{locks: locks, minHold: DefaultMinHold, onError: func(string, error) {}, runs: map[string]*run{}}
	for _, opt := range opts {
		if opt != nil {
			opt(l)
		}
	}
	if l.minHold != 0 {
		l.opts = append([]natslock.LockOption{natslock.MinHold(l.minHold)}, l.opts...)
	}
	l.opts = slices.Clip(l.opts)
	return l
}

// Lock acquires the lock for the job named key. gocron calls it before each run, with the
// job's context. Lock does not wait for other holders, and waits at most 5 s for the
// server.
//
// It returns the lock, or an error that makes gocron skip the run. The error matches
// [natslock.ErrLocked] if another run of the job is in progress anywhere, or began less
// than the minimum hold ago. This Locker considers a run to be in progress until it ends,
// even if the run has lost its lock. The error matches [natslock.ErrInvalid] if NewLocker
// was given nil locks. Other errors are those of [natslock.Client.TryLock].
func (l *Locker) Lock(ctx context.Context, key string) (gocron.Lock, error) {
	if l.locks == nil {
		return nil, fmt.Errorf("lock %q: %w: the Locker was created without locks", key, natslock.ErrInvalid)
	}
	if !l.begin(key) {
		return nil, fmt.Errorf("lock %q: the previous run of the job in this process has not ended: %w", key, natslock.ErrLocked)
	}
	lock, err := l.locks.TryLock(ctx, key, l.opts...)
	if err != nil {
		l.end(key)
		return nil, err
	}
	r := newRun(l, lock)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.runs[key] = r
	return r, nil
}

// Held returns the lock of the current run of the named job. Its context ends when the lock
// or the job's context does, so a job that uses this context instead of its own stops in
// time. Get the context when the job begins; it remains tied to that run.
//
// If no run of this Locker has the lock, Held returns a zero [natslock.Lock], whose context
// has ended and whose token is 0. Do not unlock the lock yourself: gocron does that.
func (l *Locker) Held(name string) *natslock.Lock {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r := l.runs[name]; r != nil {
		return r.lock
	}
	return new(natslock.Lock)
}

// begin reserves the name for a run, and reports whether it was free.
func (l *Locker) begin(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, busy := l.runs[name]; busy {
		return false
	}
	l.runs[name] = nil
	return true
}

func (l *Locker) end(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.runs, name)
}

// run implements gocron.Lock for a single run of a job.
type run struct {
	lock   *natslock.Lock
	unlock func() error
}

// newRun returns a run that watches its lock until Unlock. The watch needs a goroutine only
// to report a loss, and Unlock waits for that goroutine.
func newRun(l *Locker, lock *natslock.Lock) *run {
	reported, watched := false, make(chan struct{})
	stop := context.AfterFunc(lock.Context(), func() {
		defer close(watched)
		if lock.Remaining() > 0 { // only the job's context has ended
			return
		}
		if err := lock.Err(); !errors.Is(err, natslock.ErrReleased) {
			reported = true
			l.onError(lock.Name(), err)
		}
	})
	return &run{lock, sync.OnceValue(func() error {
		defer l.end(lock.Name())
		if !stop() {
			<-watched
		}
		err := lock.Unlock(context.Background())
		if err != nil && !reported {
			l.onError(lock.Name(), err)
		}
		return err
	})}
}

// Unlock releases the lock, or leaves its record in place until the minimum hold ends. It
// ignores the context, which has already ended if gocron is stopping the job. It waits for
// the server no longer than the client's release timeout. Its errors are those of
// [natslock.Lock.Unlock], which gocron discards: see [OnError].
func (r *run) Unlock(context.Context) error { return r.unlock() }
