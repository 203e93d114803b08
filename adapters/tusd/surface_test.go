package tusdlock_test

import (
	"testing"

	tusdlock "github.com/natslock/locks/adapters/tusd"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/locktest"
)

// TestNilAndTooLong checks that no exported function or method panics on a nil argument.
func TestNilAndTooLong(t *testing.T) {
	locks := locktest.New()
	defer locks.Close()
	(&kit.Surface{
		Funcs: map[string]any{"New": tusdlock.New},
		Types: map[string]func(*testing.T) any{"Locker": func(*testing.T) any { return tusdlock.New(locks) }},
		Args:  []any{locks},
		Except: map[string]string{
			"Locker that is nil":              "New makes it",
			"New(nil LockOption)":             "each Lock refuses it",
			"Locker.NewLock(long string)":     "the name of the lock has its hash",
			"Locker.UseIn(nil StoreComposer)": "it panics, as the composer does",
		},
	}).RefusesNilAndTooLong(t)
}
