package cohort_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/semaphore"
	"github.com/natslock/locks/testutil"
)

// The goroutines of a client that want the same lock form a cohort: see internal/cohort. The tests
// of cohorts have names that begin with TestCohort.

// siblings has one goroutine of the client hold a lock and n others wait for it. They have no
// place, because their client has the lock.
func siblings(t *testing.T, c *kit.Member, n int, opts ...natslock.LockOption) (holder *natslock.Lock, waits []*kit.Waiting) {
	t.Helper()
	holder = kit.Must(t, c.Lock, "l", opts...)
	time.Sleep(10 * time.Millisecond) // longer than a turn
	for range n {
		waits = append(waits, c.Settle(t, opts...))
	}
	require.Empty(t, kit.Inspect(t, c.Client, "l").Queue, "their client has the lock")
	return holder, waits
}

// TestCohortFirstGivesUp checks that the other goroutines get the lock no matter when the first one
// gives up, and that those waiting at a place keep it.
func TestCohortFirstGivesUp(t *testing.T) {
	const late = 500 * time.Millisecond
	for _, tc := range []struct {
		name  string
		late  map[string]time.Duration // delays of replies, by the stage of the write
		held  bool                     // whether another client holds the lock
		place bool                     // whether there is one when the first goroutine gives up
	}{
		{"claim that is granted", map[string]time.Duration{"lock take": late}, false, false},
		{"claim that is refused", map[string]time.Duration{"lock take": late}, true, false},
		{"place without an answer", map[string]time.Duration{"lock take": late / 10, "wait take": late}, true, false},
		{"place", nil, true, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				c, f := kit.JoinFaulty(t, s)
				var holder *natslock.Lock
				if tc.held {
					holder = kit.QuietHolder(t, s)
				}
				f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
					if d := tc.late[kit.Stage(w)]; d > 0 {
						return faults.DelayAnswer(d)
					}
					return faults.Pass
				})
				taps := kit.NewTap(t, s.Connect(), ">")
				first := c.Begin(t, "l")
				synctest.Wait()
				second := c.Settle(t)
				third := c.Settle(t)
				time.Sleep(late / 5) // by now the place has been sent
				queue := kit.Inspect(t, c.Client, "l").Queue
				if tc.place {
					require.Len(t, queue, 1)
				}
				first.Cancel(nil)
				require.ErrorIs(t, first.Failed(t), context.Canceled)
				synctest.Wait()
				if tc.place {
					require.Equal(t, queue, kit.Inspect(t, c.Client, "l").Queue)
				}
				if holder == nil {
					holder = second.Granted(t)
					// The first goroutine's claim is deleted only after its reply, and the second
					// claim takes as long.
					require.Less(t, c.Events.Wait(t, admin.EventGranted, "l").Waited, 3*late)
					kit.UnlockAll(t, holder, third)
				} else {
					time.Sleep(2 * time.Second)
					require.Len(t, kit.Inspect(t, c.Client, "l").Queue, 1)
					kit.UnlockAll(t, holder, second, third)
				}
				if tc.held {
					require.Equal(t, 1, taps.Stages(t, c.NC)["wait take"])
				}
				time.Sleep(2 * time.Second)
				kit.WantNothing(t, s)
			})
		})
	}
}

// TestCohortRefusalOvertakes checks that the client keeps its place and ticket when the refusal of
// a second attempt overtakes the acknowledgment of the first, even if the goroutine that asked
// first gives up.
func TestCohortRefusalOvertakes(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		const attempt = 2 * time.Second // until the next attempt
		c, f := kit.JoinFaulty(t, s)
		other := kit.Join(t, s)
		holder := kit.QuietHolder(t, s)
		var takes atomic.Int32
		f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
			switch kit.Stage(w) {
			case "lock take":
				return faults.DelayAnswer(10 * time.Millisecond)
			case "wait take":
				if takes.Add(1) == 1 {
					return faults.DelayAnswer(attempt + 500*time.Millisecond)
				}
			}
			return faults.Pass
		})
		f.FailReads(func(op faults.ReadOp, what string) error {
			if op == faults.ReadGet && strings.HasPrefix(what, "wait.l.") {
				time.Sleep(300 * time.Millisecond) // the acknowledgment arrives in the meantime
			}
			return nil
		})
		first := c.Begin(t, "l")
		synctest.Wait()
		second := c.Settle(t)
		time.Sleep(20 * time.Millisecond) // by now the place has been sent
		stranger := other.Settle(t)
		time.Sleep(400 * time.Millisecond)
		first.Cancel(nil)
		first.Failed(t)
		time.Sleep(attempt + time.Second)
		require.EqualValues(t, 2, takes.Load(), "two attempts under one id")
		kit.UnlockAll(t, holder, second, stranger)
		time.Sleep(2 * time.Second)
		kit.WantNothing(t, s)
	})
}

