package cluster_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/history"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

// TestClusterGivenUp is TestGivenUpIsGone on three servers, where replicas lag. It guards against a
// bug by which, in 4 of 300 rounds, TryLock ran into the place of a call that had already returned.
func TestClusterGivenUp(t *testing.T) {
	tier.Proof(t)
	cl := testutil.RunCluster(t, 3)
	var clients []*natslock.Client
	for i := range 3 {
		c, _ := kit.Faulty(t, cl.ConnectTo(i), uint64(i), r3, natslock.WithTTL(6*time.Second), natslock.WithOwner(fmt.Sprint(i)))
		clients = append(clients, c)
	}
	for name, wait := range map[string]func(c *natslock.Client) error{
		"patience": func(c *natslock.Client) error {
			_, err := c.Lock(t.Context(), "l", natslock.MaxWait(20*time.Millisecond))
			return err
		},
		"canceled": func(c *natslock.Client) error {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(20*time.Millisecond, cancel)
			_, err := c.Lock(ctx, "l")
			return err
		},
		"in flight": func(c *natslock.Client) error {
			_, err := c.Lock(t.Context(), "l", natslock.MaxWait(1+time.Duration(rand.IntN(1500))*time.Microsecond))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			for i := range 300 {
				holder, waiter, newcomer := clients[i%3], clients[(i+1)%3], clients[(i+2+i/3%2)%3]
				l, err := holder.Lock(t.Context(), "l")
				require.NoError(t, err)
				require.ErrorIs(t, wait(waiter), natslock.ErrTimeout)
				kit.Unlock(t, l)
				l, err = newcomer.TryLock(t.Context(), "l")
				require.NoError(t, err, "round %d", i)
				kit.Unlock(t, l)
			}
		})
	}
}

// TestReplicasAddedOnCluster adds two replicas to a bucket while clients contend. A replica that
// lags must never cause a TryLock after an Unlock to be refused.
func TestReplicasAddedOnCluster(t *testing.T) {
	tier.Proof(t)
	cluster := testutil.RunCluster(t, 3)
	var clients []*natslock.Client
	for i := range 3 {
		clients = append(clients, kit.NewClient(t, cluster.ConnectTo(i)))
	}
	r := kit.NewRaw(t, cluster.Connect())
	for i := range 2000 {
		switch i {
		case 200:
			r.Reconfigure(func(c *jetstream.StreamConfig) { c.Replicas = 3 })
		case 300:
			time.Sleep(3 * time.Second) // by now they have joined
		}
		kit.Unlock(t, kit.Must(t, clients[i%3].Lock, "l"))
		l, err := clients[(i+1)%3].TryLock(t.Context(), "l")
		require.NotErrorIsf(t, err, natslock.ErrLocked, "%d", i)
		if err == nil { // otherwise the leader is moving
			kit.Unlock(t, l)
		}
	}
}

// TestClusterStepDowns has clients contend for a few names on three replicas while the stream's
// leader steps down repeatedly. No update and no lease may be lost.
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
				counters[n%names]++ // guarded only by the lock
				assert.NoError(t, l.Err())
				err = l.Unlock(context.Background())
				mu.Lock()
				done[n%names]++
				mu.Unlock()
				assert.NoError(t, err)
			}
		})
	}
	// A busy machine manages fewer grants between two step-downs, so the test takes longer there.
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
	// Places in the queue are deleted in the background, and replicas lag.
	nc := cl.Connect()
	require.Eventually(t, func() bool { return len(kit.KeysLeft(t, nc)) == 0 }, 20*time.Second, 100*time.Millisecond)
	require.Greater(t, downs, 3)
	t.Logf("%d grants over %d step-downs", grants(), downs)
	require.Greater(t, grants(), 30, "not vacuous")
}

// TestClusterLeaderKilled kills the server that leads the stream. At the default TTL nothing may be
// lost, and the waiter gets in only when the holder releases the lock.
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

