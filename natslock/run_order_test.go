package natslock_test

import (
	"cmp"
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
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

// dropPlaces loses the notifications of places on the way to a client.
func dropPlaces(f *faults.Store) {
	f.DropEvents(func(ev kvstore.Event) bool {
		return ev.Kind == kvstore.Put && kit.Stage(kvstore.Write{Key: ev.Record.Key, Value: ev.Record.Value}) == "wait take"
	})
}

// Goroutines of several clients are granted in the order in which they asked.
func TestRunOrderOfArrival(t *testing.T) {
	for _, turn := range []time.Duration{0, time.Millisecond} {
		t.Run(fmt.Sprint(turn), func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				clients := make([]*member, 4)
				for i := range clients {
					clients[i] = join(t, s, natslock.WithTuning(natslock.Tuning{Turn: cmp.Or(turn, -1)}))
				}
				var mu sync.Mutex
				var got, want []int
				var inside int
				var wg sync.WaitGroup
				for i := range 40 {
					want = append(want, i)
					c := clients[(i*7+i/5)%4]
					wg.Go(func() {
						l, err := c.Lock(t.Context(), "l")
						if !assert.NoError(t, err) {
							return
						}
						mu.Lock()
						got = append(got, i)
						inside++
						assert.Equal(t, 1, inside)
						mu.Unlock()
						time.Sleep(5 * time.Millisecond)
						mu.Lock()
						inside--
						mu.Unlock()
						assert.NoError(t, l.Unlock(t.Context()))
					})
					time.Sleep(3 * time.Millisecond)
				}
				wg.Wait()
				require.Equal(t, want, got)
				time.Sleep(2 * time.Second)
				wantNothing(t, s)
			})
		})
	}
}

// In its turn a run serves goroutines that came late, but none longer than that.
func TestRunTurn(t *testing.T) {
	for _, tc := range []struct {
		section time.Duration
		passes  int // late goroutines that are served before the stranger
	}{
		{5 * time.Millisecond, 0},
		{300 * time.Microsecond, 3}, // at 0.3, 0.6 and 0.9 ms
	} {
		t.Run(fmt.Sprint(tc.section), func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				const n = 500
				c, other := join(t, s), join(t, s)
				holder := quietHolder(t, s)
				first := c.follow(t)
				stranger := other.follow(t)
				kit.Unlock(t, holder)
				l := first.Granted(t)
				late := make([]*waiting, n)
				for i := range late { // time stands
					late[i] = c.await(t, "l")
				}
				order := append([]*waiting{}, late[:tc.passes]...)
				order = append(order, stranger)
				order = append(order, late[tc.passes:]...)
				token := l.Token()
				for i, w := range order {
					time.Sleep(tc.section)
					kit.Unlock(t, l)
					l = w.Granted(t)
					require.Greater(t, l.Token(), token, "grant %d", i)
					token = l.Token()
				}
				kit.Unlock(t, l)
				time.Sleep(2 * time.Second)
				wantNothing(t, s)
			})
		})
	}
}

// A late goroutine that passes nobody when the turn ends stays in its run. Clients that
// queue later are behind it.
func TestRunTurnEndsWithNobodyBehind(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, other := join(t, s, natslock.WithTuning(natslock.Tuning{Turn: 5 * time.Millisecond})), join(t, s)
		holder, waits := siblings(t, c, 2)
		leaves := other.follow(t)
		kit.Unlock(t, holder)
		l := waits[0].Granted(t)
		late := c.follow(t)
		leaves.Cancel(nil)
		leaves.Failed(t)
		synctest.Wait()
		time.Sleep(10 * time.Millisecond) // longer than a turn
		stranger := other.follow(t)
		unlockAll(t, l, waits[1], late, stranger)
		time.Sleep(2 * time.Second)
		wantNothing(t, s)
	})
}

// A goroutine that asks when the turn is over waits behind the stranger.
func TestRunAfterTheTurn(t *testing.T) {
	for turn, passes := range map[time.Duration]bool{0: false, time.Millisecond: false, 5 * time.Millisecond: true} {
		t.Run(fmt.Sprint(turn), func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				c, other := join(t, s, natslock.WithTuning(natslock.Tuning{Turn: cmp.Or(turn, -1)})), join(t, s)
				holder := quietHolder(t, s)
				first := c.follow(t)
				stranger := other.follow(t)
				kit.Unlock(t, holder)
				l := first.Granted(t)
				time.Sleep(2 * time.Millisecond)
				late := c.follow(t)
				if passes {
					unlockAll(t, l, late, stranger)
				} else {
					unlockAll(t, l, stranger, late)
				}
			})
		})
	}
}

