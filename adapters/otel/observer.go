package natslockotel

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/natslock/locks/internal/plain"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/partition"
)

// scope is the name of the instrumentation scope.
const scope = "github.com/natslock/locks/adapters/otel"

// Attribute keys. error.type comes from the semantic conventions, which define no keys for
// locks.
const (
	LockKey    = attribute.Key("natslock.lock")       // on metrics: the label for the lock's name
	NameKey    = attribute.Key("natslock.lock.name")  // on spans
	KindKey    = attribute.Key("natslock.lock.kind")  // on spans: mutex, rw or semaphore
	IDKey      = attribute.Key("natslock.lock.id")    // on hold spans
	TokenKey   = attribute.Key("natslock.lock.token") // on hold spans: the fencing token
	OutcomeKey = attribute.Key("natslock.outcome")    // outcome of an acquire: granted or gave_up
	EndKey     = attribute.Key("natslock.end")        // end of a hold: released, ended, expired, broken or closed
	GroupKey   = attribute.Key("natslock.group")      // on partition metrics
	WorkerKey  = attribute.Key("natslock.worker.id")  // on partition metrics
	ErrorKey   = attribute.Key("error.type")          // for an acquire: timeout or canceled; for a hold: expired, broken or closed
)

// durations are the bucket boundaries of the histograms, in seconds.
var durations = []float64{.001, .005, .025, .1, .5, 1, 5, 15, 60, 300, 900, 3600, 21600, 86400}

const (
	// readTime limits how long an Observer may take to read a lock's holder.
	readTime = 250 * time.Millisecond
	// readPause is how long an Observer waits after a failed read before it reads again.
	readPause = 10 * time.Second
	// mostLinks limits the links per span, because a lock may have many readers.
	mostLinks = 8
	// mostWaits limits the number of recorded waits. A wait stays recorded if its acquire
	// fails without an event.
	mostWaits = 10_000
)

// Observer produces spans and metrics. Create it with [New]. It is safe for concurrent use.
type Observer struct {
	label  func(string) string
	tracer trace.Tracer

	acquire, hold metric.Float64Histogram
	held          metric.Int64UpDownCounter
	lost          metric.Int64Counter

	mu      sync.Mutex
	holds   map[lockID][]*hold
	waits   map[waitID][][]trace.Link
	clients []*natslock.Client
	groups  []*partition.Group
	paused  time.Time // no reads before this time
}

type lockID struct {
	kind admin.Kind
	name string
}

// waitID identifies a wait by the caller's span, because events carry no ID for waits.
type waitID struct {
	lock  lockID
	trace trace.TraceID
	span  trace.SpanID
}

// hold is a held lock and its span.
type hold struct {
	id    string
	since time.Time
	span  trace.Span
}

// New returns an Observer without clients. Pass its Observe method to the clients of one
// bucket:
//
//	telemetry, err := natslockotel.New()
//	...
//	locks, err := natslock.New(ctx, nc, admin.WithObserver(telemetry.Observe))
//	...
//	telemetry.Add(locks)
//
// It returns an error if the meter provider rejects an instrument.
func New(opts ...Option) (*Observer, error) {
	c := config{tracers: otel.GetTracerProvider(), meters: otel.GetMeterProvider(), label: FirstToken}
	for _, opt := range opts {
		if opt != nil {
			opt(&c)
		}
	}
	o := &Observer{label: c.label, tracer: c.tracers.Tracer(scope), holds: make(map[lockID][]*hold), waits: make(map[waitID][][]trace.Link)}
	meter := c.meters.Meter(scope)
	var errs [6]error
	seconds := []metric.Float64HistogramOption{metric.WithUnit("s"), metric.WithExplicitBucketBoundaries(durations...)}
	o.acquire, errs[0] = meter.Float64Histogram("natslock.acquire.duration",
		append(seconds, metric.WithDescription("Time from the call to the grant or to giving up."))...)
	o.hold, errs[1] = meter.Float64Histogram("natslock.hold.duration",
		append(seconds, metric.WithDescription("Time from the grant to the end of the hold."))...)
	o.held, errs[2] = meter.Int64UpDownCounter("natslock.held", metric.WithUnit("{lock}"), metric.WithDescription("Locks currently held."))
	o.lost, errs[3] = meter.Int64Counter("natslock.lost", metric.WithUnit("{lock}"),
		metric.WithDescription("Locks that ended without an unlock before their planned end."))
	_, errs[4] = meter.Int64ObservableGauge("natslock.waiting", metric.WithUnit("{acquire}"),
		metric.WithDescription("Acquires currently queued, over all names."), metric.WithInt64Callback(o.waiting))
	errs[5] = o.ofPartitions(meter)
	if err := plain.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("natslockotel: %w", err)
	}
	return o, nil
}

