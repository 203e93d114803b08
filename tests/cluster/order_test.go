package cluster_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
)

// TestOrderOverElection kills the stream's leader while a hundred clients of the other servers wait
// for a lock. They must keep their places and be served in the order in which they queued.
func TestOrderOverElection(t *testing.T) {
	tier.Proof(t)
	const clients = 100
	cl := runCluster(t)
	keeper := kit.NewClient(t, cl.Connect(), r3, patient)
	leader := cl.Index(cl.WaitStreamLeader(t, kit.StreamName))
	l := kit.Must(t, keeper.Lock, "l")
	served := make(chan int, clients)
	var all sync.WaitGroup
	defer all.Wait()
	for i := range clients {
		c := kit.NewClient(t, cl.ConnectTo((leader+1+i%2)%3), r3, patient)
		all.Go(func() {
			l, err := c.Lock(t.Context(), "l", natslock.MaxWait(kit.Patience))
			served <- i
			if err == nil {
				err = l.Unlock(t.Context())
			}
			if err != nil {
				t.Errorf("client %d: %v", i, err)
			}
		})
		kit.Eventually(t, "it is queued", func() bool { return c.Stats().Waiting == 1 })
	}
	cl.Kill(leader)
	cl.WaitStreamLeader(t, kit.StreamName)
	kit.Eventually(t, "the queue is as it was", func() bool {
		info, err := admin.New(keeper).Inspect(t.Context(), admin.KindMutex, "l")
		return err == nil && len(info.Queue) == clients
	})
	require.NoError(t, l.Unlock(t.Context()))
	var order []int
	for range clients {
		order = append(order, kit.Receive(t, served, "a grant"))
	}
	require.IsIncreasing(t, order)
}