// A section that ends at the same instant as the turn admits no late goroutine. The client
// may notice either end first.
func TestRunTurnEndsWithASection(t *testing.T) {
	const turn = 5 * time.Millisecond
	for range 20 {
		testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
			c, other := join(t, s, natslock.WithTuning(natslock.Tuning{Turn: turn})), join(t, s)
			holder := quietHolder(t, s)
			first := c.follow(t)
			stranger := other.follow(t)
			kit.Unlock(t, holder)
			l := first.Granted(t)
			late := c.follow(t)
			time.Sleep(time.Until(first.At.Add(turn)))
			unlockAll(t, l, stranger, late)
		})
	}
}

// A run takes no new members when it knows of another client behind it.
func TestRunBehindAStranger(t *testing.T) {
	for _, granted := range []bool{false, true} {
		testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
			c, other := join(t, s, natslock.WithTuning(natslock.Tuning{Turn: -1})), join(t, s)
			holder, waits := siblings(t, c, 2)
			if granted {
				kit.Unlock(t, holder)
				holder, waits = waits[0].Granted(t), waits[1:]
			}
			waits = append(waits, c.follow(t)) // joins
			stranger := other.follow(t)
			late := c.follow(t)
			require.Len(t, inspect(t, c.Client, "l").Queue, map[bool]int{false: 3, true: 2}[granted])
			unlockAll(t, holder, append(waits, stranger, late)...)
			time.Sleep(2 * time.Second)
			wantNothing(t, s)
		})
	}
}

// Silence is not knowledge: where the notification of a stranger's place is lost, nobody
// passes it who asks more than a second after the last list.
func TestRunLostNotification(t *testing.T) {
	for _, granted := range []bool{false, true} {
		testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
			c, f := joinFaulty(t, s, natslock.WithTuning(natslock.Tuning{Turn: -1}))
			other := join(t, s)
			holder, waits := siblings(t, c, 2)
			if granted {
				kit.Unlock(t, holder)
				holder, waits = waits[0].Granted(t), waits[1:]
			}
			dropPlaces(f)
			stranger := other.follow(t)
			time.Sleep(time.Second)
			late := c.follow(t)
			require.Positive(t, f.Counts().EventsDropped)
			unlockAll(t, holder, append(waits, stranger, late)...)
		})
	}
}

// A forged tombstone hides the place of another client until the next list only.
func TestRunForgedDeparture(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, f := joinFaulty(t, s, natslock.WithTuning(natslock.Tuning{Turn: -1}))
		holder, waits := siblings(t, c, 1)
		stranger := join(t, s).follow(t)
		place := inspect(t, c.Client, "l").Queue[1]
		r := newRaw(t, s.Connect())
		for _, key := range r.live("wait.l.*") {
			if strings.HasSuffix(key, place.ID) {
				require.Positive(t, f.Forge(kvstore.Event{Kind: kvstore.Deleted, Record: kvstore.Record{Key: key, Revision: place.Ticket + 1<<32, Deleted: true}}))
			}
		}
		time.Sleep(600 * time.Millisecond)
		c.follow(t).Cancel(nil) // has the queue listed
		time.Sleep(10 * time.Millisecond)
		late := c.follow(t)
		waits = append(waits, stranger, late)
		unlockAll(t, holder, waits...)
	})
}

// After a change of the server that serves the subscription, notifications may be lost:
// nobody joins before the next list.
func TestRunAnotherServerServes(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, f := joinFaulty(t, s, natslock.WithTuning(natslock.Tuning{Turn: -1}))
		other := join(t, s)
		holder, waits := siblings(t, c, 2)
		dropPlaces(f)
		stranger := other.follow(t)
		require.Positive(t, f.Forge(kvstore.Event{Kind: kvstore.Recheck}))
		late := c.follow(t)
		unlockAll(t, holder, append(waits, stranger, late)...)
	})
}

