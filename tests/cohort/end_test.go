package cohort_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

// TestCohortDroppedHandle checks that if a handle is dropped while others of its client wait, its
// lease runs out. The others queue immediately and get in as soon as the record has expired. The
// test runs in real time because cleanups do not run in a bubble.
func TestCohortDroppedHandle(t *testing.T) {
	tier.Proof(t)
	s := testutil.RunServer(t)
	const ttl = 2 * time.Second
	var log kit.Log
	kit.Join(t, s) // creates the bucket, so that the warning is not in c's log
	c := kit.Join(t, s, log.Option())
	holder := kit.Must(t, c.Lock, "l", natslock.TTL(ttl))
	time.Sleep(10 * time.Millisecond) // longer than a turn
	first := c.Await(t, "l", natslock.TTL(ttl))
	second, third := c.Await(t, "l", natslock.TTL(ttl)), c.Await(t, "l", natslock.TTL(ttl))
	kit.Unlock(t, holder)
	token := first.Granted(t).Token()
	first.Value = nil
	kit.Eventually(t, "it is noticed", func() bool {
		runtime.GC()
		return log.String() != ""
	})
	dropped := time.Now()
	kit.Eventually(t, "the others queue", func() bool { return len(kit.Inspect(t, c.Client, "l").Queue) > 0 })
	require.Less(t, time.Since(dropped), ttl/2, "at once")
	next := second.Granted(t)
	require.Less(t, second.At.Sub(dropped), ttl+time.Second)
	require.Greater(t, next.Token(), token)
	kit.Unlock(t, next)
	kit.Unlock(t, third.Granted(t))
}

// TestCohortExtend checks that the TTL set by Extend applies only to its holder: the next one gets
// the TTL of the lease.
func TestCohortExtend(t *testing.T) {
	for _, ttl := range []time.Duration{5 * time.Second, time.Minute} {
		t.Run(ttl.String(), func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				const own = 15 * time.Second
				c := kit.Join(t, s)
				r := kit.NewRaw(t, s.Connect())
				stored := func() string { return r.Get("lock.l").Header.Get("Nats-TTL") }
				holder, waits := siblings(t, c, 2)
				kit.Unlock(t, holder)
				l := waits[0].Granted(t)
				require.NoError(t, l.Extend(t.Context(), ttl))
				require.Equal(t, fmt.Sprintf("%.0fs", ttl.Seconds()), stored())
				time.Sleep(time.Minute)
				kit.WantHeld(t, l)
				kit.Unlock(t, l)
				l = waits[1].Granted(t)
				time.Sleep(200 * time.Millisecond)
				require.Equal(t, "15s", stored())
				require.LessOrEqual(t, l.Remaining(), own)
				require.Greater(t, l.Remaining(), own/2)
				time.Sleep(time.Minute)
				kit.WantHeld(t, l)
				require.Equal(t, "15s", stored())
				kit.Unlock(t, l)
			})
		})
	}
}

// insideOf returns the lock of the first of three goroutines that waited together, the two waiting
// behind it, and a stranger that waits behind them all.
func insideOf(t *testing.T, c, other *kit.Member) (l *natslock.Lock, waits []*kit.Waiting, stranger *kit.Waiting) {
	t.Helper()
	holder, waits := siblings(t, c, 3)
	stranger = other.Settle(t)
	kit.Unlock(t, holder)
	l = waits[0].Granted(t)
	time.Sleep(2 * time.Second) // by now the client watches the lock
	return l, waits[1:], stranger
}

