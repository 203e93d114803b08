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

// TestLingerTryQueuesNot checks that a TryLock that finds an idle lease lists the queue first and,
// if another client waits there, reports that the lock is taken instead of queueing.
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

// TestLingerTryEnds checks that TryLock returns when its context ends even if it still has to
// confirm the idle lease.
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
		time.Sleep(1500 * time.Millisecond) // two thirds of the validity have passed
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		begun := time.Now()
		_, err := c.TryLock(ctx, "l", lingers)
		require.Error(t, err)
		require.Less(t, time.Since(begun), time.Second)
	})
}

// TestLingerTryBesideAFounder checks that when a TryLock is granted and lingers while another
// goroutine's first write is on its way, that goroutine does not have to wait until the idle lease
// ends.
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
