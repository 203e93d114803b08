package rwlock_test

import (
	"testing"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/rwlock"
)

// Nothing that is exported panics for a nil argument, or sends what is too long.
func TestNilAndTooLong(t *testing.T) {
	c, sent := kit.Counted(t, kvstore.NewMemory(kvstore.DefaultBucket))
	(&kit.Surface{
		Funcs: map[string]any{"New": rwlock.New},
		Types: map[string]func(*testing.T) any{"RWLock": func(*testing.T) any { return rwlock.New(c) }},
		Sent:  sent,
	}).RefusesNilAndTooLong(t)
}
