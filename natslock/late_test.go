package natslock_test

import (
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/rwlock"
	"github.com/natslock/locks/testutil"
)

// A waiter whose question for the last revision meets a write in flight, again and
// again, does not hold up the closing of its client.
func TestCloseWhileProbeMeetsWriteInFlight(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		holder := kit.QuietHolder(t, s)
		first := kit.Join(t, s).Await(t, "l")
		c, f := kit.JoinFaulty(t, s)
		f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
			if w.Expect == kvstore.NoRevision {
				return faults.Refuse(kvstore.ErrInFlight)
			}
			return faults.Pass
		})
		w := c.Await(t, "l")
		time.Sleep(time.Second)
		begun := time.Now()
		require.NoError(t, kit.CloseNow(c.Client))
		require.LessOrEqual(t, time.Since(begun), 2*time.Second)
		require.ErrorIs(t, w.Failed(t), natslock.ErrClosed)
		kit.Unlock(t, holder)
		kit.Unlock(t, first.Granted(t))
	})
}

// Of readers that try a lock at once, and meet the overdue place of a writer, all
// get in, although the server accepts one deletion of that place only.
func TestOverduePlaceDeletedByOther(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		const ttl = 6 * time.Second
		dead, b := kit.Join(t, s, natslock.WithTTL(ttl)), kit.Join(t, s)
		writer, err := rwlock.New(b.Client).Lock(t.Context(), "l")
		require.NoError(t, err)
		go func() { _, _ = rwlock.New(dead.Client).Lock(t.Context(), "l") }()
		synctest.Wait()
		dead.Link.Cut()
		time.Sleep(time.Second)
		kit.RestartWithoutTTLs(t, s)
		var readers []*kit.Member
		var deletions sync.WaitGroup // each reader waits for the others' before its own
		for range 3 {
			c, f := kit.JoinFaulty(t, s)
			readers = append(readers, c)
			deletions.Add(1)
			f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
				if w.Delete && strings.HasPrefix(w.Key, "rwait.") {
					deletions.Done()
					deletions.Wait()
				}
				return faults.Pass
			})
		}
		time.Sleep(2 * ttl)
		kit.Unlock(t, writer) // a tombstone, so that the readers read the queue
		var wg sync.WaitGroup
		for _, c := range readers {
			wg.Go(func() {
				l, err := rwlock.New(c.Client).TryRLock(t.Context(), "l")
				if assert.NoError(t, err) {
					kit.Unlock(t, l)
				}
			})
		}
		wg.Wait()
	})
}
