// Package rwlock is the reader-writer lock of natslock: many readers at once, or
// one writer, first come first served. It uses the same client, bucket, leases
// and errors as the mutex, and returns the same [natslock.Lock].
//
// # How it excludes
//
// A reader joins by writing a record of its own on the condition that the
// lock's gate is free; the server checks the two together. A writer takes the
// gate like a mutex: from then on the server admits no reader. Then it waits
// until those inside have gone, which the stream's leader has to prove: by one
// answer on a bucket of one replica, on others by two with a write of the gate
// between them, because a leader that was deposed answers as well. Readers do not
// conflict with each other.
//
// # Fairness
//
// Who cannot enter at once queues, readers and writers in one line. A reader goes
// when no writer waits before it, a writer when nobody does: consecutive readers
// enter together, a later reader never passes a waiting writer, and neither side
// starves. Goroutines of one client that read what it reads already share a
// lease for a short while instead of joining; see [RWLock.RLock].
//
// # Tokens
//
// A writer's token is higher than that of every reader it waited for, and a
// later reader's is higher than the writer's. Readers that share a lease share
// its token.
//
// # Deadlocks
//
// As with sync.RWMutex, read-locking again while holding a read lock deadlocks
// when a writer has come in between, and a read lock cannot be made a write lock.
package rwlock

import (
	"context"
	"fmt"

	"github.com/natslock/locks/internal/bridge"
	"github.com/natslock/locks/natslock"
)

// RWLock takes reader-writer locks with a client. [New] makes it: the methods of a
// zero RWLock, or of one made with a nil client, return an error matching
// [natslock.ErrInvalidOption].
type RWLock struct {
	c *natslock.Client
}

// New returns the reader-writer locks of a client. It does no I/O and needs no
// closing.
func New(c *natslock.Client) *RWLock { return &RWLock{c: c} }

// acquire is natslock's: only this package acquires locks that are no mutexes.
var acquire = bridge.Acquire.(func(context.Context, *natslock.Client, natslock.Kind, natslock.Mode, bool, string, []natslock.LockOption) (*natslock.Lock, error))

// acquire is behind all methods.
func (rw *RWLock) acquire(ctx context.Context, mode natslock.Mode, wait bool, name string, opts []natslock.LockOption) (*natslock.Lock, error) {
	if rw == nil || rw.c == nil {
		return nil, fmt.Errorf("lock %q: %w: a rwlock.RWLock made without New, or without a client", name, natslock.ErrInvalidOption)
	}
	return acquire(ctx, rw.c, natslock.KindRW, mode, wait, name, opts)
}

// Lock takes the lock for writing, waiting in line until ctx ends or
// [natslock.MaxWait] is over. A deadline on ctx ends the work under the lock too, not
// only the wait: use MaxWait to bound the wait alone.
//
// It returns what [natslock.Client.Lock] returns, and, on a bucket with replicas, an
// error matching [natslock.ErrUnavailable] when the link is so slow that two writes and
// two answers do not fit into 800 ms: the writer could then never get in.
//
// A name that this client uses as a mutex is refused with an error matching
// [natslock.ErrInvalidName]: the two are different locks.
func (rw *RWLock) Lock(ctx context.Context, name string, opts ...natslock.LockOption) (*natslock.Lock, error) {
	return rw.acquire(ctx, natslock.Exclusive, true, name, opts)
}

// TryLock takes the lock for writing if nobody holds it or waits for it. It never
// queues. Otherwise the error matches [natslock.ErrLocked]; other errors are those of
// [natslock.Client.TryLock].
func (rw *RWLock) TryLock(ctx context.Context, name string, opts ...natslock.LockOption) (*natslock.Lock, error) {
	return rw.acquire(ctx, natslock.Exclusive, false, name, opts)
}

// RLock takes the lock for reading, waiting in line like [RWLock.Lock]. It returns
// what [natslock.Client.Lock] returns.
//
// Without options that ask for a lease of its own (TTL, Until, NoRenew, Meta,
// EarlyWarning) the lock may share a lease, and so the ID and the token, with
// other goroutines of this client that read: never one older than a third of its
// TTL or renewed already, nor once a writer was seen.
func (rw *RWLock) RLock(ctx context.Context, name string, opts ...natslock.LockOption) (*natslock.Lock, error) {
	return rw.acquire(ctx, natslock.Shared, true, name, opts)
}

// TryRLock takes the lock for reading if no writer holds it and nobody waits for
// it. It never queues. Otherwise the error matches [natslock.ErrLocked]; other errors
// are those of [natslock.Client.TryLock].
func (rw *RWLock) TryRLock(ctx context.Context, name string, opts ...natslock.LockOption) (*natslock.Lock, error) {
	return rw.acquire(ctx, natslock.Shared, false, name, opts)
}

// Do runs fn under the write lock; see [natslock.Client.Do]. Errors of the acquire
// are those of [RWLock.Lock]. A deadline on ctx ends fn's context too: use
// [natslock.MaxWait] to bound the wait alone.
func (rw *RWLock) Do(ctx context.Context, name string, fn func(ctx context.Context, l *natslock.Lock) error, opts ...natslock.LockOption) error {
	return under(ctx, rw.Lock, name, fn, opts)
}

// TryDo is [RWLock.Do] with [RWLock.TryLock]: an error matching
// [natslock.ErrLocked] means that fn did not run, because others hold the lock or
// wait for it.
func (rw *RWLock) TryDo(ctx context.Context, name string, fn func(ctx context.Context, l *natslock.Lock) error, opts ...natslock.LockOption) error {
	return under(ctx, rw.TryLock, name, fn, opts)
}

// RDo runs fn under the read lock; see [natslock.Client.Do] and [RWLock.Do]. Errors of
// the acquire are those of [RWLock.RLock].
func (rw *RWLock) RDo(ctx context.Context, name string, fn func(ctx context.Context, l *natslock.Lock) error, opts ...natslock.LockOption) error {
	return under(ctx, rw.RLock, name, fn, opts)
}

// TryRDo is [RWLock.RDo] with [RWLock.TryRLock]: an error matching
// [natslock.ErrLocked] means that fn did not run, because a writer holds the lock or
// others wait for it.
func (rw *RWLock) TryRDo(ctx context.Context, name string, fn func(ctx context.Context, l *natslock.Lock) error, opts ...natslock.LockOption) error {
	return under(ctx, rw.TryRLock, name, fn, opts)
}

// under runs fn under the lock that take takes.
func under(ctx context.Context, take func(context.Context, string, ...natslock.LockOption) (*natslock.Lock, error),
	name string, fn func(ctx context.Context, l *natslock.Lock) error, opts []natslock.LockOption,
) error {
	if fn == nil {
		return fmt.Errorf("lock %q: %w: the function to run is nil", name, natslock.ErrInvalidOption)
	}
	l, err := take(ctx, name, opts...)
	if err != nil {
		return err
	}
	return l.Do(fn)
}
