// Package semaphore provides distributed semaphores on a [natslock.Client]: at most a given
// number of holders at a time. It uses the client's bucket, leases, options and errors, and
// returns a [natslock.Lock] for each permit. A mutex or a reader-writer lock of the same name
// is another lock, and one client refuses to use a name for two of them. Each name has permits
// of its own.
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
// A semaphore of n permits has n slots, and each slot is taken like a mutex, by one conditional
// write. So there are never more holders inside their validity than slots, under the conditions
// of a mutex.
//
// # Order
//
// Each client has one place in the queue, and the first one takes the next free slot. A client
// that wants more permits queues again at the end. A permit that is given back goes on to a
// goroutine of the same client, without a message, as a mutex does, and otherwise wakes one
// client. See package natslock.
//
// # Different numbers
//
// All clients should pass the same number of permits. The number is not stored. A client with
// number n takes slots below n only, so at most n holders have asked with n or less, and the
// greatest number bounds all holders together. The queue is one for all numbers: a first waiter
// waits for a slot below its own number, and the clients behind it wait too, even while a
// higher slot is free. To change the number, restart the clients with the new one. Until the
// last client has it, fewer permits are in use.
//
// # Tokens
//
// The token of a lock is that of its slot: it is greater than the tokens of all earlier holders
// of the slot. Tokens of holders that are inside together have no useful order, so a resource
// that refuses smaller tokens would refuse valid holders. Fence each [Slot] by itself, or
// nothing.
package semaphore

import (
	"context"
	"fmt"

	"github.com/natslock/locks/internal/bridge"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/natslock"
)

// MaxPermits is the greatest number of permits of a semaphore.
const MaxPermits = 256

// Semaphore takes permits with a client, a given number for each name. [New] makes it. Methods
// of a zero Semaphore, or of one with a nil client, return an error that matches
// [natslock.ErrInvalid].
type Semaphore struct {
	c       *natslock.Client
	permits int
}

// New returns the semaphores of a client with a number of permits, 1 to [MaxPermits]. It does
// no I/O, and needs no closing. The methods refuse another number with [natslock.ErrInvalid].
func New(c *natslock.Client, permits int) *Semaphore { return &Semaphore{c: c, permits: permits} }

// inside has the functions of package natslock that are for packages of this module only.
var inside = bridge.Natslock[*natslock.Client, *natslock.Lock, natslock.Option, natslock.LockOption, *natslock.Holder]()

// acquire is behind all methods.
func (s *Semaphore) acquire(ctx context.Context, wait bool, name string, opts []natslock.LockOption) (*natslock.Lock, error) {
	if s == nil || s.c == nil {
		return nil, fmt.Errorf("lock %q: %w: a semaphore.Semaphore made without New, or without a client", name, natslock.ErrInvalid)
	}
	opts = append([]natslock.LockOption{inside.Permits(s.permits)}, opts...)
	return inside.Acquire(ctx, s.c, record.Semaphore, record.Exclusive, wait, name, opts)
}

// Slot returns the number of the permit that l is, from 0, and false if l is not a permit. No
// two holders of a semaphore have one slot at a time, and the tokens of a slot's holders rise.
func Slot(l *natslock.Lock) (n int, ok bool) { return inside.Slot(l) }

// Acquire takes a permit, and Unlock gives it back. It waits and returns as
// [natslock.Client.Lock] does. The Holder of a [natslock.TimeoutError] is one of the holders.
//
// The error matches [natslock.ErrInvalid] for a number of permits that is not in 1 to
// [MaxPermits], for [natslock.Linger], and for a name that this client uses for another kind of
// lock. [natslock.Lock.Handoff] refuses a permit.
func (s *Semaphore) Acquire(ctx context.Context, name string, opts ...natslock.LockOption) (*natslock.Lock, error) {
	return s.acquire(ctx, true, name, opts)
}

// TryAcquire takes a permit if one is free and no client waits for one. It never queues.
// Otherwise the error is a *[natslock.LockedError], which names one of the holders. Other
// errors are those of [natslock.Client.TryLock] and [Semaphore.Acquire].
func (s *Semaphore) TryAcquire(ctx context.Context, name string, opts ...natslock.LockOption) (*natslock.Lock, error) {
	return s.acquire(ctx, false, name, opts)
}

// Do runs fn with a permit, as [natslock.Client.Do] does under a mutex. Errors of the acquire
// are those of [Semaphore.Acquire].
func (s *Semaphore) Do(ctx context.Context, name string, fn func(ctx context.Context, l *natslock.Lock) error, opts ...natslock.LockOption) error {
	return inside.Under(ctx, s.Acquire, name, fn, opts)
}

// TryDo is [Semaphore.Do] with [Semaphore.TryAcquire]. See [natslock.Client.TryDo].
func (s *Semaphore) TryDo(ctx context.Context, name string, fn func(ctx context.Context, l *natslock.Lock) error, opts ...natslock.LockOption) error {
	return inside.Under(ctx, s.TryAcquire, name, fn, opts)
}
