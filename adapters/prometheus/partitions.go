package natslockprom

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/natslock/locks/partition"
)

// partitionMetrics lists the metrics of each worker. The registry sorts them by name.
var partitionMetrics = []partitionMetric{
	gauge("members", "Members of the group, as of the worker's last read.", func(s partition.Stats) int { return s.Members }),
	gauge("planned", "Partitions that the plan assigns to the worker.", func(s partition.Stats) int { return s.Planned }),
	gauge("owned", "Partitions that the worker holds.", func(s partition.Stats) int { return s.Owned }),
	gauge("waiting", "Partitions that the worker is waiting for.", func(s partition.Stats) int { return s.Waiting }),
	gauge("draining", "Partitions that the worker holds and is about to leave.", func(s partition.Stats) int { return s.Draining }),
	counter("granted", "Partitions granted to the worker.", func(s partition.Stats) uint64 { return s.Granted }),
	counter("drained", "Partitions that the worker gave up to another worker or at shutdown.", func(s partition.Stats) uint64 { return s.Drained }),
	counter("slow", "Drained partitions whose function did not return within the drain time.", func(s partition.Stats) uint64 { return s.Slow }),
	counter("failed", "Partition functions that returned before they were asked to stop.", func(s partition.Stats) uint64 { return s.Failed }),
	counter("lost", "Partitions whose lease was lost or broken.", func(s partition.Stats) uint64 { return s.Lost }),
	counter("reads", "Reads of the group.", func(s partition.Stats) uint64 { return s.Reads }),
}

type partitionMetric struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	of   func(partition.Stats) float64
}

func partitionDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("natslock_partition_"+name, help, []string{"group", "id"}, nil)
}

func gauge(name, help string, of func(partition.Stats) int) partitionMetric {
	return partitionMetric{partitionDesc(name, help), prometheus.GaugeValue, func(s partition.Stats) float64 { return float64(of(s)) }}
}

func counter(name, help string, of func(partition.Stats) uint64) partitionMetric {
	return partitionMetric{partitionDesc(name+"_total", help), prometheus.CounterValue, func(s partition.Stats) float64 { return float64(of(s)) }}
}

// Partitions returns a collector for the statistics of partition workers, labeled with the group and the worker's id.
// A registry accepts only one such collector, so pass all groups of the process to a single call, and each id of a
// group only once. An id that is not set with [partition.ID] is different in each process, so every start creates new
// series.
func Partitions(groups ...*partition.Group) prometheus.Collector { return workers(groups) }

type workers []*partition.Group

// Describe implements [prometheus.Collector].
func (workers) Describe(descs chan<- *prometheus.Desc) {
	for _, m := range partitionMetrics {
		descs <- m.desc
	}
}

// Collect implements [prometheus.Collector]. It does no I/O.
func (w workers) Collect(metrics chan<- prometheus.Metric) {
	for _, g := range w {
		s := g.Stats()
		group, id := strings.ToValidUTF8(g.Name(), "\uFFFD"), strings.ToValidUTF8(g.ID(), "\uFFFD")
		for _, m := range partitionMetrics {
			metrics <- prometheus.MustNewConstMetric(m.desc, m.kind, m.of(s), group, id)
		}
	}
}
