//go:build unix

package main_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

// client is a client of the library in the test itself: locks without a process
// each.
func client(t *testing.T, s *testutil.Server, opts ...natslock.Option) *natslock.Client {
	t.Helper()
	c, err := natslock.New(timeout(t), s.Connect(), opts...)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = c.Close(ctx)
	})
	return c
}

func take(t *testing.T, c *natslock.Client, name string, opts ...natslock.LockOption) *natslock.Lock {
	t.Helper()
	l, err := c.Lock(timeout(t), name, append(opts, natslock.Detached())...)
	require.NoError(t, err)
	return l
}

func names(locks []lock) (names []string) {
	for _, l := range locks {
		names = append(names, l.Name)
	}
	return names
}

func TestListSortsAndWidens(t *testing.T) {
	t.Parallel()
	s := serve(t)
	c := client(t, s, natslock.WithOwner("worker"))
	take(t, c, "b", natslock.TTL(time.Hour), natslock.Meta(map[string]string{"job": "42"}))
	take(t, c, "c", natslock.TTL(2*time.Minute))
	began := time.Now().UnixMilli() // "since" is in milliseconds
	kit.Eventually(t, "the next millisecond", func() bool { return time.Now().UnixMilli() > began })
	l := take(t, c, "a", natslock.TTL(30*time.Minute))
	hold(t, s, "r", "--read", "--ttl", "90m")
	hold(t, s, "r", "--read", "--ttl", "90m")
	start(t, s, "run", "c", "--", "true")
	awaitQueue(t, s, "c", 1)

	require.Equal(t, []string{"a", "b", "c", "r"}, names(locks(t, s, "ls")))
	held := names(locks(t, s, "ls", "--sort", "held"))
	require.Equal(t, []string{"a", "r"}, held[2:])
	require.Equal(t, []string{"c", "a", "b", "r"}, names(locks(t, s, "ls", "--sort", "expires")))
	require.Equal(t, []string{"c", "a", "b", "r"}, names(locks(t, s, "ls", "--sort", "queue")))
	code, _, _ := run(t, s, "ls", "--sort", "colour")
	require.Equal(t, 64, code)

	_, out, _ := run(t, s, "ls", "--wide")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	require.Len(t, lines, 6, "a line for each reader")
	require.Equal(t, []string{"KIND", "NAME", "MODE", "HOLDER", "TOKEN", "HELD", "EXPIRES", "READERS", "QUEUE", "TTL", "REVISION", "ID", "META"}, strings.Fields(lines[0]))
	require.Regexp(t, `^mutex +a +exclusive +worker on \S+:\d+ +`+uintString(l.Token())+` +\S+ +\S+ +- +0 +30m0s +\d+ +\S+$`, lines[1])
	require.Regexp(t, `^mutex +b .* 1h0m0s .* job=42$`, lines[2])
	require.Regexp(t, `^rw +r +shared .* 2 +0 +1h30m0s +\d+ +\S+$`, lines[4])
	require.Regexp(t, `^rw +r +shared +\S+ sh +\d+ +\S+ +\S+ +1h30m0s +\d+ +\S+$`, lines[5])
}

// When the reader of its output has gone, ls ends quietly, like every tool in a pipe.
func TestBrokenPipe(t *testing.T) {
	t.Parallel()
	s := serve(t)
	c := client(t, s)
	for i := range 500 { // more than the pipe takes
		take(t, c, fmt.Sprintf("perf.%d.%s", i, strings.Repeat("x", 200)))
	}
	for _, args := range []string{"ls", "ls --json"} {
		cmd := exec.Command("bash", "-c", `set -o pipefail; "$0" -s "$1" `+args+` | head -n 1`, binary, s.URL())
		cmd.Env = append(cleanEnv(), "XDG_CONFIG_HOME="+t.TempDir())
		var errs strings.Builder
		cmd.Stderr = &errs
		out, err := cmd.Output()
		require.NotEmpty(t, out)
		require.Error(t, err)
		require.Equal(t, 141, cmd.ProcessState.ExitCode(), "%s: SIGPIPE", args)
		require.Empty(t, errs.String(), args)
	}
}

