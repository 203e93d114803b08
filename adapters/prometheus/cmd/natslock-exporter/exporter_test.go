package main

import (
	"context"
	"flag"
	"os"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/tool"
	"github.com/natslock/locks/natslock"
	lockadmin "github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

var update = flag.Bool("update", false, "write the golden files")

// golden compares text with a golden file.
func golden(t *testing.T, file, text string) {
	t.Helper()
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), text, "run the test with -update if this is meant")
}

var (
	ownFamily = regexp.MustCompile(`^(# (HELP|TYPE) )?natslock_`)
	bucketOf  = regexp.MustCompile(`_seconds_bucket{`)
	lag       = regexp.MustCompile(`^(natslock_bucket_renewal_lag_seconds{.*}) [0-9.e+-]+$`)
	measured  = regexp.MustCompile(`^(natslock_bucket_(?:\w+_seconds|waited_seconds_total|handover_seconds_sum)(?:{.*})?) [0-9.e+-]+$`)
)

// steady removes from the metrics what differs between runs: measured times and the metrics of the
// process.
func steady(metrics string) string {
	var b strings.Builder
	for line := range strings.Lines(metrics) {
		line = strings.TrimSuffix(line, "\n")
		if !ownFamily.MatchString(line) || bucketOf.MatchString(line) && !strings.Contains(line, `le="+Inf"`) {
			continue
		}
		line = lag.ReplaceAllString(line, "$1 0") // a renewal may be due right now
		if !strings.HasSuffix(line, " 0") {
			line = measured.ReplaceAllString(line, "$1 1.5")
		}
		b.WriteString(line + "\n")
	}
	return b.String()
}

// TestMetrics checks every metric after a hand-over, an abandoned wait, an expiry and a break.
func TestMetrics(t *testing.T) {
	t.Parallel()
	s := testutil.RunServer(t)
	a, _ := client(t, s)
	b, _ := client(t, s)
	p := follow(t, s, "--pattern=orders.>", "--pattern=reports.*")
	status, body := p.get("/healthz")
	require.Equal(t, 200, status, body)

	first := hold(t, a, "orders.1")
	got := later(t, b, "orders.1")
	p.shows(`natslock_bucket_queued{lock="orders.>"} 1`)
	c, _ := client(t, s)
	leaving, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		_, err := c.Lock(leaving, "orders.1")
		left <- err
	}()
	p.shows(`natslock_bucket_queued{lock="orders.>"} 2`, `natslock_bucket_longest_queue{lock="orders.>"} 2`)
	leave()
	require.ErrorIs(t, <-left, natslock.ErrTimeout)
	p.shows(`natslock_bucket_gave_up_total{lock="orders.>"} 1`, `natslock_bucket_queued{lock="orders.>"} 1`)
	unlock(t, first)
	second := <-got
	require.NotNil(t, second)
	defer runtime.KeepAlive(second)
	waiter := later(t, a, "orders.1")

	broken := hold(t, a, "reports.daily")
	require.NoError(t, lockadmin.New(b).Break(t.Context(), lockadmin.BreakRequest{Name: "reports.daily", ID: broken.ID(), Reason: "test"}))
	p.shows(`natslock_bucket_breaks_total{lock="reports.*"} 1`)
	require.ErrorIs(t, broken.Unlock(context.Background()), natslock.ErrBroken)

	dead, link := client(t, s)
	hold(t, dead, "stock", natslock.TTL(time.Second))
	link.Cut()
	p.shows(`natslock_bucket_expiries_total{lock="other"} 1`, `natslock_bucket_held{lock="reports.*"} 0`,
		`natslock_bucket_held{lock="orders.>"} 1`, `natslock_bucket_queued{lock="orders.>"} 1`)
	_, text := p.get("/metrics")
	golden(t, "testdata/metrics.txt", steady(text))
	require.Contains(t, text, "process_cpu_seconds_total")
	require.Equal(t, 0, p.stop())
	unlock(t, second)
	unlock(t, <-waiter)
}

