package semaphore_test

import (
	"testing"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/semaphore"
)

// TestNilAndTooLong checks that no exported function panics on a nil argument or sends a value that
// is too long.
func TestNilAndTooLong(t *testing.T) {
	c, sent := kit.Counted(t, kvstore.NewMemory(kvstore.DefaultBucket))
	(&kit.Surface{
		Funcs: map[string]any{"New": semaphore.New, "Slot": semaphore.Slot},
		Types: map[string]func(*testing.T) any{"Semaphore": func(*testing.T) any { return semaphore.New(c, 1) }},
		Args:  []any{c, 1},
		Sent:  sent,
	}).RefusesNilAndTooLong(t)
}