// To list 10,000 locks takes fewer than 100 requests and less than a second of computing.
// The test only logs the elapsed time, because other processes make the machine busy.
func TestListIsFast(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	s := serve(t)
	take(t, client(t, s, natslock.WithTuning(natslock.Tuning{WatchAfter: -1})), "many.00000", natslock.TTL(time.Hour))
	nc := s.Connect()
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(20_000))
	require.NoError(t, err)
	bucket, err := js.Stream(timeout(t), "KV_natslock")
	require.NoError(t, err)
	record, err := bucket.GetLastMsgForSubject(timeout(t), "$KV.natslock.lock.many.00000")
	require.NoError(t, err)
	const n = 10_000
	for i := 1; i < n; i++ {
		_, err := js.PublishAsync(fmt.Sprintf("$KV.natslock.lock.many.%05d", i), record.Data, jetstream.WithMsgTTL(time.Hour))
		require.NoError(t, err)
	}
	select {
	case <-js.PublishAsyncComplete():
	case <-timeout(t).Done():
		t.Fatal("the locks are not there")
	}
	received := func() int64 {
		v, err := s.Server().Varz(nil)
		require.NoError(t, err)
		return v.InMsgs
	}
	before, began := received(), time.Now()
	p := start(t, s, "ls")
	require.Zero(t, p.wait(), p.err)
	took, requests, work := time.Since(began), received()-before, p.cmd.ProcessState.UserTime()+p.cmd.ProcessState.SystemTime()
	require.Equal(t, n+1, strings.Count(p.out.String(), "\n"))
	t.Logf("%d locks listed in %v, with %d requests and %v of computing", n, took, requests, work)
	require.Less(t, requests, int64(100))
	require.Less(t, work, time.Second)
}

// A pattern that cannot match what its writer means says so, and so does a pattern where a
// name is wanted.
func TestWildcardsMisplaced(t *testing.T) {
	t.Parallel()
	s := serve(t)
	hold(t, s, "orders.1")
	const literal = "matches only a lock of that very name"
	for _, pattern := range []string{"orders*", "orders.1*", "orders.>.x", "o*.1", ">1"} {
		for _, args := range [][]string{{"ls"}, {"ls", "--json"}, {"perms"}} {
			code, _, errs := run(t, s, append(args, pattern)...)
			require.Zero(t, code)
			require.Contains(t, errs, strconv.Quote(pattern)+" "+literal, "%q", args)
		}
	}
	said(t, start(t, s, "watch", "orders*"), literal)
	for _, pattern := range []string{"orders.*", "orders.>", ">", "*.1", "nothing"} {
		for _, args := range [][]string{{"ls"}, {"perms"}} {
			code, _, errs := run(t, s, append(args, pattern)...)
			require.Zero(t, code)
			require.NotContains(t, errs, literal)
		}
	}
	code, _, errs := run(t, s, "break", "-f", "orders.*")
	require.Equal(t, 1, code)
	require.Equal(t, "lockctl: orders.* is free, there is nothing to break; this takes the name of one lock and no pattern, which \"lockctl ls 'orders.*'\" takes\n", errs)
	code, out, errs := run(t, s, "info", "orders.*")
	require.Zero(t, code)
	require.Equal(t, "orders.* is free\n", out)
	require.Contains(t, errs, "no lock has the name orders.*; this takes the name of one lock")
	_, _, errs = run(t, s, "info", "orders")
	require.Empty(t, errs)
	code, _, errs = run(t, s, "run", "a*", "--", binary, "-s", s.URL(), "ls", "a*")
	require.Zero(t, code, errs)
	require.Empty(t, errs, "a lock has that name")
}

// A number is one of seconds for every flag that is a duration. The JSON has for how long a
// lock is held, was waited for, and is waited for.
func TestSeconds(t *testing.T) {
	t.Parallel()
	s := serve(t)
	began := time.Now()
	first, _ := hold(t, s, "x", "--ttl", "20", "--kill-after", "1.5")
	next := start(t, s, "--timeout", "30", "run", "--ttl", "30", "-w", "60", "x", "--", "sleep", "60")
	awaitQueue(t, s, "x", 1)
	type times struct {
		TTL, Held, Waited float64
		Since             time.Time
	}
	show := func() (l struct {
		Holder times
		Queue  []times
	}) {
		t.Helper()
		_, out, _ := run(t, s, "ls", "--json")
		require.NoError(t, json.Unmarshal([]byte(strings.Trim(strings.TrimSpace(out), "[]")), &l), out)
		return l
	}
	l := show()
	require.Equal(t, 20.0, l.Holder.TTL)
	require.Zero(t, l.Holder.Waited)
	for _, seconds := range []float64{l.Holder.Held, l.Queue[0].Waited} {
		require.Greater(t, seconds, 0.0)
		require.LessOrEqual(t, seconds, time.Since(began).Seconds())
	}
	first.signal(syscall.SIGTERM)
	first.wait()
	await(t, s, "x", "the next, whose place goes after its grant", func(l lock) bool {
		return l.Holder != nil && l.Holder.PID == next.cmd.Process.Pid && len(l.Queue) == 0
	})
	l = show()
	require.Equal(t, 30.0, l.Holder.TTL)
	require.Greater(t, l.Holder.Waited, 0.0)
}
