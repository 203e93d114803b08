package natslockprom_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	natslockprom "github.com/natslock/locks/adapters/prometheus"
	"github.com/natslock/locks/locktest"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/partition"
)

// until works until the worker should leave the partition or has lost it.
func until(ctx context.Context, p *partition.Partition) error {
	select {
	case <-p.Leaving():
	case <-ctx.Done():
	}
	return nil
}

// TestPartitionMetrics has a worker hand over partitions to one that joins, and lets a function
// fail.
func TestPartitionMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := locktest.New()
		defer locks.Close()
		ctx, cancel := context.WithCancel(t.Context())
		var done []chan struct{}
		defer func() {
			cancel()
			for _, d := range done {
				<-d
			}
		}()
		join := func(c *natslock.Client, id string, fn func(context.Context, *partition.Partition) error) *partition.Group {
			g := partition.New(c, "ingest.\xff", 8, partition.ID(id), partition.Drain(time.Second))
			d := make(chan struct{})
			done = append(done, d)
			go func() {
				defer close(d)
				_ = g.Run(ctx, fn)
			}()
			time.Sleep(30 * time.Second)
			return g
		}
		failed := false
		first := join(locks.Client(), "w0", func(ctx context.Context, p *partition.Partition) error {
			if p.Number() == 0 && !failed {
				failed = true
				return nil
			}
			return until(ctx, p)
		})
		second := join(locks.NewClient(), "w1", until)
		metrics := natslockprom.Partitions(first, second)
		var want strings.Builder
		var names []string
		for _, m := range []struct {
			name, kind, help string
			w0, w1           int
		}{
			{"drained_total", "counter", "Partitions that the worker gave up to another worker or at shutdown.", 4, 0},
			{"failed_total", "counter", "Partition functions that returned before they were asked to stop.", 1, 0},
			{"granted_total", "counter", "Partitions granted to the worker.", 9, 4},
			{"members", "gauge", "Members of the group, as of the worker's last read.", 2, 2},
			{"owned", "gauge", "Partitions that the worker holds.", 4, 4},
		} {
			name := "natslock_partition_" + m.name
			names = append(names, name)
			fmt.Fprintf(&want, "# HELP %s %s\n# TYPE %[1]s %[3]s\n", name, m.help, m.kind)
			fmt.Fprintf(&want, "%s{group=%q,id=\"w0\"} %d\n%[1]s{group=%[2]q,id=\"w1\"} %[4]d\n", name, "ingest.\uFFFD", m.w0, m.w1)
		}
		require.NoError(t, testutil.CollectAndCompare(metrics, strings.NewReader(want.String()), names...))
		problems, err := testutil.CollectAndLint(metrics)
		require.NoError(t, err)
		require.Empty(t, problems)
		require.Equal(t, 22, testutil.CollectAndCount(metrics))
	})
}

// TestPartitionNames compares the metrics with a golden file, which the tests of the alerts read
// too.
func TestPartitionNames(t *testing.T) {
	locks := locktest.New()
	defer locks.Close()
	golden(t, natslockprom.Partitions(partition.New(locks.Client(), "ingest", 8, partition.ID("w0"))), "testdata/partitions.txt")
}

// A service exports metrics of its worker.
func ExamplePartitions() {
	locks := locktest.New()
	defer locks.Close()
	g := partition.New(locks.Client(), "ingest", 64, partition.ID("pod-1"))

	r := prometheus.NewRegistry()
	r.MustRegister(natslockprom.Partitions(g))
	families, _ := r.Gather()
	for _, f := range families[:2] {
		fmt.Println(f.GetName(), f.GetMetric()[0].GetLabel()[0].GetValue())
	}
	// Output:
	// natslock_partition_drained_total ingest
	// natslock_partition_draining ingest
}