// Add makes the Observer report natslock.waiting from the client's Stats. The first client
// also lets the Observer link to holds that the Observer has not seen itself: when an
// acquire queues behind such a hold, the Observer reads the lock's holder through this
// client. That costs one Inspect per wait, on the goroutine that calls observers. The read
// delays events by at most 250 ms, and after a failed read the Observer does not try again
// for 10 s. The Observer keeps a reference to the client.
func (o *Observer) Add(locks *natslock.Client) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.clients = append(o.clients, locks)
}

func (o *Observer) waiting(_ context.Context, to metric.Int64Observer) error {
	o.mu.Lock()
	clients := o.clients
	o.mu.Unlock()
	if len(clients) == 0 {
		return nil
	}
	n := 0
	for _, c := range clients {
		n += c.Stats().Waiting
	}
	to.Observe(int64(n))
	return nil
}

// Observe records one event. Pass this method to admin.WithObserver. ctx carries the values
// of the acquire's context, including the span that becomes the parent of the Observer's
// spans.
func (o *Observer) Observe(ctx context.Context, ev admin.Event) {
	switch ev.Type {
	case admin.EventQueued:
		o.queued(ctx, ev)
	case admin.EventGranted:
		o.acquired(ctx, ev, "granted")
		o.granted(ctx, ev)
	case admin.EventGaveUp:
		o.acquired(ctx, ev, "gave_up")
	case admin.EventReleased:
		o.ended(ctx, ev, "released", nil)
	case admin.EventEnded:
		o.ended(ctx, ev, "ended", nil)
	case admin.EventBroken:
		o.ended(ctx, ev, "broken", ev.Cause)
	case admin.EventExpired:
		end := "expired"
		if errors.Is(ev.Cause, natslock.ErrClosed) {
			end = "closed"
		}
		o.ended(ctx, ev, end, ev.Cause)
	case admin.EventAtRisk:
		if h := o.holdOf(ev); h != nil {
			h.span.AddEvent("natslock.at_risk", trace.WithTimestamp(ev.Time), trace.WithAttributes(attribute.String("natslock.reason", text(fmt.Sprint(ev.Cause)))))
		}
	}
}

// text makes a name valid UTF-8. A name may contain any bytes, but an attribute may not.
func text(name string) string { return strings.ToValidUTF8(name, "\uFFFD") }

// labelOf returns the natslock.lock attribute for metrics.
func (o *Observer) labelOf(ev admin.Event) attribute.KeyValue {
	return LockKey.String(text(o.label(ev.Name)))
}

// attributes returns the attributes that acquire and hold spans share.
func attributes(ev admin.Event) []attribute.KeyValue {
	return []attribute.KeyValue{NameKey.String(text(ev.Name)), KindKey.String(ev.Kind.String())}
}

func lockOf(ev admin.Event) lockID { return lockID{ev.Kind, ev.Name} }

func waitOf(ctx context.Context, ev admin.Event) waitID {
	asked := trace.SpanContextFromContext(ctx)
	return waitID{lockOf(ev), asked.TraceID(), asked.SpanID()}
}

// queued records links to the holds that an acquire waits for.
func (o *Observer) queued(ctx context.Context, ev admin.Event) {
	links := o.inTheWay(ctx, ev)
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.waits) >= mostWaits {
		clear(o.waits)
	}
	id := waitOf(ctx, ev)
	o.waits[id] = append(o.waits[id], links)
}

// inTheWay returns links to the lock's current holds that this Observer has seen or, if it
// has seen none, to those whose records carry a trace.
func (o *Observer) inTheWay(ctx context.Context, ev admin.Event) (links []trace.Link) {
	o.mu.Lock()
	for _, h := range o.holds[lockOf(ev)] {
		links = append(links, trace.Link{SpanContext: h.span.SpanContext()})
	}
	var client *natslock.Client
	if len(links) == 0 && len(o.clients) > 0 && !time.Now().Before(o.paused) {
		client = o.clients[0]
	}
	o.mu.Unlock()
	if client != nil {
		links = o.read(ctx, client, ev)
	}
	return links[:min(len(links), mostLinks)]
}

