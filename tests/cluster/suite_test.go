package cluster_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/history"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/machine"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

// TestClusterSuite repeats the mutex scenarios on three servers, with a client on each. There,
// replicas lag and writes meet others in flight.
func TestClusterSuite(t *testing.T) {
	tier.Proof(t)
	cl := testutil.RunCluster(t, 3)
	var clients []*natslock.Client
	for i := range 3 {
		c, _ := kit.Faulty(t, cl.ConnectTo(i), uint64(i), r3, natslock.WithTTL(6*time.Second), natslock.WithOwner(fmt.Sprint(i)), natslock.WithTuning(natslock.Tuning{WatchAfter: 1}))
		clients = append(clients, c)
	}
	a, b, c := clients[0], clients[1], clients[2]
	ctx := context.Background()

	t.Run("one shot", func(t *testing.T) {
		l, err := a.TryLock(ctx, "once")
		require.NoError(t, err)
		_, err = b.TryLock(ctx, "once")
		require.ErrorIs(t, err, natslock.ErrLocked)
		var locked *natslock.LockedError
		require.ErrorAs(t, err, &locked)
		require.Equal(t, "0", locked.Holder.Owner)
		require.Equal(t, l.Token(), locked.Holder.Token)
		require.NoError(t, l.Unlock(ctx))
		again, err := b.TryLock(ctx, "once")
		require.NoError(t, err)
		require.Greater(t, again.Token(), l.Token())
		require.NoError(t, again.Unlock(ctx))
	})

	t.Run("counting", func(t *testing.T) {
		ref := history.NewRecorder()
		count := 0
		var wg sync.WaitGroup
		for i := range 9 {
			wg.Go(func() {
				for range 15 {
					assert.NoError(t, clients[i%3].Do(ctx, "count", func(_ context.Context, l *natslock.Lock) error {
						ref.Granted(admin.KindMutex, admin.Exclusive, l)
						count++
						return nil
					}))
				}
			})
		}
		wg.Wait()
		require.Equal(t, 9*15, count)
		ref.Check(t)
	})

	t.Run("giving up", func(t *testing.T) {
		l, err := a.Lock(ctx, "busy")
		require.NoError(t, err)
		_, err = b.Lock(ctx, "busy", natslock.MaxWait(300*time.Millisecond))
		require.ErrorIs(t, err, natslock.ErrTimeout)
		short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		defer cancel()
		_, err = c.Lock(short, "busy")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NoError(t, l.Unlock(ctx))
		require.Eventually(t, func() bool {
			l, err := b.TryLock(ctx, "busy")
			return err == nil && l.Unlock(ctx) == nil
		}, 5*time.Second, 20*time.Millisecond, "they have left the queue")
	})

	t.Run("a holder cut off", func(t *testing.T) {
		nc, link := cl.ConnectLink(nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond))
		dead, _ := kit.Faulty(t, nc, 9, r3, natslock.WithTTL(2*time.Second))
		l, err := dead.Lock(ctx, "cut")
		require.NoError(t, err)
		late := machine.Lateness(t)
		link.Cut()
		cut := time.Now()
		next, err := a.Lock(ctx, "cut")
		require.NoError(t, err)
		// The server, the waiter and this test may each be delayed once.
		require.Less(t, time.Since(cut), 2500*time.Millisecond+3*late())
		require.ErrorIs(t, l.Err(), natslock.ErrLost)
		require.ErrorIs(t, context.Cause(l.Context()), natslock.ErrLost)
		require.Greater(t, next.Token(), l.Token())
		require.NoError(t, next.Unlock(ctx))
		link.Heal()
	})

	t.Run("breaking", func(t *testing.T) {
		l, err := a.Lock(ctx, "broken")
		require.NoError(t, err)
		require.ErrorIs(t, admin.New(b).Break(ctx, admin.BreakRequest{Kind: admin.KindMutex, Name: "broken", ID: l.ID()[1:], Reason: "wrong id"}), natslock.ErrReleased)
		require.NoError(t, l.Err())
		broken := time.Now()
		require.NoError(t, admin.New(b).Break(ctx, admin.BreakRequest{Kind: admin.KindMutex, Name: "broken", ID: l.ID(), Reason: "suite"}))
		<-l.Context().Done()
		require.Less(t, time.Since(broken), time.Second)
		require.ErrorIs(t, context.Cause(l.Context()), natslock.ErrBroken)
		_, err = c.TryLock(ctx, "broken")
		require.ErrorIs(t, err, natslock.ErrLocked, "its holder has not stopped")
		require.ErrorIs(t, l.Unlock(ctx), natslock.ErrBroken)
		next, err := c.Lock(ctx, "broken")
		require.NoError(t, err)
		require.NoError(t, admin.New(b).Break(ctx, admin.BreakRequest{Kind: admin.KindMutex, Name: "broken", ID: next.ID(), Reason: "suite", Immediately: true}))
		last, err := b.Lock(ctx, "broken")
		require.NoError(t, err)
		<-next.Context().Done()
		require.ErrorIs(t, next.Unlock(ctx), natslock.ErrLost)
		require.NoError(t, last.Unlock(ctx))
	})

	t.Run("several", func(t *testing.T) {
		inside := map[string]int{}
		var mu sync.Mutex
		enter := func(names []string, n int) {
			mu.Lock()
			defer mu.Unlock()
			for _, name := range names {
				inside[name] += n
				assert.LessOrEqual(t, inside[name], 1)
			}
		}
		var wg sync.WaitGroup
		for i, names := range [][]string{{"x", "y", "z"}, {"z", "y"}, {"y", "x"}, {"z", "x"}, {"y", "z", "x"}, {"y"}} {
			wg.Go(func() {
				for range 10 {
					l, err := clients[i%3].LockAll(ctx, names)
					if !assert.NoError(t, err) {
						return
					}
					enter(names, 1)
					enter(names, -1)
					assert.NoError(t, l.Unlock(ctx))
				}
			})
		}
		wg.Wait()
		l, err := a.TryLockAll(ctx, []string{"x", "y", "z"})
		require.NoError(t, err)
		_, err = b.TryLockAll(ctx, []string{"w", "x", "y"})
		require.ErrorIs(t, err, natslock.ErrLocked)
		w, err := c.TryLock(ctx, "w")
		require.NoError(t, err)
		require.NoError(t, w.Unlock(ctx))
		require.NoError(t, l.Unlock(ctx))
	})

	t.Run("once in a year", func(t *testing.T) {
		var n atomic.Int64
		var wg sync.WaitGroup
		for i := range 9 {
			wg.Go(func() {
				err := clients[i%3].Once(ctx, "job.2026", 365*24*time.Hour, func(context.Context, *natslock.Lock) error {
					n.Add(1)
					return nil
				})
				if err != nil {
					assert.ErrorIs(t, err, natslock.ErrLocked)
				}
			})
		}
		wg.Wait()
		require.EqualValues(t, 1, n.Load())
		require.ErrorIs(t, b.Once(ctx, "job.2026", time.Hour, func(context.Context, *natslock.Lock) error { return nil }), natslock.ErrDone)
	})

	t.Run("extending", func(t *testing.T) {
		l, err := a.Lock(ctx, "fixed", natslock.TTL(2*time.Second), natslock.NoRenew())
		require.NoError(t, err)
		require.NoError(t, l.Extend(ctx, 20*time.Second))
		require.Greater(t, l.Remaining(), 15*time.Second)
		require.NoError(t, l.Extend(ctx, time.Second))
		require.Less(t, l.Remaining(), time.Second)
		<-l.Context().Done()
		require.ErrorIs(t, l.Unlock(ctx), natslock.ErrLost)
	})

	t.Run("a foreign record", func(t *testing.T) {
		_, err := kit.OpenStore(t, cl.Connect()).Create(ctx, "lock.foreign", []byte("not ours"), time.Minute)
		require.NoError(t, err)
		_, err = a.TryLock(ctx, "foreign")
		var locked *natslock.LockedError
		require.ErrorAs(t, err, &locked)
		require.Nil(t, locked.Holder)
		info, err := admin.New(b).Inspect(ctx, admin.KindMutex, "foreign")
		require.NoError(t, err)
		require.True(t, info.Holder.Unreadable)
		require.NoError(t, admin.New(b).Break(ctx, admin.BreakRequest{Kind: admin.KindMutex, Name: "foreign", ID: info.Holder.ID, Reason: "suite", Immediately: true}))
		l, err := a.Lock(ctx, "foreign")
		require.NoError(t, err)
		require.NoError(t, l.Unlock(ctx))
	})

	t.Run("closing", func(t *testing.T) {
		own, _ := kit.Faulty(t, cl.Connect(), 10, r3, natslock.WithTTL(3*time.Second))
		l, err := own.Lock(ctx, "closed")
		require.NoError(t, err)
		over, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
		require.ErrorContains(t, own.Close(over), `"closed"`)
		require.ErrorIs(t, context.Cause(l.Context()), natslock.ErrClosed)
		_, err = a.TryLock(ctx, "closed")
		require.ErrorIs(t, err, natslock.ErrLocked, "its work may still be stopping")
		next, err := a.Lock(ctx, "closed")
		require.NoError(t, err)
		require.NoError(t, next.Unlock(ctx))
	})
}
