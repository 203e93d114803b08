package rwlock_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

// TestOutageIsNoBusyLock checks that a wait that timed out because of an outage says so, for a
// reader, a writer and a writer behind its own gate. A wait for others that hold the lock does not.
func TestOutageIsNoBusyLock(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		holder, c := newPeer(t, s.Connect(), 1), newPeer(t, s.Connect(), 2)
		reads, err := holder.RLock(context.Background(), "read")
		require.NoError(t, err)
		fail := func(on bool) {
			c.f.OnSend(nil)
			c.f.FailReads(nil)
			if on {
				c.f.OnSend(func(int, kvstore.Write) faults.Fate { return faults.Drop })
				c.f.FailReads(func(faults.ReadOp, string) error { return faults.Hang })
			}
		}
		type lock = func(context.Context, string, ...natslock.LockOption) (*natslock.Lock, error)
		wait := func(lock lock, name string, limit time.Duration) error {
			_, err := lock(context.Background(), name, natslock.MaxWait(limit))
			require.ErrorIs(t, err, natslock.ErrTimeout)
			require.NotErrorIs(t, err, context.DeadlineExceeded)
			return err
		}
		require.NotErrorIs(t, wait(c.Lock, "read", 3*time.Second), natslock.ErrUnavailable)

		behind := make(chan error, 1)
		go func() { behind <- wait(c.Lock, "read", 9*time.Second) }()
		time.Sleep(time.Second)
		fail(true)
		for _, lock := range []lock{c.Lock, c.RLock} {
			require.ErrorIs(t, wait(lock, "free", 3*time.Second), natslock.ErrUnavailable)
		}
		require.ErrorIs(t, <-behind, natslock.ErrUnavailable)
		fail(false)
		require.NoError(t, reads.Unlock(context.Background()))
	})
}
