package gocronlock_test

import (
	"testing"

	gocronlock "github.com/natslock/locks/adapters/gocron"
	"github.com/natslock/locks/election"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/locktest"
)

// TestNilAndTooLong checks that no exported function or method panics on a nil argument.
func TestNilAndTooLong(t *testing.T) {
	locks := locktest.New()
	defer locks.Close()
	(&kit.Surface{
		Funcs: map[string]any{
			"MinHold": gocronlock.MinHold, "OnError": gocronlock.OnError, "LockOptions": gocronlock.LockOptions,
			"NewLocker": gocronlock.NewLocker, "NewElector": gocronlock.NewElector,
		},
		Types: map[string]func(*testing.T) any{
			"Locker":  func(*testing.T) any { return gocronlock.NewLocker(locks) },
			"Elector": func(*testing.T) any { return gocronlock.NewElector(election.New(locks.Client(), "a")) },
		},
		Args: []any{locks},
		Except: map[string]string{
			"Locker that is nil":            "NewLocker makes it",
			"Elector that is nil":           "NewElector makes it",
			"NewLocker(nil Option)":         "it has no effect",
			"Elector.IsLeader(nil Context)": "it ignores it",
		},
	}).RefusesNilAndTooLong(t)
}
