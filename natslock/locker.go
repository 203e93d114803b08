package natslock

import "context"

// Locker is the interface of a *[Client] for mutexes, of an RWLock in package rwlock for write
// locks, and of its RLocker for read locks. The methods have the contracts of [Client.Lock],
// [Client.TryLock], [Client.Do] and [Client.TryDo].
//
// Code that accepts a Locker can be tested without a server: package locktest has an in-memory
// Locker, and a test suite for your own. Code that calls [Client.Once] or [Client.LockAll] needs
// a *[Client], which locktest has in memory too.
type Locker interface {
	Lock(ctx context.Context, name string, opts ...LockOption) (*Lock, error)
	TryLock(ctx context.Context, name string, opts ...LockOption) (*Lock, error)
	Do(ctx context.Context, name string, fn func(ctx context.Context, l *Lock) error, opts ...LockOption) error
	TryDo(ctx context.Context, name string, fn func(ctx context.Context, l *Lock) error, opts ...LockOption) error
}

var _ Locker = (*Client)(nil)
