package rwlock_test

import (
	"testing"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/rwlock"
)

// TestNilAndTooLong checks that no exported function panics on a nil argument or sends a value that
// is too long.
func TestNilAndTooLong(t *testing.T) {
	c, sent := kit.Counted(t, kvstore.NewMemory(kvstore.DefaultBucket))
	(&kit.Surface{
		Funcs: map[string]any{"New": rwlock.New},
		Types: map[string]func(*testing.T) any{"RWLock": func(*testing.T) any { return rwlock.New(c) }},
		Sent:  sent,
	}).RefusesNilAndTooLong(t)
}
