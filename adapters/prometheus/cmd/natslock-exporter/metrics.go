package main

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	natslockprom "github.com/natslock/locks/adapters/prometheus"
	"github.com/natslock/locks/internal/mirror"
)

// handoverBuckets range from a round trip to a wait for a lease to expire.
var handoverBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}

// counters holds the metrics that count events.
type counters struct {
	grants, waited, expiries, breaks, gaveUp *prometheus.CounterVec
	handover                                 *prometheus.HistogramVec
	gaps                                     prometheus.Counter
}

func newCounters() counters {
	vec := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{natslockprom.Label})
	}
	return counters{
		grants:   vec("natslock_bucket_grants_total", "Grants of locks, including those within one client."),
		waited:   vec("natslock_bucket_waited_seconds_total", "Total time that holders waited in a queue before these grants."),
		expiries: vec("natslock_bucket_expiries_total", "Leases that ended without a release or a break: the holder crashed or was disconnected, or the lease was not renewable."),
		breaks:   vec("natslock_bucket_breaks_total", "Holds that an operator ended."),
		gaveUp:   vec("natslock_bucket_gave_up_total", "Waiters that gave up without getting the lock."),
		handover: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "natslock_bucket_handover_seconds", Help: "Time from the end of a hold to the next grant, by the server's clock, if a client was queued.", Buckets: handoverBuckets,
		}, []string{natslockprom.Label}),
		gaps: prometheus.NewCounter(prometheus.CounterOpts{Name: "natslock_exporter_gaps_total", Help: "Times the exporter missed events and then read all locks again."}),
	}
}

// group creates the series for a label.
func (c counters) group(label string) *group {
	return &group{
		grants: c.grants.WithLabelValues(label), waited: c.waited.WithLabelValues(label),
		expiries: c.expiries.WithLabelValues(label), breaks: c.breaks.WithLabelValues(label),
		gaveUp: c.gaveUp.WithLabelValues(label), handover: c.handover.WithLabelValues(label),
	}
}

func (c counters) all() []prometheus.Collector {
	return []prometheus.Collector{c.grants, c.waited, c.expiries, c.breaks, c.gaveUp, c.handover, c.gaps}
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// These metrics are computed from the mirror on each scrape.
var (
	upDesc       = desc("natslock_exporter_up", "1 while the exporter follows the bucket, and the bucket has a leader and is fit for locks. Otherwise the lock gauges are missing.")
	writableDesc = desc("natslock_bucket_writable", "1 while the bucket has a responding leader and clients can grant locks in it. Missing while the exporter cannot tell.")
	replicasDesc = desc("natslock_bucket_replicas", "Configured replicas of the bucket. Missing while the exporter cannot tell.")
	currentDesc  = desc("natslock_bucket_replicas_current", "Replicas that are up to date, including the leader; 0 without a leader. Missing while the exporter cannot tell.")
	heldDesc     = desc("natslock_bucket_held", "Holders of locks, counting each reader and each permit.", natslockprom.Label)
	idleDesc     = desc("natslock_bucket_idle", "Lingering locks: the client keeps them although no goroutine holds them.", natslockprom.Label)
	queuedDesc   = desc("natslock_bucket_queued", "Places in queues. Goroutines of one client share a place.", natslockprom.Label)
	longestDesc  = desc("natslock_bucket_longest_queue", "Places in the longest queue of one lock, excluding clients that wait by design.", natslockprom.Label)
	oldestDesc   = desc("natslock_bucket_oldest_hold_seconds", "Age of the oldest hold; 0 without a holder. Locks held by design do not count: elections, members, partitions, scripts, jobs and the rest of a minimum hold.", natslockprom.Label)
	lagDesc      = desc("natslock_bucket_renewal_lag_seconds", "How late the most overdue renewal of a held or idle lock is, counted from a third of its TTL; 0 if none is late.", natslockprom.Label)
	waitDesc     = desc("natslock_bucket_longest_wait_seconds", "Age of the longest wait; 0 without a waiter. Clients that wait by design do not count: standbys of an election and workers waiting for partitions.", natslockprom.Label)
)

// Describe implements [prometheus.Collector].
func (s *state) Describe(descs chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{upDesc, writableDesc, replicasDesc, currentDesc, heldDesc, idleDesc, queuedDesc, longestDesc, oldestDesc, lagDesc, waitDesc} {
		descs <- d
	}
	for _, c := range s.counters.all() {
		c.Describe(descs)
	}
}

// Collect implements [prometheus.Collector].
func (s *state) Collect(metrics chan<- prometheus.Metric) {
	all, current := s.totals()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		metrics <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	up := 0.0
	if current {
		up = 1
	}
	gauge(upDesc, up)
	if st := s.mirror.State(); st.Condition != mirror.Stale {
		writable := 0.0
		if st.Writable() {
			writable = 1
		}
		gauge(writableDesc, writable)
		gauge(replicasDesc, float64(st.Replicas))
		gauge(currentDesc, float64(st.Current))
	}
	for label, t := range all {
		gauge(heldDesc, float64(t.held), label)
		gauge(idleDesc, float64(t.idle), label)
		gauge(queuedDesc, float64(t.queued), label)
		gauge(longestDesc, float64(t.longest), label)
		gauge(oldestDesc, t.oldest.Seconds(), label)
		gauge(lagDesc, t.lag.Seconds(), label)
		gauge(waitDesc, t.wait.Seconds(), label)
	}
	for _, c := range s.counters.all() {
		c.Collect(metrics)
	}
}

// registry returns a registry with all metrics that the exporter serves.
func registry(s *state, bucket string) *prometheus.Registry {
	r := prometheus.NewRegistry()
	prometheus.WrapRegistererWith(prometheus.Labels{"bucket": bucket}, r).MustRegister(s)
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}
