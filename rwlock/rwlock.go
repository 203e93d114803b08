// Package rwlock provides distributed reader-writer locks. A lock is held by any number of
// readers or by one writer. The package shares the bucket, leases, options and errors of a
// [natslock.Client], and its locks are of type [natslock.Lock]. A mutex of the same name is a
// different lock, but a client refuses to use one name for both.
//
// # Usage
//
//	rw := rwlock.New(locks) // locks is a *natslock.Client
//	err := rw.RDo(ctx, "index", func(ctx context.Context, l *natslock.Lock) error {
//		return query(ctx)
//	}, natslock.MaxWait(time.Minute))
//
// # How exclusion works
//
// A reader writes its own record on the condition that the lock's gate is free. The server checks
// the condition and stores the record in one step. A writer takes the gate like a mutex, after
// which the server admits no more readers, and then waits for the readers inside to leave.
//
// To decide that they have left, the writer trusts only the stream's leader. If the bucket has
// one replica, a single response is enough. Otherwise it takes two, with a write to the gate in
// between, because a deposed leader cannot confirm that write. These writes and responses must
// complete within 800 ms. If the link is too slow for that, a writer fails with
// [natslock.ErrUnavailable].
//
// # Fairness
//
// Readers and writers share one queue, ordered as in package natslock. A reader enters when no
// writer is ahead of it, and a writer enters when no client is. So consecutive readers enter
// together, a reader never overtakes a writer that is ahead of it and that its client has heard
// of, and neither side starves. A crash or a pause can change the order.
//
// # Tokens
//
// A writer's token is higher than those of all earlier readers, and lower than those of all later
// ones. Readers that share a lease have the same token.
//
// # Deadlocks
//
// As with sync.RWMutex, a goroutine that takes a read lock while already holding it deadlocks if
// a writer has queued in between. A read lock cannot be upgraded to a write lock.
package rwlock

import (
	"context"
	"fmt"

	"github.com/natslock/locks/internal/bridge"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/natslock"
)

// RWLock acquires reader-writer locks for a client. Create one with [New]. The methods of a zero
// RWLock, or of one with a nil client, return an error that matches [natslock.ErrInvalid].
type RWLock struct {
	c *natslock.Client
}

// New returns an RWLock that uses client c. It does no I/O, and the RWLock does not need to be
// closed.
func New(c *natslock.Client) *RWLock { return &RWLock{c: c} }

// inside gives access to functions of package natslock that are reserved for this module.
var inside = bridge.Natslock[*natslock.Client, *natslock.Lock, natslock.Option, natslock.LockOption, *natslock.Holder]()

// acquire is the common implementation of all methods that acquire a lock.
func (rw *RWLock) acquire(ctx context.Context, mode record.Mode, wait bool, name string, opts []natslock.LockOption) (*natslock.Lock, error) {
	if rw == nil || rw.c == nil {
		return nil, fmt.Errorf("lock %q: %w: the rwlock.RWLock was not created by New, or has no client", name, natslock.ErrInvalid)
	}
	return inside.Acquire(ctx, rw.c, record.RW, mode, wait, name, opts)
}

var _ natslock.Locker = (*RWLock)(nil) // for writing

// RLocker returns a [natslock.Locker] for read locks. The RWLock itself is a Locker for write
// locks.
func (rw *RWLock) RLocker() natslock.Locker { return (*reader)(rw) }

// reader is the Locker that RLocker returns.
type reader RWLock

func (r *reader) Lock(ctx context.Context, name string, opts ...natslock.LockOption) (*natslock.Lock, error) {
	return (*RWLock)(r).RLock(ctx, name, opts...)
}

func (r *reader) TryLock(ctx context.Context, name string, opts ...natslock.LockOption) (*natslock.Lock, error) {
	return (*RWLock)(r).TryRLock(ctx, name, opts...)
}

