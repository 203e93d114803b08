package cohort_test

import (
	"context"
	"fmt"
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
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

// TestCohortJoinedInTheFirstWrite checks that goroutines that ask during the first write share its
// claim and record, or a single place.
func TestCohortJoinedInTheFirstWrite(t *testing.T) {
	for _, refused := range []bool{false, true} {
		t.Run(fmt.Sprintf("refused %v", refused), func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				c, f := kit.JoinFaulty(t, s)
				var holder *natslock.Lock
				if refused {
					holder = kit.QuietHolder(t, s)
				}
				taps := kit.NewTap(t, s.Connect(), ">")
				f.OnSend(func(n int, _ kvstore.Write) faults.Fate {
					if n == 1 {
						return faults.DelayAnswer(300 * time.Millisecond)
					}
					return faults.Pass
				})
				waits := []*kit.Waiting{c.Begin(t, "l")}
				synctest.Wait()
				time.Sleep(100 * time.Millisecond)
				for range 3 {
					waits = append(waits, c.Settle(t))
				}
				time.Sleep(300 * time.Millisecond)
				if refused {
					require.Len(t, kit.Inspect(t, c.Client, "l").Queue, 1)
				} else {
					require.Empty(t, kit.Inspect(t, c.Client, "l").Queue)
					holder = waits[0].Granted(t)
					waits = waits[1:]
				}
				kit.UnlockAll(t, holder, waits...)
				stages := taps.Stages(t, c.NC)
				require.Equal(t, 1, stages["lock take"])
				require.Equal(t, map[bool]int{false: 0, true: 1}[refused], stages["wait take"])
				kit.WantNothing(t, s)
			})
		})
	}
}

// TestCohortsOfOneClient checks that goroutines whose records would differ queue separately and
// take turns with the others as if they belonged to another client.
func TestCohortsOfOneClient(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s)
		holder, waits := siblings(t, c, 1)
		ttls := []string{"15s"}
		begin := func(places int, ttl string, opts ...natslock.LockOption) {
			t.Helper()
			waits, ttls = append(waits, c.Settle(t, opts...)), append(ttls, ttl)
			require.Len(t, kit.Inspect(t, c.Client, "l").Queue, places)
		}
		begin(1, "60s", natslock.TTL(time.Minute))
		begin(1, "60s", natslock.TTL(time.Minute)) // asks after the previous goroutine has its ticket
		begin(2, "60s", natslock.TTL(time.Minute), natslock.NoRenew())
		begin(2, "60s", natslock.TTL(time.Minute)) // waits with the first two
		begin(2, "15s")                            // joins the holder's cohort after the client knew of other waiters
		begin(3, "", natslock.Until(time.Now().Add(time.Minute)))
		begin(4, "", natslock.Until(time.Now().Add(time.Minute)))
		begin(4, "15s")
		r := kit.NewRaw(t, s.Connect())
		l := holder
		order := []int{0, 1, 3, 6, 7, 5, 8, 2, 4}
		for i, n := range order {
			var later []*kit.Waiting
			for _, n := range order[i+1:] {
				later = append(later, waits[n])
			}
			time.Sleep(2 * time.Millisecond) // longer than a turn
			l = unlockFor(t, l, waits[n], later...)
			if ttls[n] != "" {
				require.Equal(t, ttls[n], r.Get("lock.l").Header.Get("Nats-TTL"), "grant %d", i)
			}
		}
		kit.Unlock(t, l)
		time.Sleep(2 * time.Second)
		kit.WantNothing(t, s)
	})
}

// TestCohortBehindATry checks that goroutines that arrive while a TryLock of their client is
// unanswered get the lock after it, even if it is refused.
func TestCohortBehindATry(t *testing.T) {
	for _, refused := range []bool{false, true} {
		t.Run(fmt.Sprintf("refused %v", refused), func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				c, f := kit.JoinFaulty(t, s)
				var holder *natslock.Lock
				if refused {
					holder = kit.QuietHolder(t, s)
				}
				f.OnSend(func(n int, _ kvstore.Write) faults.Fate {
					if n == 1 {
						return faults.DelayAnswer(300 * time.Millisecond)
					}
					return faults.Pass
				})
				try := kit.Begin(t, func(ctx context.Context) (*natslock.Lock, error) { return c.TryLock(ctx, "l") })
				synctest.Wait()
				waits := []*kit.Waiting{c.Settle(t), c.Settle(t), c.Settle(t)}
				if refused {
					require.ErrorIs(t, try.Failed(t), natslock.ErrLocked)
					time.Sleep(100 * time.Millisecond)
					require.Len(t, kit.Inspect(t, c.Client, "l").Queue, 1)
				} else {
					holder = try.Granted(t)
				}
				_, err := c.TryLock(t.Context(), "l") // makes a request of its own despite the waiting goroutines
				require.ErrorIs(t, err, natslock.ErrLocked)
				kit.UnlockAll(t, holder, waits...)
				kit.WantNothing(t, s)
			})
		})
	}
}

