// Package again provides backoff and error classification for functions that carry on after failures: the Run functions
// of packages election and partition.
package again

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/natslock/locks/internal/bridge"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/natslock"
)

var inside = bridge.Natslock[*natslock.Client, *natslock.Lock, natslock.Option, natslock.LockOption, *natslock.Holder]()

// Logger returns a client's logger.
func Logger(c *natslock.Client) *slog.Logger { return inside.Logger(c) }

// Patient returns an option for an acquire that never overtakes another client, whether during its turn or after its
// own release, and that shows its metadata only in the holder's record.
func Patient() natslock.LockOption { return inside.Patient() }

// For returns an option that sets the purpose in a lock's records.
func For(p string) natslock.LockOption { return inside.Purpose(p) }

// Long is the time without a failure after which the next failure is treated as the first.
const Long = 10 * time.Second

const (
	minPause = 100 * time.Millisecond
	maxPause = 10 * time.Second
)

// Pause returns the pause after consecutive failure number n, counting from 0. It is at most 100 ms at first and grows
// to at most 10 s, with jitter.
func Pause(n int) time.Duration {
	d := min(minPause<<min(n, 10), maxPause)
	return d - rand.N(d/2)
}

// Closed reports whether err means that the client or its connection was closed for good.
func Closed(err error) bool {
	return errors.Is(err, kvstore.ErrConnectionClosed) || errors.Is(err, natslock.ErrClosed)
}

// Final reports whether another try would fail the same way.
func Final(err error) bool {
	return Closed(err) || slices.ContainsFunc([]error{natslock.ErrPermission, natslock.ErrInvalid},
		func(final error) bool { return errors.Is(err, final) })
}

// IsEnd reports whether err means that ctx has ended, with no other error joined to it.
func IsEnd(ctx context.Context, err error) bool {
	if all, ok := errors.AsType[interface {
		error
		Unwrap() []error
	}](err); ok && err != context.Cause(ctx) {
		return !slices.ContainsFunc(all.Unwrap(), func(err error) bool { return !IsEnd(ctx, err) })
	}
	return ctx.Err() != nil && (errors.Is(err, ctx.Err()) || errors.Is(err, context.Cause(ctx)))
}
