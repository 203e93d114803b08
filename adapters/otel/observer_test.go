package natslockotel_test

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/metric/metricdata/metricdatatest"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	natslockotel "github.com/natslock/locks/adapters/otel"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/locktest"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

func TestMain(m *testing.M) { kit.LeakCheck(m) }

var update = flag.Bool("update", false, "write the golden files")

func golden(t *testing.T, file, text string) {
	t.Helper()
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), text, "run the test with -update if this is meant")
}

// backend is an SDK that keeps everything in memory.
type backend struct {
	spans   *tracetest.InMemoryExporter
	tracers *sdktrace.TracerProvider
	reader  *sdkmetric.ManualReader
	meters  *sdkmetric.MeterProvider
}

func newBackend() *backend {
	b := &backend{spans: tracetest.NewInMemoryExporter(), reader: sdkmetric.NewManualReader()}
	b.tracers = sdktrace.NewTracerProvider(sdktrace.WithSyncer(b.spans))
	b.meters = sdkmetric.NewMeterProvider(sdkmetric.WithReader(b.reader))
	return b
}

func (b *backend) observer(t *testing.T) *natslockotel.Observer {
	t.Helper()
	o, err := natslockotel.New(natslockotel.WithTracerProvider(b.tracers), natslockotel.WithMeterProvider(b.meters))
	require.NoError(t, err)
	return o
}

// begin starts a span of the service.
func (b *backend) begin(ctx context.Context, name string) (context.Context, trace.Span) {
	return b.tracers.Tracer("service").Start(ctx, name)
}

// process returns a client with its own observer, as if it were in a separate process.
func (b *backend) process(t *testing.T, s *testutil.Server) *natslock.Client {
	t.Helper()
	o := b.observer(t)
	c, err := natslock.New(t.Context(), s.Connect(), admin.WithObserver(o.Observe), natslock.WithOwner("web"))
	require.NoError(t, err)
	o.Add(c)
	t.Cleanup(func() { closeNow(c) })
	return c
}

func closeNow(c *natslock.Client) {
	ended, end := context.WithCancel(context.Background())
	end()
	_ = c.Close(ended)
}

// varies matches the tokens and the host in the text of an error.
var varies = regexp.MustCompile(`\b(token|on) \S+\b`)

// rendered returns the spans as text that is the same in each run: it numbers the IDs in the order
// of the spans and gives times relative to the first span.
func rendered(spans tracetest.SpanStubs) string {
	slices.SortStableFunc(spans, func(a, b tracetest.SpanStub) int {
		return cmp.Or(a.StartTime.Compare(b.StartTime), a.EndTime.Compare(b.EndTime), cmp.Compare(a.Name, b.Name), cmp.Compare(fmt.Sprint(a.Attributes), fmt.Sprint(b.Attributes)))
	})
	names := map[string]string{}
	named := func(kind, id string) string {
		if names[id] == "" {
			names[id] = fmt.Sprint(kind, len(names)+1)
		}
		return names[id]
	}
	ofSpan := func(sc trace.SpanContext) string {
		return named("trace-", sc.TraceID().String()) + "/" + named("span-", sc.SpanID().String())
	}
	for _, s := range spans {
		ofSpan(s.SpanContext)
	}
	var b strings.Builder
	begun := spans[0].StartTime
	for _, s := range spans {
		fmt.Fprintf(&b, "%s %s %v..%v", ofSpan(s.SpanContext), s.Name, s.StartTime.Sub(begun), s.EndTime.Sub(begun))
		if s.Parent.IsValid() {
			fmt.Fprintf(&b, " in %s", ofSpan(s.Parent))
		}
		b.WriteString("\n")
		for _, a := range s.Attributes {
			value := a.Value.String()
			if a.Key == natslockotel.IDKey || a.Key == natslockotel.TokenKey {
				value = named(strings.TrimPrefix(string(a.Key), "natslock.lock.")+"-", value)
			}
			fmt.Fprintf(&b, "    %s=%s\n", a.Key, value)
		}
		for _, l := range s.Links {
			fmt.Fprintf(&b, "    link to %s\n", ofSpan(l.SpanContext))
		}
		for _, e := range s.Events {
			fmt.Fprintf(&b, "    event %s\n", e.Name)
		}
		if s.Status.Code == codes.Error {
			fmt.Fprintf(&b, "    error: %s\n", varies.ReplaceAllString(s.Status.Description, "$1 X"))
		}
	}
	return b.String()
}

