// Package semaphore provides distributed semaphores on a [natslock.Client]: at most a given
// number of holders at a time. It uses the client's bucket, leases, options and errors, and
// returns a [natslock.Lock] for each permit. A mutex or a reader-writer lock of the same name
// is a different lock, and a client refuses to use a name for two of them. Each name has its
// own permits.
//
// # Usage
//
//	sem := semaphore.New(locks, 5) // locks is a *natslock.Client
//	err := sem.Do(ctx, "exports", func(ctx context.Context, l *natslock.Lock) error {
//		return export(ctx)
//	}, natslock.MaxWait(time.Minute))
//
// # How it bounds the holders
//
// A semaphore of n permits has n slots, each taken like a mutex, by one conditional write. So,
// under the conditions of a mutex, there are never more holders inside their validity than
// slots.
//
// # Order
//
// Each client has one place in the queue, and the first client takes the next free slot. A
// client that wants more permits queues again at the end. Like a mutex, a returned permit
// passes to another goroutine of the same client without a message, or else wakes one client.
// See package natslock.
//
// # Different numbers
//
// All clients should pass the same number of permits, which is not stored. A client with
// number n takes only slots below n, so at most n of the holders passed n or less, and the
// largest number limits all holders together. There is one queue for all numbers: the first
// waiter waits for a slot below its own number, and the clients behind it wait too, even while
// a higher slot is free. To change the number, restart the clients with the new one. Until the
// last client has it, fewer permits are in use.
//
// # Tokens
//
// The token of a lock belongs to its slot: it is higher than those of all earlier holders of
// the slot. Tokens of concurrent holders have no useful order, so a resource that refuses lower
// tokens would refuse valid holders. Fence each [Slot] separately, or not at all.
package semaphore

import (
	"context"
	"fmt"

	"github.com/natslock/locks/internal/bridge"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/natslock"
)

// MaxPermits is the largest number of permits of a semaphore.
const MaxPermits = 256

// Semaphore takes permits with a client, up to a given number per name. Create it with [New].
// Methods of a zero Semaphore, or one with a nil client, return an error that matches
// [natslock.ErrInvalid].
type Semaphore struct {
	c       *natslock.Client
	permits int
}

// New returns a Semaphore with 1 to [MaxPermits] permits per name that uses client c. It does
// no I/O, and the Semaphore does not need to be closed. The methods refuse any other number
// with [natslock.ErrInvalid].
func New(c *natslock.Client, permits int) *Semaphore { return &Semaphore{c: c, permits: permits} }

// inside has functions of package natslock that only packages of this module may use.
var inside = bridge.Natslock[*natslock.Client, *natslock.Lock, natslock.Option, natslock.LockOption, *natslock.Holder]()

// acquire implements all methods.
func (s *Semaphore) acquire(ctx context.Context, wait bool, name string, opts []natslock.LockOption) (*natslock.Lock, error) {
	if s == nil || s.c == nil {
		return nil, fmt.Errorf("lock %q: %w: a semaphore.Semaphore made without New, or without a client", name, natslock.ErrInvalid)
	}
	opts = append([]natslock.LockOption{inside.Permits(s.permits)}, opts...)
	return inside.Acquire(ctx, s.c, record.Semaphore, record.Exclusive, wait, name, opts)
}

// Slot returns the slot number of permit l, from 0, and false if l is not a permit. No two
// holders of a semaphore have the same slot at the same time, and tokens rise from one holder
// of a slot to the next.
func Slot(l *natslock.Lock) (n int, ok bool) { return inside.Slot(l) }

// Acquire takes a permit, and Unlock gives it back. It waits and returns as
// [natslock.Client.Lock] does. The Holder of a [natslock.TimeoutError] is one of the holders.
//
// The error matches [natslock.ErrInvalid] for a number of permits outside 1 to [MaxPermits],
// for [natslock.Linger], and for a name that this client uses for another kind of lock.
// [natslock.Lock.Handoff] refuses a permit.
func (s *Semaphore) Acquire(ctx context.Context, name string, opts ...natslock.LockOption) (*natslock.Lock, error) {
	return s.acquire(ctx, true, name, opts)
}

// TryAcquire takes a permit if one is free and no client waits for one, and never queues.
// Otherwise the error is a *[natslock.LockedError], which names one of the holders. Other
// errors are those of [natslock.Client.TryLock] and [Semaphore.Acquire].
func (s *Semaphore) TryAcquire(ctx context.Context, name string, opts ...natslock.LockOption) (*natslock.Lock, error) {
	return s.acquire(ctx, false, name, opts)
}

// Do runs fn with a permit, as [natslock.Client.Do] does under a mutex. The acquire's errors
// are those of [Semaphore.Acquire].
func (s *Semaphore) Do(ctx context.Context, name string, fn func(ctx context.Context, l *natslock.Lock) error, opts ...natslock.LockOption) error {
	return inside.Under(ctx, s.Acquire, name, fn, opts)
}

// TryDo is [Semaphore.Do] with [Semaphore.TryAcquire]. See [natslock.Client.TryDo].
func (s *Semaphore) TryDo(ctx context.Context, name string, fn func(ctx context.Context, l *natslock.Lock) error, opts ...natslock.LockOption) error {
	return inside.Under(ctx, s.TryAcquire, name, fn, opts)
}
