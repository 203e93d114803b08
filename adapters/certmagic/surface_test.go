package certmagiclock_test

import (
	"testing"

	"github.com/caddyserver/certmagic"

	certmagiclock "github.com/natslock/locks/adapters/certmagic"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/locktest"
)

// TestNilAndTooLong checks that no exported function or method panics on a nil argument.
func TestNilAndTooLong(t *testing.T) {
	locks := locktest.New()
	defer locks.Close()
	storage := &certmagic.FileStorage{Path: t.TempDir()}
	(&kit.Surface{
		Funcs: map[string]any{"New": certmagiclock.New},
		Types: map[string]func(*testing.T) any{"Storage": func(*testing.T) any { return certmagiclock.New(storage, locks) }},
		Args:  []any{locks, storage},
		Except: map[string]string{
			"Storage that is nil":                 "New makes it",
			"New(nil Storage)":                    "its methods are those of the wrapped storage",
			"Storage.Delete":                      "of the wrapped storage",
			"Storage.Exists":                      "of the wrapped storage",
			"Storage.List":                        "of the wrapped storage",
			"Storage.Load":                        "of the wrapped storage",
			"Storage.Stat":                        "of the wrapped storage",
			"Storage.Store":                       "of the wrapped storage",
			"Storage.Unlock(nil Context)":         "it ignores it",
			"Storage.Unlock(long string)":         "nobody can have locked it",
			"Storage.RenewLockLease(long string)": "as Unlock",
		},
	}).RefusesNilAndTooLong(t)
}