// handOver has three processes acquire a lock one after the other, each while its predecessor still
// holds it.
func handOver(t *testing.T, b *backend, opts func(ctx context.Context) []natslock.LockOption, clients ...*natslock.Client) {
	t.Helper()
	done := make(chan error, len(clients))
	for i, c := range clients {
		go func() {
			time.Sleep(time.Duration(i) * time.Second)
			ctx, span := b.begin(t.Context(), fmt.Sprint("request ", i+1))
			defer span.End()
			l, err := c.Lock(ctx, "orders.42", opts(ctx)...)
			if err == nil {
				time.Sleep(1500 * time.Millisecond)
				err = l.Unlock(ctx)
			}
			done <- err
		}()
	}
	for range clients {
		require.NoError(t, <-done)
	}
	time.Sleep(time.Millisecond) // let the observers' goroutines catch up
}

func traced(ctx context.Context) []natslock.LockOption {
	return []natslock.LockOption{natslockotel.Trace(ctx, nil)}
}

func untraced(context.Context) []natslock.LockOption { return nil }

// TestHandOver checks the spans of hand-overs between processes, on a real server in fake time. The
// records carry the traces, so each acquire that waits links to the holder's span.
func TestHandOver(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		b := newBackend()
		handOver(t, b, traced, b.process(t, s), b.process(t, s), b.process(t, s))
		golden(t, "testdata/handover.txt", rendered(b.spans.GetSpans()))
	})
}

// TestHandOverUntraced checks that processes are not linked if the records carry no traces.
func TestHandOverUntraced(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		b := newBackend()
		handOver(t, b, untraced, b.process(t, s), b.process(t, s))
		for _, span := range b.spans.GetSpans() {
			require.Empty(t, span.Links, span.Name)
		}
	})
}

// TestHandOverInside checks that with a single Observer the link leads to the hold itself, so no
// record needs to carry a trace.
func TestHandOverInside(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		b := newBackend()
		o := b.observer(t)
		c, err := natslock.New(t.Context(), s.Connect(), admin.WithObserver(o.Observe))
		require.NoError(t, err)
		defer closeNow(c)
		handOver(t, b, untraced, c, c)
		golden(t, "testdata/inside.txt", rendered(b.spans.GetSpans()))
	})
}

// TestEnds checks the spans and metrics for every way in which a hold or a wait can end.
func TestEnds(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		b := newBackend()
		c, other := b.process(t, s), b.process(t, s)
		ctx := t.Context()

		lost, err := c.Lock(ctx, "lost", natslock.TTL(5*time.Second), natslock.NoRenew())
		require.NoError(t, err)
		<-lost.Context().Done()
		ended, err := c.Lock(ctx, "ended", natslock.Until(time.Now().Add(4*time.Second)))
		require.NoError(t, err)
		<-ended.Context().Done()
		broken, err := c.Lock(ctx, "broken")
		require.NoError(t, err)
		time.Sleep(2 * time.Second)
		_, err = other.Lock(ctx, "broken", natslock.MaxWait(time.Second))
		require.ErrorIs(t, err, natslock.ErrTimeout)
		leaving, leave := context.WithCancel(ctx)
		time.AfterFunc(time.Second, leave)
		_, err = other.Lock(leaving, "broken")
		require.ErrorIs(t, err, context.Canceled)
		require.NoError(t, admin.New(other).Break(ctx, admin.BreakRequest{Name: "broken", ID: broken.ID(), Reason: "test"}))
		<-broken.Context().Done()
		require.ErrorIs(t, broken.Unlock(ctx), natslock.ErrBroken)
		closed, err := c.Lock(ctx, "closed")
		require.NoError(t, err)
		held, err := other.Lock(ctx, "held.1")
		require.NoError(t, err)
		time.Sleep(time.Second)
		closeNow(c)
		require.ErrorIs(t, closed.Err(), natslock.ErrClosed)
		time.Sleep(time.Millisecond)
		golden(t, "testdata/ends.txt", rendered(b.spans.GetSpans()))

		var got metricdata.ResourceMetrics
		require.NoError(t, b.reader.Collect(ctx, &got))
		require.Len(t, got.ScopeMetrics, 1)
		golden(t, "testdata/metrics.txt", measured(got.ScopeMetrics[0].Metrics))
		runtime.KeepAlive(held)
	})
}