// read returns links to the holds whose records carry a trace.
func (o *Observer) read(ctx context.Context, client *natslock.Client, ev admin.Event) (links []trace.Link) {
	asking := trace.SpanContextFromContext(ctx)
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	info, err := admin.New(client).Inspect(ctx, ev.Kind, ev.Name)
	if err != nil {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.paused = time.Now().Add(readPause)
		return nil
	}
	holders := slices.Concat(info.Readers, info.Permits)
	if info.Holder != nil {
		holders = append(holders, *info.Holder)
	}
	for _, h := range holders {
		// If the acquire has been granted in the meantime, its own record is among these.
		if sc := carried(h.Meta); sc.IsValid() && sc.SpanID() != asking.SpanID() {
			links = append(links, trace.Link{SpanContext: sc, Attributes: []attribute.KeyValue{IDKey.String(h.ID)}})
		}
	}
	return links
}

// acquired creates the span of a finished acquire and records its duration.
func (o *Observer) acquired(ctx context.Context, ev admin.Event, outcome string) {
	o.mu.Lock()
	id := waitOf(ctx, ev)
	var links []trace.Link
	if all := o.waits[id]; len(all) > 1 {
		links, o.waits[id] = all[0], all[1:]
	} else if len(all) == 1 {
		links = all[0]
		delete(o.waits, id)
	}
	o.mu.Unlock()
	_, span := o.tracer.Start(ctx, "natslock.acquire", trace.WithTimestamp(ev.Time.Add(-ev.Waited)), trace.WithLinks(links...),
		trace.WithAttributes(append(attributes(ev), OutcomeKey.String(outcome))...))
	measured := []attribute.KeyValue{o.labelOf(ev), OutcomeKey.String(outcome)}
	if ev.Type == admin.EventGaveUp {
		why := "timeout"
		if errors.Is(ev.Cause, context.Canceled) {
			why = "canceled"
		}
		span.SetAttributes(ErrorKey.String(why))
		span.SetStatus(codes.Error, text(fmt.Sprint(ev.Cause)))
		measured = append(measured, ErrorKey.String(why))
	}
	span.End(trace.WithTimestamp(ev.Time))
	o.acquire.Record(ctx, ev.Waited.Seconds(), metric.WithAttributes(measured...))
}

// granted starts the span of a hold.
func (o *Observer) granted(ctx context.Context, ev admin.Event) {
	_, span := o.tracer.Start(ctx, "natslock.hold", trace.WithTimestamp(ev.Time),
		trace.WithAttributes(append(attributes(ev), IDKey.String(ev.ID), TokenKey.Int64(int64(ev.Token)))...))
	o.held.Add(ctx, 1, metric.WithAttributes(o.labelOf(ev)))
	o.mu.Lock()
	defer o.mu.Unlock()
	id := lockOf(ev)
	o.holds[id] = append(o.holds[id], &hold{ev.ID, ev.Time, span})
}

// holdOf returns the hold that an event belongs to, or nil.
func (o *Observer) holdOf(ev admin.Event) *hold {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, h := range o.holds[lockOf(ev)] {
		if h.id == ev.ID {
			return h
		}
	}
	return nil
}

// ended ends the span of a hold. cause is nil unless the lock was lost.
func (o *Observer) ended(ctx context.Context, ev admin.Event, end string, cause error) {
	h := o.holdOf(ev)
	if h == nil { // granted before the Observer observed the client
		return
	}
	o.mu.Lock()
	id := lockOf(ev)
	o.holds[id] = slices.DeleteFunc(o.holds[id], func(other *hold) bool { return other == h })
	if len(o.holds[id]) == 0 {
		delete(o.holds, id)
	}
	o.mu.Unlock()
	label := o.labelOf(ev)
	h.span.SetAttributes(EndKey.String(end))
	if cause != nil {
		h.span.SetAttributes(ErrorKey.String(end))
		h.span.SetStatus(codes.Error, text(cause.Error()))
		o.lost.Add(ctx, 1, metric.WithAttributes(label, ErrorKey.String(end)))
	}
	h.span.End(trace.WithTimestamp(ev.Time))
	o.held.Add(ctx, -1, metric.WithAttributes(label))
	o.hold.Record(ctx, max(ev.Time.Sub(h.since), 0).Seconds(), metric.WithAttributes(label, EndKey.String(end)))
}
