// Package rwlock provides distributed reader-writer locks on a [natslock.Client]: any
// number of readers, or one writer. It uses the
// client's bucket, leases, options and errors, and returns a [natslock.Lock].
//
// A mutex and a reader-writer lock with the same name are different locks. One client
// refuses to use a name for both.
//
// # Usage
//
//	rw := rwlock.New(locks) // locks is a *natslock.Client
//	err := rw.RDo(ctx, "index", func(ctx context.Context, l *natslock.Lock) error {
//		return query(ctx)
//	}, natslock.MaxWait(time.Minute))
//
// [RWLock.Lock] and [RWLock.RLock] wait, [RWLock.TryLock] and [RWLock.TryRLock] do not.
// Outcomes, leases and contexts are those of package natslock.
//
// # How it excludes
//
// A reader writes a record of its own, on the condition that the lock's gate is free.
// The server checks and stores in one step. Readers do not conflict with each other.
//
// A writer takes the gate as if it were a mutex, and from then on the server admits no
// reader. The writer then waits until the readers inside are gone. It believes only
// the stream's leader: one answer on a bucket of one replica, two answers with a write
// of the gate between them on others. A deposed leader answers too, but it cannot
// confirm that write.
//
// On a bucket with replicas the two writes and the two answers have to fit into 800 ms.
// A writer on a slower link fails with [natslock.ErrUnavailable].
//
// # Fairness
//
// Clients are served in the order in which they queue, goroutines of a client among
// themselves, as in package natslock. Readers and writers have one queue. A reader enters
// when no writer waits before it, and a writer when no client does. So consecutive readers
// enter together, a later reader never passes a writer that its client knows of, and
// neither side starves. After a crash or a pause the order can change.
//
// Readers of one client share a lease, and cost no message while no writer has come. Once
// one has, further readers wait for it, and queue when their client's lease ends. See
// [RWLock.RLock].
//
// # Tokens
//
// A writer's token is greater than the token of every reader before it, and smaller
// than the token of every reader after it. Readers that share a lease have one token.
//
// # Deadlocks
//
// A goroutine that holds a read lock and takes another one deadlocks if a writer has
// queued in between, as with sync.RWMutex. A read lock cannot become a write lock.
package rwlock

import (
	"context"
	"fmt"

	"github.com/natslock/locks/internal/bridge"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/natslock"
)

// RWLock takes reader-writer locks with a client. [New] makes it: the methods of a
// zero RWLock, or of one made with a nil client, return an error matching
// [natslock.ErrInvalid].
type RWLock struct {
	c *natslock.Client
}

// New returns the reader-writer locks of a client. It does no I/O, and needs no
// closing.
func New(c *natslock.Client) *RWLock { return &RWLock{c: c} }

// inside is what package natslock does for the packages of this module only.
var inside = bridge.Natslock[*natslock.Client, *natslock.Lock, natslock.Option, natslock.LockOption, *natslock.Holder]()

// acquire is behind all methods.
func (rw *RWLock) acquire(ctx context.Context, mode record.Mode, wait bool, name string, opts []natslock.LockOption) (*natslock.Lock, error) {
	if rw == nil || rw.c == nil {
		return nil, fmt.Errorf("lock %q: %w: a rwlock.RWLock made without New, or without a client", name, natslock.ErrInvalid)
	}
	return inside.Acquire(ctx, rw.c, record.RW, mode, wait, name, opts)
}

var _ natslock.Locker = (*RWLock)(nil) // for writing

// RLocker returns a [natslock.Locker] for reading, as sync.RWMutex has one: its Lock is
// [RWLock.RLock], its TryLock [RWLock.TryRLock], its Do [RWLock.RDo] and its TryDo
// [RWLock.TryRDo]. The RWLock itself is a Locker for writing.
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

