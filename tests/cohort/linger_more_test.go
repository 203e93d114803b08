package cohort_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

// TestLingerUsedMeanwhile: another client waits for five seconds at most if the notification of its
// place was lost, although the lease is used meanwhile. It renews its place after that time.
func TestLingerUsedMeanwhile(t *testing.T) {
	for name, used := range map[string][2]time.Duration{
		"briefly": {3800 * time.Millisecond, 0},
		"long":    {0, 4500 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				c, f := kit.JoinFaulty(t, s)
				other := kit.Join(t, s)
				dropPlaces(f)
				kit.Unlock(t, kit.Must(t, c.Lock, "l", lingers))
				synctest.Wait() // listed
				time.Sleep(100 * time.Millisecond)
				w := other.Await(t, "l")
				begun := time.Now()
				time.Sleep(used[0])
				l := kit.Must(t, c.Lock, "l", lingers)
				time.Sleep(used[1])
				kit.Unlock(t, l)
				kit.Unlock(t, w.Granted(t))
				require.LessOrEqual(t, w.At.Sub(begun), 5*time.Second)
				require.Positive(t, f.Counts().EventsDropped)
			})
		})
	}
}

// TestLingerListedLate: any list that shows another client recalls an idle lease.
func TestLingerListedLate(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, f := kit.JoinFaulty(t, s)
		other := kit.Join(t, s)
		kit.Deaf(f)
		kit.Unlock(t, kit.Must(t, c.Lock, "l", lingers))
		synctest.Wait() // listed
		l := kit.Must(t, c.Lock, "l", lingers)
		w := other.Await(t, "l")
		time.Sleep(600 * time.Millisecond)
		listSlowly(f, 100*time.Millisecond)
		second := c.Settle(t) // has the client list the queue again
		third := c.Settle(t, lingers)
		kit.UnlockAll(t, l, second, third)
		begun := time.Now()
		kit.Unlock(t, w.Granted(t))
		require.Equal(t, 100*time.Millisecond, w.At.Sub(begun))
	})
}

// single is a store that cannot list several queues at once.
type single struct{ kvstore.KV }

func (s single) List(ctx context.Context, pattern string, least uint64, opts ...kvstore.ListOption) (kvstore.Listing, error) {
	if strings.HasPrefix(pattern, "wait.") && len(opts) == 1 { // the other ones have none, or two
		return kvstore.Listing{}, kvstore.ErrUnavailable
	}
	return s.KV.List(ctx, pattern, least, opts...)
}

// TestLingerManyReconnected: a client whose lists take a while keeps its idle leases when
// another server has taken over its subscriptions. No goroutine waits for the lists of
// other locks.
func TestLingerManyReconnected(t *testing.T) {
	const locks = 300
	for _, together := range []bool{true, false} {
		t.Run(fmt.Sprint(together), func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				var f *faults.Store
				c := kit.Join(t, s, faults.WrapStore(func(kv kvstore.KV) kvstore.KV {
					if !together {
						kv = single{kv}
					}
					f = faults.New(kv, 1)
					return f
				}))
				for i := range locks {
					kit.Unlock(t, kit.Must(t, c.Lock, fmt.Sprint("l", i), lingers))
				}
				time.Sleep(21 * time.Second) // between two lists
				require.Equal(t, locks, c.Stats().Idle)
				f.FailReads(func(op faults.ReadOp, _ string) error {
					if op == faults.ReadList {
						time.Sleep(30 * time.Millisecond)
					}
					return nil
				})
				f.Forge(kvstore.Event{Kind: kvstore.Recheck})
				time.Sleep(3900 * time.Millisecond)
				for range 10 {
					begun := time.Now()
					kit.Unlock(t, kit.Must(t, c.Lock, fmt.Sprint("l", locks-1), lingers))
					require.LessOrEqual(t, time.Since(begun), 100*time.Millisecond)
					time.Sleep(500 * time.Millisecond)
				}
				require.Equal(t, locks, c.Stats().Idle)
			})
		})
	}
}

// TestLingerExtended: the TTL of an Extend ends with its holder, even where nobody follows.
func TestLingerExtended(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s)
		l := kit.Must(t, c.Lock, "l", lingers)
		require.NoError(t, l.Extend(t.Context(), time.Hour))
		kit.Unlock(t, l)
		time.Sleep(time.Second)
		require.Equal(t, 1, c.Stats().Idle)
		require.Equal(t, 15*time.Second, kit.Inspect(t, c.Client, "l").Holder.TTL)
	})
}

// TestLingerTryGivesUp: a TryLock that gives up takes an idle lease from nobody.
func TestLingerTryGivesUp(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, f := kit.JoinFaulty(t, s)
		l := kit.Must(t, c.Lock, "l", lingers)
		listSlowly(f, 100*time.Millisecond)
		kit.Unlock(t, l)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		failed := make(chan error, 1)
		go func() {
			_, err := c.TryLock(ctx, "l", lingers)
			failed <- err
		}()
		synctest.Wait()
		w := c.Settle(t, lingers)
		require.Equal(t, 0, c.Stats().Held, "nobody is inside")
		require.Error(t, <-failed)
		kit.Unlock(t, w.Granted(t))
		require.Equal(t, l.Token()+1, w.Value.Token(), "the same lease")
	})
}

