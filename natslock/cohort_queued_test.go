package natslock_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/semaphore"
	"github.com/natslock/locks/testutil"
)

// While the client may have more permits, a goroutine counts as queued when its place is at the server, not before: not
// behind the first write of another goroutine.
func TestQueuedBehindAFounder(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, f := kit.JoinFaulty(t, s)
		sem := semaphore.New(c.Client, 2)
		acquire := func() *kit.Waiting {
			return kit.Begin(t, func(ctx context.Context) (*natslock.Lock, error) { return sem.Acquire(ctx, "s") })
		}
		first := acquire()
		synctest.Wait()
		f.OnSend(func(int, kvstore.Write) faults.Fate { return faults.Hold })
		second := acquire()
		synctest.Wait()
		third := acquire()
		synctest.Wait()
		require.Zero(t, c.Events.Count(admin.EventQueued, "s"), "nothing of it is at the server")
		f.OnSend(nil)
		f.ReleaseHeld()
		c.Events.Wait(t, admin.EventQueued, "s")
		for _, w := range []*kit.Waiting{first, second, third} {
			kit.Unlock(t, w.Granted(t))
		}
	})
}
