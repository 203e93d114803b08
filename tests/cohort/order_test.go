package cohort_test

import (
	"context"
	"fmt"
	"slices"
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

// exactly makes each goroutine of a client queue by itself.
func exactly() natslock.Option { return natslock.WithTuning(natslock.Tuning{Turn: -1}) }

// unlockLate is [kit.UnlockAll] with holders that keep the lock for longer than a turn.
func unlockLate(t *testing.T, l *natslock.Lock, waits ...*kit.Waiting) {
	t.Helper()
	for i, w := range waits {
		time.Sleep(2 * time.Millisecond)
		l = unlockFor(t, l, w, waits[i+1:]...)
	}
	kit.Unlock(t, l)
}

// unlockFor unlocks l and returns the lock of the waiter w, which gets it next. The later waiters
// must still be waiting.
func unlockFor(t *testing.T, l *natslock.Lock, w *kit.Waiting, later ...*kit.Waiting) *natslock.Lock {
	t.Helper()
	token := l.Token()
	kit.Unlock(t, l)
	l = w.Granted(t)
	synctest.Wait()
	for _, w := range later {
		require.False(t, w.Over(), "another one is inside")
	}
	require.Greater(t, l.Token(), token)
	return l
}

// dropPlaces drops the notifications of new places before they reach a client.
func dropPlaces(f *faults.Store) {
	f.DropEvents(func(ev kvstore.Event) bool {
		return ev.Kind == kvstore.Put && kit.Stage(kvstore.Write{Key: ev.Record.Key, Value: ev.Record.Value}) == "wait take"
	})
}

// TestCohortOrder checks that clients are served in the order in which they queue, and the
// goroutines of a client in the order in which they ask. With a negative turn all goroutines are
// served in the order of their arrival.
func TestCohortOrder(t *testing.T) {
	for _, tc := range []struct{ asks, served string }{
		{"AAAA", "1234"},
		{"BAAA", "1234"},
		// A goroutine whose client holds the lock queues only when that lease ends.
		{"ABA", "123"},
		{"AABA", "1234"},
		{"ABAB", "1234"},
		// The second B asks after the first has its ticket, and the second A before A's next
		// ticket.
		{"ABBA", "1243"},
		{"AABACB", "123546"},
		{"ABCBCA", "123645"},
	} {
		for _, turn := range []time.Duration{-1, time.Nanosecond} {
			t.Run(fmt.Sprint(tc.asks, " ", turn), func(t *testing.T) {
				testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
					clients := map[rune]*kit.Member{}
					for _, name := range "ABC" {
						clients[name] = kit.Join(t, s, natslock.WithTuning(natslock.Tuning{Turn: turn}))
					}
					var asked []*kit.Waiting
					for _, name := range tc.asks {
						time.Sleep(time.Millisecond)
						asked = append(asked, clients[name].Settle(t))
					}
					order := tc.served
					if turn < 0 {
						order = "123456"[:len(asked)]
					}
					var waits []*kit.Waiting
					for _, n := range order {
						waits = append(waits, asked[n-'1'])
					}
					unlockLate(t, waits[0].Granted(t), waits[1:]...)
					time.Sleep(2 * time.Second)
					kit.WantNothing(t, s)
				})
			})
		}
	}
}

// TestCohortOrderOfArrival checks that the goroutines of a busy client keep their order and that
// each client gets its share: see [TestCohortOrder].
func TestCohortOrderOfArrival(t *testing.T) {
	for _, exact := range []bool{true, false} {
		t.Run(fmt.Sprint(exact), func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				clients := make([]*kit.Member, 4)
				for i := range clients {
					if clients[i] = kit.Join(t, s); exact {
						clients[i] = kit.Join(t, s, exactly())
					}
				}
				var mu sync.Mutex
				var got []int
				of := map[int][]int{}
				var inside int
				var wg sync.WaitGroup
				who := func(i int) int { return (i*7 + i/5) % 4 }
				for i := range 40 {
					c := clients[who(i)]
					wg.Go(func() {
						l, err := c.Lock(t.Context(), "l")
						if !assert.NoError(t, err) {
							return
						}
						mu.Lock()
						got = append(got, i)
						of[who(i)] = append(of[who(i)], i)
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
				require.Len(t, got, 40)
				for who, asked := range of {
					require.True(t, slices.IsSorted(asked), "client %d: %v", who, asked)
				}
				if exact {
					require.True(t, slices.IsSorted(got), "%v", got)
				}
				for i, n := range got {
					// At most 16 goroutines wait, so nobody is passed by more than one round of the
					// clients.
					require.InDelta(t, n, i, 8, "%v", got)
				}
				time.Sleep(2 * time.Second)
				kit.WantNothing(t, s)
			})
		})
	}
}

