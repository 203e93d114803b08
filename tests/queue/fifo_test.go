package queue_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

func TestFIFOOrder(t *testing.T) {
	s := testutil.RunServer(t)
	const n = 20
	c := kit.Join(t, s)
	holder := kit.Must(t, c.Lock, "l")
	var queue []*kit.Waiting
	for _, m := range kit.Crowd(t, s, n) {
		queue = append(queue, m.Await(t, "l"))
	}
	info := kit.Inspect(t, c.Client, "l")
	require.Len(t, info.Queue, n)
	require.True(t, slices.IsSortedFunc(info.Queue, func(a, b admin.Waiter) int { return int(a.Ticket) - int(b.Ticket) }))

	token := holder.Token()
	kit.Unlock(t, holder)
	for i, w := range queue {
		l := w.Granted(t)
		require.Greater(t, l.Token(), token)
		token = l.Token()
		for j, later := range queue[i+1:] {
			require.Falsef(t, later.Over(), "%d was granted while %d held", i+1+j, i)
		}
		kit.Unlock(t, l)
	}
}

// TestFIFOGivingUp checks that a waiter that gives up leaves no key behind, that its error reports
// how far it got, and that the waiters behind it move up.
func TestFIFOGivingUp(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, c := kit.Join(t, s, natslock.WithOwner("alice")), kit.Crowd(t, s, 5)
		r := kit.NewRaw(t, s.Connect())
		holder := kit.Must(t, a.Lock, "l")
		first := c[0].Await(t, "l")
		canceled := c[1].Await(t, "l")
		limited := c[2].Await(t, "l", natslock.MaxWait(3*time.Second))
		deadline := kit.Begin(t, func(ctx context.Context) (*natslock.Lock, error) {
			ctx, cancel := context.WithTimeout(ctx, 4*time.Second)
			defer cancel()
			return c[3].Lock(ctx, "l")
		})
		begun := time.Now()
		last := c[4].Await(t, "l")
		synctest.Wait()
		require.Len(t, r.Live("wait.l.*"), 5)

		time.Sleep(2 * time.Second)
		reason := errors.New("the user went away")
		canceled.Cancel(reason)
		err := canceled.Failed(t)
		require.ErrorIs(t, err, natslock.ErrTimeout)
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, reason)
		require.NotErrorIs(t, err, context.DeadlineExceeded)
		var timeout *natslock.TimeoutError
		require.ErrorAs(t, err, &timeout)
		require.Equal(t, "l", timeout.Name)
		require.Equal(t, 2, timeout.Position)
		require.Equal(t, 2*time.Second, timeout.Waited.Round(10*time.Millisecond))
		require.NotNil(t, timeout.Holder, "who held it is known")
		require.Equal(t, "alice", timeout.Holder.Owner)
		require.Equal(t, holder.Token(), timeout.Holder.Token)
		synctest.Wait()
		require.Len(t, r.Live("wait.l.*"), 4)

		err = limited.Failed(t)
		require.ErrorIs(t, err, natslock.ErrTimeout)
		require.NotErrorIs(t, err, context.DeadlineExceeded, "no context of the caller's ended")
		require.ErrorAs(t, err, &timeout)
		require.Equal(t, 3*time.Second, timeout.Waited.Round(10*time.Millisecond))
		synctest.Wait()
		require.Len(t, r.Live("wait.l.*"), 3)

		err = deadline.Failed(t)
		require.Equal(t, 4*time.Second, deadline.At.Sub(begun))
		require.ErrorIs(t, err, natslock.ErrTimeout)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, context.Canceled)
		require.ErrorAs(t, err, &timeout)
		require.Positive(t, timeout.Position)
		require.NotNil(t, timeout.Holder)
		synctest.Wait()
		require.Len(t, r.Live("wait.l.*"), 2)

		begun = time.Now()
		kit.Unlock(t, holder)
		kit.Unlock(t, first.Granted(t))
		kit.Unlock(t, last.Granted(t))
		require.Less(t, time.Since(begun), 200*time.Millisecond, "those gone hold nobody up")
		synctest.Wait()
		require.Empty(t, r.Live(">"), "nothing is left")
	})
}

