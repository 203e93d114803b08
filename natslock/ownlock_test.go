package natslock_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/testutil"
)

// A goroutine that takes a lock twice waits for itself. The log says once that the client waits for its own lock, when that has
// lasted for a TTL, and nothing of a wait for the lock of another client.
func TestOwnLockIsLogged(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		var log kit.Log
		logs := func() int { return strings.Count(log.String(), "it waits for itself") }
		c := kit.Join(t, s, log.Option())
		other := kit.Join(t, s)
		foreign := kit.Must(t, other.Lock, "foreign")
		c.Await(t, "foreign")
		held := kit.Must(t, c.Lock, "own")
		w := c.Begin(t, "own")
		time.Sleep(14 * time.Second)
		synctest.Wait()
		require.Zero(t, logs(), log.String())
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		require.Equal(t, 1, logs(), log.String())
		require.Contains(t, log.String(), "lock=own")
		require.NotContains(t, log.String(), "lock=foreign")
		kit.Unlock(t, held)
		kit.Unlock(t, w.Granted(t))
		kit.Unlock(t, foreign)
	})
}