// TestCohortTurn checks that during its turn a client serves goroutines that arrived late, but none
// after the turn is over.
func TestCohortTurn(t *testing.T) {
	for _, tc := range []struct {
		section time.Duration
		passes  int // late goroutines served before the stranger
	}{
		{5 * time.Millisecond, 0},
		{300 * time.Microsecond, 3}, // at 0.3, 0.6 and 0.9 ms
	} {
		t.Run(fmt.Sprint(tc.section), func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				const n = 500
				c, other := kit.Join(t, s), kit.Join(t, s)
				holder := kit.QuietHolder(t, s)
				first := c.Settle(t)
				stranger := other.Settle(t)
				kit.Unlock(t, holder)
				l := first.Granted(t)
				late := make([]*kit.Waiting, n)
				for i := range late { // the clock stands still
					late[i] = c.Await(t, "l")
				}
				order := append([]*kit.Waiting{}, late[:tc.passes]...)
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
				kit.WantNothing(t, s)
			})
		})
	}
}

// TestCohortMarkedOnce checks that the cohort's mark is set only once: a goroutine that arrived
// while another client waited is not owed the lease even after that client has left.
func TestCohortMarkedOnce(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, other := kit.Join(t, s), kit.Join(t, s)
		holder, waits := siblings(t, c, 2)
		leaves := other.Settle(t)
		l := unlockFor(t, holder, waits[0])
		late := c.Settle(t)
		leaves.Cancel(nil)
		leaves.Failed(t)
		synctest.Wait()
		stranger := other.Settle(t)
		unlockLate(t, l, waits[1], stranger, late)
		time.Sleep(2 * time.Second)
		kit.WantNothing(t, s)
	})
}

// TestCohortAfterTheTurn checks that a goroutine that asks after the turn is over waits behind the
// stranger.
func TestCohortAfterTheTurn(t *testing.T) {
	for turn, passes := range map[time.Duration]bool{-1: false, time.Millisecond: false, 5 * time.Millisecond: true} {
		t.Run(fmt.Sprint(turn), func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				c, other := kit.Join(t, s, natslock.WithTuning(natslock.Tuning{Turn: turn})), kit.Join(t, s)
				holder := kit.QuietHolder(t, s)
				first := c.Settle(t)
				stranger := other.Settle(t)
				kit.Unlock(t, holder)
				l := first.Granted(t)
				time.Sleep(2 * time.Millisecond)
				late := c.Settle(t)
				if passes {
					kit.UnlockAll(t, l, late, stranger)
				} else {
					kit.UnlockAll(t, l, stranger, late)
				}
			})
		})
	}
}

// TestCohortTurnEndsWithASection checks that a section that ends at the same instant as the turn
// admits no late goroutine. The client may notice either end first.
func TestCohortTurnEndsWithASection(t *testing.T) {
	const turn = 5 * time.Millisecond
	for range 20 {
		testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
			c, other := kit.Join(t, s, natslock.WithTuning(natslock.Tuning{Turn: turn})), kit.Join(t, s)
			holder := kit.QuietHolder(t, s)
			first := c.Settle(t)
			stranger := other.Settle(t)
			kit.Unlock(t, holder)
			l := first.Granted(t)
			late := c.Settle(t)
			time.Sleep(time.Until(first.At.Add(turn)))
			kit.UnlockAll(t, l, stranger, late)
		})
	}
}

// TestCohortBehindAStranger checks that a goroutine that asks when the client already knows of a
// stranger is not owed the lease. It waits without a place.
func TestCohortBehindAStranger(t *testing.T) {
	for _, granted := range []bool{false, true} {
		testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
			c, other := kit.Join(t, s), kit.Join(t, s)
			holder, waits := siblings(t, c, 2)
			if granted {
				holder, waits = unlockFor(t, holder, waits[0], waits[1]), waits[1:]
			}
			waits = append(waits, c.Settle(t))
			stranger := other.Settle(t)
			late := c.Settle(t)
			require.Len(t, kit.Inspect(t, c.Client, "l").Queue, 1)
			unlockLate(t, holder, append(waits, stranger, late)...)
			time.Sleep(2 * time.Second)
			kit.WantNothing(t, s)
		})
	}
}

