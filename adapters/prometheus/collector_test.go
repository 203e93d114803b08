package natslockprom_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"
	"github.com/stretchr/testify/require"

	natslockprom "github.com/natslock/locks/adapters/prometheus"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/locktest"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	natstest "github.com/natslock/locks/testutil"
)

func TestMain(m *testing.M) { kit.LeakCheck(m) }

var update = flag.Bool("update", false, "write the golden files")

// golden compares the metrics of a collector with a golden file.
func golden(t *testing.T, c prometheus.Collector, file string) {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	require.NoError(t, r.Register(c))
	if *update {
		families, err := r.Gather()
		require.NoError(t, err)
		var b strings.Builder
		for _, f := range families {
			_, err := expfmt.MetricFamilyToText(&b, f)
			require.NoError(t, err)
		}
		require.NoError(t, os.WriteFile(file, []byte(b.String()), 0o644))
	}
	want, err := os.Open(file)
	require.NoError(t, err)
	defer want.Close()
	require.NoError(t, testutil.GatherAndCompare(r, want))
	problems, err := testutil.GatherAndLint(r)
	require.NoError(t, err)
	require.Empty(t, problems)
}

// settle lets the observer's goroutine catch up.
const settle = time.Millisecond

// TestMetrics covers a hand-over, an abandoned wait, a lost lock, a broken lock and a lock that is
// still held. The server is real but the time is fake, so the times in the golden file are exact.
func TestMetrics(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, s *natstest.Server) {
		ctx := t.Context()
		metrics := natslockprom.New(natslockprom.Names("orders.1", "stock"))
		connect := func() *natslock.Client {
			c, err := natslock.New(ctx, s.Connect(), admin.WithObserver(metrics.Observe))
			require.NoError(t, err)
			metrics.Add(c)
			t.Cleanup(func() {
				ended, end := context.WithCancel(context.Background())
				end()
				_ = c.Close(ended)
			})
			return c
		}
		a := connect()
		b := connect()

		first, err := a.Lock(ctx, "orders.1")
		require.NoError(t, err)
		var second *natslock.Lock
		done := make(chan error, 1)
		go func() {
			var err error
			second, err = b.Lock(ctx, "orders.1", natslock.NoRenew(), natslock.TTL(10*time.Second))
			done <- err
		}()
		time.Sleep(2 * time.Second)
		require.NoError(t, first.Unlock(ctx))
		require.NoError(t, <-done)
		_, err = a.Lock(ctx, "orders.1", natslock.MaxWait(7*time.Second))
		require.ErrorIs(t, err, natslock.ErrTimeout)
		<-second.Context().Done() // ends a tenth of the TTL before the lease does
		require.ErrorIs(t, second.Err(), natslock.ErrLost)

		broken, err := a.Lock(ctx, "reports.daily", natslock.TTL(5*time.Second))
		require.NoError(t, err)
		time.Sleep(3 * time.Second)
		require.NoError(t, admin.New(b).Break(ctx, admin.BreakRequest{Name: "reports.daily", ID: broken.ID()}))
		<-broken.Context().Done()
		require.ErrorIs(t, broken.Unlock(ctx), natslock.ErrBroken)

		until, err := a.Lock(ctx, "orders.2", natslock.Until(time.Now().Add(10*time.Second)))
		require.NoError(t, err)
		<-until.Context().Done()
		require.ErrorIs(t, until.Err(), natslock.ErrEnded)

		held, err := a.Lock(ctx, "orders.3")
		require.NoError(t, err)
		waiting, leave := context.WithCancel(ctx)
		go func() {
			_, err := b.Lock(waiting, "orders.3")
			done <- err
		}()
		time.Sleep(settle)
		golden(t, metrics, "testdata/metrics.txt")

		leave()
		require.ErrorIs(t, <-done, natslock.ErrTimeout)
		runtime.KeepAlive(held)
	})
}