// TestCohortSilence checks that a client whose place gets no reply does not hold up goroutines that
// give up, and that goroutines that arrive later start over.
func TestCohortSilence(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, f := kit.JoinFaulty(t, s)
		holder := kit.QuietHolder(t, s)
		f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
			if kit.Stage(w) == "lock take" {
				return faults.Pass
			}
			return faults.Drop
		})
		waits := []*kit.Waiting{c.Settle(t), c.Settle(t, natslock.MaxWait(700*time.Millisecond)), c.Settle(t)}
		begun := time.Now()
		require.ErrorIs(t, waits[1].Failed(t), natslock.ErrTimeout)
		require.Equal(t, 700*time.Millisecond, waits[1].At.Sub(begun))
		for _, w := range []*kit.Waiting{waits[0], waits[2]} { // the last one to give up waits for what was sent
			begun = time.Now()
			w.Cancel(nil)
			require.ErrorIs(t, w.Failed(t), natslock.ErrTimeout)
			require.LessOrEqual(t, w.At.Sub(begun), 100*time.Millisecond)
		}
		next := c.Settle(t)
		time.Sleep(500 * time.Millisecond)
		require.Empty(t, kit.Inspect(t, c.Client, "l").Queue)
		f.OnSend(nil)
		time.Sleep(5 * time.Second)
		require.Len(t, kit.Inspect(t, c.Client, "l").Queue, 1)
		kit.UnlockAll(t, holder, next)
		time.Sleep(2 * time.Second)
		kit.WantNothing(t, s)
	})
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) { // Close
		c, f := kit.JoinFaulty(t, s)
		kit.QuietHolder(t, s)
		f.OnSend(kit.At("wait take", faults.Drop))
		w := c.Settle(t)
		begun := time.Now()
		require.NoError(t, c.Close(t.Context()))
		require.ErrorIs(t, w.Failed(t), natslock.ErrClosed)
		require.LessOrEqual(t, time.Since(begun), 5*time.Second, "longer than a release may take")
	})
}

// unwatched is the store of a bucket that does not publish its changes.
type unwatched struct{ kvstore.KV }

func (unwatched) Watch(string, func(kvstore.Event)) (kvstore.Watch, error) {
	return nil, kvstore.ErrNoWatch
}

// TestCohortLateUnlockTouchesNoOtherLock checks that a holder that unlocks late, after its lease
// has ended and another goroutine of its client has got the lock, affects no other lock of the
// client.
func TestCohortLateUnlockTouchesNoOtherLock(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s, faults.WrapStore(func(kv kvstore.KV) kvstore.KV { return unwatched{kv} }))
		lost := kit.Must(t, c.Lock, "a", natslock.TTL(time.Second), natslock.NoRenew())
		next := c.Begin(t, "a")
		synctest.Wait()
		time.Sleep(lost.Remaining())
		third := c.Begin(t, "a") // makes the client notice that the lease has ended
		synctest.Wait()
		third.Cancel(nil)
		third.Failed(t)
		kit.Unlock(t, next.Granted(t))
		inside := kit.Must(t, c.Lock, "l")
		var waits []*kit.Waiting
		for range 2 {
			waits = append(waits, c.Begin(t, "l"))
			synctest.Wait()
		}
		require.ErrorIs(t, lost.Unlock(t.Context()), natslock.ErrLost)
		synctest.Wait()
		kit.WantHeld(t, inside)
		for _, w := range waits {
			require.False(t, w.Over(), "two holders of a lock are inside")
		}
		kit.UnlockAll(t, inside, waits...)
	})
}

// farAway makes each write and each read of a client take one round trip.
func farAway(f *faults.Store, trip time.Duration) {
	f.OnSend(func(int, kvstore.Write) faults.Fate { return faults.DelayAnswer(trip) })
	f.FailReads(func(faults.ReadOp, string) error {
		time.Sleep(trip)
		return nil
	})
}

// TestCohortOfAThousand checks that a thousand goroutines of one client occupy a single place
// behind another client and cost no more messages than ten do, apart from the renewals that their
// grants need.
func TestCohortOfAThousand(t *testing.T) {
	for _, every := range []time.Duration{0, 20 * time.Microsecond, 3 * time.Millisecond} {
		t.Run(fmt.Sprint("every ", every), func(t *testing.T) {
			sent := map[int]uint64{}
			for _, n := range []int{10, 1000} {
				testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
					c, f := kit.JoinFaulty(t, s)
					farAway(f, time.Millisecond)
					holder := kit.QuietHolder(t, s)
					out := c.NC.Stats().OutMsgs
					var wg sync.WaitGroup
					for range n {
						wg.Go(func() {
							if l, err := c.Lock(t.Context(), "l"); assert.NoError(t, err) {
								assert.NoError(t, l.Unlock(t.Context()))
							}
						})
						if every > 0 {
							time.Sleep(every)
						}
					}
					time.Sleep(time.Second)
					require.Len(t, kit.Inspect(t, kit.Join(t, s).Client, "l").Queue, 1)
					require.Equal(t, n, c.Stats().Waiting)
					kit.Unlock(t, holder)
					wg.Wait()
					sent[n] = c.NC.Stats().OutMsgs - out
					time.Sleep(2 * time.Second)
					kit.WantNothing(t, s)
				})
			}
			t.Log("messages:", sent)
			require.LessOrEqual(t, sent[1000], sent[10]+1000/32+8)
		})
	}
}

