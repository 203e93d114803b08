package natslockotel_test

import (
	"context"
	"fmt"
	"log"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	natslockotel "github.com/natslock/locks/adapters/otel"
	"github.com/natslock/locks/locktest"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/partition"
)

// TestPartitionMetrics has a worker hand over partitions to one that joins, and lets a function
// fail.
func TestPartitionMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := locktest.New()
		defer locks.Close()
		b := newBackend()
		o := b.observer(t)
		ctx, cancel := context.WithCancel(t.Context())
		var done []chan struct{}
		defer func() {
			cancel()
			for _, d := range done {
				<-d
			}
		}()
		failed := false
		join := func(c *natslock.Client, id string) {
			g := partition.New(c, "ingest", 8, partition.ID(id))
			o.AddGroup(g)
			d := make(chan struct{})
			done = append(done, d)
			go func() {
				defer close(d)
				_ = g.Run(ctx, func(ctx context.Context, p *partition.Partition) error {
					if p.Number() == 0 && !failed {
						failed = true
						return nil
					}
					<-p.Leaving()
					return nil
				})
			}()
			time.Sleep(30 * time.Second)
		}
		join(locks.Client(), "w0")
		join(locks.NewClient(), "w1")
		var all metricdata.ResourceMetrics
		require.NoError(t, b.reader.Collect(t.Context(), &all))
		require.Len(t, all.ScopeMetrics, 1)
		got := map[string]map[string]int64{}
		add := func(name string, points []metricdata.DataPoint[int64]) {
			got[name] = map[string]int64{}
			for _, p := range points {
				require.Equal(t, "ingest", value(p, natslockotel.GroupKey))
				got[name][value(p, natslockotel.WorkerKey)] = p.Value
			}
		}
		for _, m := range all.ScopeMetrics[0].Metrics {
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				require.True(t, data.IsMonotonic)
				add(m.Name, data.DataPoints)
			case metricdata.Gauge[int64]:
				add(m.Name, data.DataPoints)
			}
		}
		const p = "natslock.partition."
		for w, n := range got[p+"reads"] {
			require.Positive(t, n, w)
		}
		delete(got, p+"reads") // reads vary between runs
		require.Equal(t, map[string]map[string]int64{
			p + "members": {"w0": 2, "w1": 2}, p + "planned": {"w0": 4, "w1": 4}, p + "owned": {"w0": 4, "w1": 4},
			p + "waiting": {"w0": 0, "w1": 0}, p + "draining": {"w0": 0, "w1": 0},
			p + "granted": {"w0": 9, "w1": 4}, p + "drained": {"w0": 4, "w1": 0}, p + "slow": {"w0": 0, "w1": 0},
			p + "failed": {"w0": 1, "w1": 0}, p + "lost": {"w0": 0, "w1": 0},
		}, got)
	})
}

func value(p metricdata.DataPoint[int64], key attribute.Key) string {
	v, _ := p.Attributes.Value(key)
	return v.AsString()
}

// A service exports metrics of its worker.
func ExampleObserver_AddGroup() {
	reader := sdkmetric.NewManualReader()
	telemetry, err := natslockotel.New(natslockotel.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))))
	if err != nil {
		log.Fatal(err)
	}
	locks := locktest.New()
	defer locks.Close()
	telemetry.AddGroup(partition.New(locks.Client(), "ingest", 64, partition.ID("pod-1")))

	var all metricdata.ResourceMetrics
	if err := reader.Collect(context.Background(), &all); err != nil {
		log.Fatal(err)
	}
	fmt.Println(all.ScopeMetrics[0].Metrics[0].Name)
	// Output: natslock.partition.members
}
