package natslockprom_test

import (
	"context"
	"fmt"
	"log"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	natslockprom "github.com/natslock/locks/adapters/prometheus"
	"github.com/natslock/locks/internal/verify/example"
	"github.com/natslock/locks/locktest"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
)

// A service passes the collector to its client and registers it.
func ExampleNew() {
	ctx := context.Background()
	nc, stop := example.Connect()
	defer stop()

	metrics := natslockprom.New(natslockprom.Names("orders"))
	locks, err := natslock.New(ctx, nc, admin.WithObserver(metrics.Observe))
	if err != nil {
		log.Fatal(err)
	}
	metrics.Add(locks)
	prometheus.MustRegister(metrics)

	err = locks.Do(ctx, "orders.42", func(ctx context.Context, l *natslock.Lock) error { return nil })
	_ = locks.Close(ctx)
	fmt.Println(err)
	// Output: <nil>
}

// A client has one observer, which can pass each event on to others.
func ExampleCollector_Observe() {
	metrics := natslockprom.New()
	events := 0
	locks := locktest.New(admin.WithObserver(func(ctx context.Context, ev admin.Event) {
		metrics.Observe(ctx, ev)
		events++
	}))
	l, err := locks.Lock(context.Background(), "orders.42")
	if err != nil {
		log.Fatal(err)
	}
	_ = l.Unlock(context.Background())
	locks.Close()
	fmt.Println(events, "events")
	// Output: 2 events
}

// The gauges for waiters and renewals cover the clients that were added.
func ExampleCollector_Add() {
	metrics := natslockprom.New()
	locks := locktest.New(admin.WithObserver(metrics.Observe))
	defer locks.Close()
	metrics.Add(locks.Client())

	r := prometheus.NewRegistry()
	r.MustRegister(metrics)
	families, _ := r.Gather()
	for _, f := range families {
		fmt.Println(f.GetName(), f.GetMetric()[0].GetGauge().GetValue())
	}
	// Output:
	// natslock_renewal_lag_seconds 0
	// natslock_waiting 0
}

// Names gives these locks their series from the start, so that an alert on a rate sees the first
// loss.
func ExampleNames() {
	metrics := natslockprom.New(natslockprom.Names("orders", "reports"))
	r := prometheus.NewRegistry()
	r.MustRegister(metrics)
	families, _ := r.Gather()
	for _, f := range families {
		if f.GetName() == "natslock_held" {
			for _, m := range f.GetMetric() {
				fmt.Println(m.GetLabel()[0].GetValue(), m.GetGauge().GetValue())
			}
		}
	}
	// Output:
	// orders 0
	// reports 0
}

// A custom function can distinguish locks whose names share their first token.
func ExampleLabels() {
	byTenant := func(name string) string {
		parts := strings.Split(name, ".")
		if len(parts) > 2 && parts[0] == "tenants" {
			return "tenants.*." + parts[2]
		}
		return natslockprom.FirstToken(name)
	}
	metrics := natslockprom.New(natslockprom.Labels(byTenant), natslockprom.Names("tenants.7.jobs", "orders.42"))
	r := prometheus.NewRegistry()
	r.MustRegister(metrics)
	families, _ := r.Gather()
	for _, m := range families[1].GetMetric() {
		fmt.Println(m.GetLabel()[0].GetValue())
	}
	// Output:
	// orders
	// tenants.*.jobs
}

func ExampleFirstToken() {
	fmt.Println(natslockprom.FirstToken("orders.42"), natslockprom.FirstToken("cleanup"))
	// Output: orders cleanup
}
