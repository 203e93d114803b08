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

// WithTracerProvider sets where the spans go. The default is the global provider, and a nil
// p leaves it.
func WithTracerProvider(p trace.TracerProvider) Option {
	return func(c *config) {
		if p != nil {
			c.tracers = p
		}
	}
}

// WithMeterProvider sets where the metrics go. The default is the global provider, and a nil
// p leaves it.
func WithMeterProvider(p metric.MeterProvider) Option {
	return func(c *config) {
		if p != nil {
			c.meters = p
		}
	}
}

// Labels sets the function that makes the attribute natslock.lock of a lock's name, for the
// metrics. The default is [FirstToken]. It must return few values: each is a time series in
// the backend. The SDK bounds them (2,000 by default), and then merges the rest. With several
// clients it is called from several goroutines. A nil label leaves the default.
func Labels(label func(name string) string) Option {
	return func(c *config) {
		if label != nil {
			c.label = label
		}
	}
}

// FirstToken returns the part of a name before the first dot: "orders" of "orders.42".
func FirstToken(name string) string {
	token, _, _ := strings.Cut(name, ".")
	return token
}

// traces carries a trace in the lock's metadata, as W3C Trace Context.
var traces propagation.TraceContext

// Trace has the lock's record carry the span in ctx, besides the metadata m, which may be
// nil. It is natslock.Meta with the keys of the W3C Trace Context, "traceparent" and
// "tracestate", so it replaces another Meta. Every reader of the bucket can see them.
//
// Without a span in ctx it attaches m alone. The metadata of goroutines then differ, which
// has a price. Readers of one client no longer share a lease. A lock that goroutines of one
// client hand on is renewed for it, at most ten times a second.
func Trace(ctx context.Context, m map[string]string) natslock.LockOption {
	meta := make(map[string]string, len(m)+2)
	maps.Copy(meta, m)
	traces.Inject(ctx, propagation.MapCarrier(meta))
	return natslock.Meta(meta)
}

// carried returns the span that a record carries.
func carried(meta map[string]string) trace.SpanContext {
	return trace.SpanContextFromContext(traces.Extract(context.Background(), propagation.MapCarrier(meta)))
}
