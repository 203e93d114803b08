package natslock

import "context"

// Locker takes locks. Code that accepts a Locker instead of a *[Client] can be tested without a
// server: package locktest has an in-memory Locker, and a test suite for your own. A *[Client]
// is a Locker for mutexes, an RWLock of package rwlock is one for write locks, and its RLocker
// one for read locks. The methods have the contracts of [Client.Lock], [Client.TryLock],
// [Client.Do] and [Client.TryDo]. Code that calls [Client.Once] or [Client.LockAll] needs a
// *[Client]; locktest has an in-memory one.
type Locker interface {
	Lock(ctx context.Context, name string, opts ...LockOption) (*Lock, error)
	TryLock(ctx context.Context, name string, opts ...LockOption) (*Lock, error)
	Do(ctx context.Context, name string, fn func(ctx context.Context, l *Lock) error, opts ...LockOption) error
	TryDo(ctx context.Context, name string, fn func(ctx context.Context, l *Lock) error, opts ...LockOption) error
}

var _ Locker = (*Client)(nil)
