package tusdlock

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/tus/tusd/v2/pkg/handler"

	"github.com/natslock/locks/natslock"
)

// Prefix is the prefix of every lock name in the bucket.
const Prefix = "tusd."

// longest is the maximum length, in bytes, of an id that is used as is in a lock's name. Longer
// ids are hashed. A name of this length is valid no matter which characters it contains.
const longest = 160

// Locker is a [handler.Locker] for tusd's uploads. Create it with [New]. It is safe for
// concurrent use.
type Locker struct {
	locks natslock.Locker
	opts  []natslock.LockOption
}

var _ handler.Locker = (*Locker)(nil)

// New returns a Locker that acquires its locks through locks, usually a [*natslock.Client]. The
// options apply to each lock. A lock outlives the context with which it was acquired, as with
// [natslock.Detached].
//
// New does no I/O. If an option is invalid, each call to Lock fails.
func New(locks natslock.Locker, opts ...natslock.LockOption) *Locker {
	// Detached, because tusd cancels the context of an acquire as soon as it has the lock.
	return &Locker{locks: locks, opts: append(slices.Clone(opts), natslock.Detached())}
}

// UseIn makes tusd lock uploads with l.
func (l *Locker) UseIn(composer *handler.StoreComposer) { composer.UseLocker(l) }

// NewLock returns the lock of the upload with this id, which may have any characters and any
// length. It does not acquire the lock. The error matches [natslock.ErrInvalid] if New was given
// nil locks.
//
// The returned lock's Lock method waits until ctx ends, even through server outages, like
// [natslock.Client.Lock]. It returns nil once the caller has the lock, which then lasts until
// Unlock. It returns [handler.ErrLockTimeout] if ctx, or [natslock.MaxWait] among the options,
// ended the wait. Other errors are those of [natslock.Client.Lock].
//
// The lock calls requestUnlock at most once, on a separate goroutine, when another request at any
// server is waiting for the upload or when the lock is lost. requestUnlock is allowed to call
// Unlock itself. If it runs concurrently with Unlock, it may return after Unlock does.
//
// Unlock waits for the server no longer than the client's release timeout. It returns nil if the
// lock was still held at the time of the call. An error that matches [natslock.ErrLost] means
// that another request may have had the upload at the same time. [natslock.ErrUnavailable] means
// that the server did not confirm the release, in which case the lock becomes free after its TTL.
// The error matches [natslock.ErrReleased] if the lock is not held. Tusd ignores these errors.
func (l *Locker) NewLock(id string) (handler.Lock, error) {
	if l.locks == nil {
		return nil, fmt.Errorf("lock of upload %.64q: %w: the Locker was created without locks", id, natslock.ErrInvalid)
	}
	return &lock{locker: l, name: nameOf(id)}, nil
}

// nameOf returns the name of an upload's lock. Different ids have different names, because tusd
// does not allow '#' in an id.
func nameOf(id string) string {
	if len(id) <= longest {
		return Prefix + id
	}
	return fmt.Sprintf("%s#%x", Prefix, sha256.Sum256([]byte(id)))
}

// lock implements handler.Lock for a single request. It must not be used by two goroutines at the
// same time.
type lock struct {
	locker *Locker
	name   string

	mu   sync.Mutex
	held *held // nil unless locked
}

type held struct {
	*natslock.Lock
	watched chan struct{} // closed when the watch ends
}

func (l *lock) Lock(ctx context.Context, requestUnlock func()) error {
	if requestUnlock == nil {
		return fmt.Errorf("lock %q: %w: requestUnlock is nil", l.name, natslock.ErrInvalid)
	}
	got, err := l.locker.locks.Lock(ctx, l.name, l.locker.opts...)
	switch {
	case err == nil:
	case errors.Is(err, natslock.ErrUnavailable): // even if ctx or MaxWait ended the wait, because the upload may not be busy
		return err
	case ctx.Err() != nil || errors.Is(err, natslock.ErrTimeout):
		return handler.ErrLockTimeout
	default:
		return err
	}
	h := &held{Lock: got, watched: make(chan struct{})}
	l.mu.Lock()
	l.held = h
	l.mu.Unlock()
	go h.watch(requestUnlock)
	return nil
}

// watch calls requestUnlock when another request is waiting for the upload or the lock is lost.
// It ends with the lock.
func (h *held) watch(requestUnlock func()) {
	select {
	case <-h.Contended():
	case <-h.Context().Done():
	}
	ended := errors.Is(h.Err(), natslock.ErrReleased)
	close(h.watched) // before requestUnlock, which may call Unlock
	if !ended {
		requestUnlock()
	}
}

func (l *lock) Unlock() error {
	l.mu.Lock()
	h := l.held
	l.held = nil
	l.mu.Unlock()
	if h == nil {
		return fmt.Errorf("lock %q: %w: it is not locked", l.name, natslock.ErrReleased)
	}
	err := h.Unlock(context.Background())
	<-h.watched
	return err
}
