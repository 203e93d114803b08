package fence_test

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/fence"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/testutil"
)

var throughput = flag.Duration("throughput", 0, "measure each case of TestThroughput five times for so long, one second for example, and print a table")

// way is one way of publishing messages.
type way struct {
	name       string
	goroutines int
	messages   int // per call
	publish    func(ctx context.Context) error
}

// TestThroughput compares fenced writes with unguarded ones. The cases take turns, so that load on
// the machine affects all of them equally.
func TestThroughput(t *testing.T) {
	if *throughput == 0 {
		t.Skip("it measures, see -throughput")
	}
	measured := [2][]string{
		measure(t, kit.JetStream(t, testutil.RunServer(t).Connect()), 1),
		measure(t, kit.JetStream(t, testutil.RunCluster(t, 3).Connect()), 3),
	}
	var table strings.Builder
	for i, r1 := range measured[0] {
		fmt.Fprintf(&table, "| %s | %s |\n", r1, measured[1][i][strings.Index(measured[1][i], "|")+2:])
	}
	t.Logf("messages per second:\n\n| | R1, unguarded | R1, fenced | R3, unguarded | R3, fenced |\n|---|---|---|---|---|\n%s", table.String())
}

// measure returns the rows of a table with the columns name, unguarded and fenced.
func measure(t *testing.T, js jetstream.JetStream, replicas int) (rows []string) {
	orders(t, js, func(c *jetstream.StreamConfig) { c.Replicas, c.Storage = replicas, jetstream.FileStorage })
	one, err := fence.Open(kit.Bounded(t), js, stream, "orders.one", 1)
	require.NoError(t, err)
	eight, err := fence.Open(kit.Bounded(t), js, stream, "orders.eight", 1, fence.WithLanes(8))
	require.NoError(t, err)
	value := make([]byte, 100)
	batch := make([]*nats.Msg, 100)
	for i := range batch {
		batch[i] = &nats.Msg{Subject: data, Data: value}
	}
	plain := func(ctx context.Context) error { _, err := js.Publish(ctx, data, value); return err }
	pairs := [][2]way{
		{{"`Publish`, one goroutine", 1, 1, plain}, {"", 1, 1, func(ctx context.Context) error { _, err := one.Publish(ctx, data, value); return err }}},
		{{"`Publish`, eight goroutines and lanes", 8, 1, plain}, {"", 8, 1, func(ctx context.Context) error { _, err := eight.Publish(ctx, data, value); return err }}},
		{{"batches of 100, one goroutine", 1, 100, func(ctx context.Context) error { return fence.Unguarded(ctx, one, batch...) }},
			{"", 1, 100, func(ctx context.Context) error { _, err := one.PublishBatch(ctx, batch...); return err }}},
	}
	figures := make([][2][]float64, len(pairs))
	for range 5 {
		for i, p := range pairs {
			for k, w := range p {
				figures[i][k] = append(figures[i][k], w.rate(t))
			}
		}
	}
	for i, p := range pairs {
		var medians [2]float64
		for k := range medians {
			slices.Sort(figures[i][k])
			medians[k] = figures[i][k][2]
		}
		rows = append(rows, fmt.Sprintf("%s | %.0f | %.0f", p[0].name, medians[0], medians[1]))
	}
	return rows
}

// rate returns the number of messages published per second.
func (w way) rate(t *testing.T) float64 {
	ctx := kit.Bounded(t)
	var n atomic.Int64
	var wg sync.WaitGroup
	begin := time.Now()
	for range w.goroutines {
		wg.Go(func() {
			for time.Since(begin) < *throughput {
				if err := w.publish(ctx); err != nil {
					t.Error(err)
					return
				}
				n.Add(int64(w.messages))
			}
		})
	}
	wg.Wait()
	return float64(n.Load()) / time.Since(begin).Seconds()
}
