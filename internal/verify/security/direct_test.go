package security_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/election"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
)

// TestDirectGetsOff switches direct gets off, after which this user can read nothing. An election and a partition
// worker carry on once they are on again, because no permission was refused that anybody could have granted in
// the meantime.
func TestDirectGetsOff(t *testing.T) {
	t.Parallel()
	a := open(t)
	a.as("admin")
	root := kit.JetStream(t, a.connect(all).nc)
	direct := func(on bool) {
		t.Helper()
		stream, err := root.Stream(t.Context(), "KV_natslock")
		require.NoError(t, err)
		c := stream.CachedInfo().Config
		c.AllowDirect = on
		_, err = root.UpdateStream(t.Context(), c)
		require.NoError(t, err)
	}
	first, second := a.as("orders"), a.as("orders")
	held := kit.Must(t, first.Lock, "orders.leader")
	direct(false)
	_, err := bounded(t, second.TryLock, "orders.leader")
	require.ErrorIs(t, err, natslock.ErrUnavailable)
	require.NotErrorIs(t, err, natslock.ErrPermission)
	require.ErrorContains(t, err, "lockctl init")

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	elected := make(chan error, 1)
	go func() {
		_, err := election.New(second.Client, "orders.leader").Campaign(ctx)
		elected <- err
	}()
	g, _, ended := joined(t, second, "orders.fleet", "worker")
	kit.Eventually(t, "it waits", func() bool { return second.Stats().Waiting == 1 || len(elected) > 0 })
	direct(true)
	kit.Unlock(t, held)
	require.NoError(t, <-elected)
	kit.Eventually(t, "the worker owns all", func() bool { return len(g.Owned()) == groupCount || len(ended) > 0 })
	require.Empty(t, ended)
}
