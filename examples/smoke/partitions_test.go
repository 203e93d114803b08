//go:build unix

package smoke_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/partition"
	"github.com/natslock/locks/testutil"
)

// partitions runs three workers. One is killed, one is paused past its lease and wakes up, and all
// of them are replaced, with an outage in between. Each event must have exactly one result, and the
// results of a key must be in order. The tokens of a partition never decrease, which shows that no
// stale owner has written.
func partitions(t *testing.T, s *testutil.Server) {
	ctx, nc := t.Context(), s.Connect()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	locks, err := natslock.New(ctx, nc)
	require.NoError(t, err)
	begin := func() *process {
		p := start(t, s, "partitions", "-ttl", "2s", "-work", "20ms")
		p.await(`joined`)
		return p
	}
	await := func(what string, cond func() bool) {
		t.Helper()
		require.Eventually(t, cond, patience, 20*time.Millisecond, what)
	}
	// settled waits until exactly these processes own the partitions as planned.
	settled := func(of ...*process) {
		t.Helper()
		await("the partitions are shared out", func() bool {
			g, err := partition.Inspect(ctx, locks, "events")
			if err != nil || len(g.Members) != len(of) || len(g.Partitions) == 0 {
				return false
			}
			owners := map[int]bool{}
			for _, p := range g.Partitions {
				if p.Holder == nil || p.Member != p.Planned {
					return false
				}
				owners[p.Holder.PID] = true
			}
			for _, p := range of {
				if !owners[p.cmd.Process.Pid] {
					return false
				}
			}
			return len(owners) == len(of)
		})
	}
	const keys = 32
	each := 0 // events per key
	publish := func(n int) {
		for range n {
			each++
			for k := range keys {
				_, err := js.Publish(ctx, fmt.Sprintf("events.k%d", k), []byte(strconv.Itoa(each)))
				require.NoError(t, err)
			}
		}
	}
	results := func() (n int) {
		stream, err := js.Stream(ctx, "RESULTS")
		require.NoError(t, err)
		info, err := stream.Info(ctx, jetstream.WithSubjectFilter("results.>"))
		require.NoError(t, err)
		for _, of := range info.State.Subjects {
			n += int(of)
		}
		return n
	}
	worked := func(n int) {
		t.Helper()
		await("results", func() bool { return results() >= n })
	}

	a, b, c := begin(), begin(), begin()
	settled(a, b, c)
	publish(5)
	worked(2 * keys)
	require.NoError(t, a.cmd.Process.Kill()) // while it is processing events
	publish(5)
	worked(keys * each)
	settled(b, c)

	// b is paused in the middle of its events, and c takes them over. When b wakes up, it tries to
	// write what it has started.
	publish(10)
	worked(keys * (each - 5))
	require.NoError(t, b.cmd.Process.Signal(syscall.SIGSTOP))
	worked(keys * each)
	require.NoError(t, b.cmd.Process.Signal(syscall.SIGCONT))
	b.await(`superseded`)
	settled(b, c)

	s.Stop()
	s.Restart()
	publish(2)
	worked(keys * each)

	// All workers are replaced under load. A worker that shuts down finishes its current event.
	var publishing sync.WaitGroup
	rolling, rolled := context.WithCancel(ctx)
	publishing.Go(func() {
		for rolling.Err() == nil {
			publish(1)
			time.Sleep(100 * time.Millisecond)
		}
	})
	d := begin()
	settled(b, c, d)
	b.terminate()
	e := begin()
	settled(c, d, e)
	c.terminate()
	settled(d, e)
	rolled()
	publishing.Wait()
	worked(keys * each)
	d.terminate()
	e.terminate()
	for _, p := range []*process{d, e} {
		require.Empty(t, p.find(`superseded|: failed,|: lost,`))
	}

	// Check what the results stream contains.
	stored, err := js.OrderedConsumer(ctx, "RESULTS", jetstream.OrderedConsumerConfig{FilterSubjects: []string{"results.*.*"}})
	require.NoError(t, err)
	all, err := stored.Messages(jetstream.StopAfter(results()))
	require.NoError(t, err)
	defer all.Stop()
	last, token, owners := map[string]int{}, map[string]int{}, map[string]bool{}
	for range results() {
		m, err := all.Next(jetstream.NextMaxWait(patience))
		require.NoError(t, err)
		var k, key string
		_, err = fmt.Sscanf(m.Subject(), "results.%1s.%s", &k, &key)
		require.NoError(t, err)
		require.Equal(t, last[key]+1, number(t, string(m.Data())), "the results of %s", key)
		last[key]++
		now := number(t, m.Headers().Get("Fencing-Token"))
		require.GreaterOrEqual(t, now, token[k], "partition %s", k)
		token[k], owners[strconv.Itoa(now)] = now, true
	}
	require.Len(t, last, keys)
	for key, n := range last {
		require.Equal(t, each, n, key)
	}
	t.Logf("%d events, %d owners of %d partitions", keys*each, len(owners), len(token))
}