// TestCohortUnnotified checks that if the client was not notified of a stranger's place, a list
// reveals the stranger, because silence proves nothing. The list comes from the leader and is no
// older than a second or the subscription.
func TestCohortUnnotified(t *testing.T) {
	for name, learn := range map[string]func(t *testing.T, s *testutil.Server, c *kit.Member, f *faults.Store, waits []*kit.Waiting) []*kit.Waiting{
		"silence": func(t *testing.T, s *testutil.Server, _ *kit.Member, f *faults.Store, waits []*kit.Waiting) []*kit.Waiting {
			dropPlaces(f)
			stranger := kit.Join(t, s).Settle(t)
			time.Sleep(time.Second)
			require.Positive(t, f.Counts().EventsDropped)
			return append(waits, stranger)
		},
		"another server serves": func(t *testing.T, s *testutil.Server, _ *kit.Member, f *faults.Store, waits []*kit.Waiting) []*kit.Waiting {
			dropPlaces(f)
			stranger := kit.Join(t, s).Settle(t)
			require.Positive(t, f.Forge(kvstore.Event{Kind: kvstore.Recheck}))
			return append(waits, stranger)
		},
		"a replica that lags": func(t *testing.T, s *testutil.Server, c *kit.Member, f *faults.Store, waits []*kit.Waiting) []*kit.Waiting {
			dropPlaces(f)
			stranger := kit.Join(t, s).Settle(t)
			time.Sleep(600 * time.Millisecond)
			waits = append(waits, c.Settle(t)) // makes the client list the queue again
			time.Sleep(600 * time.Millisecond)
			require.Positive(t, f.Counts().EventsDropped)
			return append(waits, stranger)
		},
		// The tombstone hides the place only until the next list.
		"a forged tombstone": func(t *testing.T, s *testutil.Server, c *kit.Member, f *faults.Store, waits []*kit.Waiting) []*kit.Waiting {
			stranger := kit.Join(t, s).Settle(t)
			place := kit.Inspect(t, c.Client, "l").Queue[0]
			keys := kit.NewRaw(t, s.Connect()).Live("wait.l.*")
			require.Len(t, keys, 1)
			require.Positive(t, f.Forge(kvstore.Event{Kind: kvstore.Deleted, Record: kvstore.Record{Key: keys[0], Revision: place.Ticket + 1<<32, Deleted: true}}))
			time.Sleep(600 * time.Millisecond)
			c.Settle(t).Cancel(nil) // makes the client list the queue
			time.Sleep(10 * time.Millisecond)
			return append(waits, stranger)
		},
	} {
		for _, granted := range []bool{false, true} {
			t.Run(fmt.Sprint(name, granted), func(t *testing.T) {
				testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
					var f *faults.Store
					c := kit.Join(t, s, faults.WrapStore(func(kv kvstore.KV) kvstore.KV {
						if strings.Contains(name, "replica") {
							kv = &stayed{KV: kv}
						}
						f = faults.New(kv, 1)
						return f
					}))
					holder, waits := siblings(t, c, 2)
					if granted {
						holder, waits = unlockFor(t, holder, waits[0], waits[1]), waits[1:]
					}
					waits = learn(t, s, c, f, waits)
					late := c.Settle(t)
					unlockLate(t, holder, append(waits, late)...)
				})
			})
		}
	}
}

// TestCohortAskedAfterTheTicket checks that a goroutine that arrives after its client has sent its
// place is not owed the lease, even if the place has no reply yet and nothing has been listed.
func TestCohortAskedAfterTheTicket(t *testing.T) {
	for _, listed := range []bool{true, false} {
		t.Run(fmt.Sprint(listed), func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				c, f := kit.JoinFaulty(t, s)
				other := kit.Join(t, s)
				holder := kit.QuietHolder(t, s)
				f.OnSend(kit.At("wait take", faults.DelayAnswer(100*time.Millisecond)))
				first := c.Begin(t, "l")
				synctest.Wait()
				stranger := other.Settle(t)
				second := c.Settle(t) // while the place is unanswered
				if !listed {          // the second goroutine subscribes but cannot list the queue
					f.FailReads(func(faults.ReadOp, string) error { return fmt.Errorf("%w: by the test", kvstore.ErrUnavailable) })
				}
				time.Sleep(200 * time.Millisecond)
				f.OnSend(nil)
				gone := c.Settle(t)
				gone.Cancel(nil)
				gone.Failed(t)
				require.Len(t, kit.Inspect(t, other.Client, "l").Queue, 2)
				late := c.Settle(t)
				f.FailReads(nil)
				unlockLate(t, holder, first, stranger, second, late)
			})
		})
	}
}

// TestCohortGrowsAfterStrangersHaveLeft checks that strangers that have left do not keep a
// goroutine out of its client's lease.
func TestCohortGrowsAfterStrangersHaveLeft(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, other := kit.Join(t, s), kit.Join(t, s)
		holder := kit.QuietHolder(t, s)
		stranger := other.Settle(t)
		first := c.Settle(t)
		l := unlockFor(t, holder, stranger, first)
		l = unlockFor(t, l, first)
		claim, _, _ := strings.Cut(l.ID(), ".")
		for range 3 {
			time.Sleep(2 * time.Millisecond)
			next := c.Settle(t)
			require.Empty(t, kit.Inspect(t, c.Client, "l").Queue)
			l = unlockFor(t, l, next)
			same, _, _ := strings.Cut(l.ID(), ".")
			require.Equal(t, claim, same, "one lease")
		}
		kit.Unlock(t, l)
	})
}