// A goroutine does not join a place that was written without a subscription to its queue.
// Another client may have queued behind that place, even while it has no answer.
func TestRunPlaceWithoutASubscription(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, f := joinFaulty(t, s, natslock.WithTuning(natslock.Tuning{Turn: -1}))
		other := join(t, s)
		holder := quietHolder(t, s)
		f.OnSend(kit.At("wait take", faults.DelayAnswer(100*time.Millisecond)))
		first := c.begin(t, "l")
		synctest.Wait()
		stranger := other.follow(t)
		second := c.follow(t) // while the place has no answer
		time.Sleep(200 * time.Millisecond)
		f.OnSend(nil)
		require.Len(t, inspect(t, c.Client, "l").Queue, 3)
		late := c.follow(t)
		unlockAll(t, holder, first, stranger, second, late)
	})
}

// A list from before the subscription does not show the places that came in between.
func TestRunListedBeforeTheSubscription(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, f := joinFaulty(t, s, natslock.WithTuning(natslock.Tuning{Turn: -1}))
		other := join(t, s)
		holder := quietHolder(t, s)
		first := c.follow(t) // lists the queue, and does not subscribe
		stranger := other.follow(t)
		time.Sleep(10 * time.Millisecond)
		f.FailReads(func(faults.ReadOp, string) error {
			time.Sleep(50 * time.Millisecond)
			return nil
		})
		second := c.follow(t) // subscribes, and gives up before its list
		second.Cancel(nil)
		second.Failed(t)
		synctest.Wait()
		late := c.follow(t)
		f.FailReads(nil)
		time.Sleep(200 * time.Millisecond)
		unlockAll(t, holder, first, stranger, late)
	})
}

// Places that the client saw before its subscription, and that have left since, keep no
// goroutine out of a run.
func TestRunGrowsAfterStrangersHaveLeft(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, other := join(t, s, natslock.WithTuning(natslock.Tuning{Turn: -1})), join(t, s)
		holder := quietHolder(t, s)
		stranger := other.follow(t)
		first := c.follow(t)
		kit.Unlock(t, holder)
		kit.Unlock(t, stranger.Granted(t))
		l := first.Granted(t)
		second := c.follow(t)
		kit.Unlock(t, l)
		l = second.Granted(t)
		third := c.follow(t)
		require.Empty(t, inspect(t, c.Client, "l").Queue)
		unlockAll(t, l, third)
	})
}

// Goroutines join a run whose first write is unanswered for a second, and only while the
// client knows of no other client's place.
func TestRunUnanswered(t *testing.T) {
	t.Run("until a notification", func(t *testing.T) {
		testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
			c, f := joinFaulty(t, s, natslock.WithTuning(natslock.Tuning{Turn: -1}))
			other := join(t, s)
			holder := mustLock(t, c.Client, "l")
			f.OnSend(kit.At("wait take", faults.DelayAnswer(500*time.Millisecond)))
			first := c.begin(t, "l")
			synctest.Wait()
			second := c.follow(t)
			stranger := other.follow(t)
			third := c.follow(t)
			time.Sleep(600 * time.Millisecond)
			unlockAll(t, holder, first, second, stranger, third)
		})
	})
	t.Run("for a second", func(t *testing.T) {
		testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
			c, f := joinFaulty(t, s, natslock.WithTuning(natslock.Tuning{Turn: -1}))
			f.OnSend(kit.At("lock take", faults.DelayAnswer(1900*time.Millisecond)))
			first := c.begin(t, "l")
			synctest.Wait()
			stranger := join(t, s).follow(t)
			time.Sleep(1100 * time.Millisecond)
			late := c.begin(t, "l")
			unlockAll(t, first.Granted(t), stranger, late)
		})
	})
	t.Run("for a second from its read of the queue", func(t *testing.T) {
		testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
			c, f := joinFaulty(t, s, natslock.WithTuning(natslock.Tuning{Turn: -1}))
			other, g := joinFaulty(t, s)
			var takes atomic.Int32
			g.OnSend(func(_ int, w kvstore.Write) faults.Fate {
				switch {
				case kit.Stage(w) != "lock take" || w.Expect == 0:
					return faults.Pass
				case takes.Add(1) == 1: // it queues when this one is refused
					return faults.Delay(110 * time.Millisecond)
				}
				return faults.Refuse(kvstore.ErrInFlight)
			})
			kit.Unlock(t, mustLock(t, c.Client, "l"))
			stranger := other.begin(t, "l")
			time.Sleep(60 * time.Millisecond)
			kit.Unlock(t, mustLock(t, c.Client, "l")) // reads the queue
			time.Sleep(90 * time.Millisecond)
			require.Len(t, inspect(t, c.Client, "l").Queue, 1)
			f.OnSend(kit.At("lock take", faults.DelayAnswer(1900*time.Millisecond)))
			first := c.begin(t, "l") // does not
			synctest.Wait()
			g.OnSend(nil)
			time.Sleep(950 * time.Millisecond)
			late := c.begin(t, "l")
			unlockAll(t, first.Granted(t), stranger, late)
		})
	})
}

