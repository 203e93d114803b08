// Package semaphore provides distributed semaphores, which limit the number of concurrent
// holders. It shares the bucket, leases, options and errors of a [natslock.Client], and each
// permit is a [natslock.Lock]. A mutex or a reader-writer lock of the same name is a different
// lock, but a client refuses to use one name for two of them. Each name has its own permits.
//
// # Usage
//
//	sem := semaphore.New(locks, 5) // locks is a *natslock.Client
//	err := sem.Do(ctx, "exports", func(ctx context.Context, l *natslock.Lock) error {
//		return export(ctx)
//	}, natslock.MaxWait(time.Minute))
//
// # How it limits the holders
//
// A semaphore with n permits has n slots, each of which is taken like a mutex, with one
// conditional write. So, under the same conditions as for a mutex, there are never more holders
// within their validity than slots.
//
// # Order
//
// Each client has one place in the queue, and the client at the head takes the next free slot. A
// client that wants more permits queues again at the back. As with a mutex, a returned permit
// passes to another goroutine of the same client without a message, or else wakes one client: see
// package natslock.
//
// # Different numbers
//
// The number of permits is not stored, so all clients should pass the same number. A client that
// passes n takes only slots below n. So at most n of the holders passed n or less, and the
// largest number limits the total number of holders. There is one queue for all numbers. The
// client at its head waits for a slot below its own number, and the clients behind it wait too,
// even while a higher slot is free. To change the number, restart the clients with the new one.
// Until the last client has restarted, the larger number is the limit, although fewer permits may
// be in use.
//
// # Tokens
//
// A lock's token belongs to its slot, where it is higher than the tokens of all the slot's
// earlier holders. The tokens of concurrent holders have no useful order, so a resource that
// rejects lower tokens would reject valid holders. Fence each [Slot] separately, or not at all.
package semaphore

import (
	"context"
	"fmt"

	"github.com/natslock/locks/internal/bridge"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/natslock"
)

// MaxPermits is the maximum number of permits of a semaphore.
const MaxPermits = 256

// Semaphore acquires permits for a client, up to a fixed number per name. Create one with [New].
// The methods of a zero Semaphore, or of one with a nil client, return an error that matches
// [natslock.ErrInvalid].
type Semaphore struct {
	c       *natslock.Client
	permits int
}

// New returns a Semaphore that uses client c and has the given number of permits per name, from 1
// to [MaxPermits]. It does no I/O, and the Semaphore does not need to be closed. If permits is
// out of range, its methods return [natslock.ErrInvalid].
func New(c *natslock.Client, permits int) *Semaphore { return &Semaphore{c: c, permits: permits} }

// inside gives access to functions of package natslock that are reserved for this module.
var inside = bridge.Natslock[*natslock.Client, *natslock.Lock, natslock.Option, natslock.LockOption, *natslock.Holder]()

// acquire is the common implementation of all methods that acquire a permit.
func (s *Semaphore) acquire(ctx context.Context, wait bool, name string, opts []natslock.LockOption) (*natslock.Lock, error) {
	if s == nil || s.c == nil {
		return nil, fmt.Errorf("lock %q: %w: the semaphore.Semaphore was not created by New, or has no client", name, natslock.ErrInvalid)
	}
	opts = append([]natslock.LockOption{inside.Permits(s.permits)}, opts...)
	return inside.Acquire(ctx, s.c, record.Semaphore, record.Exclusive, wait, name, opts)
}

// Slot returns the number of the slot that permit l occupies, counting from 0, and false if l is
// not a permit. No two holders of a semaphore have the same slot at the same time, and tokens
// rise from one holder of a slot to the next.
func Slot(l *natslock.Lock) (n int, ok bool) { return inside.Slot(l) }

// Acquire takes a permit, and Unlock returns it. Acquire waits and returns like
// [natslock.Client.Lock]. The Holder of a [natslock.TimeoutError] is one of the holders.
//
// The error matches [natslock.ErrInvalid] if the number of permits is not between 1 and
// [MaxPermits], if opts include [natslock.Linger], or if this client uses name for another kind
// of lock. [natslock.Lock.Handoff] does not work with permits.
func (s *Semaphore) Acquire(ctx context.Context, name string, opts ...natslock.LockOption) (*natslock.Lock, error) {
	return s.acquire(ctx, true, name, opts)
}

// TryAcquire takes a permit if one is free and no client is waiting. Otherwise it does not queue,
// and the error is a *[natslock.LockedError] that names one of the holders. Other errors are
// those of [natslock.Client.TryLock] and [Semaphore.Acquire].
func (s *Semaphore) TryAcquire(ctx context.Context, name string, opts ...natslock.LockOption) (*natslock.Lock, error) {
	return s.acquire(ctx, false, name, opts)
}

// Do runs fn while holding a permit, like [natslock.Client.Do] with a mutex. If no permit can be
// acquired, the errors are those of [Semaphore.Acquire].
func (s *Semaphore) Do(ctx context.Context, name string, fn func(ctx context.Context, l *natslock.Lock) error, opts ...natslock.LockOption) error {
	return inside.Under(ctx, s.Acquire, name, fn, opts)
}

// TryDo is like [Semaphore.Do] but uses [Semaphore.TryAcquire]. See [natslock.Client.TryDo].
func (s *Semaphore) TryDo(ctx context.Context, name string, fn func(ctx context.Context, l *natslock.Lock) error, opts ...natslock.LockOption) error {
	return inside.Under(ctx, s.TryAcquire, name, fn, opts)
}
