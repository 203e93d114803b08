package natslock

import "context"

// Locker is implemented by *[Client] for mutexes, and by RWLock and its RLocker in package
// rwlock for write and read locks. The methods have the contracts of [Client]'s. To test code
// without a server, have it accept a Locker, and pass it the in-memory one from package
// locktest. Code that calls [Client.Once] or [Client.LockAll] needs a *[Client], which locktest
// has in memory too.
type Locker interface {
	Lock(ctx context.Context, name string, opts ...LockOption) (*Lock, error)
	TryLock(ctx context.Context, name string, opts ...LockOption) (*Lock, error)
	Do(ctx context.Context, name string, fn func(ctx context.Context, l *Lock) error, opts ...LockOption) error
	TryDo(ctx context.Context, name string, fn func(ctx context.Context, l *Lock) error, opts ...LockOption) error
}

var _ Locker = (*Client)(nil)
