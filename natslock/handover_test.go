package natslock_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/machine"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

// A waiter gives up in the moment in which its client hands the lock to it. The holder
// before it has released the lock. The waiter after it has the lock, and a break ends its
// context.
func TestGivingUpAtHandOver(t *testing.T) {
	s := testutil.RunServer(t)
	c, operator := kit.Join(t, s, natslock.WithTuning(natslock.Tuning{Turn: time.Second})), kit.Join(t, s)
	rounds := machine.Part(1000)
	gaveUp := 0
	for range rounds {
		holder := kit.Must(t, c.Lock, "l")
		leaves, last := c.Await(t, "l"), c.Await(t, "l")
		var both sync.WaitGroup
		both.Go(func() { leaves.Cancel(nil) })
		both.Go(func() { assert.NoError(t, holder.Unlock(context.Background())) })
		if <-leaves.Done; leaves.Err == nil {
			kit.Unlock(t, leaves.Value)
		} else {
			require.ErrorIs(t, leaves.Err, natslock.ErrTimeout)
			gaveUp++
		}
		l := last.Granted(t)
		both.Wait()
		require.False(t, t.Failed())
		require.ErrorIs(t, holder.Err(), natslock.ErrReleased)
		claim, _, _ := strings.Cut(l.ID(), ".")
		require.NoError(t, admin.New(operator.Client).Break(t.Context(), admin.BreakRequest{Kind: admin.KindMutex, Name: "l", ID: claim}))
		require.ErrorIs(t, l.Extend(t.Context(), 0), natslock.ErrBroken)
		kit.Receive(t, l.Context().Done(), "the end of the context")
		require.ErrorIs(t, l.Unlock(t.Context()), natslock.ErrBroken)
	}
	t.Logf("%d of %d gave up", gaveUp, rounds)
}
