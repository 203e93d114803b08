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

// Locker is a lock.Locker and a lock.SessionLocker of goose. [NewLocker] makes it. It is safe
// for concurrent use, and several providers may share it.
type Locker struct {
	locks natslock.Locker
	name  string
	opts  []natslock.LockOption
	turn  chan *turn // has the turn that goose has not ended yet
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

// NewLocker returns a Locker for goose.WithLocker. It does no I/O and needs no closing.
//
// The lock has the name, such as "billing.migrations". All processes that migrate one
// database use the same name, and no others do. The options count for each lock:
// [natslock.MaxWait] bounds the wait for other replicas, and [natslock.TTL] the time for which
// a replica that crashed keeps the others waiting. The client renews the lock, so migrations
// may last longer than the TTL.
func NewLocker(locks natslock.Locker, name string, opts ...natslock.LockOption) *Locker {
	return &Locker{locks: locks, name: name, opts: slices.Clone(opts), turn: make(chan *turn, 1)}
}

// Lock waits for the lock until ctx ends, or [natslock.MaxWait] passes. It does not use the
// database.
//
// It returns nil when the lock is held, and otherwise an error of [natslock.Client.Lock]. It
// matches [natslock.ErrInvalid] if NewLocker got no locks.
// goose then returns that error and migrates nothing. If an earlier call with this Locker
// lost its lock and still migrates, Lock waits for its end as well. If ctx ends that wait, the
// error matches ctx's error and cause.
func (l *Locker) Lock(ctx context.Context, _ *sql.DB) error { return l.begin(ctx) }

// Unlock releases the lock. It ignores the context, and waits for the server until the
// client's release timeout passes. goose returns its error from the call that migrated.
//
// The errors are as for [natslock.Lock.Unlock]. If one matches [natslock.ErrLost], another
// replica may have migrated at the same time. If one matches [natslock.ErrUnavailable], the
// lock was held to the end and the migrations are in order. The next replica may then have to
// wait for the TTL.
func (l *Locker) Unlock(context.Context, *sql.DB) error { return l.end() }

// SessionLock is Lock, for goose.WithSessionLocker. Prefer goose.WithLocker: for a session
// locker goose refuses some migrations on a pool of one connection.
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
	// An earlier turn is over, unless it has lost its lock and goose still migrates.
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

// lossKey is the key of the function that ends a context of [UntilLost].
type lossKey struct{}

// UntilLost returns a child of ctx that ends when a [Locker] loses a lock that it took with
// it. Pass it to a provider's Up or another method, so that goose stops with its lock.
// context.Cause then returns an error that matches [natslock.ErrLost]. Without a loss the
// context ends with ctx, or when cancel is called. Call cancel when the provider has
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
		if held.Remaining() > 0 { // the end of a context between
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
