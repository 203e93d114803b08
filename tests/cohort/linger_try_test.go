package cohort_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

// TestLingerTryQueuesNot: a TryLock that finds an idle lease lists the queue first. If another client waits there, it
// says that the lock is taken, and does not queue.
func TestLingerTryQueuesNot(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, f := kit.JoinFaulty(t, s)
		other := kit.Join(t, s)
		kit.Unlock(t, kit.Must(t, c.Lock, "l", lingers))
		time.Sleep(time.Minute)
		kit.Deaf(f)
		w := other.Settle(t)
		time.Sleep(time.Second)
		begun := time.Now()
		_, err := c.TryLock(t.Context(), "l")
		require.ErrorIs(t, err, natslock.ErrLocked)
		require.Less(t, time.Since(begun), time.Second)
		kit.Unlock(t, w.Granted(t))
	})
}

// TestLingerTryEnds: the context of a TryLock ends while the idle lease would have to be confirmed first. The call
// returns then.
func TestLingerTryEnds(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, f := kit.JoinFaulty(t, s)
		kit.Unlock(t, kit.Must(t, c.Lock, "l", lingers))
		synctest.Wait()
		f.OnSend(func(int, kvstore.Write) faults.Fate { return faults.Drop })
		for begun := time.Now(); time.Since(begun) < 9*time.Second; {
			time.Sleep(1500 * time.Millisecond)
			kit.Unlock(t, kit.Must(t, c.TryLock, "l", lingers))
			synctest.Wait()
		}
		time.Sleep(1500 * time.Millisecond) // two thirds of the validity are over
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		begun := time.Now()
		_, err := c.TryLock(ctx, "l", lingers)
		require.Error(t, err)
		require.Less(t, time.Since(begun), time.Second)
	})
}

// TestLingerTryBesideAFounder: a TryLock is granted, and lingers, while the first write of another goroutine is on its
// way. That one does not wait for the end of the idle lease.
func TestLingerTryBesideAFounder(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, f := kit.JoinFaulty(t, s)
		first := true
		f.OnSend(func(int, kvstore.Write) faults.Fate {
			if first {
				first = false
				return faults.Delay(100 * time.Millisecond)
			}
			return faults.Pass
		})
		w := c.Settle(t, lingers)
		kit.Unlock(t, kit.Must(t, c.TryLock, "l", lingers))
		begun := time.Now()
		kit.Unlock(t, w.Granted(t))
		require.Less(t, time.Since(begun), time.Second)
	})
}