// Lock takes the lock for writing. It waits in line until ctx ends or
// [natslock.MaxWait] passes, and returns what [natslock.Client.Lock] returns. A deadline
// on ctx ends the work under the lock too: bound the waiting with MaxWait.
//
// On a bucket with replicas, two writes and two answers have to fit into 800 ms. On a
// slower link a writer can never enter, and the error matches
// [natslock.ErrUnavailable]. The error matches [natslock.ErrInvalid] for a name
// that this client uses as a mutex: the two are different locks.
func (rw *RWLock) Lock(ctx context.Context, name string, opts ...natslock.LockOption) (*natslock.Lock, error) {
	return rw.acquire(ctx, record.Exclusive, true, name, opts)
}

// TryLock takes the lock for writing if nobody holds it or waits for it, and never
// queues. Otherwise the error matches [natslock.ErrLocked]. Other errors are those of [natslock.Client.TryLock].
func (rw *RWLock) TryLock(ctx context.Context, name string, opts ...natslock.LockOption) (*natslock.Lock, error) {
	return rw.acquire(ctx, record.Exclusive, false, name, opts)
}

// RLock takes the lock for reading. It waits in line like [RWLock.Lock], and returns
// what [natslock.Client.Lock] returns.
//
// Goroutines of one client share a lease, and with it the token, as long as the client
// knows of no writer that has come since. A lost notification delays that knowledge by a
// second at most. A break of the lease or its loss ends the locks of all of them, and so
// does a Lock that one of them drops without Unlock. Beside others, [natslock.Lock.Extend]
// can only lengthen the lease. A lock with [natslock.Until] or [natslock.NoRenew], or with
// another TTL or other metadata than the goroutines before it, has a lease of its own.
func (rw *RWLock) RLock(ctx context.Context, name string, opts ...natslock.LockOption) (*natslock.Lock, error) {
	return rw.acquire(ctx, record.Shared, true, name, opts)
}

// TryRLock takes the lock for reading if no writer holds it and nobody waits for it,
// and never queues. Otherwise the error matches [natslock.ErrLocked]. Other errors are
// those of [natslock.Client.TryLock].
func (rw *RWLock) TryRLock(ctx context.Context, name string, opts ...natslock.LockOption) (*natslock.Lock, error) {
	return rw.acquire(ctx, record.Shared, false, name, opts)
}

// Do runs fn under the write lock; see [natslock.Client.Do]. Errors of the acquire
// are those of [RWLock.Lock]. A deadline on ctx ends fn's context too: use
// [natslock.MaxWait] to bound the wait alone.
func (rw *RWLock) Do(ctx context.Context, name string, fn func(ctx context.Context, l *natslock.Lock) error, opts ...natslock.LockOption) error {
	return inside.Under(ctx, rw.Lock, name, fn, opts)
}

// TryDo is [RWLock.Do] with [RWLock.TryLock]: an error matching
// [natslock.ErrLocked] means that fn did not run, because others hold the lock or
// wait for it.
func (rw *RWLock) TryDo(ctx context.Context, name string, fn func(ctx context.Context, l *natslock.Lock) error, opts ...natslock.LockOption) error {
	return inside.Under(ctx, rw.TryLock, name, fn, opts)
}

// RDo runs fn under the read lock; see [natslock.Client.Do] and [RWLock.Do]. Errors of
// the acquire are those of [RWLock.RLock].
func (rw *RWLock) RDo(ctx context.Context, name string, fn func(ctx context.Context, l *natslock.Lock) error, opts ...natslock.LockOption) error {
	return inside.Under(ctx, rw.RLock, name, fn, opts)
}

// TryRDo is [RWLock.RDo] with [RWLock.TryRLock]: an error matching
// [natslock.ErrLocked] means that fn did not run, because a writer holds the lock or
// others wait for it.
func (rw *RWLock) TryRDo(ctx context.Context, name string, fn func(ctx context.Context, l *natslock.Lock) error, opts ...natslock.LockOption) error {
	return inside.Under(ctx, rw.TryRLock, name, fn, opts)
}
