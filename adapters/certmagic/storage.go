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

// Prefix is the prefix of every lock name in the bucket.
const Prefix = "certmagic."

// Storage wraps another [certmagic.Storage] and does its locking with natslock. Create it
// with [New]. It is safe for concurrent use.
//
// Instances exclude each other if their clients use the same bucket, no matter how many
// Storages a process has.
type Storage struct {
	certmagic.Storage // provides every method that is not defined below

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

// section is one goroutine's critical section for a name. It begins before the lock is
// acquired and ends at Unlock. Unlock identifies its lock only by name, so a name has at
// most one section at a time. With two sections, Unlock could not tell which lock to
// release once the first section had lost its lock.
type section struct {
	lock *natslock.Lock // nil until granted; guarded by Storage.mu
	over chan struct{}  // closed when the section ends
}

// New returns a Storage that stores everything in storage and acquires its locks through
// locks, usually a [*natslock.Client]. The options apply to each lock, but
// [natslock.MaxWait] does not limit the wait for other goroutines that use the same
// Storage.
//
// New does no I/O. If an option is invalid or locks is nil, each call to Lock fails with
// [natslock.ErrInvalid].
func New(storage certmagic.Storage, locks natslock.Locker, opts ...natslock.LockOption) *Storage {
	return &Storage{Storage: storage, locks: locks, opts: slices.Clone(opts), held: map[string]*section{}}
}

// Lock acquires the lock called name, which may contain any characters. It keeps waiting
// until ctx ends, even through server outages. It returns nil once the caller has the lock,
// which then lasts until Unlock, even if ctx ends first. Its errors are those of
// [natslock.Client.Lock], and match [natslock.ErrTimeout] and ctx's error if ctx ended the
// wait.
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
			return fmt.Errorf("lock %q: another goroutine of this process holds it: %w: %w", Prefix+name, natslock.ErrTimeout, plain.EndOf(ctx))
		}
	}
}

// TryLock acquires the lock if it is free and has no queue, and waits only for the server's
// replies. It returns true if it acquired the lock, which the caller then has until Unlock,
// and false with a nil error if the lock is held or has a queue. Other errors are those of
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

// Unlock releases the lock called name. It ignores ctx, and waits for the server no longer
// than the client's release timeout.
//
// It returns nil if the lock was still held at the time of the call. An error that matches
// [natslock.ErrLost] means that the lock had already ended, so another instance may have
// worked at the same time. [natslock.ErrUnavailable] means that the server did not confirm
// the release, in which case the lock becomes free after its TTL. In all of these cases,
// the name is no longer locked in this process. The error matches [natslock.ErrReleased] if
// the name was not locked.
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

// RenewLockLease confirms with the server that the caller still has the lock. Certmagic
// calls it before each attempt that it may repeat, and holds the lock across attempts, for
// up to 30 days. If the lock has been lost or broken, RenewLockLease acquires it again,
// waiting for it as Lock does, because an error would only end the current attempt.
//
// The duration has no effect, because the client renews the lease for as long as the
// process runs.
//
// It returns nil if the caller has the lock. Errors are those of [natslock.Lock.Extend] and
// [natslock.Client.Lock], and match [natslock.ErrReleased] if the name was not locked.
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
	lost := old.Unlock(ctx) // the record of a broken lock stays until Unlock
	l, err := s.locks.Lock(ctx, Prefix+name, s.opts...)
	if err != nil {
		return fmt.Errorf("%w; acquiring it again: %w", lost, err)
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

// String returns the wrapped storage's description if it has one, and its type otherwise.
// Without String, certmagic would log the struct's fields.
func (s *Storage) String() string {
	if d, ok := s.Storage.(fmt.Stringer); ok {
		return d.String()
	}
	return fmt.Sprintf("%T", s.Storage)
}

// ready rejects a nil context and a Storage without locks. It is called before a section
// begins.
func (s *Storage) ready(ctx context.Context, name string) error {
	switch {
	case s.locks == nil:
		return fmt.Errorf("lock %.512q: %w: the Storage was created without locks", Prefix+name, natslock.ErrInvalid)
	case ctx == nil:
		return fmt.Errorf("lock %.512q: %w: the context is nil", Prefix+name, natslock.ErrInvalid)
	}
	return nil
}

// enter begins a section for the name, or returns the one that is already in progress.
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
