package certmagiclock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/caddyserver/certmagic"

	"github.com/natslock/locks/internal/plain"
	"github.com/natslock/locks/natslock"
)

// Prefix begins the names of the locks in the bucket.
const Prefix = "certmagic."

// Storage is a [certmagic.Storage] that stores in another one and locks with natslock.
// Create it with [New]. It is safe for concurrent use.
//
// Instances exclude each other if their clients use the same bucket, however many
// Storages a process has.
type Storage struct {
	certmagic.Storage // all but the methods below

	locks natslock.Locker
	opts  []natslock.LockOption

	mu   sync.Mutex
	held map[string]*section
}

var (
	_ certmagic.Storage          = (*Storage)(nil)
	_ certmagic.TryLocker        = (*Storage)(nil)
	_ certmagic.LockLeaseRenewer = (*Storage)(nil)
	_ fmt.Stringer               = (*Storage)(nil)
)

// section is the work of one goroutine under a name, from before it has the lock until
// Unlock. Unlock goes by name, so a name has only one section at a time. With two, Unlock
// could not tell whose lock to release once the first had lost its own.
type section struct {
	lock *natslock.Lock // nil before the grant; Storage.mu guards it
	over chan struct{}  // closed at the end
}

// New returns a Storage that keeps everything in storage and takes its locks from locks,
// usually a [*natslock.Client]. The options apply to each lock. [natslock.MaxWait] among them
// does not limit the wait for other goroutines that use the same Storage.
//
// New sends nothing. Each Lock refuses invalid options and nil locks with [natslock.ErrInvalid].
func New(storage certmagic.Storage, locks natslock.Locker, opts ...natslock.LockOption) *Storage {
	return &Storage{Storage: storage, locks: locks, opts: slices.Clone(opts), held: map[string]*section{}}
}

// Lock takes the lock called name, which may have any characters. It waits until ctx ends,
// even through outages of the server. It returns nil when the caller has the lock until
// Unlock, even if ctx ends before that. Errors are those of [natslock.Client.Lock], and match
// [natslock.ErrTimeout] and ctx's error if ctx ended the wait.
func (s *Storage) Lock(ctx context.Context, name string) error {
	if err := s.ready(ctx, name); err != nil {
		return err
	}
	for {
		own, other := s.enter(name)
		if other == nil {
			return s.take(ctx, name, own, s.locks.Lock)
		}
		select {
		case <-other.over:
		case <-ctx.Done():
			return fmt.Errorf("lock %q: another goroutine of this process has it: %w: %w", Prefix+name, natslock.ErrTimeout, plain.EndOf(ctx))
		}
	}
}

// TryLock takes the lock if it is free and no one waits for it. It waits only for the
// server's answers. It returns true if the caller has the lock until Unlock, and false
// without an error if the lock is held or has a queue. Any other error is that of
// [natslock.Client.TryLock].
func (s *Storage) TryLock(ctx context.Context, name string) (bool, error) {
	if err := s.ready(ctx, name); err != nil {
		return false, err
	}
	own, other := s.enter(name)
	if other != nil {
		return false, nil
	}
	err := s.take(ctx, name, own, s.locks.TryLock)
	if errors.Is(err, natslock.ErrLocked) {
		return false, nil
	}
	return err == nil, err
}

// Unlock releases the lock called name. It ignores ctx, and waits for the server until the
// client's release timeout passes.
//
// It returns nil if the lock was held until the call. An error that matches
// [natslock.ErrLost] means that the lock had already ended, so another instance may have
// worked at the same time. [natslock.ErrUnavailable] means that the server did not confirm
// the release: the lock is free after its TTL. In all these cases the name is then unlocked
// here. The error matches [natslock.ErrReleased] if the name was not locked.
func (s *Storage) Unlock(ctx context.Context, name string) error {
	s.mu.Lock()
	own := s.held[name]
	if own == nil || own.lock == nil {
		s.mu.Unlock()
		return notLocked(name)
	}
	delete(s.held, name)
	s.mu.Unlock()
	defer close(own.over)
	return own.lock.Unlock(ctx)
}

// RenewLockLease confirms with the server that the caller still has the lock. If the lock
// was lost or broken, RenewLockLease takes it again, waiting for it as Lock does.
// Certmagic calls it before each attempt that it may repeat, and keeps the lock between
// attempts, for up to 30 days. An error would only end the attempt.
//
// The duration has no effect: the client renews the lease for as long as the process runs.
//
// It returns nil if the caller has the lock. Errors are those of [natslock.Lock.Extend]
// and [natslock.Client.Lock], and match [natslock.ErrReleased] if the name was not locked.
func (s *Storage) RenewLockLease(ctx context.Context, name string, _ time.Duration) error {
	if err := s.ready(ctx, name); err != nil {
		return err
	}
	s.mu.Lock()
	own := s.held[name]
	var old *natslock.Lock
	if own != nil {
		old = own.lock
	}
	s.mu.Unlock()
	if old == nil {
		return notLocked(name)
	}
	if err := old.Extend(ctx, 0); old.Remaining() > 0 {
		return err
	}
	lost := old.Unlock(ctx) // until then the record of a broken lock stays
	l, err := s.locks.Lock(ctx, Prefix+name, s.opts...)
	if err != nil {
		return fmt.Errorf("%w; taking it again: %w", lost, err)
	}
	s.mu.Lock()
	current := s.held[name] == own
	if current {
		own.lock = l
	}
	s.mu.Unlock()
	if !current { // certmagic.CleanUpOwnLocks unlocked it in the meantime
		_ = l.Unlock(ctx)
		return notLocked(name)
	}
	return nil
}

// String returns the description of the wrapped storage if it has one, and otherwise its
// type. Without String, certmagic would log the fields.
func (s *Storage) String() string {
	if d, ok := s.Storage.(fmt.Stringer); ok {
		return d.String()
	}
	return fmt.Sprintf("%T", s.Storage)
}

// ready refuses a Storage without locks and a nil context. It is called before the name gets a
// section.
func (s *Storage) ready(ctx context.Context, name string) error {
	switch {
	case s.locks == nil:
		return fmt.Errorf("lock %.512q: %w: the Storage was made without locks", Prefix+name, natslock.ErrInvalid)
	case ctx == nil:
		return fmt.Errorf("lock %.512q: %w: the context is nil", Prefix+name, natslock.ErrInvalid)
	}
	return nil
}

// enter begins a section, unless another one has the name: then it returns the other one.
func (s *Storage) enter(name string) (own, other *section) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if other = s.held[name]; other != nil {
		return nil, other
	}
	own = &section{over: make(chan struct{})}
	s.held[name] = own
	return own, nil
}

// take acquires the lock for a section, and ends the section if that fails.
func (s *Storage) take(ctx context.Context, name string, own *section, acquire func(context.Context, string, ...natslock.LockOption) (*natslock.Lock, error)) error {
	l, err := acquire(ctx, Prefix+name, s.opts...)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		delete(s.held, name)
		close(own.over)
		return err
	}
	own.lock = l
	return nil
}

func notLocked(name string) error {
	return fmt.Errorf("lock %q: %w: this storage does not hold it", Prefix+name, natslock.ErrReleased)
}