// TestFIFODeadWaiter checks that when a waiter in the middle of the queue dies, the others wait no
// longer than the TTL of its record.
func TestFIFODeadWaiter(t *testing.T) {
	for _, how := range []string{"cut", "blackhole", "closed"} {
		t.Run(how, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				const ttl = 10 * time.Second
				c := kit.Crowd(t, s, 5, natslock.WithTTL(ttl))
				holder := kit.Must(t, c[0].Lock, "l")
				before := c[1].Await(t, "l")
				dead := c[2]
				dies := dead.Await(t, "l")
				after := c[3].Await(t, "l")
				last := c[4].Await(t, "l")
				time.Sleep(5 * time.Second)
				switch how {
				case "cut":
					dead.Link.Cut()
				case "blackhole":
					dead.Link.Blackhole(true)
				case "closed":
					dead.NC.Close()
				}
				died := time.Now()
				kit.Unlock(t, holder)
				kit.Unlock(t, before.Granted(t))
				require.Less(t, time.Since(died), 100*time.Millisecond)
				// Either may be first, because a lock that has been free for a second may be taken
				// out of turn.
				var wg sync.WaitGroup
				for _, w := range []*kit.Waiting{after, last} {
					wg.Go(func() {
						<-w.Done
						if w.Err == nil {
							w.Err = w.Value.Unlock(context.Background())
						}
					})
				}
				wg.Wait()
				require.NoError(t, after.Err)
				require.NoError(t, last.Err)
				require.LessOrEqual(t, time.Since(died), ttl+500*time.Millisecond)
				if how == "closed" {
					require.ErrorIs(t, dies.Failed(t), natslock.ErrUnavailable)
				}
			})
		})
	}
}

// TestFIFODeadWaiterWhileHeld is TestFIFODeadWaiter with the lock held throughout, so that the
// waiters behind the dead one can move up only when its record ends.
func TestFIFODeadWaiterWhileHeld(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		const ttl = 10 * time.Second
		a, dead, c := kit.Join(t, s, natslock.WithTTL(ttl)), kit.Join(t, s, natslock.WithTTL(ttl)), kit.Join(t, s, natslock.WithTTL(ttl))
		holder := kit.Must(t, a.Lock, "l")
		dead.Await(t, "l")
		after := c.Await(t, "l")
		time.Sleep(5 * time.Second)
		dead.Link.Cut()
		time.Sleep(ttl + 500*time.Millisecond)
		require.Len(t, kit.Inspect(t, a.Client, "l").Queue, 1)
		free := time.Now()
		kit.Unlock(t, holder)
		after.Granted(t)
		require.Less(t, time.Since(free), 100*time.Millisecond, "it is first already")
	})
}

// TestFIFOHolderDiesOlderThanTheQueue checks that the first waiter notices the end of the holder's
// record even though the waiter's predecessor left at a higher revision than the record's.
func TestFIFOHolderDiesOlderThanTheQueue(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		const ttl = 20 * time.Second
		a, b, c := kit.Join(t, s), kit.Join(t, s), kit.Join(t, s)
		begun := time.Now()
		kit.Must(t, a.Lock, "l", natslock.NoRenew(), natslock.TTL(ttl))
		time.Sleep(2 * time.Second)
		gone := b.Await(t, "l")
		w := c.Await(t, "l")
		time.Sleep(2 * time.Second)
		gone.Cancel(nil)
		gone.Failed(t)
		w.Granted(t)
		require.LessOrEqual(t, w.At.Sub(begun), ttl+500*time.Millisecond)
	})
}

