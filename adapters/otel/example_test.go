package natslockotel_test

import (
	"context"
	"fmt"
	"log"
	"strings"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	natslockotel "github.com/natslock/locks/adapters/otel"
	"github.com/natslock/locks/internal/verify/example"
	"github.com/natslock/locks/locktest"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
)

// A service passes the observer to its client. Trace stores the span in the lock's record, so that
// other processes can link to it.
func ExampleNew() {
	ctx := context.Background()
	nc, stop := example.Connect()
	defer stop()

	telemetry, err := natslockotel.New()
	if err != nil {
		log.Fatal(err)
	}
	locks, err := natslock.New(ctx, nc, admin.WithObserver(telemetry.Observe))
	if err != nil {
		log.Fatal(err)
	}
	telemetry.Add(locks)
	l, err := locks.Lock(ctx, "orders.42", natslockotel.Trace(ctx, nil))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(l.Unlock(ctx))
	_ = locks.Close(ctx)
	// Output: <nil>
}

// The spans of a lock are children of the span in whose context it was requested.
func ExampleObserver_Observe() {
	exporter := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))
	telemetry, err := natslockotel.New(natslockotel.WithTracerProvider(provider))
	if err != nil {
		log.Fatal(err)
	}
	locks := locktest.New(admin.WithObserver(telemetry.Observe))

	ctx, span := provider.Tracer("service").Start(context.Background(), "POST /orders")
	l, err := locks.Lock(ctx, "orders.42")
	if err != nil {
		log.Fatal(err)
	}
	_ = l.Unlock(ctx)
	locks.Close()
	span.End()
	for _, s := range exporter.GetSpans() {
		fmt.Println(s.Name, s.Parent.SpanID() == span.SpanContext().SpanID())
	}
	// Output:
	// natslock.acquire true
	// natslock.hold true
	// POST /orders false
}

// An observer that knows its client counts the waiters and links to holds in other processes.
func ExampleObserver_Add() {
	telemetry, err := natslockotel.New()
	if err != nil {
		log.Fatal(err)
	}
	locks := locktest.New(admin.WithObserver(telemetry.Observe))
	defer locks.Close()
	telemetry.Add(locks.Client())
	fmt.Println(locks.Client().Stats().Waiting)
	// Output: 0
}

// A lock can have metadata of its own in addition to the trace.
func ExampleTrace() {
	ctx, span := sdktrace.NewTracerProvider().Tracer("service").Start(context.Background(), "POST /orders")
	defer span.End()
	locks := locktest.New()
	defer locks.Close()
	l, err := locks.Lock(ctx, "orders.42", natslockotel.Trace(ctx, map[string]string{"version": "1.2"}))
	if err != nil {
		log.Fatal(err)
	}
	meta := locks.Inspect(admin.KindMutex, "orders.42").Holder.Meta
	_ = l.Unlock(ctx)
	fmt.Println(meta["version"], strings.Contains(meta["traceparent"], span.SpanContext().TraceID().String()))
	// Output: 1.2 true
}

func ExampleFirstToken() {
	fmt.Println(natslockotel.FirstToken("orders.42"), natslockotel.FirstToken("cleanup"))
	// Output: orders cleanup
}