// A claim whose answer was lost may be found when its run has a place already. Goroutines
// that joined the place asked after the clients that queued before it.
func TestRunClaimFoundAtItsPlace(t *testing.T) {
	t.Run("by a goroutine from before", func(t *testing.T) { claimFoundAtItsPlace(t, false) })
	t.Run("when those have given up", func(t *testing.T) { claimFoundAtItsPlace(t, true) })
}

func claimFoundAtItsPlace(t *testing.T, givenUp bool) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, f := joinFaulty(t, s)
		kit.Unlock(t, mustLock(t, join(t, s).Client, "l"))
		takes := 0
		f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
			if kit.Stage(w) == "lock take" && w.Expect != 0 {
				if takes++; takes == 1 {
					return faults.LoseAnswer
				}
			}
			return faults.Pass
		})
		first := c.begin(t, "l")
		synctest.Wait()
		second := c.begin(t, "l") // joins the claim
		time.Sleep(200 * time.Millisecond)
		stranger := join(t, s).follow(t)
		for len(inspect(t, c.Client, "l").Queue) == 1 {
			time.Sleep(20 * time.Millisecond)
		}
		late := c.begin(t, "l") // joins the place
		if givenUp {
			synctest.Wait()
			for _, w := range []*waiting{first, second} {
				w.Cancel(nil)
				require.ErrorIs(t, w.Failed(t), natslock.ErrTimeout)
			}
			unlockAll(t, stranger.Granted(t), late)
		} else {
			unlockAll(t, first.Granted(t), second, stranger, late)
		}
		wantNothing(t, s)
	})
}

// A run whose place has ended queues again behind the other runs of its client.
// Goroutines that ask after that join it, and pass nobody.
func TestRunQueuesAgain(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := join(t, s, natslock.WithTuning(natslock.Tuning{Turn: -1}))
		holder := quietHolder(t, s)
		first := c.follow(t)
		second := c.follow(t)
		time.Sleep(4900 * time.Millisecond)
		r := newRaw(t, s.Connect())
		for _, key := range r.live("wait.l.*") {
			if id := inspect(t, c.Client, "l").Queue[0].ID; strings.HasSuffix(key, id) {
				r.remove(key)
				break
			}
		}
		time.Sleep(200 * time.Millisecond) // its renewal is refused
		require.Len(t, inspect(t, c.Client, "l").Queue, 2)
		third := c.follow(t)
		unlockAll(t, holder, second, first, third)
	})
}

// stayed is a store whose replica shows a queue as a client has read it last, unless it
// is to contain a revision.
type stayed struct {
	kvstore.KV
	mu   sync.Mutex
	last kvstore.Listing
}

func (s *stayed) Alone() bool { return false }

func (s *stayed) List(ctx context.Context, pattern string, least uint64, opts ...kvstore.ListOption) (kvstore.Listing, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if least == 0 && pattern == "wait.l.*" {
		return s.last, nil
	}
	l, err := s.KV.List(ctx, pattern, least, opts...)
	if err == nil && pattern == "wait.l.*" {
		s.last = l
	}
	return l, err
}

// The list that shows nobody else is the leader's: a replica that lags shows a queue from
// before the stranger.
func TestRunLaggingReplica(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		var f *faults.Store
		other := join(t, s)
		c := join(t, s, natslock.WithTuning(natslock.Tuning{Turn: -1}), faults.WrapStore(func(kv kvstore.KV) kvstore.KV {
			f = faults.New(&stayed{KV: kv}, 1)
			return f
		}))
		holder, waits := siblings(t, c, 2)
		dropPlaces(f)
		stranger := other.follow(t)
		time.Sleep(600 * time.Millisecond)
		waits = append(waits, c.follow(t)) // joins, and the queue is listed again
		time.Sleep(600 * time.Millisecond)
		late := c.follow(t)
		require.Positive(t, f.Counts().EventsDropped)
		unlockAll(t, holder, append(waits, stranger, late)...)
	})
}