// TestFIFOPredecessorDiesOlderThanTheQueue checks the same for a waiter that inherits a dead
// predecessor whose record is older than the last record of its previous predecessor.
func TestFIFOPredecessorDiesOlderThanTheQueue(t *testing.T) {
	for range 4 { // a timed read may hide a failure by coming at the right moment
		testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
			const ttl = 15 * time.Second
			a, dead, b, c := kit.Join(t, s), kit.Join(t, s), kit.Join(t, s), kit.Join(t, s)
			holder := kit.Must(t, a.Lock, "l")
			dead.Await(t, "l")
			gone := b.Await(t, "l")
			w := c.Await(t, "l")
			dead.Link.Cut()
			died := time.Now()
			time.Sleep(time.Second)
			gone.Cancel(nil)
			gone.Failed(t)
			time.Sleep(time.Until(died.Add(ttl + 300*time.Millisecond)))
			free := time.Now()
			kit.Unlock(t, holder)
			w.Granted(t)
			require.Less(t, w.At.Sub(free), 200*time.Millisecond)
		})
	}
}

// TestFIFOIdleLockIsTakenOutOfTurn checks that a paused waiter at the head of the queue does not
// delay the others for long, even though its record is still alive.
func TestFIFOIdleLockIsTakenOutOfTurn(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, paused, c := kit.Join(t, s), kit.Join(t, s), kit.Join(t, s)
		holder := kit.Must(t, a.Lock, "l")
		paused.Await(t, "l")
		w := c.Await(t, "l")
		time.Sleep(3 * time.Second)
		paused.Link.Blackhole(true)
		free := time.Now()
		kit.Unlock(t, holder)
		w.Granted(t)
		require.Less(t, w.At.Sub(free), 6*time.Second, "well before the TTL of 15 s")
	})
}

// TestFIFOReacquireStarvesNobody has one client take and release the lock continuously. That client
// may skip the queue for 100 ms, but then another client's waiter must get in soon, even though its
// claims always arrive a little late.
func TestFIFOReacquireStarvesNobody(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		greedy := kit.Join(t, s)
		other, f := kit.JoinFaulty(t, s)
		f.OnSend(func(int, kvstore.Write) faults.Fate { return faults.Delay(time.Millisecond) })
		stop := make(chan struct{})
		var wg sync.WaitGroup
		cycles := 0
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				l, err := greedy.Lock(t.Context(), "l")
				if err != nil {
					t.Error(err)
					return
				}
				time.Sleep(3 * time.Millisecond)
				if err := l.Unlock(t.Context()); err != nil {
					t.Error(err)
					return
				}
				cycles++
			}
		})
		time.Sleep(time.Second)
		var worst time.Duration
		for range 20 {
			begun := time.Now()
			l := kit.Must(t, other.Lock, "l")
			worst = max(worst, time.Since(begun))
			kit.Unlock(t, l)
			time.Sleep(37 * time.Millisecond)
		}
		close(stop)
		wg.Wait()
		require.Less(t, worst, 120*time.Millisecond)
		require.Greater(t, cycles, 200)
	})
}

// TestFIFORepeatedClaim checks that a repeated claim does not pass a waiter either: by then too
// much time has passed since its client saw the queue empty.
func TestFIFORepeatedClaim(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		// Until then the server refuses every claim made at a tombstone.
		refusedFor := func(d time.Duration) *kit.Member {
			m, f := kit.JoinFaulty(t, s)
			until := time.Now().Add(d)
			f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
				if kit.Stage(w) == "lock take" && w.Expect != 0 && time.Now().Before(until) {
					return faults.Refuse(kvstore.ErrInFlight)
				}
				return faults.Pass
			})
			return m
		}
		early, late := refusedFor(500*time.Millisecond), refusedFor(250*time.Millisecond)
		kit.Unlock(t, kit.Must(t, kit.Join(t, s).Lock, "l"))
		first := early.Begin(t, "l")
		time.Sleep(60 * time.Millisecond)
		second := late.Begin(t, "l")
		l := first.Granted(t)
		require.False(t, second.Over())
		kit.UnlockAll(t, l, second)
	})
}

