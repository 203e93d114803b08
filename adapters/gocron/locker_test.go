package gocronlock_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	gocronlock "github.com/natslock/locks/adapters/gocron"
	"github.com/natslock/locks/locktest"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

// launch starts replicas with different clocks and a job that takes 10 ms.
func launch(t *testing.T, s *testutil.Server, l *ledger, opts ...gocronlock.Option) []*replica {
	t.Helper()
	var all []*replica
	for i, skew := range skews {
		r := join(t, s, skew)
		locker := gocronlock.NewLocker(r, append(opts, gocronlock.OnError(r.report))...)
		r.schedule(t, gocron.WithDistributedLocker(locker), func() {
			l.add(i, locker.Held(name).Token())
			time.Sleep(10 * time.Millisecond)
		})
		all = append(all, r)
	}
	return all
}

// TestOncePerTick checks that replicas with different clocks run a short job once per tick, even
// after the first one shuts down. The minimum hold keeps the others from getting the lock, and
// tokens increase from run to run.
func TestOncePerTick(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		l := newLedger()
		replicas := launch(t, s, l)
		const ticks = 20
		last := uint64(0)
		for n := range ticks {
			if n == ticks/2 {
				require.NoError(t, replicas[0].scheduler.Shutdown())
			}
			runs := l.at(untilTick())
			require.Len(t, runs, 1, "tick %d", n)
			require.Equal(t, n/(ticks/2), runs[0].replica)
			require.Greater(t, runs[0].token, last)
			last = runs[0].token
		}
		require.Empty(t, replicas[0].skips())
		require.Len(t, replicas[1].skips(), ticks/2)
		require.Len(t, replicas[2].skips(), ticks)
		for _, r := range replicas {
			require.Empty(t, r.reported())
			for _, err := range r.skips() {
				require.ErrorIs(t, err, natslock.ErrLocked)
				require.ErrorContains(t, err, "minimum hold")
			}
		}
	})
}

// TestWithoutMinHold checks that without a minimum hold every replica runs a short job, which shows
// that the default prevents this.
func TestWithoutMinHold(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		l := newLedger()
		launch(t, s, l, gocronlock.MinHold(0))
		for range 5 {
			require.Len(t, l.at(untilTick()), len(skews))
		}
	})
}

// TestLongJob checks that a job that runs for longer than the period is not started a second time
// in any replica while it runs.
func TestLongJob(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		inside, most, runs := make(chan struct{}, 10), 0, 0
		for _, skew := range skews {
			r := join(t, s, skew)
			r.schedule(t, gocron.WithDistributedLocker(gocronlock.NewLocker(r)), func() {
				inside <- struct{}{}
				most, runs = max(most, len(inside)), runs+1
				time.Sleep(5 * period / 2)
				<-inside
			})
		}
		for range 12 {
			untilTick()
		}
		// gocron never sleeps while it shuts down, so the bubble's clock stands still. No job may
		// be sleeping at that point.
		for len(inside) > 0 {
			time.Sleep(period / 2)
		}
		require.Equal(t, 1, most)
		require.Equal(t, 4, runs) // out of 12 ticks, because each run lasts for two more
	})
}

// TestUnlockAfterShutdown checks that a run stopped by a shutdown releases its lock, even though
// its job's context has ended. The context of the lock ends with that of the job.
func TestUnlockAfterShutdown(t *testing.T) {
	for _, hold := range []time.Duration{0, time.Minute} {
		testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
			r, other := join(t, s, 0), join(t, s, 0)
			locker := gocronlock.NewLocker(r, gocronlock.MinHold(hold), gocronlock.OnError(r.report))
			var stopped error
			r.schedule(t, gocron.WithDistributedLocker(locker), func(ctx context.Context) {
				lock := locker.Held(name)
				<-ctx.Done()
				<-lock.Context().Done()
				stopped = lock.Context().Err()
				require.Positive(t, lock.Remaining())
			})
			untilTick()
			info, err := admin.New(other.Client).Inspect(t.Context(), admin.KindMutex, name)
			require.NoError(t, err)
			require.NotNil(t, info.Holder)

			require.NoError(t, r.scheduler.Shutdown())
			require.ErrorIs(t, stopped, context.Canceled)
			info, err = admin.New(other.Client).Inspect(t.Context(), admin.KindMutex, name)
			require.NoError(t, err)
			if hold == 0 {
				require.Nil(t, info.Holder)
			} else {
				require.True(t, info.Holder.Fixed)
			}
			require.Empty(t, r.reported())
			require.Zero(t, locker.Held(name).Token())
			require.Error(t, locker.Held(name).Context().Err())
		})
	}
}

