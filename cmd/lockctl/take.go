package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/natslock/locks/cmd/lockctl/internal/session"
	"github.com/natslock/locks/cmd/lockctl/internal/show"
	"github.com/natslock/locks/internal/tool"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/rwlock"
)

// taking is the set of flags shared by the commands that wait for a lock.
type taking struct {
	Nonblock         bool              `short:"n" help:"Fail instead of waiting."`
	Wait             *time.Duration    `short:"w" placeholder:"SECONDS" help:"Fail after waiting this long; 0 means -n."`
	ConflictExitCode int               `short:"E" default:"1" placeholder:"CODE" help:"Exit code if the lock is not free in time (default ${default})."`
	Meta             map[string]string `mapsep:"none" placeholder:"KEY=VALUE" help:"Metadata for lockctl info; can be repeated."`
	Create           bool              `help:"Create a missing bucket, with three replicas on a cluster."`
	nesting          nesting           `kong:"-"`
}

// check validates what kong's tags cannot express.
func (c *taking) check() error {
	switch {
	case c.Nonblock && c.Wait != nil:
		return errors.New("--nonblock and --wait are mutually exclusive")
	case c.Wait != nil && *c.Wait < 0:
		return fmt.Errorf("--wait %v: must not be negative", *c.Wait)
	case c.ConflictExitCode < 0 || c.ConflictExitCode > 255:
		return fmt.Errorf("--conflict-exit-code %d: must be from 0 to 255", c.ConflictExitCode)
	}
	return nil
}

// once reports whether the command tries the lock once instead of waiting.
func (c *taking) once() bool { return c.Nonblock || c.Wait != nil && *c.Wait == 0 }

// lockFunc is a client method that takes a lock of one kind in one mode.
type lockFunc func(context.Context, string, ...natslock.LockOption) (*natslock.Lock, error)

// exclusive returns the method that takes a mutex or, if write is set, a reader-writer lock for
// writing.
func (c *taking) exclusive(client *natslock.Client, write bool) lockFunc {
	switch rw := rwlock.New(client); {
	case write && c.once():
		return unqueued(client, admin.KindRW, rw.TryLock)
	case write:
		return rw.Lock
	case c.once():
		return unqueued(client, admin.KindMutex, client.TryLock)
	}
	return client.Lock
}

// queueLimit is the timeout for reading a lock and its queue.
const queueLimit = 5 * time.Second

// unqueued returns a lockFunc that calls try only if no client is queued for the lock. On its
// own, try could jump the queue, because a client that has not seen the lock before tries it
// with a single write, which the server accepts whenever the lock is free. A stopped waiter
// would then keep lockctl out only for the second after each release during which the server
// keeps the tombstone.
func unqueued(client *natslock.Client, kind admin.Kind, try lockFunc) lockFunc {
	return func(ctx context.Context, name string, opts ...natslock.LockOption) (*natslock.Lock, error) {
		reading, cancel := context.WithTimeout(ctx, queueLimit)
		defer cancel()
		info, err := admin.New(client).Inspect(reading, kind, name)
		switch {
		case errors.Is(err, natslock.ErrPermission): // the server may still allow the write
		case err != nil:
			return nil, err
		case info.Holder == nil:
			waiting := 0
			for _, w := range info.Queue {
				if !w.Overdue {
					waiting += w.Goroutines
				}
			}
			if waiting > 0 {
				return nil, &natslock.LockedError{Name: name, Queued: waiting}
			}
		}
		return try(ctx, name, opts...)
	}
}

// acquire takes the lock, waiting if the flags allow it. If a signal ends the wait, the error
// has the exit code of a process killed by that signal.
func (c *taking) acquire(s *session.Session, signals <-chan os.Signal, kind admin.Kind, name string, ttl time.Duration, take lockFunc) (*natslock.Lock, error) {
	ctx, cancel := context.WithCancelCause(context.Background())
	stop := endBySignal(signals, cancel)
	// Detached, because canceling ctx must end the wait but not the lock.
	opts := []natslock.LockOption{natslock.TTL(ttl), natslock.Detached()}
	if len(c.Meta) > 0 {
		opts = append(opts, natslock.Meta(c.Meta))
	}
	if c.Wait != nil && !c.once() {
		opts = append(opts, natslock.MaxWait(*c.Wait))
	}
	quiet := noticed(ctx, s, kind, name)
	var lock *natslock.Lock
	err := c.nested(ctx, s, kind, name)
	if err == nil {
		lock, err = take(ctx, name, opts...)
	}
	quiet()
	stop()
	if sig, ok := context.Cause(ctx).(signaled); ok {
		if lock != nil {
			_ = lock.Unlock(ctx)
		}
		return nil, tool.Exitf(tool.ExitSignal+int(sig.sig), "gave up waiting for lock %s: %v", show.Plain(name), sig)
	}
	// An outage is not a conflict, because the lock may be free.
	if errors.Is(err, natslock.ErrLocked) || errors.Is(err, natslock.ErrTimeout) && !errors.Is(err, natslock.ErrUnavailable) {
		return nil, &tool.Error{Code: c.ConflictExitCode, Err: err}
	}
	return lock, err
}

// nested returns an error if this process is running inside a command that holds the lock,
// because it would then wait for itself.
func (c *taking) nested(ctx context.Context, s *session.Session, kind admin.Kind, name string) error {
	if c.once() {
		return nil
	}
	c.nesting.around = tokensAround(s.Console, name)
	return c.nesting.check(ctx, s, kind, name)
}

// signaled is the cause of cancellation when a signal ends a wait.
type signaled struct{ sig syscall.Signal }

func (s signaled) Error() string { return "signal: " + s.sig.String() }

// endBySignal calls cancel when the next signal arrives. Once stop has returned, signals stay
// in the channel.
func endBySignal(signals <-chan os.Signal, cancel context.CancelCauseFunc) (stop func()) {
	over, watched := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case sig := <-signals:
			cancel(signaled{sig.(syscall.Signal)})
		case <-over:
		}
	}()
	return func() { close(over); <-watched }
}
