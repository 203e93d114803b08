package natslock_test

import (
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

// unwatched is a store of a bucket that does not publish its changes.
type unwatched struct{ kvstore.KV }

func (unwatched) Watch(string, func(kvstore.Event)) (kvstore.Watch, error) {
	return nil, kvstore.ErrNoWatch
}

// A holder that unlocks late, after its lease has ended and a goroutine of its client has
// got the lock, touches no other lock of the client.
func TestRunLateUnlockTouchesNoOtherLock(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := join(t, s, faults.WrapStore(func(kv kvstore.KV) kvstore.KV { return unwatched{kv} }))
		lost := mustLock(t, c.Client, "a", natslock.TTL(time.Second), natslock.NoRenew())
		next := c.begin(t, "a") // a run behind that of the lease
		synctest.Wait()
		time.Sleep(lost.Remaining())
		third := c.begin(t, "a") // it notices that the lease has ended
		synctest.Wait()
		third.Cancel(nil)
		third.Failed(t)
		kit.Unlock(t, next.Granted(t))
		inside := mustLock(t, c.Client, "l") // in the line that has become free
		var waits []*waiting
		for range 2 {
			waits = append(waits, c.begin(t, "l"))
			synctest.Wait()
		}
		require.ErrorIs(t, lost.Unlock(t.Context()), natslock.ErrLost)
		synctest.Wait()
		wantHeld(t, inside)
		for _, w := range waits {
			require.False(t, w.Over(), "two holders of a lock are inside")
		}
		unlockAll(t, inside, waits...)
	})
}
