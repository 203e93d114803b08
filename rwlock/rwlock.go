// Package rwlock provides distributed reader-writer locks on a [natslock.Client]: any number of
// readers, or one writer. It uses the client's bucket, leases, options and errors, and returns
// a [natslock.Lock]. A mutex of the same name is a different lock, and a client refuses to use
// a name for both.
//
// # Usage
//
//	rw := rwlock.New(locks) // locks is a *natslock.Client
//	err := rw.RDo(ctx, "index", func(ctx context.Context, l *natslock.Lock) error {
//		return query(ctx)
//	}, natslock.MaxWait(time.Minute))
//
// # How it excludes
//
// A reader writes a record of its own, on the condition that the lock's gate is free; the
// server checks and stores in one step. A writer takes the gate like a mutex, and from then on
// the server admits no reader. The writer then waits until the readers inside have left. It
// trusts only the stream's leader: one answer on a bucket with one replica, and otherwise two
// answers with a write of the gate between them, because a deposed leader cannot confirm that
// write. These writes and answers have to fit into 800 ms: over a slower link a writer fails
// with [natslock.ErrUnavailable].
//
// # Fairness
//
// Readers and writers share one queue, in the order of package natslock. A reader enters when
// no writer is ahead of it, and a writer when no client is. So consecutive readers enter
// together, a reader never passes an earlier writer that its client knows of, and neither side
// starves. After a crash or a pause the order can change.
//
// # Tokens
//
// A writer's token is higher than that of every earlier reader, and lower than that of every
// later one. Readers that share a lease have the same token.
//
// # Deadlocks
//
// As with sync.RWMutex, a goroutine that takes a read lock again while it holds one deadlocks
// if a writer has queued in between. A read lock cannot be upgraded to a write lock.
package rwlock

import (
	"context"
	"fmt"

	"github.com/natslock/locks/internal/bridge"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/natslock"
)

// RWLock takes reader-writer locks with a client. Create it with [New]. Methods of a zero
// RWLock, or one with a nil client, return an error that matches [natslock.ErrInvalid].
type RWLock struct {
	c *natslock.Client
}

// New returns an RWLock that uses client c. It does no I/O, and the RWLock does not need to be
// closed.
func New(c *natslock.Client) *RWLock { return &RWLock{c: c} }

// inside has functions of package natslock that only packages of this module may use.
var inside = bridge.Natslock[*natslock.Client, *natslock.Lock, natslock.Option, natslock.LockOption, *natslock.Holder]()

// acquire implements all methods.
func (rw *RWLock) acquire(ctx context.Context, mode record.Mode, wait bool, name string, opts []natslock.LockOption) (*natslock.Lock, error) {
	if rw == nil || rw.c == nil {
		return nil, fmt.Errorf("lock %q: %w: a rwlock.RWLock made without New, or without a client", name, natslock.ErrInvalid)
	}
	return inside.Acquire(ctx, rw.c, record.RW, mode, wait, name, opts)
}

var _ natslock.Locker = (*RWLock)(nil) // for writing

// RLocker returns a [natslock.Locker] for read locks. The RWLock itself is one for write locks.
func (rw *RWLock) RLocker() natslock.Locker { return (*reader)(rw) }

// reader is an RWLock for reading.
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

// Lock takes the lock for writing. It waits and returns as [natslock.Client.Lock] does. The
// error matches [natslock.ErrInvalid] for a name that this client uses as a mutex, and
// [natslock.ErrUnavailable] if the link is too slow for a writer.
func (rw *RWLock) Lock(ctx context.Context, name string, opts ...natslock.LockOption) (*natslock.Lock, error) {
	return rw.acquire(ctx, record.Exclusive, true, name, opts)
}

// TryLock takes the lock for writing if no one holds it or waits for it, and never
// queues. Otherwise the error matches [natslock.ErrLocked]. Other errors are those of
// [natslock.Client.TryLock].
func (rw *RWLock) TryLock(ctx context.Context, name string, opts ...natslock.LockOption) (*natslock.Lock, error) {
	return rw.acquire(ctx, record.Exclusive, false, name, opts)
}

// RLock takes the lock for reading. It waits and returns as [RWLock.Lock] does.
//
// Goroutines of one client share a lease and its token, without a message, until the client
// learns of a writer, at most a second late if a notification is lost. Later readers queue. If
// the lease is lost or broken, or one of the goroutines drops its Lock without Unlock, all
// their locks end. While others share the lease, [natslock.Lock.Extend] can only lengthen it. A
// lock with [natslock.Until], [natslock.NoRenew], a different TTL or different metadata has its
// own lease.
func (rw *RWLock) RLock(ctx context.Context, name string, opts ...natslock.LockOption) (*natslock.Lock, error) {
	return rw.acquire(ctx, record.Shared, true, name, opts)
}

// TryRLock takes the lock for reading if no writer holds it and no one waits for it, and
// never queues. Otherwise the error matches [natslock.ErrLocked]. Other errors are those of
// [natslock.Client.TryLock].
func (rw *RWLock) TryRLock(ctx context.Context, name string, opts ...natslock.LockOption) (*natslock.Lock, error) {
	return rw.acquire(ctx, record.Shared, false, name, opts)
}

// Do runs fn under the write lock, as [natslock.Client.Do] does under a mutex. The acquire's
// errors are those of [RWLock.Lock].
func (rw *RWLock) Do(ctx context.Context, name string, fn func(ctx context.Context, l *natslock.Lock) error, opts ...natslock.LockOption) error {
	return inside.Under(ctx, rw.Lock, name, fn, opts)
}

// TryDo is [RWLock.Do] with [RWLock.TryLock]. See [natslock.Client.TryDo].
func (rw *RWLock) TryDo(ctx context.Context, name string, fn func(ctx context.Context, l *natslock.Lock) error, opts ...natslock.LockOption) error {
	return inside.Under(ctx, rw.TryLock, name, fn, opts)
}

// RDo runs fn under the read lock, as [RWLock.Do] does under the write lock. The acquire's
// errors are those of [RWLock.RLock].
func (rw *RWLock) RDo(ctx context.Context, name string, fn func(ctx context.Context, l *natslock.Lock) error, opts ...natslock.LockOption) error {
	return inside.Under(ctx, rw.RLock, name, fn, opts)
}

// TryRDo is [RWLock.RDo] with [RWLock.TryRLock]. See [natslock.Client.TryDo].
func (rw *RWLock) TryRDo(ctx context.Context, name string, fn func(ctx context.Context, l *natslock.Lock) error, opts ...natslock.LockOption) error {
	return inside.Under(ctx, rw.TryRLock, name, fn, opts)
}