func (r *reader) Do(ctx context.Context, name string, fn func(ctx context.Context, l *natslock.Lock) error, opts ...natslock.LockOption) error {
	return (*RWLock)(r).RDo(ctx, name, fn, opts...)
}

func (r *reader) TryDo(ctx context.Context, name string, fn func(ctx context.Context, l *natslock.Lock) error, opts ...natslock.LockOption) error {
	return (*RWLock)(r).TryRDo(ctx, name, fn, opts...)
}

// Lock acquires the write lock. It waits and returns like [natslock.Client.Lock]. The error
// matches [natslock.ErrInvalid] if this client uses name for a mutex, and
// [natslock.ErrUnavailable] if the link is too slow for a writer.
func (rw *RWLock) Lock(ctx context.Context, name string, opts ...natslock.LockOption) (*natslock.Lock, error) {
	return rw.acquire(ctx, record.Exclusive, true, name, opts)
}

// TryLock acquires the write lock if no one holds the lock or waits for it. Otherwise it does not
// queue, and the error matches [natslock.ErrLocked]. Other errors are those of
// [natslock.Client.TryLock].
func (rw *RWLock) TryLock(ctx context.Context, name string, opts ...natslock.LockOption) (*natslock.Lock, error) {
	return rw.acquire(ctx, record.Exclusive, false, name, opts)
}

// RLock acquires a read lock. It waits and returns like [RWLock.Lock].
//
// The client's goroutines share one lease and its token, so an additional reader costs no message
// until the client learns of a writer, which can take up to a second if a notification is lost.
// From then on, new readers queue. If the lease is lost or broken, or if one of the goroutines
// drops its Lock without calling Unlock, all locks that share the lease end. While a lease is
// shared, [natslock.Lock.Extend] can only lengthen it. A lock with [natslock.Until],
// [natslock.NoRenew], a different TTL or different metadata gets its own lease.
func (rw *RWLock) RLock(ctx context.Context, name string, opts ...natslock.LockOption) (*natslock.Lock, error) {
	return rw.acquire(ctx, record.Shared, true, name, opts)
}

// TryRLock acquires a read lock if no writer holds the lock and no one waits for it. Otherwise it
// does not queue, and the error matches [natslock.ErrLocked]. Other errors are those of
// [natslock.Client.TryLock].
func (rw *RWLock) TryRLock(ctx context.Context, name string, opts ...natslock.LockOption) (*natslock.Lock, error) {
	return rw.acquire(ctx, record.Shared, false, name, opts)
}

// Do runs fn while holding the write lock, like [natslock.Client.Do] with a mutex. If the lock
// cannot be acquired, the errors are those of [RWLock.Lock].
func (rw *RWLock) Do(ctx context.Context, name string, fn func(ctx context.Context, l *natslock.Lock) error, opts ...natslock.LockOption) error {
	return inside.Under(ctx, rw.Lock, name, fn, opts)
}

// TryDo is like [RWLock.Do] but uses [RWLock.TryLock]. See [natslock.Client.TryDo].
func (rw *RWLock) TryDo(ctx context.Context, name string, fn func(ctx context.Context, l *natslock.Lock) error, opts ...natslock.LockOption) error {
	return inside.Under(ctx, rw.TryLock, name, fn, opts)
}

// RDo runs fn while holding a read lock, like [RWLock.Do] with the write lock. If the lock cannot
// be acquired, the errors are those of [RWLock.RLock].
func (rw *RWLock) RDo(ctx context.Context, name string, fn func(ctx context.Context, l *natslock.Lock) error, opts ...natslock.LockOption) error {
	return inside.Under(ctx, rw.RLock, name, fn, opts)
}

// TryRDo is like [RWLock.RDo] but uses [RWLock.TryRLock]. See [natslock.Client.TryDo].
func (rw *RWLock) TryRDo(ctx context.Context, name string, fn func(ctx context.Context, l *natslock.Lock) error, opts ...natslock.LockOption) error {
	return inside.Under(ctx, rw.TryRLock, name, fn, opts)
}
