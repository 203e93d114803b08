package semaphore_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/history"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/semaphore"
	"github.com/natslock/locks/testutil"
)

// TestTryBehindGrantedWaiter checks that a one-shot acquire gets a free permit once a queued
// acquire of another client has returned, even if the server is late to delete that client's place
// or refuses to at first.
func TestTryBehindGrantedWaiter(t *testing.T) {
	for name, fate := range map[string]faults.Fate{
		"late":    faults.Delay(300 * time.Millisecond),
		"refused": faults.Refuse(kvstore.ErrInFlight),
	} {
		t.Run(name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				a, b := join(t, s), join(t, s)
				ours := semaphore.New(a.Client, 2)
				b.f.OnSend(kit.Between("swait delete", 1, 1, fate))
				l := takeOver(t, ours, "x", b)
				other, err := ours.TryAcquire(t.Context(), "x")
				require.NoError(t, err)
				require.NoError(t, other.Unlock(t.Context()))
				require.NoError(t, l.Unlock(t.Context()))
			})
		})
	}
}

// TestPlaceWithoutAnswer leaves the deletion of a place unanswered. The permit must be returned
// while most of its short, unrenewed lease is left.
func TestPlaceWithoutAnswer(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b := join(t, s), join(t, s)
		b.f.OnSend(kit.At("swait delete", faults.LoseAnswer))
		begun := time.Now()
		l := takeOver(t, semaphore.New(a.Client, 2), "x", b, natslock.NoRenew(), natslock.TTL(time.Second))
		require.Less(t, time.Since(begun), 300*time.Millisecond, "the first lease that was granted")
		require.Greater(t, l.Remaining(), 600*time.Millisecond)
		require.NoError(t, l.Unlock(t.Context()))
	})
}

// TestFailedReadIsRepeatedSoon fails the reads, of the slot and of all slots, that a waiter does
// after being notified of a release. No second notification comes.
func TestFailedReadIsRepeatedSoon(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b := join(t, s), join(t, s)
		l := must(t, semaphore.New(a.Client, 1), "x")
		w := b.await(t, semaphore.New(b.Client, 1), "x")
		time.Sleep(7 * time.Second) // the early reads are over, and no late one is due yet
		synctest.Wait()
		b.f.FailReads(func(faults.ReadOp, string) error {
			if b.f.Counts().ReadsFailed < 2 {
				return kvstore.ErrUnavailable
			}
			return nil
		})
		begun := time.Now()
		kit.Unlock(t, l)
		l = w.Granted(t)
		require.Equal(t, 2, b.f.Counts().ReadsFailed)
		require.Less(t, time.Since(begun), 100*time.Millisecond)
		kit.Unlock(t, l)
	})
}

// takeOver acquires both permits of a semaphore, lets a peer queue, and then frees both. It returns
// the peer's lock.
func takeOver(t *testing.T, ours *semaphore.Semaphore, name string, b *peer, opts ...natslock.LockOption) *natslock.Lock {
	t.Helper()
	first, second := must(t, ours, name), must(t, ours, name)
	granted := make(chan *natslock.Lock)
	go func() {
		l, err := semaphore.New(b.Client, 2).Acquire(t.Context(), name, opts...)
		assert.NoError(t, err)
		granted <- l
	}()
	<-b.queued
	require.NoError(t, first.Unlock(t.Context()))
	require.NoError(t, second.Unlock(t.Context()))
	return <-granted
}

// TestFaultAtEveryStep repeats one scenario with a fault in a different write each time. A and B
// hold the semaphore's two permits. C and D wait, and enter when A and B leave. Whatever happens,
// at most two clients are inside at once, every client gets in, and nothing is left at the end.
func TestFaultAtEveryStep(t *testing.T) { faultAtSteps(t, kit.WithMemoryBucket) }

// TestFaultAtEveryStepServer runs the same scenario on a server.
func TestFaultAtEveryStepServer(t *testing.T) {
	tier.Proof(t)
	faultAtSteps(t, kit.WithServerBucket)
}

