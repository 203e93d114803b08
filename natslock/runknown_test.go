package natslock_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

// TestRunListedBeforeItsSubscription: a list of the queue from before the client has
// subscribed does not show the places that came between the two.
func TestRunListedBeforeItsSubscription(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		holder, stranger := kit.NewClient(t, s.Connect()), kit.NewClient(t, s.Connect())
		c, f := kit.Faulty(t, s.Connect(), 1)
		held := mustLock(t, holder, "l")
		var mu sync.Mutex
		var order []string
		var wg sync.WaitGroup
		lock := func(ctx context.Context, c *natslock.Client, who string) {
			wg.Go(func() {
				l, err := c.Lock(ctx, "l", natslock.Detached())
				if ctx.Err() != nil {
					assert.ErrorIs(t, err, natslock.ErrTimeout)
					return
				}
				if assert.NoError(t, err, who) {
					mu.Lock()
					order = append(order, who)
					mu.Unlock()
					assert.NoError(t, l.Unlock(t.Context()))
				}
			})
			synctest.Wait()
		}
		lock(t.Context(), c, "first")
		lock(t.Context(), stranger, "stranger")
		// The second goroutine of the client subscribes. It does not get to list the queue.
		f.FailReads(func(faults.ReadOp, string) error { return fmt.Errorf("%w: by the test", kvstore.ErrUnavailable) })
		ctx, cancel := context.WithCancel(t.Context())
		lock(ctx, c, "given up")
		cancel()
		synctest.Wait()
		lock(t.Context(), c, "last")
		f.FailReads(nil)
		require.NoError(t, held.Unlock(t.Context()))
		wg.Wait()
		require.Equal(t, []string{"first", "stranger", "last"}, order)
	})
}
