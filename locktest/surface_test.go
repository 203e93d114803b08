package locktest_test

import (
	"testing"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/locktest"
)

// TestNilAndTooLong checks that no exported function panics on a nil argument or sends a value that
// is too long.
func TestNilAndTooLong(t *testing.T) {
	locks := locktest.New()
	defer locks.Close()
	locks.Hold("a")
	(&kit.Surface{
		Funcs: map[string]any{"New": locktest.New},
		Types: map[string]func(*testing.T) any{"Locker": func(*testing.T) any { return locks }},
		Args:  []any{locks.Client(), 1},
		Except: map[string]string{
			"TestLocker":                    "it fails the test that it is given",
			"TestRLocker":                   "as TestLocker",
			"Locker that is nil":            "a test has no use for it",
			"New(nil Option)":               "it panics, for a test that cannot work",
			"Locker.NewClient(nil Option)":  "as New",
			"Locker.Disconnect(nil Client)": "as New",
			"Locker.Hold(long string)":      "as New",
			"Locker.Inspect(long string)":   "as New",
			"Locker.Break(long string)":     "as New",
		},
	}).RefusesNilAndTooLong(t)
}
