package natslock_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

// On three replicas a lock travels from client to client, each on a server of its own. The
// replica that answers an adopter may lag: the adopter finds the hand-over all the same,
// and the second one the adoption.
func TestClusterHandoff(t *testing.T) {
	if testing.Short() {
		t.Skip("a cluster takes seconds; -short was given")
	}
	t.Parallel()
	cl := testutil.RunCluster(t, 3)
	var clients []*natslock.Client
	for range 3 {
		clients = append(clients, kit.NewClient(t, cl.Connect(), r3, natslock.WithTTL(20*time.Second)))
	}
	l := kit.Must(t, clients[0].Lock, "l")
	token := l.Token()
	for i := range 60 {
		h := kit.HandOff(t, l)
		next, err := clients[(i+1)%len(clients)].Adopt(context.Background(), h)
		require.NoError(t, err)
		require.Equal(t, token, next.Token())
		_, err = clients[i%len(clients)].Adopt(context.Background(), h)
		require.ErrorIs(t, err, natslock.ErrNotHandedOver)
		require.ErrorIs(t, err, natslock.ErrLocked)
		l = next
	}
	kit.Unlock(t, l)
}
