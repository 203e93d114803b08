//go:build unix

package main_test

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

// client returns a library client inside the test process, which saves a process per lock.
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

// TestBrokenPipe checks that ls ends quietly when the reader of its output has exited, as every
// tool in a pipeline should.
func TestBrokenPipe(t *testing.T) {
	t.Parallel()
	s := serve(t)
	c := client(t, s)
	for i := range 500 { // more than a pipe buffers
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

// TestListIsFast checks that listing 10,000 locks takes fewer than 100 requests and less than a
// second of CPU time. It only logs the elapsed time, because the machine may be busy.
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