// TestCohortBroken checks that a break ends the current holder's part and sends the goroutines
// behind it to the back of the queue.
func TestCohortBroken(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, other := kit.Join(t, s), kit.Join(t, s)
		l, waits, stranger := insideOf(t, c, other)
		kit.Unlock(t, l) // so that the current holder is not the lease's first
		l, waits = waits[0].Granted(t), []*kit.Waiting{waits[1], c.Settle(t)}
		shown := kit.Inspect(t, other.Client, "l").Holder
		require.NotEmpty(t, shown.ID)
		require.NoError(t, admin.New(other.Client).Break(t.Context(), admin.BreakRequest{Name: "l", ID: shown.ID, Reason: "test"}))
		broken := time.Now()
		kit.Receive(t, l.Context().Done(), "the end of the holder's part")
		require.Less(t, time.Since(broken), 100*time.Millisecond)
		require.ErrorIs(t, l.Err(), natslock.ErrBroken)
		require.ErrorIs(t, context.Cause(l.Context()), natslock.ErrBroken)
		time.Sleep(5 * time.Second)
		for _, w := range append(waits, stranger) {
			require.False(t, w.Over(), "the broken holder is still inside")
		}
		require.ErrorIs(t, l.Unlock(t.Context()), natslock.ErrBroken)
		begun := time.Now()
		kit.UnlockAll(t, stranger.Granted(t), waits...)
		require.Less(t, time.Since(begun), time.Second)
		require.EqualValues(t, 1, c.Stats().Broken)
		time.Sleep(2 * time.Second)
		kit.WantNothing(t, s)
	})
}

// TestCohortBrokenBetween checks that a break between two holders affects no holder: the broken
// record is deleted and keeps nobody out.
func TestCohortBrokenBetween(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, f := kit.JoinFaulty(t, s)
		other := kit.Join(t, s)
		l, waits, stranger := insideOf(t, c, other)
		shortOfTime(t, f, l, 15*time.Second)
		id := kit.Inspect(t, other.Client, "l").Holder.ID
		kit.Unlock(t, l)
		synctest.Wait()
		require.False(t, waits[0].Over(), "it waits for a renewal")
		f.OnSend(nil)
		require.NoError(t, admin.New(other.Client).Break(t.Context(), admin.BreakRequest{Name: "l", ID: id, Reason: "test"}))
		begun := time.Now()
		kit.UnlockAll(t, stranger.Granted(t), waits...)
		require.Less(t, time.Since(begun), time.Second)
		time.Sleep(2 * time.Second)
		kit.WantNothing(t, s)
	})
}

// TestCohortLost checks that the end of the validity ends the current holder's part and makes the
// goroutines behind it queue.
func TestCohortLost(t *testing.T) {
	for _, how := range []string{"cut off", "crashed", "record deleted"} {
		t.Run(how, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				c, other := kit.Join(t, s), kit.Join(t, s)
				l, waits, stranger := insideOf(t, c, other)
				begun := time.Now()
				switch how {
				case "cut off":
					c.Link.Blackhole(true)
					<-l.Context().Done()
					require.LessOrEqual(t, time.Since(begun), 15*time.Second)
					next := stranger.Granted(t)
					require.Less(t, time.Since(begun), 17*time.Second)
					require.False(t, waits[0].Over())
					c.Link.Heal()
					time.Sleep(10 * time.Second)
					kit.WantLost(t, l, natslock.ErrLost)
					kit.UnlockAll(t, next, waits...)
				case "crashed": // its goroutines stay cut off
					last := other.Settle(t)
					c.Link.Cut()
					next := stranger.Granted(t)
					require.Less(t, time.Since(begun), 17*time.Second)
					require.Greater(t, next.Token(), l.Token())
					kit.WantLost(t, l, natslock.ErrLost)
					kit.UnlockAll(t, next, last)
					require.Less(t, time.Since(begun), 18*time.Second)
					for _, w := range waits {
						require.False(t, w.Over())
						w.Cancel(nil)
						require.ErrorIs(t, w.Failed(t), natslock.ErrTimeout)
					}
				case "record deleted":
					kit.NewRaw(t, s.Connect()).Remove("lock.l")
					<-l.Context().Done()
					require.LessOrEqual(t, time.Since(begun), time.Second)
					kit.WantLost(t, l, natslock.ErrLost)
					kit.UnlockAll(t, stranger.Granted(t), waits...)
				}
				require.EqualValues(t, 1, c.Stats().Lost)
				time.Sleep(20 * time.Second)
				kit.WantNothing(t, s)
			})
		})
	}
}

