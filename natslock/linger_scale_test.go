package natslock_test

import (
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/machine"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

// 10,000 locks that one client keeps idle cost it no goroutine, and few messages beside the
// renewals at a third of the TTL. Another client gets each of them at once.
func TestScaleIdle(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		const ttl = 15 * time.Second
		n := machine.Part(10_000)
		c, other := kit.Join(t, s), kit.Join(t, s)
		kit.Unlock(t, kit.Must(t, other.Lock, "warm"))
		settled := func() int {
			time.Sleep(5 * time.Second) // watches begin, writers end
			synctest.Wait()
			return runtime.NumGoroutine()
		}
		name := func(i int) string { return fmt.Sprint("idle.", i) }
		keep := func(from, to int) {
			for i := from; i < to; i++ {
				kit.Unlock(t, kit.Must(t, c.Lock, name(i), natslock.Linger(time.Hour), natslock.TTL(ttl)))
			}
		}
		keep(0, 10)
		few := settled()
		keep(10, n)
		many := settled()
		require.InDelta(t, few, many, 2, "goroutines with 10 and with %d idle locks", n)
		require.Equal(t, n, c.Stats().Idle)
		before, renewed := c.NC.Stats(), c.Stats().Renewed
		time.Sleep(2 * ttl)
		synctest.Wait()
		after := c.NC.Stats()
		each := func(count uint64) float64 { return float64(count) / float64(n) / (2 * ttl).Minutes() }
		renewals, sent := each(c.Stats().Renewed-renewed), each(after.OutMsgs-before.OutMsgs)
		t.Logf("for each idle lock and minute: %.2f renewals, %.2f messages sent and %.2f received", renewals, sent, each(after.InMsgs-before.InMsgs))
		require.InDelta(t, 12, renewals, 1, "one at each third of the TTL")
		require.LessOrEqual(t, sent-renewals, 1.)
		require.Equal(t, n, c.Stats().Idle)
		require.Zero(t, c.Stats().Lost)
		for i := 0; i < n; i += 1000 {
			begun := time.Now()
			kit.Unlock(t, kit.Must(t, other.Lock, name(i)))
			require.Less(t, time.Since(begun), 10*time.Millisecond)
		}
	})
}
