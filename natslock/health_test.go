package natslock_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

// A client that holds nothing any more has learnt from its release that nothing is
// stored.
func TestHealthyAfterUnansweredRelease(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := join(t, s)
		l := mustLock(t, c.Client, "l")
		c.link.Blackhole(true)
		require.NoError(t, c.Healthy())
		_ = l.Unlock(t.Context())
		time.Sleep(5 * time.Second)
		err := c.Healthy()
		require.ErrorIs(t, err, natslock.ErrUnavailable)
		require.ErrorContains(t, err, `"lock.l" has gone unanswered`)
		c.link.Heal()
		mustUnlock(t, mustLock(t, c.Client, "after"))
		require.NoError(t, c.Healthy())
	})
}

// A closed client says so, also where its connection was closed before.
func TestHealthyClosed(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		nc := s.Connect()
		c := newClient(t, nc)
		mustUnlock(t, mustLock(t, c, "l"))
		nc.Close()
		require.ErrorIs(t, c.Healthy(), natslock.ErrUnavailable)
		require.NoError(t, c.Close(t.Context()))
		require.ErrorIs(t, c.Healthy(), natslock.ErrClosed)
	})
}
