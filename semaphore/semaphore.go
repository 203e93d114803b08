// Package semaphore provides distributed semaphores on a [natslock.Client]: at most a
// given number of holders at a time. It uses the
// client's bucket, leases, options and errors, and returns a [natslock.Lock] for each
// permit.
//
// A semaphore and a mutex or a reader-writer lock with the same name are different locks.
// One client refuses to use a name for two of them.
//
// # Usage
//
//	sem := semaphore.New(locks, 5) // locks is a *natslock.Client
//	err := sem.Do(ctx, "exports", func(ctx context.Context, l *natslock.Lock) error {
//		return export(ctx)
//	}, natslock.MaxWait(time.Minute))
//
// [Semaphore.Acquire] waits, [Semaphore.TryAcquire] does not. Outcomes, leases and contexts
// are those of package natslock. Each name has permits of its own, so one Semaphore is a gate
// for each tenant.
//
// # How it bounds the holders
//
// A semaphore of n permits has n slots, and each slot is taken like a mutex: by one
// conditional write, which the server refuses for all clients but one. So there are never
// more holders inside their validity than slots, with the same assumptions as for a mutex.
//
// # Order
//
// Clients are served in the order in which they queue, goroutines of a client among
// themselves. Each client has one place in the queue, and the first one takes the next slot
// that is free, whatever numbers of permits they pass. A client that wants more permits then
// queues again at the end. A permit that is given back goes on to a goroutine of the same
// client, without a message, if that asked before its client queued, in the first
// millisecond after the grant, and while no other client waits. Otherwise the slot is released, which wakes one client. After
// a crash or a pause the order can change: see package natslock.
//
// # Different numbers
//
// All clients should pass the same number of permits. The number is not stored: each client
// goes by its own. A client with number n takes slots below n only, so at most n holders have
// asked with n or less. Where slots are free, a newcomer takes the highest that it knows of.
// The queue is one for all numbers: a first waiter with a smaller number waits for a slot
// below it, and those behind it wait too, even while a higher slot is free.
//
// To change the number, restart the clients with the new one. Until the last client has it,
// the greater of the two bounds all holders together, and fewer permits are in use. A lasting
// mismatch costs that for as long: with half of twelve busy clients at four permits and half at two, 3.5
// are in use on average, and 2.2 with eleven of them at two.
//
// # Tokens
//
// The token of a lock is the fencing token of its slot: it is greater than those of all
// earlier holders of that slot. The tokens of holders that are inside together have no useful
// order: the one with the greater token has not replaced the other. So a resource that
// refuses smaller tokens refuses holders that are valid. Fence each slot by itself, see
// [Slot], or nothing.
//
// # Methods of the lock
//
// [natslock.Lock.Contended] of a permit is closed when another client or another goroutine of
// this one waits. [natslock.Lock.Handoff] refuses a permit.
package semaphore

import (
	"context"
	"fmt"

	"github.com/natslock/locks/internal/bridge"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/natslock"
)

// MaxPermits is the greatest number of permits that a semaphore can have.
const MaxPermits = 256

// Semaphore takes permits with a client, a given number for each name. [New] makes it: the
// methods of a zero Semaphore, or of one made with a nil client, return an error matching
// [natslock.ErrInvalid].
type Semaphore struct {
	c       *natslock.Client
	permits int
}

// New returns the semaphores of a client with a number of permits, 1 to [MaxPermits]. It does
// no I/O, and needs no closing. The methods refuse another number with [natslock.ErrInvalid].
func New(c *natslock.Client, permits int) *Semaphore { return &Semaphore{c: c, permits: permits} }

// inside is what package natslock does for the packages of this module only.
var inside = bridge.Natslock[*natslock.Client, *natslock.Lock, natslock.Option, natslock.LockOption, *natslock.Holder]()

// acquire is behind all methods.
func (s *Semaphore) acquire(ctx context.Context, wait bool, name string, opts []natslock.LockOption) (*natslock.Lock, error) {
	if s == nil || s.c == nil {
		return nil, fmt.Errorf("lock %q: %w: a semaphore.Semaphore made without New, or without a client", name, natslock.ErrInvalid)
	}
	opts = append([]natslock.LockOption{inside.Permits(s.permits)}, opts...)
	return inside.Acquire(ctx, s.c, record.Semaphore, record.Exclusive, wait, name, opts)
}

// Slot returns the number of the permit that l is, from 0. It is false if l is not a lock
// of a semaphore. No two holders of a semaphore have one slot at a time, and the tokens of
// its holders rise.
func Slot(l *natslock.Lock) (n int, ok bool) { return inside.Slot(l) }

// Acquire takes a permit. It waits in line until ctx ends or [natslock.MaxWait] passes, and
// returns what [natslock.Client.Lock] returns: the held lock, whose Unlock gives the permit
// back, or an error and no lock. A deadline on ctx ends the work under the lock too: bound
// the waiting with MaxWait.
//
// The Holder of a [natslock.TimeoutError] is one of the holders. The error matches
// [natslock.ErrInvalid] for a number of permits that is not in 1 to [MaxPermits], and
// for [natslock.Linger]: a permit does not linger. The other options mean what they mean for
// a mutex. The error matches [natslock.ErrInvalid] for a name that this client uses for
// another kind of lock.
func (s *Semaphore) Acquire(ctx context.Context, name string, opts ...natslock.LockOption) (*natslock.Lock, error) {
	return s.acquire(ctx, true, name, opts)
}

// TryAcquire takes a permit if one is free and no client waits for it. It never queues.
// Otherwise the error is a [natslock.LockedError], which matches [natslock.ErrLocked] and
// names one of the holders. Other errors are those of [natslock.Client.TryLock] and
// [Semaphore.Acquire].
func (s *Semaphore) TryAcquire(ctx context.Context, name string, opts ...natslock.LockOption) (*natslock.Lock, error) {
	return s.acquire(ctx, false, name, opts)
}

// Do runs fn with a permit; see [natslock.Client.Do]. Errors of the acquire are those of
// [Semaphore.Acquire]. A deadline on ctx ends fn's context too: use [natslock.MaxWait] to
// bound the wait alone.
func (s *Semaphore) Do(ctx context.Context, name string, fn func(ctx context.Context, l *natslock.Lock) error, opts ...natslock.LockOption) error {
	return inside.Under(ctx, s.Acquire, name, fn, opts)
}

// TryDo is [Semaphore.Do] with [Semaphore.TryAcquire]: an error matching
// [natslock.ErrLocked] means that fn did not run, because all permits are taken or other
// clients wait for one.
func (s *Semaphore) TryDo(ctx context.Context, name string, fn func(ctx context.Context, l *natslock.Lock) error, opts ...natslock.LockOption) error {
	return inside.Under(ctx, s.TryAcquire, name, fn, opts)
}
