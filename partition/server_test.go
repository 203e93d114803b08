package partition_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/partition"
	"github.com/natslock/locks/testutil"
)

// TestOnServer runs four workers on a server. They share the partitions and hand them over when one
// leaves, and no two work on the same partition at once. A user with permissions for just the
// group's names is enough.
func TestOnServer(t *testing.T) {
	const count = 16
	s := testutil.RunServer(t)
	ledger := newLedger()
	shared := make(chan struct{}, 1000)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	begin := func(ctx context.Context, id string) *partition.Group {
		locks, err := natslock.New(t.Context(), s.Connect())
		require.NoError(t, err)
		t.Cleanup(func() { _ = locks.Close(context.Background()) })
		g := partition.New(locks, name, count, partition.ID(id))
		running.Go(func() {
			err := g.Run(ctx, func(ctx context.Context, p *partition.Partition) error {
				defer ledger.begin(id, p)()
				shared <- struct{}{}
				return until(ctx, p)
			})
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", id, err)
			}
		})
		return g
	}
	first := begin(ctx, "w0")
	for range count {
		<-shared
	}
	leaving, leave := context.WithCancel(ctx)
	begin(leaving, "w1")
	for range count / 2 {
		<-shared
	}
	state, err := partition.Inspect(t.Context(), locksOf(t, s), name)
	require.NoError(t, err)
	require.Equal(t, count, state.Count)
	require.Equal(t, []string{"w0", "w1"}, []string{state.Members[0].ID, state.Members[1].ID})
	leave()
	for range count / 2 {
		<-shared
	}
	require.Equal(t, map[string]int{"w0": count}, ledger.owned())
	require.Len(t, first.Owned(), count)
	_, gaps := ledger.take()
	t.Logf("gaps: %v", gaps)
	cancel()
	running.Wait()
	require.Empty(t, ledger.wrong)
	require.Empty(t, first.Owned())
	state, err = partition.Inspect(t.Context(), locksOf(t, s), name)
	require.NoError(t, err)
	require.Empty(t, state.Members)
	require.Empty(t, state.Partitions)
}

func locksOf(t *testing.T, s *testutil.Server) *natslock.Client {
	locks, err := natslock.New(t.Context(), s.Connect())
	require.NoError(t, err)
	t.Cleanup(func() { _ = locks.Close(context.Background()) })
	return locks
}
