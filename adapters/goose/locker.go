package gooselock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"

	"github.com/pressly/goose/v3/lock"

	"github.com/natslock/locks/internal/plain"
	"github.com/natslock/locks/natslock"
)

// Locker is a lock.Locker and a lock.SessionLocker for goose. Create it with [NewLocker]. It is
// safe for concurrent use, and several providers may share it.
type Locker struct {
	locks natslock.Locker
	name  string
	opts  []natslock.LockOption
	turn  chan *turn // holds the turn in progress, if any
}

var (
	_ lock.Locker        = (*Locker)(nil)
	_ lock.SessionLocker = (*Locker)(nil)
)

// turn represents the time from a Lock to its Unlock.
type turn struct {
	lock *natslock.Lock
	stop func() // stops watching for a loss
}

// NewLocker returns a Locker for goose.WithLocker. It does no I/O and does not need to be closed.
//
// name is the lock's name, such as "billing.migrations". All processes that migrate the same
// database must use the same name, and no other process may use it. The options apply to each
// lock: [natslock.MaxWait] limits the wait for other replicas, and [natslock.TTL] limits how long
// a crashed replica keeps the others waiting. The client renews the lock, so migrations may take
// longer than the TTL.
func NewLocker(locks natslock.Locker, name string, opts ...natslock.LockOption) *Locker {
	return &Locker{locks: locks, name: name, opts: slices.Clone(opts), turn: make(chan *turn, 1)}
}

// Lock waits for the lock until ctx ends or [natslock.MaxWait] passes. It does not use the
// database.
//
// It returns nil once the lock is held, and otherwise an error of [natslock.Client.Lock], which
// matches [natslock.ErrInvalid] if NewLocker was given nil locks. goose then returns that error
// and migrates nothing. If an earlier call with this Locker has lost its lock but is still
// migrating, Lock waits for that call as well. If ctx ends that wait, the error matches ctx's
// error and cause.
func (l *Locker) Lock(ctx context.Context, _ *sql.DB) error { return l.begin(ctx) }

// Unlock releases the lock. It ignores the context, and waits for the server no longer than the
// client's release timeout. goose returns Unlock's error from the call that migrated.
//
// The errors are those of [natslock.Lock.Unlock]. [natslock.ErrLost] means that another replica
// may have migrated at the same time. [natslock.ErrUnavailable] means that the lock was held to
// the end and the migrations are fine, but the next replica may have to wait for the TTL.
func (l *Locker) Unlock(context.Context, *sql.DB) error { return l.end() }

// SessionLock is Lock for goose.WithSessionLocker. Prefer goose.WithLocker, because with a
// session locker goose rejects some migrations if the pool has only one connection.
func (l *Locker) SessionLock(ctx context.Context, _ *sql.Conn) error { return l.begin(ctx) }

// SessionUnlock is Unlock for goose.WithSessionLocker.
func (l *Locker) SessionUnlock(context.Context, *sql.Conn) error { return l.end() }

func (l *Locker) begin(ctx context.Context) error {
	if l.locks == nil {
		return fmt.Errorf("lock %q: %w: the Locker was created without locks", l.name, natslock.ErrInvalid)
	}
	held, err := l.locks.Lock(ctx, l.name, l.opts...)
	if err != nil {
		return err
	}
	t := &turn{lock: held, stop: watch(ctx, held)}
	// The previous turn has ended, unless it has lost its lock and goose is still migrating.
	select {
	case l.turn <- t:
		return nil
	case <-held.Context().Done():
		err = context.Cause(held.Context())
	case <-ctx.Done():
		err = plain.EndOf(ctx)
	}
	t.stop()
	err = plain.Join(err, held.Unlock(context.Background()))
	return fmt.Errorf("lock %q: an earlier migration in this process lost the lock and has not ended: %w", l.name, err)
}

func (l *Locker) end() error {
	select {
	case t := <-l.turn:
		t.stop()
		return t.lock.Unlock(context.Background())
	default:
		return fmt.Errorf("lock %q: Unlock called while not locked: %w", l.name, natslock.ErrReleased)
	}
}

// lossKey is the context key under which [UntilLost] stores its cancel function.
type lossKey struct{}

// UntilLost returns a child of ctx that ends when a [Locker] loses a lock that it acquired with
// that child. Pass it to a provider's method, such as Up, so that goose stops when the lock is
// lost. context.Cause then returns an error that matches [natslock.ErrLost]. Otherwise the
// context ends with ctx, or when cancel is called. Call cancel once the provider has returned.
func UntilLost(ctx context.Context) (child context.Context, cancel context.CancelFunc) {
	child, end := context.WithCancelCause(ctx)
	return context.WithValue(child, lossKey{}, end), func() { end(nil) }
}

// watch cancels the UntilLost context that ctx descends from, if any, when the lock is lost. stop
// ends the watch and waits for its goroutine.
func watch(ctx context.Context, held *natslock.Lock) (stop func()) {
	end, ok := ctx.Value(lossKey{}).(context.CancelCauseFunc)
	if !ok {
		return func() {}
	}
	ended := make(chan struct{})
	cancel := context.AfterFunc(held.Context(), func() {
		defer close(ended)
		if held.Remaining() > 0 { // not the lock, but a context derived from UntilLost's has ended
			return
		}
		if err := held.Err(); !errors.Is(err, natslock.ErrReleased) {
			end(err)
		}
	})
	return func() {
		if !cancel() {
			<-ended
		}
	}
}