// TestCohortUnanswered checks that a goroutine that arrives while its client's first claim is
// unanswered gets the lease only after a list, because others may have queued in the meantime.
func TestCohortUnanswered(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, f := kit.JoinFaulty(t, s)
		f.OnSend(kit.At("lock take", faults.DelayAnswer(1900*time.Millisecond)))
		first := c.Begin(t, "l")
		synctest.Wait()
		stranger := kit.Join(t, s).Settle(t)
		time.Sleep(1100 * time.Millisecond)
		late := c.Begin(t, "l")
		unlockLate(t, first.Granted(t), stranger, late)
	})
}

// TestCohortClaimFoundAtItsPlace checks the order when a client that already has a place finds that
// a claim with a lost reply was applied. Goroutines that arrived after the place come after the
// clients that queued before them.
func TestCohortClaimFoundAtItsPlace(t *testing.T) {
	for _, givenUp := range []bool{false, true} {
		t.Run(fmt.Sprint(givenUp), func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				c, f := kit.JoinFaulty(t, s)
				kit.Unlock(t, kit.Must(t, kit.Join(t, s).Lock, "l"))
				takes := 0
				f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
					if kit.Stage(w) == "lock take" && w.Expect != 0 {
						if takes++; takes == 1 {
							return faults.LoseAnswer
						}
					}
					return faults.Pass
				})
				first := c.Begin(t, "l")
				synctest.Wait()
				second := c.Begin(t, "l") // while the claim is unanswered
				time.Sleep(200 * time.Millisecond)
				stranger := kit.Join(t, s).Settle(t)
				for len(kit.Inspect(t, c.Client, "l").Queue) == 1 {
					time.Sleep(20 * time.Millisecond)
				}
				late := c.Begin(t, "l") // joins the place
				if givenUp {
					synctest.Wait()
					for _, w := range []*kit.Waiting{first, second} {
						w.Cancel(nil)
						require.ErrorIs(t, w.Failed(t), natslock.ErrTimeout)
					}
					unlockLate(t, late.Granted(t), stranger) // within the turn
				} else {
					unlockLate(t, first.Granted(t), second, stranger, late)
				}
				kit.WantNothing(t, s)
			})
		})
	}
}

// TestCohortClaimFoundOfManyWaiting checks that goroutines that arrived after the claim are not
// owed the lease either, even if they arrived before the ticket.
func TestCohortClaimFoundOfManyWaiting(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, f := kit.JoinFaulty(t, s)
		holder, waits := siblings(t, c, 2)
		time.Sleep(2 * time.Second) // by now the client watches the lock
		var takes atomic.Int32
		f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
			if kit.Stage(w) == "lock take" && w.Expect != 0 {
				if takes.Add(1) == 1 {
					return faults.LoseAnswer
				}
			}
			return faults.Pass
		})
		kit.NewRaw(t, s.Connect()).Remove("lock.l")
		<-holder.Context().Done()
		time.Sleep(200 * time.Millisecond)
		require.EqualValues(t, 1, takes.Load())
		stranger := kit.Join(t, s).Settle(t)
		require.Len(t, kit.Inspect(t, c.Client, "l").Queue, 1)
		late := c.Begin(t, "l")
		synctest.Wait()
		kit.WantLost(t, holder, natslock.ErrLost)
		unlockLate(t, waits[0].Granted(t), waits[1], stranger, late)
		kit.WantNothing(t, s)
	})
}

// TestCohortQueuesAgain checks that a goroutine whose place has ended queues again behind the
// others, and that goroutines that ask later pass nobody.
func TestCohortQueuesAgain(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s, exactly())
		holder := kit.QuietHolder(t, s)
		first := c.Settle(t)
		second := c.Settle(t)
		time.Sleep(4900 * time.Millisecond)
		r := kit.NewRaw(t, s.Connect())
		for _, key := range r.Live("wait.l.*") {
			if id := kit.Inspect(t, c.Client, "l").Queue[0].ID; strings.HasSuffix(key, id) {
				r.Remove(key)
				break
			}
		}
		time.Sleep(200 * time.Millisecond) // its renewal has been refused
		require.Len(t, kit.Inspect(t, c.Client, "l").Queue, 2)
		third := c.Settle(t)
		kit.UnlockAll(t, holder, second, first, third)
	})
}

// stayed is a store whose replica shows a queue as a client last read it, unless the list must
// contain a given revision.
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