// TestCohortNoStream checks that a bucket without a leader fails all waiting goroutines together,
// not one after another.
func TestCohortNoStream(t *testing.T) {
	for _, held := range []bool{false, true} {
		testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
			c, f := kit.JoinFaulty(t, s)
			if held {
				kit.QuietHolder(t, s)
			}
			f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
				if held && kit.Stage(w) == "lock take" {
					return faults.Pass
				}
				return faults.Refuse(kvstore.ErrNoStream)
			})
			f.FailReads(func(op faults.ReadOp, _ string) error {
				if op == faults.ReadState {
					return kvstore.ErrUnavailable
				}
				return nil
			})
			begun := map[*kit.Waiting]time.Time{}
			for range 5 {
				for range 3 {
					begun[c.Begin(t, "l")] = time.Now()
					synctest.Wait()
				}
				time.Sleep(1500 * time.Millisecond)
			}
			for w, at := range begun {
				require.ErrorIs(t, w.Failed(t), kvstore.ErrNoStream)
				require.Less(t, w.At.Sub(at), 25*time.Second)
			}
		})
	}
}

// TestCohortKeepsItsTicket checks that a place with several waiting goroutines keeps its ticket
// when the first of them gives up.
func TestCohortKeepsItsTicket(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, other := kit.Join(t, s), kit.Join(t, s)
		holder := kit.QuietHolder(t, s)
		var waits []*kit.Waiting
		for range 4 {
			waits = append(waits, c.Settle(t))
		}
		behind := other.Settle(t)
		before := kit.Inspect(t, c.Client, "l").Queue
		require.Len(t, before, 2)
		waits[0].Cancel(nil)
		waits[0].Failed(t)
		waits[2].Cancel(nil)
		waits[2].Failed(t)
		synctest.Wait()
		time.Sleep(20 * time.Second) // longer than the TTL of a place
		after := kit.Inspect(t, c.Client, "l").Queue
		require.Len(t, after, 2)
		require.Equal(t, before[0].Ticket, after[0].Ticket)
		require.Equal(t, before[0].ID, after[0].ID)
		kit.UnlockAll(t, holder, waits[1], waits[3], behind) // within one turn
		time.Sleep(2 * time.Second)
		kit.WantNothing(t, s)
	})
}

// TestCohortAllGiveUp checks that nothing is left behind once every goroutine has given up.
func TestCohortAllGiveUp(t *testing.T) {
	for _, tc := range []struct {
		name, stage string
		held        bool
	}{
		{"a claim without an answer", "lock take", false},
		{"a place without an answer", "wait take", true},
		{"a place", "", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				c, f := kit.JoinFaulty(t, s)
				other := kit.Join(t, s)
				var holder *natslock.Lock
				var waits []*kit.Waiting
				switch {
				case tc.stage == "":
					holder, waits = siblings(t, c, 3)
				default:
					if tc.held {
						holder = kit.QuietHolder(t, s)
					}
					f.OnSend(kit.At(tc.stage, faults.DelayAnswer(500*time.Millisecond)))
					waits = append(waits, c.Begin(t, "l"))
					synctest.Wait()
					waits = append(waits, c.Settle(t), c.Settle(t))
				}
				for _, w := range waits {
					w.Cancel(nil)
					require.ErrorIs(t, w.Failed(t), natslock.ErrTimeout)
				}
				time.Sleep(600 * time.Millisecond) // by now the reply has arrived
				synctest.Wait()
				require.Empty(t, kit.NewRaw(t, s.Connect()).Live("wait.l.*"))
				require.Zero(t, c.Stats().Waiting)
				begun := time.Now()
				if holder != nil {
					kit.Unlock(t, holder)
				}
				kit.Unlock(t, kit.Must(t, other.Lock, "l"))
				require.Less(t, time.Since(begun), 100*time.Millisecond, "nothing keeps others out")
				time.Sleep(2 * time.Second)
				kit.WantNothing(t, s)
			})
		})
	}
}

