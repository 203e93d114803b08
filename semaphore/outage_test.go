package semaphore_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/semaphore"
	"github.com/natslock/locks/testutil"
)

// TestOutageIsNoBusySemaphore checks that a wait that timed out because of an outage says so, for
// both a newcomer and a queued waiter. A wait for others that hold the permits does not.
func TestOutageIsNoBusySemaphore(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		holder, c := join(t, s), join(t, s)
		l := must(t, semaphore.New(holder.Client, 1), "s")
		wait := func(name string, limit time.Duration) error {
			_, err := semaphore.New(c.Client, 1).Acquire(context.Background(), name, natslock.MaxWait(limit))
			require.ErrorIs(t, err, natslock.ErrTimeout)
			return err
		}
		require.NotErrorIs(t, wait("s", 3*time.Second), natslock.ErrUnavailable)
		waiter := make(chan error, 1)
		go func() { waiter <- wait("s", 12*time.Second) }()
		<-c.queued
		time.Sleep(time.Second)
		c.link.Blackhole(true)
		require.ErrorIs(t, wait("free", 3*time.Second), natslock.ErrUnavailable)
		require.ErrorIs(t, <-waiter, natslock.ErrUnavailable)
		c.link.Heal()
		require.NoError(t, l.Unlock(context.Background()))
	})
}