// TestLost checks that a replica cut off from the server loses its lock in time. The context of
// Held ends, and the loss is reported, before another replica runs the job with a greater token.
// gocron lets the first run continue, so its replica starts no other in the meantime.
func TestLost(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		l := newLedger()
		first := join(t, s, 0)
		locker := gocronlock.NewLocker(first, gocronlock.OnError(first.report))
		held, finish := make(chan *natslock.Lock, 1), make(chan struct{})
		ended := sync.OnceFunc(func() { close(finish) })
		first.schedule(t, gocron.WithDistributedLocker(locker), func() {
			lock := locker.Held(name)
			l.add(0, lock.Token())
			select {
			case held <- lock:
				<-finish // the job ignores its lock
			default:
			}
		})
		t.Cleanup(ended)
		second := join(t, s, 900*time.Millisecond)
		other := gocronlock.NewLocker(second)
		var before error // why the first lock had ended when the second run began
		var lock *natslock.Lock
		second.schedule(t, gocron.WithDistributedLocker(other), func() {
			if lock != nil && before == nil {
				before = context.Cause(lock.Context())
			}
			l.add(1, other.Held(name).Token())
		})

		begun := untilTick()
		lock = <-held
		require.Len(t, l.at(begun), 1)
		require.NoError(t, lock.Context().Err())
		first.link.Blackhole(true)
		lost := untilTick() // more than a TTL later
		require.Len(t, l.at(lost), 1)
		require.Equal(t, 1, l.at(lost)[0].replica)
		require.Greater(t, l.at(lost)[0].token, lock.Token())
		require.ErrorIs(t, before, natslock.ErrLost)
		require.Len(t, first.reported(), 1)
		require.ErrorIs(t, first.reported()[0], natslock.ErrLost)
		require.ErrorContains(t, first.reported()[0], name)

		// The server is back, but the run that has lost its lock keeps its replica from starting
		// another.
		first.link.Heal()
		require.NoError(t, second.scheduler.Shutdown())
		require.Empty(t, l.at(untilTick()))
		skips := first.skips()
		require.ErrorIs(t, skips[len(skips)-1], natslock.ErrLocked)
		require.ErrorContains(t, skips[len(skips)-1], "has not ended")
		ended()
		runs := l.at(untilTick())
		require.Len(t, runs, 1)
		require.Zero(t, runs[0].replica)
		require.Len(t, first.reported(), 1, "a loss is reported once")
	})
}

// TestBroken checks that the loss is reported immediately when an operator breaks the lock of a
// run.
func TestBroken(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		r, operator := join(t, s, 0), join(t, s, 0)
		locker := gocronlock.NewLocker(r, gocronlock.OnError(r.report))
		ended := make(chan error, 10)
		r.schedule(t, gocron.WithDistributedLocker(locker), func() {
			lock := locker.Held(name)
			<-lock.Context().Done()
			ended <- context.Cause(lock.Context())
		})
		untilTick()
		time.Sleep(time.Second) // the client watches only locks held for a while
		info, err := admin.New(operator.Client).Inspect(t.Context(), admin.KindMutex, name)
		require.NoError(t, err)
		require.NoError(t, admin.New(operator.Client).Break(t.Context(), admin.BreakRequest{Name: name, ID: info.Holder.ID, Reason: "it hangs"}))
		synctest.Wait()
		require.ErrorIs(t, <-ended, natslock.ErrBroken)
		require.Len(t, r.reported(), 1)
		require.ErrorIs(t, r.reported()[0], natslock.ErrBroken)
		require.ErrorContains(t, r.reported()[0], "it hangs")
	})
}

// TestUnlockUnconfirmed checks that an unconfirmed release is reported, but not as a loss.
func TestUnlockUnconfirmed(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		r := join(t, s, 0, natslock.WithTuning(natslock.Tuning{ReleaseTimeout: time.Second}))
		locker := gocronlock.NewLocker(r, gocronlock.OnError(r.report))
		r.schedule(t, gocron.WithDistributedLocker(locker), func() { r.link.Blackhole(true) })
		untilTick()
		time.Sleep(2 * time.Second)
		require.Len(t, r.reported(), 1)
		require.ErrorIs(t, r.reported()[0], natslock.ErrUnavailable)
		require.NotErrorIs(t, r.reported()[0], natslock.ErrLost)
		require.NoError(t, r.scheduler.Shutdown())
	})
}

