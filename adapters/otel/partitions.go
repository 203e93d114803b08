package natslockotel

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/metric"

	"github.com/natslock/locks/internal/plain"
	"github.com/natslock/locks/partition"
)

// AddGroup makes the Observer report the Stats of a partition worker as natslock.partition.owned and ten more metrics, with the
// group and the worker's id as attributes. Add each id of a group only once. An id that is not set with [partition.ID] is
// different in each process. The Observer keeps a reference to the group.
func (o *Observer) AddGroup(g *partition.Group) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.groups = append(o.groups, g)
}

// partitionMetric describes one metric of a worker.
type partitionMetric struct {
	name, unit, description string
	counts                  bool // a counter, not a gauge
	of                      func(partition.Stats) int64
}

var partitionMetrics = []partitionMetric{
	{"natslock.partition.members", "{member}", "Members of the group, as of the worker's last read.", false, func(s partition.Stats) int64 { return int64(s.Members) }},
	{"natslock.partition.planned", "{partition}", "Partitions that the plan assigns to the worker.", false, func(s partition.Stats) int64 { return int64(s.Planned) }},
	{"natslock.partition.owned", "{partition}", "Partitions that the worker holds.", false, func(s partition.Stats) int64 { return int64(s.Owned) }},
	{"natslock.partition.waiting", "{partition}", "Partitions that the worker is waiting for.", false, func(s partition.Stats) int64 { return int64(s.Waiting) }},
	{"natslock.partition.draining", "{partition}", "Partitions that the worker holds and is about to leave.", false, func(s partition.Stats) int64 { return int64(s.Draining) }},
	{"natslock.partition.granted", "{partition}", "Partitions granted to the worker.", true, func(s partition.Stats) int64 { return int64(s.Granted) }},
	{"natslock.partition.drained", "{partition}", "Partitions that the worker gave up to another worker or at shutdown.", true, func(s partition.Stats) int64 { return int64(s.Drained) }},
	{"natslock.partition.slow", "{partition}", "Drained partitions whose function did not return within the drain time.", true, func(s partition.Stats) int64 { return int64(s.Slow) }},
	{"natslock.partition.failed", "{call}", "Partition functions that returned before they were asked to stop.", true, func(s partition.Stats) int64 { return int64(s.Failed) }},
	{"natslock.partition.lost", "{partition}", "Partitions whose lease was lost or broken.", true, func(s partition.Stats) int64 { return int64(s.Lost) }},
	{"natslock.partition.reads", "{read}", "Reads of the group.", true, func(s partition.Stats) int64 { return int64(s.Reads) }},
}

// ofPartitions creates the instruments for partition workers.
func (o *Observer) ofPartitions(meter metric.Meter) error {
	var errs []error
	for _, m := range partitionMetrics {
		read := func(_ context.Context, to metric.Int64Observer) error {
			o.mu.Lock()
			groups := o.groups
			o.mu.Unlock()
			for _, g := range groups {
				to.Observe(m.of(g.Stats()), metric.WithAttributes(GroupKey.String(text(g.Name())), WorkerKey.String(text(g.ID()))))
			}
			return nil
		}
		unit, about := metric.WithUnit(m.unit), metric.WithDescription(m.description)
		var err error
		if m.counts {
			_, err = meter.Int64ObservableCounter(m.name, unit, about, metric.WithInt64Callback(read))
		} else {
			_, err = meter.Int64ObservableGauge(m.name, unit, about, metric.WithInt64Callback(read))
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", m.name, err))
		}
	}
	return plain.Join(errs...)
}
