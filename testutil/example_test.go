package testutil_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

// A day passes at once, for the server too.
func ExampleBubble() {
	// In a test:
	_ = func(t *testing.T) {
		testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
			locks, err := natslock.New(t.Context(), s.Connect())
			require.NoError(t, err)
			defer locks.Close(context.Background())
			l, err := locks.Lock(t.Context(), "daily", natslock.NoRenew(), natslock.TTL(24*time.Hour))
			require.NoError(t, err)
			time.Sleep(25 * time.Hour)
			require.ErrorIs(t, l.Unlock(t.Context()), natslock.ErrLost)
		})
	}
}

// A lock outlives the server that leads its bucket.
func ExampleRunCluster() {
	// In a test:
	_ = func(t *testing.T) {
		c := testutil.RunCluster(t, 3)
		locks, err := natslock.New(t.Context(), c.Connect(), natslock.WithReplicas(3))
		require.NoError(t, err)
		defer locks.Close(context.Background())
		l, err := locks.Lock(t.Context(), "orders.42")
		require.NoError(t, err)
		leader := c.WaitStreamLeader(t, "KV_natslock")
		c.Kill(c.Index(leader))
		c.WaitStreamLeader(t, "KV_natslock")
		require.NoError(t, l.Extend(t.Context(), 0))
		require.NoError(t, l.Unlock(t.Context()))
	}
}

// A client that is cut off loses its lock.
func ExampleLink() {
	// In a test:
	_ = func(t *testing.T) {
		testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
			nc, link := s.ConnectLink()
			locks, err := natslock.New(t.Context(), nc)
			require.NoError(t, err)
			defer locks.Close(context.Background())
			l, err := locks.Lock(t.Context(), "orders.42")
			require.NoError(t, err)
			link.Cut()
			<-l.Context().Done()
			require.ErrorIs(t, l.Err(), natslock.ErrLost)
			link.Heal()
		})
	}
}