// TestClusterFIFO checks that 12 clients, spread over three servers with three replicas, get the
// lock in queue order. Each is a client of its own, because goroutines of one client may share a
// place.
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

// TestClusterHandoff passes a lock from client to client on three replicas, each client on a
// different server. The replica that answers an adopter may lag, but the adopter must still find
// the hand-over, and a second adopter the adoption.
func TestClusterHandoff(t *testing.T) {
	if testing.Short() {
		t.Skip("a cluster takes seconds; -short was given")
	}
	t.Parallel()
	cl := testutil.RunCluster(t, 3)
	var clients []*natslock.Client
	for range 3 {
		clients = append(clients, kit.NewClient(t, cl.Connect(), r3, natslock.WithTTL(20*time.Second)))
	}
	l := kit.Must(t, clients[0].Lock, "l")
	token := l.Token()
	for i := range 60 {
		h := kit.HandOff(t, l)
		next, err := clients[(i+1)%len(clients)].Adopt(context.Background(), h)
		require.NoError(t, err)
		require.Equal(t, token, next.Token())
		_, err = clients[i%len(clients)].Adopt(context.Background(), h)
		require.ErrorIs(t, err, natslock.ErrNotHandedOver)
		require.ErrorIs(t, err, natslock.ErrLocked)
		l = next
	}
	kit.Unlock(t, l)
}

// TestLeastPrivilegeHandOver checks that a client does not repeat requests that its permissions
// exclude. The server refuses them without a reply, so each would delay a hand-over by tens of
// milliseconds. How long hand-overs take depends on the machine and is only logged.
func TestLeastPrivilegeHandOver(t *testing.T) {
	tier.Proof(t)
	least, err := admin.Permissions(admin.Access{OwnOnly: true})
	require.NoError(t, err)
	cluster := testutil.RunCluster(t, 3, testutil.WithConfigText(fmt.Sprintf(
		"authorization { users: [ { user: all, password: p }, { user: least, password: p, %s } ] }", least)))
	kit.NewClient(t, cluster.Connect(kit.As("all")...), natslock.WithReplicas(3))
	for _, user := range []string{"all", "least"} {
		var refused atomic.Int32
		var clients [2]*kit.Member
		for i := range clients {
			c := &kit.Member{Events: kit.NewObserver()}
			c.NC = cluster.ConnectTo(i, nats.UserInfo(user, "p"), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) { refused.Add(1) }))
			c.Client = kit.NewClient(t, c.NC, c.Events.Option())
			clients[i] = c
		}
		const n = 100
		var took []time.Duration
		l := kit.Must(t, clients[0].Lock, "l")
		for i := range n {
			w := clients[(i+1)%2].Await(t, "l")
			begun := time.Now()
			kit.Unlock(t, l)
			w.Granted(t)
			took = append(took, w.At.Sub(begun))
			l = w.Value
		}
		kit.Unlock(t, l)
		slices.Sort(took)
		t.Logf("user %s: median %v, 90%% within %v, %d refusals", user, took[n/2], took[n*9/10], refused.Load())
		// Requests already under way when the first one is refused are refused as well.
		require.Less(t, refused.Load(), int32(n))

		// The messages can be counted for locks whose queues have no tombstones. A lagging replica
		// adds to them, but not every time.
		var sent []uint64
		for i := range 20 {
			l := kit.Must(t, clients[0].Lock, fmt.Sprint("fresh", i))
			before := clients[1].NC.Stats().OutMsgs
			w := clients[1].Await(t, l.Name())
			kit.Unlock(t, l)
			w.Granted(t)
			sent = append(sent, clients[1].NC.Stats().OutMsgs-before)
			kit.Unlock(t, w.Value)
		}
		t.Logf("user %s: messages of a wait %v", user, sent)
		require.LessOrEqual(t, slices.Min(sent), uint64(13), "the queue was read more than once")
	}
}
