package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
)

// TestFullCluster has clients on three servers take locks as fast as they can until the bucket is
// full. No lease may end: the clients leave the room that renewals need, and take locks again once
// there is more.
func TestFullCluster(t *testing.T) {
	tier.Proof(t)
	cl := runCluster(t)
	small := natslock.WithBucketConfig(kvstore.Config{Replicas: 3, MaxBytes: 512 << 10})
	const clients, ttl = 4, 3 * time.Second
	var mu sync.Mutex
	var held []*natslock.Lock
	var all []*natslock.Client
	var wg sync.WaitGroup
	until := time.Now().Add(6 * ttl)
	for i := range clients {
		c := kit.NewClient(t, cl.Connect(), small, natslock.WithTTL(ttl), patient)
		all = append(all, c)
		wg.Go(func() {
			refused := 0
			for n := 0; time.Now().Before(until); n++ {
				l, err := c.TryLock(context.Background(), fmt.Sprintf("l%d-%d", i, n), natslock.Detached())
				switch {
				case err == nil:
					mu.Lock()
					held = append(held, l)
					mu.Unlock()
				case !errors.Is(err, natslock.ErrUnavailable):
					t.Error(err)
				default:
					refused++
					time.Sleep(time.Millisecond)
				}
			}
			if refused == 0 {
				t.Error("the bucket was never full")
			}
		})
	}
	wg.Wait()
	for i, c := range all {
		require.Zero(t, c.Stats().Lost, "of client %d, of %d", i, len(held))
	}
	t.Logf("%d locks held", len(held))
	_, err := all[0].TryLock(t.Context(), "one more")
	require.ErrorIs(t, err, kvstore.ErrFull)
	require.ErrorIs(t, err, natslock.ErrUnavailable)
	require.ErrorIs(t, all[0].Healthy(), kvstore.ErrFull)
	waiting := make(chan error, 1)
	go func() {
		l, err := all[0].Lock(context.Background(), "one more", natslock.Detached())
		if err == nil {
			err = l.Unlock(context.Background())
		}
		waiting <- err
	}()
	for _, l := range held {
		require.NoError(t, l.Unlock(t.Context()))
	}
	require.NoError(t, kit.Receive(t, waiting, "the waiter, as soon as there is room"))
}