// TestLingerNone: a client that keeps no idle lease does not say that it may.
func TestLingerNone(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, other := kit.Join(t, s, natslock.WithTuning(natslock.Tuning{MaxLingering: -1})), kit.Join(t, s)
		before := c.NC.Stats().OutMsgs
		l := kit.Must(t, c.Lock, "l", lingers)
		require.LessOrEqual(t, c.NC.Stats().OutMsgs-before, uint64(1))
		require.False(t, kit.Inspect(t, other.Client, "l").Holder.Lingers)
		begun := time.Now()
		_, err := other.TryLock(t.Context(), "l")
		require.ErrorIs(t, err, natslock.ErrLocked)
		require.Zero(t, time.Since(begun))
		kit.Unlock(t, l)
		kit.WantNothing(t, s)
	})
}

// TestLingerBreak: a break ends the part of a holder whose lease lingers, where that has been
// idle before too.
func TestLingerBreak(t *testing.T) {
	for name, immediately := range map[string]bool{"plainly": false, "immediately": true} {
		t.Run(name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				c := kit.Join(t, s)
				operator := kit.Join(t, s)
				for _, lock := range []func(context.Context, string, ...natslock.LockOption) (*natslock.Lock, error){c.Lock, c.TryLock} {
					for range 2 { // new, and used again
						l, err := lock(t.Context(), "l", lingers, natslock.TTL(time.Hour))
						require.NoError(t, err)
						kit.Unlock(t, l)
						time.Sleep(10 * time.Second)
						l, err = lock(t.Context(), "l", lingers, natslock.TTL(time.Hour))
						require.NoError(t, err)
						require.Zero(t, c.Stats().Granted%2, "of the same lease")
						time.Sleep(2 * time.Second)
						require.NoError(t, admin.New(operator.Client).Break(t.Context(), admin.BreakRequest{Name: "l", ID: kit.Inspect(t, operator.Client, "l").Holder.ID, Immediately: immediately}))
						time.Sleep(time.Second)
						kit.WantLost(t, l, natslock.ErrBroken)
					}
				}
			})
		})
	}
}

// TestLingerIdleUnwatched: an idle lease has no subscription to its own record, in
// contrast to one that has been in use for a second.
func TestLingerIdleUnwatched(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s)
		l := kit.Must(t, c.Lock, "l", lingers)
		unwatched := c.NC.NumSubscriptions()
		for range 3 {
			time.Sleep(2 * time.Second)
			require.Equal(t, unwatched+1, c.NC.NumSubscriptions())
			kit.Unlock(t, l)
			time.Sleep(time.Minute)
			require.Equal(t, unwatched, c.NC.NumSubscriptions())
			l = kit.Must(t, c.Lock, "l", lingers)
		}
		kit.Unlock(t, l)
	})
}

// TestLingerIdleBroken: no goroutine uses an idle lease that was broken 5 s ago. That holds for a
// break that lets others in at once, and for one whose answer was lost.
func TestLingerIdleBroken(t *testing.T) {
	for _, how := range []string{"immediately", "unanswered"} {
		t.Run(how, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				c := kit.Join(t, s)
				operator, f := kit.JoinFaulty(t, s)
				kit.Unlock(t, kit.Must(t, c.Lock, "l", lingers, natslock.TTL(time.Hour)))
				time.Sleep(time.Minute)
				if how == "unanswered" {
					onFirst(f, faults.LoseAnswer)
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				id := kit.Inspect(t, operator.Client, "l").Holder.ID
				err := admin.New(operator.Client).Break(ctx, admin.BreakRequest{Name: "l", ID: id, Immediately: how == "immediately"})
				if how == "unanswered" && err != nil { // the client has deleted the broken record by then
					require.ErrorIs(t, err, natslock.ErrReleased)
				} else {
					require.NoError(t, err)
				}
				held := kit.Must(t, operator.Lock, "l")
				time.Sleep(5 * time.Second) // c has listed its idle leases
				_, err = c.TryLock(t.Context(), "l", lingers, natslock.TTL(time.Hour))
				require.ErrorIs(t, err, natslock.ErrLocked)
				kit.Unlock(t, held)
			})
		})
	}
}

// onFirst gives a fate to the next write.
func onFirst(f *faults.Store, fate faults.Fate) {
	first := true
	f.OnSend(func(int, kvstore.Write) faults.Fate {
		if first {
			first = false
			return fate
		}
		return faults.Pass
	})
}

