package natslockprom_test

import (
	"testing"

	natslockprom "github.com/natslock/locks/adapters/prometheus"
	"github.com/natslock/locks/internal/verify/kit"
)

// TestNilAndTooLong checks that no exported function or method panics on a nil argument.
func TestNilAndTooLong(t *testing.T) {
	(&kit.Surface{
		Funcs: map[string]any{
			"Names": natslockprom.Names, "Labels": natslockprom.Labels, "New": natslockprom.New, "FirstToken": natslockprom.FirstToken,
			"Partitions": natslockprom.Partitions,
		},
		Types: map[string]func(*testing.T) any{"Collector": func(*testing.T) any { return natslockprom.New() }},
		Except: map[string]string{
			"Collector that is nil": "New makes it",
			"Collector.Collect":     "a registry calls it",
			"Collector.Describe":    "a registry calls it",
		},
	}).RefusesNilAndTooLong(t)
}