func faultAtSteps(t *testing.T, in func(*testing.T, func(*testing.T, kit.FaultyBucket))) {
	fates := map[string]faults.Fate{
		"answer lost": faults.LoseAnswer, "dropped": faults.Drop, "in flight": faults.Refuse(kvstore.ErrInFlight),
		"not sent":                    faults.NotSent(fmt.Errorf("%w: test", kvstore.ErrUnavailable)),
		"applied 700ms later":         faults.Delay(700 * time.Millisecond),
		"applied 3s later":            faults.Delay(3 * time.Second),
		"applied 40s later, silently": faults.Delay(40 * time.Second).Silent(),
		"answered 3s later":           faults.DelayAnswer(3 * time.Second),
		"answered 40s later":          faults.DelayAnswer(40 * time.Second),
	}
	const who = "ABCD"
	for _, step := range []struct {
		who         int
		stage       string
		first, last int
	}{
		{0, "sem take", 1, 1}, {0, "sem take", 1, 3}, {0, "sem renew", 1, 1}, {0, "sem renew", 1, 1000}, {0, "sem delete", 1, 1}, {0, "sem delete", 1, 3},
		{2, "swait take", 1, 1}, {2, "swait take", 1, 3}, {2, "swait renew", 1, 1}, {2, "swait renew", 1, 1000}, {2, "swait delete", 1, 1},
		{2, "sem take", 1, 1}, {2, "sem take", 1, 3}, {2, "sem probe", 1, 3}, {3, "sem take", 1, 2}, {3, "swait delete", 1, 2},
	} {
		t.Run(fmt.Sprintf("%c %s %d-%d", who[step.who], step.stage, step.first, step.last), func(t *testing.T) {
			var h *history.History
			in(t, func(t *testing.T, bucket kit.FaultyBucket) {
				rec := history.NewRecorder()
				bucket.Tap(t, rec)
				var all sync.WaitGroup
				for fate, f := range fates {
					name := history.Want{Kind: admin.KindSemaphore, Name: natslock.Join(fate), Permits: 2}
					var clients []*history.Client
					for i := range who {
						c, store := bucket.Client(t, 1, natslock.WithTTL(5*time.Second), rec.Option())
						if i == step.who {
							store.OnSend(kit.Between(step.stage, step.first, step.last, f))
						}
						clients = append(clients, rec.Client(fmt.Sprintf("%c %s", who[i], fate), c))
					}
					for i, c := range clients {
						all.Go(func() {
							time.Sleep(time.Duration(i) * 100 * time.Millisecond)
							ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
							defer cancel()
							h, err := c.Acquire(ctx, name, natslock.Detached())
							if !assert.NoError(t, err, "%s of %s", c.Name, fate) {
								return
							}
							for range 4 {
								time.Sleep(2 * time.Second)
								h.Use()
							}
							_ = h.Unlock(context.Background())
						})
					}
				}
				all.Wait()
				time.Sleep(time.Minute)
				synctest.Wait()
				rec.Left(bucket.KeysLeft(t)...)
				h = rec.History()
			})
			history.Verify(t, h, history.Options{Least: map[string]int{"grants": len(who) * len(fates)}})
		})
	}
}

// TestRace checks that a claim that lost the race for a slot moves on to another slot.
func TestRace(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b := join(t, s), join(t, s)
		sa, sb := semaphore.New(a.Client, 2), semaphore.New(b.Client, 2)
		a.f.OnSend(kit.Between("sem take", 1, 1, faults.Delay(20*time.Millisecond)))
		w := begin(t, sa, "s")
		synctest.Wait()
		l := must(t, sb, "s")
		require.Equal(t, 1, slot(t, l))
		got := w.Granted(t)
		require.Zero(t, slot(t, got))
		kit.Unlock(t, l, got)

		// A one-shot acquire reads the slots again.
		a.f.OnSend(kit.Between("sem take", 1, 1, faults.Delay(20*time.Millisecond)))
		time.Sleep(2 * time.Second)
		held := must(t, semaphore.New(b.Client, 1), "s") // slot 0
		done := make(chan error, 1)
		go func() {
			l, err := sa.TryAcquire(context.Background(), "s")
			if err == nil {
				err = l.Unlock(context.Background())
			}
			done <- err
		}()
		synctest.Wait()
		l = must(t, sb, "s") // slot 1, which a's claim is also heading for
		require.Equal(t, 1, slot(t, l))
		kit.Unlock(t, held)
		require.NoError(t, kit.Receive(t, done, "the one-shot acquire"))
		kit.Unlock(t, l)
	})
}

// TestLateClaim checks that an unanswered claim is void once its client has moved on to another
// slot: it is deleted when the server applies it, and never becomes a second grant.
func TestLateClaim(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b := join(t, s), join(t, s)
		sa, sb := semaphore.New(a.Client, 2), semaphore.New(b.Client, 2)
		a.f.OnSend(kit.Between("sem take", 1, 1, faults.Hold))
		w := begin(t, sa, "s") // the first attempt is for slot 1
		synctest.Wait()
		one := must(t, sb, "s")
		require.Equal(t, 1, slot(t, one))
		got := w.Granted(t) // the second attempt is refused
		require.Zero(t, slot(t, got))
		kit.Unlock(t, one)
		time.Sleep(2 * time.Second) // the tombstone has expired
		require.Equal(t, 1, a.f.ReleaseHeld())
		synctest.Wait()
		require.NoError(t, got.Err())
		require.Len(t, inspect(t, b.Client, "s").Permits, 1, "the late one is deleted")
		l := must(t, sb, "s")
		require.Equal(t, 1, slot(t, l))
		kit.Unlock(t, l, got)
	})
}

