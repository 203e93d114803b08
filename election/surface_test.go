package election_test

import (
	"context"
	"testing"

	"github.com/natslock/locks/election"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/kit"
)

// TestNilAndTooLong checks that no exported function panics on a nil argument or sends a value that
// is too long.
func TestNilAndTooLong(t *testing.T) {
	c, sent := kit.Counted(t, kvstore.NewMemory(kvstore.DefaultBucket))
	other, _ := kit.Counted(t, kvstore.NewMemory(kvstore.DefaultBucket))
	term, err := election.New(other, "a").Campaign(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	(&kit.Surface{
		Funcs: map[string]any{"New": election.New, "Value": election.Value, "TTL": election.TTL, "Detached": election.Detached, "OnChange": election.OnChange},
		Types: map[string]func(*testing.T) any{
			"Election": func(*testing.T) any { return election.New(c, "a") },
			"Term":     func(*testing.T) any { return term },
		},
		Args:  []any{c},
		Apply: []any{func(o election.Option) error { _, err := election.New(c, "a", o).Leader(t.Context()); return err }},
		Sent:  sent,
		Except: map[string]string{
			"Term.Resign(nil Context)": "as Unlock of a Lock",
		},
	}).RefusesNilAndTooLong(t)
}
