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

// Notifications that anybody can forge do not put off the read by which a waiter
// finds that the record of a dead holder is overdue.
func TestOverdueForgedFlood(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		const ttl = 5 * time.Second
		dead := join(t, s, natslock.WithTTL(ttl))
		c, f := joinFaulty(t, s)
		mustLock(t, dead.Client, "l")
		written := time.Now()
		w := c.await(t, "l")
		m := newRaw(t, s.Connect()).get("lock.l")
		dead.link.Cut()
		forget(t, s)
		for !w.Over() && time.Since(written) < 2*ttl {
			time.Sleep(10 * time.Millisecond)
			f.Forge(kvstore.Event{Kind: kvstore.Put, Record: kvstore.Record{
				Key: "lock.l", Value: m.Data, Revision: m.Sequence, Time: time.Now().Add(-time.Hour), TTL: ttl,
			}})
			synctest.Wait()
		}
		require.True(t, w.Over(), "put off for ever")
		require.LessOrEqual(t, w.At.Sub(written), ttl+overdueIn)
		kit.Unlock(t, w.Granted(t))
	})
}

// A waiter whose question for the last revision meets a write in flight, again and
// again, does not hold up the closing of its client.
func TestCloseWhileProbeMeetsWriteInFlight(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		holder := quietHolder(t, s)
		first := join(t, s).await(t, "l")
		c, f := joinFaulty(t, s)
		f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
			if w.Expect == kvstore.NoRevision {
				return faults.Refuse(kvstore.ErrInFlight)
			}
			return faults.Pass
		})
		w := c.await(t, "l")
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
		dead, b := join(t, s, natslock.WithTTL(ttl)), join(t, s)
		writer, err := rwlock.New(b.Client).Lock(t.Context(), "l")
		require.NoError(t, err)
		go func() { _, _ = rwlock.New(dead.Client).Lock(t.Context(), "l") }()
		synctest.Wait()
		dead.link.Cut()
		time.Sleep(time.Second)
		forget(t, s)
		var readers []*member
		var deletions sync.WaitGroup // each reader waits for the others' before its own
		for range 3 {
			c, f := joinFaulty(t, s)
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
