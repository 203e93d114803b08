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

// TestLingerUsedMeanwhile checks that a client whose place is not notified gets the lock within
// five seconds, when it renews the place, even if the lease is used in the meantime.
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
				synctest.Wait() // the queue has been listed
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

// TestLingerListedLate checks that any list that shows another client recalls an idle lease.
func TestLingerListedLate(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, f := kit.JoinFaulty(t, s)
		other := kit.Join(t, s)
		kit.Deaf(f)
		kit.Unlock(t, kit.Must(t, c.Lock, "l", lingers))
		synctest.Wait() // the queue has been listed
		l := kit.Must(t, c.Lock, "l", lingers)
		w := other.Await(t, "l")
		time.Sleep(600 * time.Millisecond)
		listSlowly(f, 100*time.Millisecond)
		second := c.Settle(t) // makes the client list the queue again
		third := c.Settle(t, lingers)
		kit.UnlockAll(t, l, second, third)
		begun := time.Now()
		kit.Unlock(t, w.Granted(t))
		require.Equal(t, 100*time.Millisecond, w.At.Sub(begun))
	})
}

// single is a store that cannot list several queues in one request.
type single struct{ kvstore.KV }

func (s single) List(ctx context.Context, pattern string, least uint64, opts ...kvstore.ListOption) (kvstore.Listing, error) {
	if strings.HasPrefix(pattern, "wait.") && len(opts) == 1 { // other lists have none or two options
		return kvstore.Listing{}, kvstore.ErrUnavailable
	}
	return s.KV.List(ctx, pattern, least, opts...)
}

// TestLingerManyReconnected checks that a client with slow lists keeps its idle leases when another
// server takes over its subscriptions, and that no goroutine waits for the lists of other locks.
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
				time.Sleep(21 * time.Second) // between two periodic lists
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

// TestLingerExtended checks that the TTL set by Extend applies only to its holder, even if nobody
// follows.
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

// TestLingerTryGivesUp checks that a TryLock that gives up does not take the idle lease away from
// others.
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

// TestLingerNone checks that a client configured to keep no idle leases does not mark its records
// as lingering.
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

// TestLingerBreak checks that a break ends the holder's part of a lingering lease, even if the
// lease was idle before.
func TestLingerBreak(t *testing.T) {
	for name, immediately := range map[string]bool{"plainly": false, "immediately": true} {
		t.Run(name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				c := kit.Join(t, s)
				operator := kit.Join(t, s)
				for _, lock := range []func(context.Context, string, ...natslock.LockOption) (*natslock.Lock, error){c.Lock, c.TryLock} {
					for range 2 { // first with a new lease, then with one that has been reused
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

// TestLingerIdleUnwatched checks that an idle lease, unlike one that has been in use for a second,
// needs no subscription to its own record.
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

// TestLingerIdleBroken checks that five seconds after an idle lease is broken no goroutine uses it
// any more, even if the break was immediate or its reply was lost.
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
				if how == "unanswered" && err != nil { // the client may have deleted the broken record by then
					require.ErrorIs(t, err, natslock.ErrReleased)
				} else {
					require.NoError(t, err)
				}
				held := kit.Must(t, operator.Lock, "l")
				time.Sleep(5 * time.Second) // long enough for c to list its idle leases
				_, err = c.TryLock(t.Context(), "l", lingers, natslock.TTL(time.Hour))
				require.ErrorIs(t, err, natslock.ErrLocked)
				kit.Unlock(t, held)
			})
		})
	}
}

// onFirst applies fate to the next write.
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

// TestLingerCrowd checks that goroutines that take a lingering lock one after another share its
// lease for longer than a list of the queue stays valid.
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

// TestLingerDropped checks that a dropped handle is noticed, even one whose lease had been idle
// before, and that the lease does not become idle again.
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

// TestLingerBucketRemade checks that five seconds after its bucket is re-created a client no longer
// uses idle leases of the old bucket, and that its subscriptions follow the new one.
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
		kit.Unlock(t, kit.Must(t, c.Lock, "used", lingers)) // so that the subscription is proven
		time.Sleep(time.Minute)
		require.Equal(t, 1, c.Stats().Idle)
		begun := time.Now()
		kit.Unlock(t, kit.Must(t, kit.Join(t, s).Lock, "used"))
		require.Less(t, time.Since(begun), 10*time.Millisecond)
	})
}

// TestLingerRepublishGone checks that a client keeps no idle leases, old or new, once the bucket no
// longer publishes its changes.
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

// TestReplacedDoubtsBucket checks that when another client's claim has replaced a lease, the client
// suspects that the bucket was re-created. The other leases of the old bucket then end too, however
// long their TTLs.
func TestReplacedDoubtsBucket(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, other := kit.Join(t, s), kit.Join(t, s)
		short, long := kit.Must(t, c.Lock, "short"), kit.Must(t, c.Lock, "long", natslock.TTL(time.Hour))
		time.Sleep(2 * time.Second)
		kit.RemakeBucket(t, s.Connect(), 0)
		kit.Must(t, other.Lock, "short")
		time.Sleep(6 * time.Second) // by now the short lease was due for renewal
		kit.WantLost(t, short, natslock.ErrLost)
		kit.WantLost(t, long, natslock.ErrLost)
	})
}