// TestOutage checks that the gauges are missing while the server is down and afterwards reflect the
// locks that are left.
func TestOutage(t *testing.T) {
	t.Parallel()
	s := testutil.RunServer(t)
	c, _ := client(t, s, natslock.WithTTL(time.Minute))
	l := hold(t, c, "orders.1")
	hold(t, c, "orders.2")
	p := follow(t, s)
	p.shows(`natslock_exporter_up 1`, `natslock_exporter_gaps_total 0`, `natslock_bucket_held{lock="orders"} 2`)

	s.Stop()
	p.shows(`natslock_exporter_up 0`, `natslock_exporter_gaps_total 1`, `natslock_bucket_grants_total{lock="orders"} 0`)
	_, text := p.get("/metrics")
	require.NotContains(t, text, "natslock_bucket_held{")
	status, body := p.get("/healthz")
	require.Equal(t, 503, status)
	require.Contains(t, body, "lost the connection to nats://127.0.0.1:")

	s.Restart()
	p.shows(`natslock_exporter_up 1`, `natslock_exporter_gaps_total 1`, `natslock_bucket_held{lock="orders"} 2`)
	unlock(t, l)
	p.shows(`natslock_bucket_held{lock="orders"} 1`)
}

// TestBucketAgain checks that the exporter follows a bucket that was deleted and created again. A
// watch notices the deletion within ten seconds.
func TestBucketAgain(t *testing.T) {
	t.Parallel()
	s := testutil.RunServer(t)
	c, _ := client(t, s)
	hold(t, c, "orders.1")
	p := follow(t, s)
	p.shows(`natslock_bucket_held{lock="orders"} 1`)
	deleteBucket(t, s)
	again, _ := client(t, s)
	hold(t, again, "orders.1")
	hold(t, again, "orders.2")
	p.says("following the bucket", 2)
	p.shows(`natslock_exporter_up 1`, `natslock_exporter_gaps_total 1`, `natslock_bucket_held{lock="orders"} 2`)
}

// TestRefused checks that an exporter that cannot work says why and what to do.
func TestRefused(t *testing.T) {
	t.Parallel()
	s := testutil.RunServer(t, testutil.WithConfigText(permissions(t)))
	admin := clientOn(t, s.Connect(natsUser("admin")))
	hold(t, admin, "orders.1")
	for _, c := range []struct {
		name string
		args string
		code int
		says []string
	}{
		{"no login", "", tool.ExitPermission, []string{"refused the login", "--creds"}},
		{"wrong password", "--user=reader --password=x", tool.ExitPermission, []string{"refused the login"}},
		{"no notifications", "--user=deaf --password=secret", tool.ExitPermission, []string{"no permission to watch the locks > in bucket natslock", "lockctl perms --role observer"}},
		{"no reads", "--user=blind --password=secret", tool.ExitPermission, []string{"no permission to read the locks > in bucket natslock", "lockctl perms --role observer"}},
		{"no permission for a bucket", "--user=reader --password=secret --bucket=elsewhere", tool.ExitPermission, []string{"bucket elsewhere"}},
		{"no bucket", "--user=root --password=secret --bucket=elsewhere", tool.ExitConfig, []string{"there is no bucket elsewhere", "--bucket"}},
		{"no server", "--server=nats://127.0.0.1:1", tool.ExitUnavailable, []string{"no server at nats://127.0.0.1:1", "--server"}},
		{"a pattern that matches nothing", "--pattern=orders*", tool.ExitUsage, []string{`--pattern "orders*"`, "orders.*"}},
		{"names that match nothing", "--names=a..b", tool.ExitUsage, []string{`--names "a..b"`}},
		{"no address", "--user=reader --password=secret --listen=nowhere", tool.ExitUsage, []string{"--listen nowhere"}},
		{"an argument", "orders", tool.ExitUsage, []string{"natslock-exporter --help"}},
	} {
		args := strings.Fields(c.args)
		if !strings.Contains(c.args, "--server") {
			args = append(args, "--server="+s.URL())
		}
		p := launch(t, args...)
		require.Equal(t, c.code, p.exit(), "%s: %s", c.name, p.text())
		for _, text := range c.says {
			require.Contains(t, p.text(), text, c.name)
		}
		require.NotContains(t, p.text(), "secret", c.name)
	}

	// An observer limited to the names suffices.
	p := follow(t, s, "--user=reader", "--password=secret")
	p.shows(`natslock_bucket_held{lock="orders"} 1`)
	p = follow(t, s, "--user=narrow", "--password=secret", "--names=orders.>")
	p.shows(`natslock_bucket_held{lock="orders"} 1`)
}

// TestContext checks that the exporter finds the server through a context of the nats command, as
// lockctl does.
func TestContext(t *testing.T) {
	t.Parallel()
	s := testutil.RunServer(t)
	c, _ := client(t, s)
	hold(t, c, "orders.1")
	file := t.TempDir() + "/here.json"
	require.NoError(t, os.WriteFile(file, []byte(`{"url": "`+s.URL()+`"}`), 0o600))
	p := launch(t, "--context="+file)
	p.shows(`natslock_bucket_held{lock="orders"} 1`)
}
