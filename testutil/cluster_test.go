package testutil_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/testutil"
)

// put retries a write until it succeeds, because requests may go nowhere right after an election.
func put(t *testing.T, kv jetstream.KeyValue, value string) {
	t.Helper()
	kit.Eventually(t, "a write of "+value, func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		_, err := kv.PutString(ctx, "k", value)
		return err == nil
	})
}

// The tests of clusters run in parallel, because elections are mostly waiting. No bubble runs at
// the same time, since the tests that use bubbles are not parallel.

func TestClusterStepDownAndStop(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	c := testutil.RunCluster(t, 3)
	require.Len(t, c.Servers(), 3)
	nc := c.Connect()
	kv := bucket(t, nc, 3)
	put(t, kv, "1")

	first := c.StreamLeader("KV_b")
	require.NotNil(t, first)
	require.Nil(t, c.StreamLeader("KV_other"))
	for range 3 {
		c.StepDown(t, "KV_b")
		require.NotSame(t, first, c.StreamLeader("KV_b"))
		first = c.StreamLeader("KV_b")
		put(t, kv, "2")
	}

	// A graceful stop hands the leadership over.
	i := c.Index(first)
	url := first.URL()
	c.StopServer(i)
	require.NotSame(t, first, c.WaitStreamLeader(t, "KV_b"))
	put(t, kv, "3")
	c.Restart(i)
	require.Equal(t, url, first.URL())
	put(t, kv, "4")
	kit.Eventually(t, "the client is back", nc.IsConnected)
}

func TestClusterIsolate(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	c := testutil.RunCluster(t, 3)
	bucket(t, c.Connect(), 3)
	leader := c.WaitStreamLeader(t, "KV_b")
	i := c.Index(leader)
	kvOf := func(i int) jetstream.KeyValue {
		nc := c.ConnectTo(i)
		require.Equal(t, c.Servers()[i].URL(), nc.ConnectedUrl())
		js, err := jetstream.New(nc)
		require.NoError(t, err)
		// A reply can reach this server before the interest in it does, and nats.go does not retry by
		// itself.
		var kv jetstream.KeyValue
		kit.Eventually(t, "the bucket is found", func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			kv, err = js.KeyValue(ctx, "b")
			return err == nil
		})
		return kv
	}
	inside, outside := kvOf(i), kvOf((i+1)%3)

	c.Isolate(i)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	_, err := inside.PutString(ctx, "k", "lost")
	cancel()
	require.Error(t, err, "no quorum")
	require.NotSame(t, leader, c.WaitStreamLeader(t, "KV_b"))
	put(t, outside, "kept")

	c.Rejoin(i)
	kit.Eventually(t, "the isolated server learns", func() bool {
		e, err := inside.Get(context.Background(), "k")
		return err == nil && string(e.Value()) == "kept"
	})
}

func TestClusterKill(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	c := testutil.RunCluster(t, 3)
	nc := c.Connect()
	kv := bucket(t, nc, 3)
	leader := c.WaitStreamLeader(t, "KV_b")
	i := c.Index(leader)
	put(t, kv, "1")

	begin := time.Now()
	c.Kill(i)
	require.False(t, leader.Running())
	require.NotSame(t, leader, c.WaitStreamLeader(t, "KV_b"))
	require.Greater(t, time.Since(begin), 2*time.Second, "no client was notified")
	put(t, kv, "2")
	c.Restart(i)
	put(t, kv, "3")
	kit.Eventually(t, "the client is back", nc.IsConnected)
}

func TestClusterLink(t *testing.T) {
	t.Parallel()
	c := testutil.RunCluster(t, 2)
	up := make(chan struct{}, 1)
	nc, link := c.ConnectLink(nats.ReconnectHandler(func(*nats.Conn) { up <- struct{}{} }))
	link.Cut()
	kit.Eventually(t, "cut off from both", func() bool { return !nc.IsConnected() })
	kit.Eventually(t, "refused by both", func() bool { return link.Dials() > 4 })
	link.Heal()
	<-up
}
