package natslockotel_test

import (
	"testing"

	natslockotel "github.com/natslock/locks/adapters/otel"
	"github.com/natslock/locks/internal/verify/kit"
)

// TestNilAndTooLong checks that no exported function or method panics on a nil argument.
func TestNilAndTooLong(t *testing.T) {
	(&kit.Surface{
		Funcs: map[string]any{
			"WithTracerProvider": natslockotel.WithTracerProvider, "WithMeterProvider": natslockotel.WithMeterProvider,
			"Labels": natslockotel.Labels, "FirstToken": natslockotel.FirstToken, "Trace": natslockotel.Trace,
		},
		Types: map[string]func(*testing.T) any{"Observer": func(t *testing.T) any {
			o, err := natslockotel.New()
			if err != nil {
				t.Fatal(err)
			}
			return o
		}},
		Except: map[string]string{
			"New":                  "a nil option has no effect",
			"Observer that is nil": "New makes it",
		},
	}).RefusesNilAndTooLong(t)
}
