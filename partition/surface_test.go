package partition_test

import (
	"testing"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/partition"
)

// TestNilAndTooLong checks that no exported function panics on a nil argument or sends a value that
// is too long.
func TestNilAndTooLong(t *testing.T) {
	c, sent := kit.Counted(t, kvstore.NewMemory(kvstore.DefaultBucket))
	(&kit.Surface{
		Funcs: map[string]any{
			"New": partition.New, "ID": partition.ID, "Weight": partition.Weight, "Drain": partition.Drain, "TTL": partition.TTL, "Meta": partition.Meta,
			"OnEvent": partition.OnEvent, "Inspect": partition.Inspect, "Groups": partition.Groups,
		},
		Types: map[string]func(*testing.T) any{"Group": func(*testing.T) any { return partition.New(c, "a", 1) }},
		Args:  []any{c, 1},
		Apply: []any{func(o partition.Option) error { return partition.New(c, "a", 1, o).Run(t.Context(), nil) }},
		Sent:  sent,
	}).RefusesNilAndTooLong(t)
}
