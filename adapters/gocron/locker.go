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

// DefaultMinHold is the default of [MinHold].
const DefaultMinHold = 5 * time.Second

// Option configures a [Locker].
type Option func(*Locker)

// MinHold makes the Locker keep others out for d after the grant, however early the job
// returns: see [natslock.MinHold]. The default is [DefaultMinHold], and 0 turns it off. A
// job that runs more often than every 10 s needs a smaller d, or its lock would not be
// free at the next tick, which gocron would skip. If natslock refuses d, each Lock returns
// [natslock.ErrInvalid].
func MinHold(d time.Duration) Option {
	return func(l *Locker) { l.minHold = d }
}

// OnError makes the Locker call fn with each error that gocron would drop. If a lock is lost
// or broken during a run, fn is called at once, while the job still runs. Otherwise it is
// called with the unlock's error. It is called at most once per run. name is the job's name.
// The default does nothing, but the client's logger warns of losses: see
// [natslock.WithLogger].
//
// The errors are those of [natslock.Lock.Unlock]. If one matches [natslock.ErrLost], another
// scheduler may have run the job at the same time. Errors of Lock are not reported here:
// gocron passes them to the listener gocron.AfterLockError.
//
// Several goroutines can call fn at once. The unlock waits until fn returns, so fn must not
// wait for the run or the shutdown of the scheduler.
//
// A nil fn keeps the default.
func OnError(fn func(name string, err error)) Option {
	return func(l *Locker) {
		if fn != nil {
			l.onError = fn
		}
	}
}

// LockOptions makes the Locker take each lock with these options, such as [natslock.TTL]
// or [natslock.Meta]. [natslock.Linger] and [natslock.Until] also need MinHold(0).
func LockOptions(opts ...natslock.LockOption) Option {
	return func(l *Locker) { l.opts = append(l.opts, opts...) }
}

// Locker is a gocron.Locker: it takes a lock for each run of a job. Create it with
// [NewLocker]. It is safe for concurrent use, and several schedulers may share it.
type Locker struct {
	locks   natslock.Locker
	minHold time.Duration
	opts    []natslock.LockOption
	onError func(name string, err error)

	mu   sync.Mutex
	runs map[string]*run // by the name of the job; nil while Lock waits for the answer
}

var _ gocron.Locker = (*Locker)(nil)

// NewLocker returns a Locker for gocron.WithDistributedLocker, or for the job option
// gocron.WithDistributedJobLocker. It does no I/O and does not need to be closed. Shut the
// schedulers down before [natslock.Client.Close].
//
// The lock of a job has the job's name. Name jobs with gocron.WithName, for example
// "billing.report". Otherwise gocron uses the name of the function, such as
// "main.main.func1", which another service can have too.
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

// Lock takes the lock of the job named key. gocron calls it before each run, with the
// context of the job. Lock does not wait for other holders, and at most 5 s for the server.
//
// It returns the lock, or an error that makes gocron skip the run. The error matches
// [natslock.ErrLocked] if another run of the job is in progress anywhere, or began less than
// the minimum hold ago. For this Locker a run is in progress until it ends, even if it has
// lost its lock. The error matches [natslock.ErrInvalid] if NewLocker was given nil locks.
// Other errors are those of [natslock.Client.TryLock].
func (l *Locker) Lock(ctx context.Context, key string) (gocron.Lock, error) {
	if l.locks == nil {
		return nil, fmt.Errorf("lock %q: %w: the Locker was made without locks", key, natslock.ErrInvalid)
	}
	if !l.begin(key) {
		return nil, fmt.Errorf("lock %q: the last run of the job in this process has not ended: %w", key, natslock.ErrLocked)
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

// Held returns the lock of the current run of the job with this name. Its context ends when the
// lock or the context of the job does. A job that uses it instead of its own context stops in
// time. Get the context at the beginning of the job: it stays that of this run.
//
// If no run of this Locker has the lock, Held returns a zero [natslock.Lock], whose context has
// ended and whose token is 0. Do not unlock the lock: gocron does.
func (l *Locker) Held(name string) *natslock.Lock {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r := l.runs[name]; r != nil {
		return r.lock
	}
	return new(natslock.Lock)
}

// begin reserves the name for a run.
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

// run is a gocron.Lock: the lock of one run.
type run struct {
	lock   *natslock.Lock
	unlock func() error
}

// newRun watches the lock until the unlock. The watch has a goroutine only while it
// reports, and the unlock waits for it.
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

// Unlock releases the lock, or leaves its record until the end of the minimum hold. It
// ignores the context, which has ended if gocron stops the job. It waits for the server
// until the client's release timeout passes. Its errors are those of
// [natslock.Lock.Unlock]. gocron drops them: see [OnError].
func (r *run) Unlock(context.Context) error { return r.unlock() }
