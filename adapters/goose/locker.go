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

// Locker is a lock.Locker and a lock.SessionLocker for goose. Create it with [NewLocker]. It
// is safe for concurrent use, and several providers may share it.
type Locker struct {
	locks natslock.Locker
	name  string
	opts  []natslock.LockOption
	turn  chan *turn // holds the turn that goose has not ended yet
}

var (
	_ lock.Locker        = (*Locker)(nil)
	_ lock.SessionLocker = (*Locker)(nil)
)

// turn is the time between a Lock and its Unlock.
type turn struct {
	lock *natslock.Lock
	stop func() // ends the watch for a loss
}

// NewLocker returns a Locker for goose.WithLocker. It does no I/O and does not need to be
// closed.
//
// name is the lock's name, such as "billing.migrations". All processes that migrate one
// database, and no others, use the same name. The options apply to each lock:
// [natslock.MaxWait] limits the wait for other replicas, and [natslock.TTL] how long a crashed
// replica keeps the others waiting. The client renews the lock, so migrations may last longer
// than the TTL.
func NewLocker(locks natslock.Locker, name string, opts ...natslock.LockOption) *Locker {
	return &Locker{locks: locks, name: name, opts: slices.Clone(opts), turn: make(chan *turn, 1)}
}

// Lock waits for the lock until ctx ends or [natslock.MaxWait] passes. It does not use the
// database.
//
// It returns nil when the lock is held, and otherwise an error of [natslock.Client.Lock],
// which matches [natslock.ErrInvalid] if NewLocker was given nil locks. goose then returns
// that error and migrates nothing. If an earlier call with this Locker lost its lock and still
// migrates, Lock also waits for that call to end. If ctx ends that wait, the error matches
// ctx's error and cause.
func (l *Locker) Lock(ctx context.Context, _ *sql.DB) error { return l.begin(ctx) }

// Unlock releases the lock. It ignores the context, and waits for the server until the
// client's release timeout passes. goose returns its error from the call that migrated.
//
// The errors are those of [natslock.Lock.Unlock]. If one matches [natslock.ErrLost], another
// replica may have migrated at the same time. If one matches [natslock.ErrUnavailable], the
// lock was held to the end and the migrations are fine, but the next replica may have to wait
// for the TTL.
func (l *Locker) Unlock(context.Context, *sql.DB) error { return l.end() }

// SessionLock is Lock, for goose.WithSessionLocker. Prefer goose.WithLocker: with a
// session locker goose refuses some migrations on a pool of one connection.
func (l *Locker) SessionLock(ctx context.Context, _ *sql.Conn) error { return l.begin(ctx) }

// SessionUnlock is Unlock, for goose.WithSessionLocker.
func (l *Locker) SessionUnlock(context.Context, *sql.Conn) error { return l.end() }

func (l *Locker) begin(ctx context.Context) error {
	if l.locks == nil {
		return fmt.Errorf("lock %q: %w: the Locker was made without locks", l.name, natslock.ErrInvalid)
	}
	held, err := l.locks.Lock(ctx, l.name, l.opts...)
	if err != nil {
		return err
	}
	t := &turn{lock: held, stop: watch(ctx, held)}
	// An earlier turn is over unless it has lost its lock while goose still migrates.
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
	return fmt.Errorf("lock %q: an earlier migration of this process has lost the lock and has not ended: %w", l.name, err)
}

func (l *Locker) end() error {
	select {
	case t := <-l.turn:
		t.stop()
		return t.lock.Unlock(context.Background())
	default:
		return fmt.Errorf("lock %q: unlocked without a lock: %w", l.name, natslock.ErrReleased)
	}
}

// lossKey is the context key of the function that ends a context of [UntilLost].
type lossKey struct{}

// UntilLost returns a child of ctx that ends when a [Locker] loses a lock that it took with
// that child. Pass it to a provider's Up or another method, so that goose stops with its
// lock. context.Cause then returns an error that matches [natslock.ErrLost]. Without a loss
// the context ends with ctx, or when cancel is called. Call cancel when the provider has
// returned.
func UntilLost(ctx context.Context) (child context.Context, cancel context.CancelFunc) {
	child, end := context.WithCancelCause(ctx)
	return context.WithValue(child, lossKey{}, end), func() { end(nil) }
}

// watch ends a context of UntilLost when its lock is lost. stop waits for the goroutine that
// does so.
func watch(ctx context.Context, held *natslock.Lock) (stop func()) {
	end, ok := ctx.Value(lossKey{}).(context.CancelCauseFunc)
	if !ok {
		return func() {}
	}
	ended := make(chan struct{})
	cancel := context.AfterFunc(held.Context(), func() {
		defer close(ended)
		if held.Remaining() > 0 { // only a context in between has ended
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
