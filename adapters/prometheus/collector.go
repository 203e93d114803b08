package natslockprom

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
)

// Histogram buckets, in seconds, from a round trip up to the waits and holds that an
// operator needs to know about.
var (
	acquireBuckets = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}
	heldBuckets    = []float64{.001, .005, .025, .1, .5, 1, 5, 15, 60, 300, 900, 3600, 21600, 86400}
)

// Outcomes of an acquire, used as values of the label "outcome".
const (
	Granted = "granted"
	GaveUp  = "gave_up"
)

// Causes of a loss, used as values of the label "cause".
const (
	Expired = "expired" // the lease ended, or the record had been deleted
	Broken  = "broken"  // an operator ended the hold
	Closed  = "closed"  // the client was closed while it held the lock
)

// Collector exports metrics for the locks of one or more clients. Create it with [New]. It
// is safe for concurrent use.
type Collector struct {
	label func(name string) string
	names []string // lock names whose labels have series from the start

	acquire *prometheus.HistogramVec
	hold    *prometheus.HistogramVec
	held    *prometheus.GaugeVec
	lost    *prometheus.CounterVec
	waiting *prometheus.Desc
	lag     *prometheus.Desc

	mu      sync.Mutex
	labels  map[string]*series
	holders map[holderID]holder
	clients []*natslock.Client
}

// holderID identifies a hold. Lock IDs are never reused.
type holderID struct {
	kind     admin.Kind
	name, id string
}

type holder struct {
	*series
	since time.Time
}

// series holds the metrics for one label.
type series struct {
	granted, gaveUp, hold   prometheus.Observer
	held                    prometheus.Gauge
	expired, broken, closed prometheus.Counter
}

// An Option configures a [Collector].
type Option func(*Collector)

// Names sets lock names whose labels have series from the start, at zero, so that an alert
// on a rate sees the first event too. Other labels get their series with their first event.
func Names(names ...string) Option {
	return func(c *Collector) { c.names = append(c.names, names...) }
}

// Labels sets the function that turns a lock's name into a label. The default is
// [FirstToken]. The function must return few distinct values, because the server keeps a
// set of series for each value. After [MaxLabels] values, a Collector uses [Other]. With
// several clients, the function is called from several goroutines. A nil label keeps the
// default.
func Labels(label func(name string) string) Option {
	return func(c *Collector) {
		if label != nil {
			c.label = label
		}
	}
}

// New returns a Collector without clients. Pass its Observe method to the clients, and
// register the Collector with Prometheus:
//
//	metrics := natslockprom.New()
//	locks, err := natslock.New(ctx, nc, admin.WithObserver(metrics.Observe))
//	...
//	metrics.Add(locks)
//	prometheus.MustRegister(metrics)
func New(opts ...Option) *Collector {
	labels := []string{Label}
	c := &Collector{
		label:   FirstToken,
		labels:  make(map[string]*series),
		holders: make(map[holderID]holder),
		acquire: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "natslock_acquire_seconds", Help: "Time from the call to the grant or to giving up.", Buckets: acquireBuckets,
		}, []string{Label, "outcome"}),
		hold: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "natslock_held_seconds", Help: "Time from the grant to the end of the hold.", Buckets: heldBuckets,
		}, labels),
		held: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "natslock_held", Help: "Locks currently held.",
		}, labels),
		lost: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "natslock_lost_total", Help: "Locks that ended without an unlock before their planned end.",
		}, []string{Label, "cause"}),
		waiting: prometheus.NewDesc("natslock_waiting", "Acquires currently queued, over all names.", nil, nil),
		lag:     prometheus.NewDesc("natslock_renewal_lag_seconds", "How late the most overdue renewal of a held or idle lock is, over all names; 0 if none is late.", nil, nil),
	}
	for _, opt := range opts {
		if opt != nil {
			opt(c)
		}
	}
	for _, name := range c.names {
		c.series(c.labelOf(name))
	}
	return c
}