// TestLingerCrowd: goroutines of a client that want a lock which lingers, one after the
// other, share a lease for longer than a list of the queue counts.
func TestLingerCrowd(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s)
		holder := kit.Must(t, c.Lock, "l", lingers)
		kit.Unlock(t, holder)
		synctest.Wait()
		l := kit.Must(t, c.Lock, "l", lingers)
		for range 30 {
			w := c.Settle(t, lingers)
			time.Sleep(100 * time.Millisecond)
			kit.Unlock(t, l)
			l = w.Granted(t)
		}
		claim, _, _ := strings.Cut(l.ID(), ".")
		require.Equal(t, holder.ID(), claim, "one lease")
		kit.Unlock(t, l)
	})
}

// TestLingerDropped: a handle that was dropped is noticed, even where it was a part in a
// lease that had been idle. The lease is not idle again.
func TestLingerDropped(t *testing.T) {
	t.Parallel()
	s := testutil.RunServer(t)
	var log kit.Log
	other := kit.Join(t, s)
	c := kit.Join(t, s, log.Option())
	opts := []natslock.LockOption{lingers, natslock.TTL(time.Second)}
	first := kit.Must(t, c.Lock, "l", opts...)
	kit.Unlock(t, first)
	token := func() uint64 {
		l, err := c.Lock(t.Context(), "l", opts...)
		require.NoError(t, err)
		return l.Token()
	}()
	require.Greater(t, token, first.Token())
	kit.Eventually(t, "it is noticed", func() bool {
		runtime.GC()
		return log.String() != ""
	})
	next := kit.Must(t, other.Lock, "l")
	require.Greater(t, next.Token(), token)
	require.Zero(t, c.Stats().Idle)
	kit.Unlock(t, next)
	kit.Unlock(t, kit.Must(t, c.Lock, "l", opts...))
	require.Equal(t, 1, c.Stats().Idle)
}

// TestLingerBucketRemade: a client uses no idle lease of a bucket that was re-created more
// than five seconds ago. Its subscriptions are to the new bucket then.
func TestLingerBucketRemade(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, other := kit.Join(t, s), kit.Join(t, s)
		kit.Unlock(t, kit.Must(t, c.Lock, "idle", lingers, natslock.TTL(time.Hour)))
		time.Sleep(2 * time.Second)
		kit.RemakeBucket(t, s.Connect(), 0)
		held := kit.Must(t, other.Lock, "idle")
		time.Sleep(5 * time.Second)
		_, err := c.TryLock(t.Context(), "idle", lingers, natslock.TTL(time.Hour))
		require.ErrorIs(t, err, natslock.ErrLocked)
		require.Zero(t, c.Stats().Idle)
		kit.Unlock(t, held)
	})
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s)
		l := kit.Must(t, c.Lock, "used", lingers)
		next := c.Begin(t, "used", lingers)
		time.Sleep(2 * time.Second)
		kit.RemakeBucket(t, s.Connect(), 0)
		time.Sleep(5 * time.Second)
		kit.WantLost(t, l, natslock.ErrLost)
		kit.Unlock(t, next.Granted(t))
		kit.Unlock(t, kit.Must(t, c.Lock, "used", lingers)) // proves its subscription
		time.Sleep(time.Minute)
		require.Equal(t, 1, c.Stats().Idle)
		begun := time.Now()
		kit.Unlock(t, kit.Must(t, kit.Join(t, s).Lock, "used"))
		require.Less(t, time.Since(begun), 10*time.Millisecond)
	})
}

// TestLingerRepublishGone: a client keeps no idle lease of a bucket that does not publish its changes any more, and
// no new one.
func TestLingerRepublishGone(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, other := kit.Join(t, s), kit.Join(t, s)
		kit.Unlock(t, kit.Must(t, c.Lock, "l", lingers))
		time.Sleep(time.Second)
		kit.NewRaw(t, s.Connect()).Reconfigure(func(c *jetstream.StreamConfig) { c.RePublish = nil })
		changed := time.Now()
		for c.Stats().Idle > 0 {
			time.Sleep(time.Second)
			require.Less(t, time.Since(changed), 6*time.Minute)
		}
		kit.Unlock(t, kit.Must(t, other.Lock, "l"))
		kit.Unlock(t, kit.Must(t, c.Lock, "l", lingers))
		require.Zero(t, c.Stats().Idle)
		kit.WantNothing(t, s)
	})
}

// TestReplacedDoubtsBucket: a lease that another claim has replaced may have been in a bucket
// that is gone. The other leases of that end as soon.
func TestReplacedDoubtsBucket(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, other := kit.Join(t, s), kit.Join(t, s)
		short, long := kit.Must(t, c.Lock, "short"), kit.Must(t, c.Lock, "long", natslock.TTL(time.Hour))
		time.Sleep(2 * time.Second)
		kit.RemakeBucket(t, s.Connect(), 0)
		kit.Must(t, other.Lock, "short")
		time.Sleep(6 * time.Second) // short was to be renewed
		kit.WantLost(t, short, natslock.ErrLost)
		kit.WantLost(t, long, natslock.ErrLost)
	})
}
