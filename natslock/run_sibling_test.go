package natslock_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

// A goroutine that may not join a run ends the turn of that run: the goroutines that have
// joined in the turn asked earlier.
func TestRunTurnEndsEarly(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, other := join(t, s, natslock.WithTuning(natslock.Tuning{Turn: 100 * time.Millisecond})), join(t, s)
		holder := mustLock(t, other.Client, "l")
		time.Sleep(10 * time.Millisecond) // longer than its turn
		first := c.follow(t)
		stranger := other.follow(t)
		kit.Unlock(t, holder)
		l := first.Granted(t)
		late := c.follow(t)
		odd := c.follow(t, natslock.TTL(20*time.Second))
		time.Sleep(200 * time.Millisecond)
		unlockAll(t, l, stranger, late, odd)
	})
}

// A run queues only when the run before it of its client has a record: otherwise the claim
// before it, refused later, would queue behind it.
func TestRunWaitsForTheClaimBefore(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, f := joinFaulty(t, s)
		holder := mustLock(t, join(t, s).Client, "l")
		f.OnSend(kit.At("lock take", faults.Delay(200*time.Millisecond)))
		first := c.begin(t, "l")
		synctest.Wait()
		odd := c.begin(t, "l", natslock.TTL(20*time.Second))
		time.Sleep(time.Second)
		f.OnSend(nil)
		require.Len(t, inspect(t, c.Client, "l").Queue, 2)
		unlockAll(t, holder, first, odd)
	})
}