// TestFIFOReacquireStarvesNobodyTCP checks that a waiter gets in against a client that takes and
// releases the lock over TCP at full speed.
func TestFIFOReacquireStarvesNobodyTCP(t *testing.T) {
	tier.Proof(t)
	s := testutil.RunServer(t)
	greedy, other := kit.Join(t, s), kit.Join(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			if err := greedy.Do(ctx, "l", func(context.Context, *natslock.Lock) error { return nil }); err != nil && ctx.Err() == nil {
				t.Error(err)
				return
			}
		}
	})
	greedy.Events.Wait(t, admin.EventReleased, "l")
	for range 5 {
		begun := time.Now()
		kit.Unlock(t, kit.Must(t, other.Lock, "l"))
		require.Less(t, time.Since(begun), 2*time.Second)
	}
	cancel()
	wg.Wait()
}

// TestFIFOOneReleaseWakesOneWaiter checks that a release wakes a single waiter regardless of the
// queue's length. A hand-over writes to the lock's key at most three times: the release, the next
// holder's claim, and an attempt by the waiter that becomes first.
func TestFIFOOneReleaseWakesOneWaiter(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s)
		holder := kit.Must(t, c.Lock, "l")
		var queue []*kit.Waiting
		for _, m := range kit.Crowd(t, s, 20) {
			queue = append(queue, m.Await(t, "l"))
		}
		time.Sleep(1500 * time.Millisecond) // they settle, and the holder begins to watch after 1 s
		tapped := kit.NewTap(t, s.Connect(), "lock.l")
		all := kit.NewTap(t, s.Connect(), ">")
		lists := kit.NewTapOf(t, s.Connect(), "$JS.API.DIRECT.GET."+kit.StreamName)
		tapped.Take(t, c.NC)
		all.Take(t, c.NC)
		kit.Unlock(t, holder)
		for i, w := range queue {
			l := w.Granted(t)
			synctest.Wait()
			msgs := tapped.Take(t)
			claims, releases := 0, 0
			for _, m := range msgs {
				if m.Header.Get("KV-Operation") == "DEL" {
					releases++
				} else {
					claims++
				}
			}
			require.Equalf(t, 1, releases, "hand-over %d", i)
			require.LessOrEqualf(t, claims, 2, "hand-over %d: the winner's, and one of the one who is first then", i)
			require.GreaterOrEqual(t, claims, 1)
			require.LessOrEqual(t, len(all.Take(t)), 4, "and the tombstone of the winner's place")
			kit.Unlock(t, l)
		}
		require.Empty(t, lists.Take(t), "the next one learns that it is first, and does not list")
	})
}

// TestFIFOManyWaiters checks that a long queue drains without leaving anything behind, whether the
// waiters are separate clients or the goroutines of two.
func TestFIFOManyWaiters(t *testing.T) {
	for _, clients := range []int{100, 2} {
		t.Run(fmt.Sprint(clients), func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				const n = 100
				members := kit.Crowd(t, s, clients)
				waiting := func() (n int) {
					for _, m := range members {
						n += m.Stats().Waiting
					}
					return n
				}
				r := kit.NewRaw(t, s.Connect())
				kit.Unlock(t, kit.Must(t, members[1].Lock, "warm"))
				before := members[1].NC.NumSubscriptions()
				holder := kit.Must(t, members[0].Lock, "l")
				var wg sync.WaitGroup
				for i := range n {
					w := members[i%clients].Begin(t, "l")
					wg.Go(func() {
						<-w.Done
						if w.Err == nil {
							w.Err = w.Value.Unlock(context.Background())
						}
						if w.Err != nil {
							t.Error(w.Err)
						}
					})
				}
				time.Sleep(2 * time.Second)
				require.Equal(t, n, waiting())
				begun := time.Now()
				kit.Unlock(t, holder)
				wg.Wait()
				require.Less(t, time.Since(begun), time.Second, "no hand-over waits for a timer")
				synctest.Wait()
				require.Zero(t, waiting())
				require.Equal(t, before, members[1].NC.NumSubscriptions())
				require.Empty(t, r.Live(">"))
			})
		})
	}
}

