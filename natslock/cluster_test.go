package natslock_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/history"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

var r3 = natslock.WithReplicas(3)

// TestClusterStepDowns hammers a few names on three replicas while the stream's
// leader steps down again and again: no update is lost, no lease either.
func TestClusterStepDowns(t *testing.T) {
	tier.Proof(t)
	cl := testutil.RunCluster(t, 3)
	const clients, names = 6, 2
	ref := history.NewRecorder()
	counters := make([]int, names)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()

	keep, _ := kit.Faulty(t, cl.Connect(), 0, r3)
	kept, err := keep.Lock(t.Context(), "kept throughout", natslock.TTL(15*time.Second))
	require.NoError(t, err)

	var wg sync.WaitGroup
	var mu sync.Mutex
	done := make([]int, names)
	for i := range clients {
		c, _ := kit.Faulty(t, cl.Connect(), uint64(i), r3, natslock.WithTTL(10*time.Second))
		wg.Go(func() {
			for n := i; ctx.Err() == nil; n++ {
				l, err := c.Lock(context.Background(), fmt.Sprint(n%names))
				if !assert.NoError(t, err) {
					return
				}
				ref.Granted(admin.KindMutex, admin.Exclusive, l)
				counters[n%names]++ // unguarded but by the lock
				assert.NoError(t, l.Err())
				err = l.Unlock(context.Background())
				mu.Lock()
				done[n%names]++
				mu.Unlock()
				assert.NoError(t, err)
			}
		})
	}
	// A busy machine grants less between two step-downs: then it takes longer.
	grants := func() int { return ref.History().Counts()["grants"] }
	downs := 0
	for begun := time.Now(); time.Since(begun) < 8*time.Second || grants() <= 30 && time.Since(begun) < time.Minute; downs++ {
		cl.StepDown(t, "KV_natslock")
		time.Sleep(500 * time.Millisecond)
	}
	stop()
	wg.Wait()
	ref.Check(t)
	require.Equal(t, done, counters, "an update was lost")
	require.NoError(t, kept.Err())
	require.NoError(t, kept.Unlock(t.Context()))
	// Places in the queue are given up in the background, and replicas lag.
	nc := cl.Connect()
	require.Eventually(t, func() bool { return len(kit.KeysLeft(t, nc)) == 0 }, 20*time.Second, 100*time.Millisecond)
	require.Greater(t, downs, 3)
	t.Logf("%d grants over %d step-downs", grants(), downs)
	require.Greater(t, grants(), 30, "not vacuous")
}

// TestClusterLeaderKilled kills the server that leads the stream. At the default
// TTL nothing is lost; the waiter gets in when the holder releases.
func TestClusterLeaderKilled(t *testing.T) {
	tier.Proof(t)
	cl := testutil.RunCluster(t, 3)
	a, _ := kit.Faulty(t, cl.Connect(nats.ReconnectWait(50*time.Millisecond), nats.MaxReconnects(-1)), 1, r3)
	b, _ := kit.Faulty(t, cl.Connect(nats.ReconnectWait(50*time.Millisecond), nats.MaxReconnects(-1)), 2, r3)
	ref := history.NewRecorder()
	la, err := a.Lock(t.Context(), "x")
	require.NoError(t, err)
	ref.Granted(admin.KindMutex, admin.Exclusive, la)
	got := make(chan *natslock.Lock, 1)
	go func() {
		l, err := b.Lock(context.Background(), "x")
		assert.NoError(t, err)
		got <- l
	}()
	require.Eventually(t, func() bool { return b.Stats().Waiting == 1 }, 10*time.Second, 10*time.Millisecond)
	cl.Kill(cl.Index(cl.StreamLeader("KV_natslock")))
	require.NoError(t, la.Extend(t.Context(), 0), "confirmed by the next leader")
	require.NoError(t, la.Err())
	select {
	case <-got:
		t.Fatal("two holders")
	default:
	}
	released := time.Now()
	require.NoError(t, la.Unlock(t.Context()))
	lb := <-got
	require.NotNil(t, lb)
	ref.Granted(admin.KindMutex, admin.Exclusive, lb)
	ref.Check(t)
	require.Less(t, time.Since(released), 16*time.Second)
	require.NoError(t, lb.Unlock(t.Context()))
}

// TestClusterFIFO queues 12 clients, on each of three servers, on three replicas. The
// goroutines of one client may share a place for as long as a notification takes.
func TestClusterFIFO(t *testing.T) {
	tier.Proof(t)
	cl := testutil.RunCluster(t, 3)
	holder, _ := kit.Faulty(t, cl.Connect(), 0, r3)
	l, err := holder.Lock(t.Context(), "x")
	require.NoError(t, err)
	const waiters = 12
	order := make(chan int, waiters)
	var wg sync.WaitGroup
	for i := range waiters {
		c, _ := kit.Faulty(t, cl.ConnectTo(i%3), uint64(i), r3)
		wg.Go(func() {
			assert.NoError(t, c.Do(context.Background(), "x", func(context.Context, *natslock.Lock) error {
				order <- i
				return nil
			}))
		})
		require.Eventually(t, func() bool {
			info, err := admin.New(holder).Inspect(t.Context(), admin.KindMutex, "x")
			return err == nil && len(info.Queue) == i+1
		}, 10*time.Second, 5*time.Millisecond)
	}
	require.NoError(t, l.Unlock(t.Context()))
	wg.Wait()
	close(order)
	next := 0
	for i := range order {
		require.Equal(t, next, i)
		next++
	}
	require.Equal(t, waiters, next)
}