// Add makes the Collector report natslock_waiting and natslock_renewal_lag_seconds for the
// client, and keep a reference to it. With several clients, the metrics are the sum and the
// maximum over all of them. Without clients, both are absent.
func (c *Collector) Add(locks *natslock.Client) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clients = append(c.clients, locks)
}

// Observe records one event. Pass this method to admin.WithObserver; several clients may
// share a Collector. Observe does no I/O and ignores its context.
func (c *Collector) Observe(_ context.Context, ev admin.Event) {
	switch ev.Type {
	case admin.EventQueued, admin.EventRenewed, admin.EventAtRisk:
		return
	}
	label := c.labelOf(ev.Name)
	c.mu.Lock()
	defer c.mu.Unlock()
	s, id := c.series(label), holderID{ev.Kind, ev.Name, ev.ID}
	switch ev.Type {
	case admin.EventGranted:
		s.granted.Observe(ev.Waited.Seconds())
		s.held.Inc()
		c.holders[id] = holder{s, ev.Time}
	case admin.EventGaveUp:
		s.gaveUp.Observe(ev.Waited.Seconds())
	case admin.EventReleased, admin.EventEnded:
		c.ended(id, ev.Time)
	case admin.EventExpired:
		if errors.Is(ev.Cause, natslock.ErrClosed) {
			s.closed.Inc()
		} else {
			s.expired.Inc()
		}
		c.ended(id, ev.Time)
	case admin.EventBroken:
		s.broken.Inc()
		c.ended(id, ev.Time)
	}
}

// ended records the end of a hold. c.mu must be held.
func (c *Collector) ended(id holderID, at time.Time) {
	h, ok := c.holders[id]
	if !ok { // granted before the Collector observed the client
		return
	}
	delete(c.holders, id)
	h.held.Dec()
	h.hold.Observe(max(at.Sub(h.since), 0).Seconds())
}

// labelOf returns the label for a name, as valid UTF-8. A name may contain any bytes, but a
// label may not.
func (c *Collector) labelOf(name string) string {
	return strings.ToValidUTF8(c.label(name), "\uFFFD")
}

// series returns the series for a label, creating them if necessary. c.mu must be held.
func (c *Collector) series(label string) *series {
	s := c.labels[label]
	if s == nil && len(c.labels) >= MaxLabels {
		label = Other
		s = c.labels[label]
	}
	if s == nil {
		s = &series{
			granted: c.acquire.WithLabelValues(label, Granted), gaveUp: c.acquire.WithLabelValues(label, GaveUp),
			hold: c.hold.WithLabelValues(label), held: c.held.WithLabelValues(label),
			expired: c.lost.WithLabelValues(label, Expired), broken: c.lost.WithLabelValues(label, Broken), closed: c.lost.WithLabelValues(label, Closed),
		}
		c.labels[label] = s
	}
	return s
}

func (c *Collector) all() []prometheus.Collector {
	return []prometheus.Collector{c.acquire, c.hold, c.held, c.lost}
}

// Describe implements [prometheus.Collector].
func (c *Collector) Describe(descs chan<- *prometheus.Desc) {
	for _, m := range c.all() {
		m.Describe(descs)
	}
	descs <- c.waiting
	descs <- c.lag
}

// Collect implements [prometheus.Collector]. It does no I/O.
func (c *Collector) Collect(metrics chan<- prometheus.Metric) {
	for _, m := range c.all() {
		m.Collect(metrics)
	}
	c.mu.Lock()
	clients := c.clients
	c.mu.Unlock()
	if len(clients) == 0 {
		return
	}
	waiting, lag := 0, time.Duration(0)
	for _, locks := range clients {
		s := locks.Stats()
		waiting += s.Waiting
		lag = max(lag, s.RenewalLag)
	}
	metrics <- prometheus.MustNewConstMetric(c.waiting, prometheus.GaugeValue, float64(waiting))
	metrics <- prometheus.MustNewConstMetric(c.lag, prometheus.GaugeValue, lag.Seconds())
}