// TestCohortClose checks that Close fails the waiting goroutines, while the holder keeps its lock
// until it unlocks or Close stops waiting.
func TestCohortClose(t *testing.T) {
	for _, patient := range []bool{true, false} {
		testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
			c, other := kit.Join(t, s), kit.Join(t, s)
			l, waits, stranger := insideOf(t, c, other)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			begun := time.Now()
			closed := make(chan error, 1)
			go func() { closed <- c.Close(ctx) }()
			for _, w := range waits {
				require.ErrorIs(t, w.Failed(t), natslock.ErrClosed)
			}
			require.Less(t, time.Since(begun), 100*time.Millisecond)
			time.Sleep(5 * time.Second)
			kit.WantHeld(t, l)
			require.False(t, stranger.Over())
			if patient {
				kit.Unlock(t, l)
				require.NoError(t, kit.Receive(t, closed, "the end of Close"))
				require.Less(t, time.Since(begun), 6*time.Second)
				begun = time.Now()
				kit.Unlock(t, stranger.Granted(t))
				require.Less(t, time.Since(begun), time.Second)
			} else {
				require.Error(t, kit.Receive(t, closed, "the end of Close"))
				require.Equal(t, 10*time.Second, time.Since(begun))
				require.ErrorIs(t, l.Err(), natslock.ErrClosed)
				require.ErrorIs(t, l.Unlock(t.Context()), natslock.ErrClosed)
				kit.Unlock(t, stranger.Granted(t))
			}
			time.Sleep(2 * time.Second)
			kit.WantNothing(t, s)
		})
	}
}

// TestCohortCloseEndsTheWaitForARenewal checks that Close fails a goroutine that has been given the
// lease but still waits for a renewal.
func TestCohortCloseEndsTheWaitForARenewal(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, f := kit.JoinFaulty(t, s)
		holder, waits := siblings(t, c, 2)
		kit.Unlock(t, holder)
		l := waits[0].Granted(t)
		shortOfTime(t, f, l, 15*time.Second)
		kit.Unlock(t, l)
		synctest.Wait()
		require.False(t, waits[1].Over())
		begun := time.Now()
		require.NoError(t, c.Close(t.Context()))
		require.ErrorIs(t, waits[1].Failed(t), natslock.ErrClosed)
		require.Less(t, time.Since(begun), 100*time.Millisecond)
		time.Sleep(2 * time.Second)
		kit.WantNothing(t, s)
	})
}

// TestCohortHandleEndsItsOwnPart checks that a handle ends only its own part of the lease: its
// context ends before the next goroutine is served, and later calls on the handle do not affect
// that goroutine.
func TestCohortHandleEndsItsOwnPart(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s)
		holder, waits := siblings(t, c, 3)
		kit.Unlock(t, holder)
		first := waits[0].Granted(t)
		kit.Unlock(t, first)
		second := waits[1].Granted(t)
		require.Error(t, first.Context().Err())
		require.ErrorIs(t, context.Cause(first.Context()), natslock.ErrReleased)
		require.ErrorIs(t, first.Err(), natslock.ErrReleased)
		require.ErrorIs(t, first.Err(), natslock.ErrReleased)
		require.Zero(t, first.Remaining())
		kit.Unlock(t, first) // a second time
		require.ErrorIs(t, first.Extend(t.Context(), time.Minute), natslock.ErrReleased)
		synctest.Wait()
		kit.WantHeld(t, second)
		require.False(t, waits[2].Over())
		require.NotEqual(t, first.ID(), second.ID())
		kit.UnlockAll(t, second, waits[2])
		kit.WantNothing(t, s)
	})
}

// TestCohortLeftTooLate checks that a holder that leaves after the end of its validity has lost the
// lock, even if the client has not noticed the end yet.
func TestCohortLeftTooLate(t *testing.T) {
	for range 15 { // chance decides which timer fires first
		testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
			c, f := kit.JoinFaulty(t, s)
			holder, waits := siblings(t, c, 2)
			noRenewals(f)
			kit.Unlock(t, holder)
			l := waits[0].Granted(t)
			synctest.Wait()
			time.Sleep(l.Remaining())
			require.ErrorIs(t, l.Unlock(t.Context()), natslock.ErrLost)
			f.OnSend(nil)
			kit.Unlock(t, waits[1].Granted(t))
		})
	}
}
