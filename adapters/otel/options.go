package natslockotel

import (
	"context"
	"maps"
	"strings"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/natslock/locks/natslock"
)

// An Option configures an [Observer].
type Option func(*config)

type config struct {
	tracers trace.TracerProvider
	meters  metric.MeterProvider
	label   func(name string) string
}

// WithTracerProvider sets the provider for spans. The default, kept if p is nil, is the
// global provider.
func WithTracerProvider(p trace.TracerProvider) Option {
	return func(c *config) {
		if p != nil {
			c.tracers = p
		}
	}
}

// WithMeterProvider sets the provider for metrics. The default, kept if p is nil, is the
// global provider.
func WithMeterProvider(p metric.MeterProvider) Option {
	return func(c *config) {
		if p != nil {
			c.meters = p
		}
	}
}

// Labels sets the function that turns a lock's name into the natslock.lock attribute of the
// metrics. The default is [FirstToken]. The function must return few distinct values,
// because each value is a time series in the backend. The SDK limits their number (2,000 by
// default) and merges the rest. With several clients, the function is called from several
// goroutines. A nil label keeps the default.
func Labels(label func(name string) string) Option {
	return func(c *config) {
		if label != nil {
			c.label = label
		}
	}
}

// FirstToken returns the part of a name before the first dot, such as "orders" for
// "orders.42".
func FirstToken(name string) string {
	token, _, _ := strings.Cut(name, ".")
	return token
}

// traces propagates spans in lock metadata, as W3C Trace Context.
var traces propagation.TraceContext

// Trace stores the span in ctx in the lock's record, along with the metadata m, which may
// be nil. It is [natslock.Meta] with the keys of the W3C Trace Context, "traceparent" and
// "tracestate", so it replaces any other Meta. Anyone who can read the bucket can see these
// keys.
//
// If ctx has no span, only m is stored. With a span, each goroutine has different metadata,
// and that has a price: readers of one client no longer share a lease, and when one
// goroutine hands a lock over to another in the same client, the client has to renew the
// lock to store the new metadata, at most ten times a second.
func Trace(ctx context.Context, m map[string]string) natslock.LockOption {
	meta := make(map[string]string, len(m)+2)
	maps.Copy(meta, m)
	traces.Inject(ctx, propagation.MapCarrier(meta))
	return natslock.Meta(meta)
}

// carried returns the span in a record's metadata.
func carried(meta map[string]string) trace.SpanContext {
	return trace.SpanContextFromContext(traces.Extract(context.Background(), propagation.MapCarrier(meta)))
}
