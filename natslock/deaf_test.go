package natslock_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/testutil"
)

// Without notifications a waiter finds out by its timers that the lock is free, within the time that
// docs/operate/topologies.md gives, whenever it is released.
func TestHandOverWithoutNotifications(t *testing.T) {
	const most = 6 * time.Second
	for i := range 20 {
		testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
			holder := kit.Join(t, s)
			waiter, f := kit.JoinFaulty(t, s)
			kit.Deaf(f)
			l := kit.Must(t, holder.Lock, "l")
			w := waiter.Await(t, "l")
			time.Sleep(6*time.Second + time.Duration(i)*270*time.Millisecond) // a cycle of its timers
			released := time.Now()
			kit.Unlock(t, l)
			<-w.Done
			require.NoError(t, w.Err)
			require.Less(t, time.Since(released), most)
			kit.Unlock(t, w.Value)
		})
	}
}
