package natslock

import "context"

// Locker is implemented by *[Client] for mutexes, and by RWLock and its RLocker in package
// rwlock for write and read locks. Its methods have the same contracts as those of
// [Client]. For tests, package locktest has an in-memory Locker, and an in-memory *[Client]
// for code that calls [Client.Once] or [Client.LockAll].
type Locker interface {
	Lock(ctx context.Context, name string, opts ...LockOption) (*Lock, error)
	TryLock(ctx context.Context, name string, opts ...LockOption) (*Lock, error)
	Do(ctx context.Context, name string, fn func(ctx context.Context, l *Lock) error, opts ...LockOption) error
	TryDo(ctx context.Context, name string, fn func(ctx context.Context, l *Lock) error, opts ...LockOption) error
}

var _ Locker = (*Client)(nil)