// TestCohortPosition checks that the error of a goroutine that gives up reports its position in the
// queue and the holder of the lock.
func TestCohortPosition(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, other := kit.Join(t, s, natslock.WithOwner("ours")), kit.Join(t, s, natslock.WithOwner("theirs"))
		gaveUp := func(w *kit.Waiting) *natslock.TimeoutError {
			t.Helper()
			w.Cancel(nil)
			var e *natslock.TimeoutError
			require.ErrorAs(t, w.Failed(t), &e)
			require.NotNil(t, e.Holder)
			synctest.Wait()
			return e
		}
		holder, waits := siblings(t, c, 4)
		e := gaveUp(waits[3])
		require.Equal(t, 4, e.Position)
		require.Equal(t, "ours", e.Holder.Owner)
		require.Equal(t, holder.Token(), e.Holder.Token)

		kit.Unlock(t, holder)
		inside := waits[0].Granted(t)
		e = gaveUp(waits[2])
		require.Equal(t, 2, e.Position)
		require.Equal(t, "ours", e.Holder.Owner)
		require.Equal(t, inside.Token(), e.Holder.Token)

		// Now wait behind goroutines that share one place.
		waits = append(waits[1:2], c.Settle(t), c.Settle(t))
		kit.Unlock(t, inside)
		inside = waits[0].Granted(t)
		behind := other.Settle(t)
		e = gaveUp(behind)
		require.Equal(t, 1, e.Position, "those that are served before it wait for no place")
		require.Equal(t, "ours", e.Holder.Owner)
		kit.UnlockAll(t, inside, waits[1:]...)

		holder = kit.Must(t, other.Lock, "l")
		waits = []*kit.Waiting{c.Settle(t), c.Settle(t), c.Settle(t), c.Settle(t)}
		time.Sleep(20 * time.Second) // the renewal of the place reports how many goroutines wait there
		last := kit.Join(t, s).Settle(t)
		time.Sleep(10 * time.Second)
		require.Equal(t, 5, gaveUp(last).Position)
		e = gaveUp(waits[3])
		require.Equal(t, 4, e.Position)
		require.Equal(t, "theirs", e.Holder.Owner)
		require.Equal(t, 1, gaveUp(waits[0]).Position)
		kit.UnlockAll(t, holder, waits[1], waits[2])
		kit.WantNothing(t, s)
	})
}

// TestCohortStats checks that Stats and events count goroutines and grants.
func TestCohortStats(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s)
		holder, waits := siblings(t, c, 5)
		require.Equal(t, 5, c.Stats().Waiting)
		require.Equal(t, 1, c.Stats().Held)
		waits[4].Cancel(nil)
		waits[4].Failed(t)
		require.Equal(t, 4, c.Stats().Waiting)
		kit.Unlock(t, holder)
		l := waits[0].Granted(t)
		synctest.Wait()
		require.Equal(t, 3, c.Stats().Waiting)
		require.Equal(t, 1, c.Stats().Held)
		locks := kit.UnlockAll(t, l, waits[1:4]...)
		synctest.Wait()
		st := c.Stats()
		require.EqualValues(t, 5, st.Granted)
		require.EqualValues(t, 5, st.Released)
		require.EqualValues(t, 1, st.GaveUp)
		require.Zero(t, st.Waiting)
		require.Zero(t, st.Held)
		require.Zero(t, st.Lost)
		require.Equal(t, 5, c.Events.Count(admin.EventQueued, "l"))
		require.Equal(t, 5, c.Events.Count(admin.EventGranted, "l"))
		require.Equal(t, 5, c.Events.Count(admin.EventReleased, "l"))
		ids := map[string]bool{holder.ID(): true, l.ID(): true}
		for _, l := range locks {
			ids[l.ID()] = true
		}
		require.Len(t, ids, 5, "each grant has an id of its own")
	})
}

// TestCohortWaitersAreCountedOnce polls Stats while a goroutine of the holder's client repeatedly
// waits and gives up. The goroutine must be counted once, not a second time for its place in the
// queue.
func TestCohortWaitersAreCountedOnce(t *testing.T) {
	c := kit.Join(t, testutil.RunServer(t))
	l := kit.Must(t, c.Lock, "l")
	over, most := make(chan struct{}), make(chan int)
	go func() {
		n := 0
		for {
			select {
			case <-over:
				most <- n
				return
			default:
				n = max(n, c.Stats().Waiting)
				time.Sleep(time.Microsecond) // a test under the race detector has a single processor
			}
		}
	}()
	for range 1000 {
		w := c.Await(t, "l")
		w.Cancel(nil)
		require.ErrorIs(t, w.Failed(t), natslock.ErrTimeout)
	}
	close(over)
	require.Equal(t, 1, <-most)
	kit.Unlock(t, l)
}