// TestSkips checks that a run is skipped if the server does not reply within the 5 s of a TryLock,
// and that every run is skipped if natslock rejects an option.
func TestSkips(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		for _, c := range []struct {
			want error
			opt  gocronlock.Option
		}{
			{natslock.ErrUnavailable, gocronlock.LockOptions(natslock.TTL(30 * time.Second))},
			{natslock.ErrInvalid, gocronlock.MinHold(-time.Second)},
			{natslock.ErrInvalid, gocronlock.LockOptions(natslock.Linger(time.Second))},
		} {
			r, ran := join(t, s, 0), false
			r.schedule(t, gocron.WithDistributedLocker(gocronlock.NewLocker(r, c.opt)), func() { ran = true })
			if c.want == natslock.ErrUnavailable {
				r.link.Blackhole(true)
			}
			untilTick()
			time.Sleep(5 * time.Second)
			require.False(t, ran)
			require.Len(t, r.skips(), 1)
			require.ErrorIs(t, r.skips()[0], c.want)
			require.NoError(t, r.scheduler.Shutdown())
		}
	})
}

// TestLockOptions checks that the Locker's options apply to the lock.
func TestLockOptions(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		r := join(t, s, 0)
		locker := gocronlock.NewLocker(r, gocronlock.MinHold(0),
			gocronlock.LockOptions(natslock.TTL(time.Minute)), gocronlock.LockOptions(natslock.Meta(map[string]string{"job": "it"})))
		lock, err := locker.Lock(t.Context(), name)
		require.NoError(t, err)
		info, err := admin.New(r.Client).Inspect(t.Context(), admin.KindMutex, name)
		require.NoError(t, err)
		require.Equal(t, time.Minute, info.Holder.TTL)
		require.Equal(t, "it", info.Holder.Meta["job"])
		require.Equal(t, info.Holder.Token, locker.Held(name).Token())
		require.NoError(t, lock.Unlock(t.Context()))
		require.NoError(t, lock.Unlock(t.Context()))
		_, err = locker.Lock(t.Context(), name)
		require.NoError(t, err)
	})
}

// TestPanic checks that a job whose panic gocron recovers releases its lock.
func TestPanic(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		r := join(t, s, 0)
		locker := gocronlock.NewLocker(r, gocronlock.MinHold(0))
		scheduler, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker))
		require.NoError(t, err)
		recovered := make(chan any, 1)
		_, err = scheduler.NewJob(gocron.OneTimeJob(gocron.OneTimeJobStartImmediately()), gocron.NewTask(func() { panic("it breaks") }), gocron.WithName(name),
			gocron.WithEventListeners(gocron.AfterJobRunsWithPanic(func(_ uuid.UUID, _ string, v any) { recovered <- v })))
		require.NoError(t, err)
		scheduler.Start()
		require.Equal(t, "it breaks", <-recovered)
		require.NoError(t, scheduler.Shutdown())
		info, err := admin.New(r.Client).Inspect(t.Context(), admin.KindMutex, name)
		require.NoError(t, err)
		require.Nil(t, info.Holder)
	})
}

// TestNil checks that nil options leave the defaults in place, and that a Locker without a client
// returns an error.
func TestNil(t *testing.T) {
	locks := locktest.New()
	defer locks.Close()
	l := gocronlock.NewLocker(locks, gocronlock.OnError(nil), gocronlock.MinHold(0), nil)
	run, err := l.Lock(t.Context(), name)
	require.NoError(t, err)
	require.NoError(t, l.Held(name).Unlock(t.Context()))
	require.NoError(t, run.Unlock(t.Context()))
	run, err = l.Lock(t.Context(), name)
	require.NoError(t, err)
	require.True(t, locks.Lose(name))
	require.ErrorIs(t, run.Unlock(t.Context()), natslock.ErrLost, "which it reports to nobody")
	_, err = gocronlock.NewLocker(nil).Lock(t.Context(), name)
	require.ErrorIs(t, err, natslock.ErrInvalid)
}
