package admin_test

import (
	"testing"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
)

// TestNilAndTooLong checks that no exported function panics on a nil argument or sends a value that
// is too long.
func TestNilAndTooLong(t *testing.T) {
	c, sent := kit.Counted(t, kvstore.NewMemory(kvstore.DefaultBucket))
	(&kit.Surface{
		Funcs: map[string]any{"New": admin.New, "WithObserver": admin.WithObserver, "Permissions": admin.Permissions},
		Types: map[string]func(*testing.T) any{"Admin": func(*testing.T) any { return admin.New(c) }},
		Args:  []any{c, 1, admin.BreakRequest{Kind: admin.KindMutex, Name: "a", ID: "b"}},
		Apply: []any{func(o natslock.Option) error { _, err := natslock.New(t.Context(), nil, o); return err }},
		Sent:  sent,
		Except: map[string]string{
			"Admin.Break(BreakRequest.ID: long string)": "a claim that is gone",
		},
	}).RefusesNilAndTooLong(t)
}
