package natslock

import "context"

// Locker is implemented by *[Client] for mutexes, and by RWLock and its RLocker in package
// rwlock for write and read locks. The methods have the contracts of [Client]'s. Code that
// accepts a Locker can be tested without a server, with the in-memory Locker of package
// locktest. Code that calls [Client.Once] or [Client.LockAll] needs a *[Client], which locktest
// has in memory too.
type Locker interface {
	Lock(ctx context.Context, name string, opts ...LockOption) (*Lock, error)
	TryLock(ctx context.Context, name string, opts ...LockOption) (*Lock, error)
	Do(ctx context.Context, name string, fn func(ctx context.Context, l *Lock) error, opts ...LockOption) error
	TryDo(ctx context.Context, name string, fn func(ctx context.Context, l *Lock) error, opts ...LockOption) error
}

var _ Locker = (*Client)(nil)
