package cronlock_test

import (
	"testing"

	cronlock "github.com/natslock/locks/adapters/cron"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/locktest"
)

// TestNilAndTooLong checks that no exported function or method panics on a nil argument.
func TestNilAndTooLong(t *testing.T) {
	locks := locktest.New()
	defer locks.Close()
	(&kit.Surface{
		Funcs: map[string]any{
			"MinHold": cronlock.MinHold, "OnError": cronlock.OnError, "Context": cronlock.Context, "LockOptions": cronlock.LockOptions,
			"Once": cronlock.Once, "OnceFunc": cronlock.OnceFunc,
		},
		Args: []any{locks},
	}).RefusesNilAndTooLong(t)
}