// TestForged checks that a notification that a slot is free does not by itself let anyone in.
func TestForged(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b := join(t, s), join(t, s)
		l := must(t, semaphore.New(a.Client, 1), "s")
		w := b.await(t, semaphore.New(b.Client, 1), "s")
		synctest.Wait()
		store := kit.OpenStore(t, s.Connect())
		for range 20 {
			r, err := store.Get(t.Context(), "sem.s.0", 0)
			require.NoError(t, err)
			gone := r
			gone.Deleted = true
			for _, ev := range []kvstore.Event{
				{Kind: kvstore.Deleted, Record: gone}, {Kind: kvstore.Expired, Record: r},
				{Kind: kvstore.Put, Record: kvstore.Record{Key: r.Key, Revision: r.Revision, Value: r.Value, Time: time.Now().Add(-time.Hour), TTL: time.Second}},
			} {
				require.Equal(t, 1, b.f.Forge(ev))
				synctest.Wait()
				require.False(t, w.Over())
				require.NoError(t, l.Err())
			}
			time.Sleep(time.Second)
		}
		kit.Unlock(t, l)
		kit.Unlock(t, w.Granted(t))
	})
}

// TestOverdue checks that a slot whose record the server forgot to remove is taken once it is
// overdue, whether by a waiter, a newcomer or a one-shot acquire.
func TestOverdue(t *testing.T) {
	const ttl = 6 * time.Second
	for _, what := range []string{"waiter", "newcomer", "try"} {
		t.Run(what, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				dead, b := join(t, s, natslock.WithTTL(ttl)), join(t, s, natslock.WithTTL(ttl))
				must(t, semaphore.New(dead.Client, 1), "s")
				written := time.Now()
				dead.link.Cut()
				sem := semaphore.New(b.Client, 1)
				kit.RestartWithoutTTLs(t, s)
				time.Sleep(time.Second)
				_, err := sem.TryAcquire(t.Context(), "s")
				require.ErrorIs(t, err, natslock.ErrLocked)
				if what != "waiter" {
					time.Sleep(time.Until(written.Add(ttl + 400*time.Millisecond)))
				}
				var l *natslock.Lock
				if what == "try" {
					l, err = sem.TryAcquire(t.Context(), "s")
					require.NoError(t, err)
				} else {
					l = must(t, sem, "s")
				}
				require.GreaterOrEqual(t, time.Since(written), ttl+300*time.Millisecond)
				require.Less(t, time.Since(written), ttl+time.Second)
				kit.Unlock(t, l)
			})
		})
	}
}

// TestReadsFailBehindAnother covers a waiter that cannot read the slots and has to rely on its
// timers. Meanwhile the record of a holder it has seen expires, and the waiter ahead of it does not
// get that slot.
func TestReadsFailBehindAnother(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		h, dead := join(t, s, natslock.WithTTL(time.Hour)), join(t, s, natslock.WithTTL(5*time.Second))
		a, b := join(t, s), join(t, s)
		one := must(t, semaphore.New(h.Client, 2), "s")
		time.Sleep(2 * time.Second)                 // renewed once, and not due again soon
		must(t, semaphore.New(dead.Client, 2), "s") // slot 0
		b.f.OnSend(kit.Between("swait take", 1, 1, faults.Delay(200*time.Millisecond)))
		w2 := begin(t, semaphore.New(b.Client, 2), "s")
		synctest.Wait()
		w1 := a.await(t, semaphore.New(a.Client, 1), "s") // ahead of w2
		var reads atomic.Int64
		b.f.FailReads(func(_ faults.ReadOp, asked string) error {
			if !strings.HasPrefix(asked, "swait.s.") && asked != "sem.s.*" {
				return nil
			}
			reads.Add(1)
			return kvstore.ErrUnavailable
		})
		kit.Receive(t, b.queued, "a place in the queue")
		a.f.OnSend(kit.At("sem take", faults.Drop))
		dead.link.Cut()
		time.Sleep(20 * time.Second)
		require.Less(t, reads.Load(), int64(100))
		a.f.OnSend(nil)
		zero := w1.Granted(t)
		b.f.FailReads(nil)
		kit.Unlock(t, one)
		kit.Unlock(t, w2.Granted(t), zero)
	})
}