// TestLongQueue checks that a waiter in a long queue reads only the stretch just ahead of its own
// ticket, as long as that contains the places directly ahead.
func TestLongQueue(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		often := kit.Join(t, s) // its place has a TTL of only 5 s
		r := kit.NewRaw(t, s.Connect())
		holder := kit.QuietHolder(t, s)
		waiters := []*kit.Waiting{often.Await(t, "l", natslock.TTL(time.Second), natslock.NoRenew())}
		for _, m := range kit.Crowd(t, s, 41) {
			waiters = append(waiters, m.Await(t, "l"))
		}
		synctest.Wait()
		tapped := kit.NewTap(t, s.Connect(), "lock.l")
		// Leave a gap in the revisions before the newcomers' tickets: other clients write, and the
		// first waiter renews its place.
		for i := range 200 {
			r.Put(fmt.Sprint("lock.other", i), []byte("x"), time.Minute)
		}
		time.Sleep(1700 * time.Millisecond)
		newcomers := kit.Crowd(t, s, 4)
		for _, m := range newcomers[:3] { // so that the last two have predecessors nearby
			waiters = append(waiters, m.Await(t, "l"))
			synctest.Wait()
		}
		c := newcomers[3]
		read := c.NC.Stats().InMsgs
		waiters = append(waiters, c.Await(t, "l"))
		synctest.Wait()
		require.Less(t, c.NC.Stats().InMsgs-read, uint64(50), "the queue, if that is short, and a part")
		time.Sleep(time.Second)
		require.Len(t, tapped.Take(t, c.NC), 4, "the attempts of the newcomers, and of nobody else")

		kit.Unlock(t, holder)
		l := waiters[0].Granted(t)
		synctest.Wait()
		require.Len(t, tapped.Take(t, c.NC), 1+1+1, "its release, it, and the one who is first now")
		kit.Unlock(t, l)
		for _, w := range waiters[1:] {
			kit.Unlock(t, w.Granted(t))
		}
	})
}

// TestLongQueueInBusyBucket checks that a newcomer to a long queue finds the place ahead of its own
// without reading the whole queue. Other clients' writes have put that place many revisions back,
// so the newcomer reads longer and longer parts.
func TestLongQueueInBusyBucket(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		holder := kit.QuietHolder(t, s)
		r := kit.NewRaw(t, s.Connect())
		var waiters []*kit.Waiting
		for _, m := range kit.Crowd(t, s, 100) {
			waiters = append(waiters, m.Await(t, "l"))
		}
		for i := range 240 {
			r.Put(fmt.Sprint("lock.other", i), []byte("x"), time.Minute)
		}
		c := kit.Join(t, s)
		read := c.NC.Stats().InMsgs
		waiters = append(waiters, c.Await(t, "l"))
		synctest.Wait()
		require.Less(t, c.NC.Stats().InMsgs-read, uint64(50), "the queue has 100 records")
		kit.Unlock(t, holder)
		for _, w := range waiters {
			kit.Unlock(t, w.Granted(t))
		}
	})
}

// TestNewcomerReadsAPart checks that a newcomer, which reads only some of a lock's records, does
// not pass a waiter whose record it has not read.
func TestNewcomerReadsAPart(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		b, c := kit.Join(t, s), kit.Join(t, s)
		holder := kit.QuietHolder(t, s)
		var gone []*kit.Waiting
		for _, m := range kit.Crowd(t, s, 20) {
			gone = append(gone, m.Await(t, "l"))
		}
		for _, w := range gone {
			w.Cancel(nil)
			w.Failed(t)
		}
		synctest.Wait() // so that the tombstones precede the next place
		first := b.Await(t, "l")
		b.Link.Blackhole(true)
		kit.Unlock(t, holder)
		read := c.NC.Stats().InMsgs
		w := c.Begin(t, "l")
		time.Sleep(500 * time.Millisecond)
		require.False(t, w.Over(), "it has passed who waits")
		// The lock is free and the first waiter does not take it, so the newcomer reads the queue,
		// with its 20 tombstones, once more.
		require.Less(t, c.NC.Stats().InMsgs-read, uint64(60+25))
		b.Link.Blackhole(false)
		kit.Unlock(t, first.Granted(t))
		kit.Unlock(t, w.Granted(t))
	})
}