// measured returns the metrics as text, one line per data point.
func measured(all []metricdata.Metrics) string {
	var lines []string
	point := func(m metricdata.Metrics, set attribute.Set, format string, values ...any) {
		lines = append(lines, fmt.Sprintf("%s (%s) {%s} ", m.Name, m.Unit, set.Encoded(attribute.DefaultEncoder()))+fmt.Sprintf(format, values...))
	}
	for _, m := range all {
		switch data := m.Data.(type) {
		case metricdata.Histogram[float64]:
			for _, p := range data.DataPoints {
				point(m, p.Attributes, "count %d sum %.3f", p.Count, p.Sum)
			}
		case metricdata.Sum[int64]:
			for _, p := range data.DataPoints {
				point(m, p.Attributes, "sum %d", p.Value)
			}
		case metricdata.Gauge[int64]:
			for _, p := range data.DataPoints {
				point(m, p.Attributes, "is %d", p.Value)
			}
		default:
			lines = append(lines, fmt.Sprintf("%s: unknown %T", m.Name, data))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n") + "\n"
}

// TestWaiting checks that the gauge equals the number in Stats.
func TestWaiting(t *testing.T) {
	b := newBackend()
	o := b.observer(t)
	locks := locktest.New(admin.WithObserver(o.Observe))
	defer locks.Close()
	o.Add(locks.Client())
	release := locks.Hold("orders.1")
	done := make(chan error, 1)
	go func() {
		done <- locks.Do(t.Context(), "orders.1", func(context.Context, *natslock.Lock) error { return nil })
	}()
	require.NoError(t, locks.AwaitWaiting(t.Context(), "orders.1", 1))
	var got metricdata.ResourceMetrics
	require.NoError(t, b.reader.Collect(t.Context(), &got))
	for _, m := range got.ScopeMetrics[0].Metrics {
		if m.Name == "natslock.waiting" {
			metricdatatest.AssertEqual(t, metricdata.Metrics{Name: "natslock.waiting", Description: "Acquires currently queued, over all names.", Unit: "{acquire}",
				Data: metricdata.Gauge[int64]{DataPoints: []metricdata.DataPoint[int64]{{Value: 1}}}}, m, metricdatatest.IgnoreTimestamp())
		}
	}
	release()
	require.NoError(t, <-done)
}

// TestSuite checks that a client with an Observer still fulfils the contract of a Locker.
func TestSuite(t *testing.T) {
	locktest.TestLocker(t, func(t *testing.T) natslock.Locker {
		b := newBackend()
		o := b.observer(t)
		locks := locktest.New(admin.WithObserver(o.Observe))
		o.Add(locks.Client())
		t.Cleanup(locks.Close)
		return locks
	})
}

// TestTrace checks that the metadata carries the span, but only if there is one.
func TestTrace(t *testing.T) {
	b := newBackend()
	ctx, span := b.begin(t.Context(), "request")
	defer span.End()
	locks := locktest.New()
	defer locks.Close()
	for _, c := range []struct {
		ctx  context.Context
		want map[string]string
	}{
		{t.Context(), map[string]string{"k": "v"}},
		{ctx, map[string]string{"k": "v", "traceparent": fmt.Sprintf("00-%s-%s-01", span.SpanContext().TraceID(), span.SpanContext().SpanID())}},
	} {
		given := map[string]string{"k": "v"}
		l, err := locks.Lock(t.Context(), "orders.1", natslockotel.Trace(c.ctx, given))
		require.NoError(t, err)
		require.Equal(t, c.want, locks.Inspect(admin.KindMutex, "orders.1").Holder.Meta)
		require.NoError(t, l.Unlock(t.Context()))
		require.Len(t, given, 1)
	}
}

// TestNames checks that attributes are valid UTF-8 even if a name is not.
func TestNames(t *testing.T) {
	b := newBackend()
	o := b.observer(t)
	o.Observe(t.Context(), admin.Event{Type: admin.EventGranted, Name: "\xff.1", ID: "1", Time: time.Now()})
	o.Observe(t.Context(), admin.Event{Type: admin.EventReleased, Name: "\xff.1", ID: "1", Time: time.Now()})
	o.Observe(t.Context(), admin.Event{Type: admin.EventReleased, Name: "never granted", ID: "2", Time: time.Now()})
	spans := b.spans.GetSpans()
	require.Len(t, spans, 2)
	text, err := json.Marshal(spans[0].Attributes)
	require.NoError(t, err)
	require.Contains(t, string(text), "\uFFFD.1")
}

// TestReadme checks that the code in the README comes from the examples.
func TestReadme(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	examples, err := os.ReadFile("example_test.go")
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllSubmatch(readme, -1)
	require.NotEmpty(t, blocks)
	tabs := regexp.MustCompile(`(?m)^\t+`)
	for _, block := range blocks {
		require.Contains(t, tabs.ReplaceAllString(string(examples), ""), tabs.ReplaceAllString(string(block[1]), ""))
	}
	require.Less(t, strings.Count(string(readme), "\n"), 60, "one screen")
}
