package natslock

import "context"

// Locker takes locks. Code that takes a Locker instead of a *[Client] can be tested without a
// server: package locktest has a Locker in memory, and a suite for Lockers of your own. A
// *[Client] is a Locker of mutexes, an RWLock of package rwlock one for writing, and its RLocker
// one for reading. The methods have the contracts of [Client.Lock], [Client.TryLock],
// [Client.Do] and [Client.TryDo]. Code that calls [Client.Once] or [Client.LockAll] takes a
// *[Client], and locktest has one in memory.
type Locker interface {
	Lock(ctx context.Context, name string, opts ...LockOption) (*Lock, error)
	TryLock(ctx context.Context, name string, opts ...LockOption) (*Lock, error)
	Do(ctx context.Context, name string, fn func(ctx context.Context, l *Lock) error, opts ...LockOption) error
	TryDo(ctx context.Context, name string, fn func(ctx context.Context, l *Lock) error, opts ...LockOption) error
}

var _ Locker = (*Client)(nil)