// noRenewals drops the renewals of the lock until the fate is reset.
func noRenewals(f *faults.Store) { f.OnSend(kit.At("lock renew", faults.Drop)) }

// shortOfTime drops renewals until less than a third of the validity is left.
func shortOfTime(t *testing.T, f *faults.Store, l *natslock.Lock, ttl time.Duration) {
	t.Helper()
	noRenewals(f)
	for l.Remaining() > ttl/4 {
		time.Sleep(100 * time.Millisecond)
	}
	kit.WantHeld(t, l)
}

// TestCohortNextNeedsTime checks that a goroutine enters with at least a third of the validity left
// and otherwise waits for a renewal.
func TestCohortNextNeedsTime(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		const ttl = 15 * time.Second
		c, f := kit.JoinFaulty(t, s)
		holder, waits := siblings(t, c, 3)
		kit.Unlock(t, holder)
		first := waits[0].Granted(t)
		shortOfTime(t, f, first, ttl)
		kit.Unlock(t, first)
		time.Sleep(time.Second)
		require.False(t, waits[1].Over(), "with less than a third of the validity left")
		f.OnSend(nil)
		second := waits[1].Granted(t)
		require.Greater(t, second.Remaining(), ttl/2, "a renewal was confirmed")
		require.Greater(t, second.Token(), first.Token())
		kit.UnlockAll(t, second, waits[2])
		kit.WantNothing(t, s)
	})
}

// TestCohortGrantedWithNobodyLeft checks that if the goroutine that is next for the lease gives up,
// the lease goes to the one after it or, if there is none, is released.
func TestCohortGrantedWithNobodyLeft(t *testing.T) {
	for _, others := range []int{0, 1} {
		testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
			c, f := kit.JoinFaulty(t, s)
			stranger := kit.Join(t, s)
			holder, waits := siblings(t, c, 2+others)
			kit.Unlock(t, holder)
			first := waits[0].Granted(t)
			behind := stranger.Settle(t)
			shortOfTime(t, f, first, 15*time.Second)
			kit.Unlock(t, first)
			synctest.Wait()
			require.False(t, waits[1].Over())
			waits[1].Cancel(nil) // it has been given the lease but still waits for a renewal
			waits[1].Failed(t)
			if others > 0 {
				f.OnSend(nil)
				kit.Unlock(t, waits[2].Granted(t))
			}
			begun := time.Now()
			kit.Unlock(t, behind.Granted(t))
			require.Less(t, time.Since(begun), 100*time.Millisecond)
			time.Sleep(2 * time.Second)
			kit.WantNothing(t, s)
		})
	}
}

// TestQueuedBehindAFounder checks that while the client may get more permits, a goroutine counts as
// queued only once its place is at the server, not while another goroutine's first write is still
// on its way.
func TestQueuedBehindAFounder(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, f := kit.JoinFaulty(t, s)
		sem := semaphore.New(c.Client, 2)
		acquire := func() *kit.Waiting {
			return kit.Begin(t, func(ctx context.Context) (*natslock.Lock, error) { return sem.Acquire(ctx, "s") })
		}
		first := acquire()
		synctest.Wait()
		f.OnSend(func(int, kvstore.Write) faults.Fate { return faults.Hold })
		second := acquire()
		synctest.Wait()
		third := acquire()
		synctest.Wait()
		require.Zero(t, c.Events.Count(admin.EventQueued, "s"), "nothing of it is at the server")
		f.OnSend(nil)
		f.ReleaseHeld()
		c.Events.Wait(t, admin.EventQueued, "s")
		for _, w := range []*kit.Waiting{first, second, third} {
			kit.Unlock(t, w.Granted(t))
		}
	})
}