// TestClosed checks that a lock still held when its client is closed counts as lost for that
// reason.
func TestClosed(t *testing.T) {
	metrics := natslockprom.New()
	locks := locktest.New(admin.WithObserver(metrics.Observe))
	defer locks.Close()
	l, err := locks.Lock(t.Context(), "orders.1")
	require.NoError(t, err)
	ended, end := context.WithCancel(t.Context())
	end()
	require.Error(t, locks.Client().Close(ended))
	require.ErrorIs(t, l.Err(), natslock.ErrClosed)
	require.Equal(t, 1, testutil.CollectAndCount(metrics, "natslock_held"))
	require.NoError(t, testutil.CollectAndCompare(metrics, strings.NewReader(`
# HELP natslock_lost_total Locks that ended without an unlock before their planned end.
# TYPE natslock_lost_total counter
natslock_lost_total{cause="broken",lock="orders"} 0
natslock_lost_total{cause="closed",lock="orders"} 1
natslock_lost_total{cause="expired",lock="orders"} 0
# HELP natslock_held Locks currently held.
# TYPE natslock_held gauge
natslock_held{lock="orders"} 0
`), "natslock_lost_total", "natslock_held"))
}

// TestFewLabels checks that names beyond the limit share a label, and that none is dropped.
func TestFewLabels(t *testing.T) {
	metrics := natslockprom.New(natslockprom.Labels(func(name string) string { return name }))
	for i := range 3 * natslockprom.MaxLabels {
		metrics.Observe(t.Context(), admin.Event{Type: admin.EventGranted, Name: strings.Repeat("x", i+1), ID: "1", Time: time.Now()})
	}
	require.Equal(t, natslockprom.MaxLabels+1, testutil.CollectAndCount(metrics, "natslock_held"))
	require.NoError(t, testutil.CollectAndCompare(natslockprom.New(), strings.NewReader(""), "natslock_held"))
}

// TestSuite checks that a client with the collector still fulfils the contract of a Locker.
func TestSuite(t *testing.T) {
	locktest.TestLocker(t, func(t *testing.T) natslock.Locker {
		metrics := natslockprom.New()
		locks := locktest.New(admin.WithObserver(metrics.Observe))
		metrics.Add(locks.Client())
		t.Cleanup(locks.Close)
		return locks
	})
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

// TestRenewalLag checks that the lag shows how late the renewals of a cut-off client are, and that
// with several clients the largest lag is reported.
func TestRenewalLag(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, s *natstest.Server) {
		metrics := natslockprom.New()
		for _, cut := range []bool{true, false} {
			nc, link := s.ConnectLink()
			c, err := natslock.New(t.Context(), nc)
			require.NoError(t, err)
			metrics.Add(c)
			l, err := c.Lock(t.Context(), fmt.Sprint("cut ", cut))
			require.NoError(t, err)
			t.Cleanup(func() {
				link.Heal()
				require.NoError(t, l.Unlock(context.Background()))
				require.NoError(t, c.Close(context.Background()))
			})
			link.Blackhole(cut)
		}
		time.Sleep(8 * time.Second)
		r := prometheus.NewPedanticRegistry()
		require.NoError(t, r.Register(metrics))
		families, err := r.Gather()
		require.NoError(t, err)
		for _, f := range families {
			if f.GetName() == "natslock_renewal_lag_seconds" {
				require.InDelta(t, 3, f.GetMetric()[0].GetGauge().GetValue(), 0.2)
				return
			}
		}
		require.Fail(t, "not served")
	})
}

var errTest = errors.New("test")

// TestUnknown checks that events of holders whose grant the Collector has not seen leave the gauges
// unchanged.
func TestUnknown(t *testing.T) {
	metrics := natslockprom.New(natslockprom.Names("orders"))
	metrics.Observe(t.Context(), admin.Event{Type: admin.EventExpired, Name: "orders", ID: "1", Cause: errTest})
	metrics.Observe(t.Context(), admin.Event{Type: admin.EventReleased, Name: "orders", ID: "1"})
	metrics.Observe(t.Context(), admin.Event{Type: admin.EventRenewed, Name: "stock", ID: "1"})
	require.NoError(t, testutil.CollectAndCompare(metrics, strings.NewReader(`
# HELP natslock_held Locks currently held.
# TYPE natslock_held gauge
natslock_held{lock="orders"} 0
`), "natslock_held"))
	require.Zero(t, testutil.CollectAndCount(metrics, "natslock_waiting", "natslock_renewal_lag_seconds"))
}
