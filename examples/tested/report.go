// Package tested is an example of code that takes a lock, with tests that need no server.
// They cover a lock that is held, a server that is unreachable, and a lock that is lost
// midway.
package tested

import (
	"context"
	"errors"
	"fmt"

	"github.com/natslock/locks/natslock"
)

// Report produces a day's report unless another process is doing so. It accepts any Locker;
// a service passes its *natslock.Client.
func Report(ctx context.Context, locks natslock.Locker, day string, steps ...func(context.Context) error) (string, error) {
	l, err := locks.TryLock(ctx, natslock.Join("report", day))
	switch {
	case errors.Is(err, natslock.ErrUnavailable):
		return "later", nil
	case errors.Is(err, natslock.ErrLocked):
		return "left to others", nil
	case err != nil:
		return "", err
	}
	err = l.Do(func(ctx context.Context, _ *natslock.Lock) error {
		for i, step := range steps {
			if err := step(ctx); err != nil {
				return fmt.Errorf("step %d: %w", i+1, err)
			}
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	return "made", nil
}
