package natslock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/bridge"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/history"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/machine"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

// runs counts how often each period was run, by its beginning.
type runs struct {
	mu sync.Mutex
	by map[time.Time]int
	n  int
}

func (r *runs) fn(_ context.Context, begin time.Time, _ *natslock.Lock) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.by == nil {
		r.by = map[time.Time]int{}
	}
	r.by[begin]++
	r.n++
	return nil
}

func (r *runs) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.n
}

// skewed gives a client a wall clock that is ahead by d.
func skewed(d time.Duration) natslock.Option {
	return bridge.WallClock.(func(func() time.Time) natslock.Option)(func() time.Time { return time.Now().Add(d) })
}

// Three replicas run a job every minute of a day, each time once. Their clocks are a second
// apart, and their timers up to a tenth of a second early or late.
func TestOncePerDay(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	history.InMemory(t, func(t *testing.T, bucket *kvstore.Memory) {
		const period = time.Minute
		var runs runs
		var all sync.WaitGroup
		first := time.Now().UTC().Truncate(period).Add(time.Hour)
		last := first.Add(machine.Part(24 * time.Hour))
		for i, skew := range []time.Duration{-time.Second, 0, time.Second} {
			m, _ := joinInMemory(t, bucket, skewed(skew))
			rng := rand.New(rand.NewPCG(seed, uint64(i)))
			all.Go(func() {
				for tick := first; !tick.After(last); tick = tick.Add(period) {
					jitter := time.Duration(rng.IntN(200)-100) * time.Millisecond
					time.Sleep(time.Until(tick.Add(-skew + jitter)))
					_, err := m.OncePer(t.Context(), "job", period, runs.fn)
					assert.NoError(t, err)
				}
			})
		}
		all.Wait()
		require.Len(t, runs.by, int(last.Sub(first)/period)+1)
		for tick := first; !tick.After(last); tick = tick.Add(period) {
			require.Equal(t, 1, runs.by[tick], "%v", tick)
		}
	})
}

// A period is used when fn has begun, whatever comes of it. A run leaves a record until
// after the period, and nothing that a Close waits for.
func TestOncePerUsed(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, other := join(t, s), join(t, s)
		r := newRaw(t, s.Connect())
		time.Sleep(20 * time.Minute)
		begun := time.Now().UTC().Truncate(time.Hour)
		key := "lock.a.job." + begun.Format("20060102T150405Z")
		again := func(m *member) {
			t.Helper()
			ran, err := m.OncePer(t.Context(), "a.job", time.Hour, func(context.Context, time.Time, *natslock.Lock) error {
				panic("it runs again")
			})
			require.NoError(t, err)
			require.False(t, ran)
		}
		fault := errors.New("fault")
		ran, err := c.OncePer(t.Context(), "a.job", time.Hour, func(ctx context.Context, begin time.Time, l *natslock.Lock) error {
			require.Equal(t, begun, begin)
			require.NoError(t, ctx.Err())
			require.Positive(t, l.Remaining())
			require.Equal(t, []string{key}, r.live(">"))
			again(other)
			again(c)
			return fault
		}, natslock.Meta(map[string]string{"k": "v"}))
		require.True(t, ran)
		require.ErrorIs(t, err, fault)
		require.Equal(t, []string{key}, r.live(">"))
		again(other)
		again(c)
		require.Equal(t, "job", inspect(t, other.Client, key[len("lock."):]).Holder.Purpose)
		require.Zero(t, c.Stats().Held)
		require.NoError(t, c.Close(context.Background()), "it waits for nothing")
		time.Sleep(time.Until(begun.Add(time.Hour + 30*time.Second)))
		require.Equal(t, []string{key}, r.live(">"))
		time.Sleep(time.Minute)
		require.Empty(t, r.live(">"))

		require.Panics(t, func() {
			_, _ = other.OncePer(t.Context(), "a.job", time.Hour, func(context.Context, time.Time, *natslock.Lock) error { panic("test") })
		})
		again(other)
		require.Zero(t, other.Stats().Held)
	})
}

// A job whose process dies in the middle does not run again in its period, but in the next.
func TestOncePerCrash(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, other := join(t, s), join(t, s)
		var runs runs
		var done sync.WaitGroup
		begun := make(chan struct{})
		done.Go(func() {
			_, err := c.OncePer(t.Context(), "job", time.Minute, func(ctx context.Context, begin time.Time, l *natslock.Lock) error {
				_ = runs.fn(ctx, begin, l)
				close(begun)
				<-ctx.Done()
				return ctx.Err()
			})
			assert.Error(t, err)
		})
		kit.Receive(t, begun, "the run")
		c.nc.Close()
		for range 58 {
			time.Sleep(time.Second)
			ran, err := other.OncePer(t.Context(), "job", time.Minute, runs.fn)
			require.NoError(t, err)
			require.False(t, ran)
		}
		time.Sleep(time.Second) // the last second counts for the next period
		ran, err := other.OncePer(t.Context(), "job", time.Minute, runs.fn)
		require.NoError(t, err)
		require.True(t, ran)
		done.Wait()
		require.Equal(t, 2, runs.count())
	})
}

// The context of a run that takes too long ends with the lock, after the period.
func TestOncePerTooLong(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := join(t, s)
		end := time.Now().Truncate(time.Minute).Add(time.Minute)
		ran, err := c.OncePer(t.Context(), "job", time.Minute, func(ctx context.Context, _ time.Time, _ *natslock.Lock) error {
			<-ctx.Done()
			require.ErrorIs(t, context.Cause(ctx), natslock.ErrEnded)
			return nil
		})
		require.True(t, ran)
		require.ErrorIs(t, err, natslock.ErrEnded)
		require.Equal(t, end.Add(35*time.Second), time.Now())
	})
}

// An operator who breaks the lock of a period ends the run, and not the period.
func TestOncePerBroken(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, other := join(t, s, natslock.WithTuning(natslock.Tuning{WatchAfter: 1})), join(t, s)
		ran, err := c.OncePer(t.Context(), "job", time.Minute, func(ctx context.Context, _ time.Time, l *natslock.Lock) error {
			// Not ctx: the break ends it, maybe before its answer.
			require.NoError(t, admin.New(other.Client).Break(t.Context(), admin.BreakRequest{Kind: admin.KindMutex, Name: l.Name(), ID: l.ID(), Reason: "test"}))
			kit.Receive(t, ctx.Done(), "the break")
			return nil
		})
		require.True(t, ran)
		require.ErrorIs(t, err, natslock.ErrBroken)
		for range 57 {
			time.Sleep(time.Second)
			ran, err = other.OncePer(t.Context(), "job", time.Minute, nothing)
			require.NoError(t, err)
			require.False(t, ran)
		}
	})
}

func nothing(context.Context, time.Time, *natslock.Lock) error { return nil }

// A client whose clock is too far from the server's runs nothing, and leaves the period to
// the others. Neither does one that takes a period for the present one which is over.
func TestOncePerClock(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		r := newRaw(t, s.Connect())
		right := join(t, s)
		var runs runs
		try := func(m *member, period time.Duration) (bool, error) {
			defer synctest.Wait()
			return m.OncePer(t.Context(), "job", period, runs.fn)
		}
		wrong := func(skew, period time.Duration, text string) {
			t.Helper()
			ran, err := try(join(t, s, skewed(skew)), period)
			require.False(t, ran)
			require.ErrorIs(t, err, natslock.ErrClock)
			require.ErrorContains(t, err, text)
			require.Empty(t, r.live(">"))
		}
		time.Sleep(time.Until(time.Now().Truncate(time.Hour).Add(90 * time.Minute)))
		wrong(2*time.Hour, time.Hour, "2h0m0s ahead")
		wrong(-2*time.Hour, time.Hour, "2h0m0s behind")
		wrong(31*time.Second, time.Hour, "31s ahead")
		wrong(-31*time.Second, time.Hour, "31s behind")
		wrong(6*time.Second, 10*time.Second, "6s ahead")
		wrong(-6*time.Second, 10*time.Second, "6s behind")
		require.Zero(t, runs.count())
		ran, err := try(join(t, s, skewed(-30*time.Second)), time.Hour)
		require.NoError(t, err)
		require.True(t, ran)
		ran, err = try(right, time.Hour)
		require.NoError(t, err)
		require.False(t, ran)

		// 10 s after the next period has begun, to a clock that is 20 s behind.
		time.Sleep(time.Until(time.Now().Truncate(time.Hour).Add(time.Hour + 10*time.Second)))
		behind, ahead := join(t, s, skewed(-20*time.Second)), join(t, s, skewed(20*time.Second))
		ran, err = try(behind, time.Hour)
		require.NoError(t, err, "the period was run")
		require.False(t, ran)
		time.Sleep(time.Until(time.Now().Truncate(time.Hour).Add(2*time.Hour + 10*time.Second)))
		ran, err = try(behind, time.Hour)
		require.ErrorIs(t, err, natslock.ErrClock, "nobody has run it, and it is over")
		require.ErrorContains(t, err, "ended 10s ago")
		require.False(t, ran)

		// The record that a fast clock has left is there for a slow one.
		time.Sleep(time.Until(time.Now().Truncate(time.Hour).Add(time.Hour)))
		n := runs.count()
		ran, err = try(ahead, time.Hour)
		require.NoError(t, err)
		require.True(t, ran)
		for range 110 {
			time.Sleep(time.Minute)
			_, _ = try(behind, time.Hour)
		}
		require.Equal(t, n+2, runs.count(), "this period and the next")
	})
}

// The record of the shortest periods outlives the differences of clocks that are allowed.
func TestOncePerShort(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		for _, period := range []time.Duration{time.Second, 1500 * time.Millisecond, 10 * time.Second, 45 * time.Second} {
			name := fmt.Sprint("job", period)
			members := []*member{join(t, s, skewed(period/2)), join(t, s), join(t, s, skewed(-period/2))}
			var runs runs
			for range 200 {
				for _, m := range members {
					_, _ = m.OncePer(t.Context(), name, period, runs.fn)
				}
				time.Sleep(period / 20)
			}
			for begin, n := range runs.by {
				require.Equal(t, 1, n, "%v of %v", begin, period)
			}
			require.GreaterOrEqual(t, len(runs.by), 10)
		}
	})
}

// Without an answer nothing runs. A server that grants the lock and does not say what time
// it is runs nothing either, and the period is left to another call.
func TestOncePerUnanswered(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, f := joinFaulty(t, s)
		r := newRaw(t, s.Connect())
		var runs runs
		f.FailReads(func(op faults.ReadOp, _ string) error {
			if op == faults.ReadState {
				return fmt.Errorf("%w: test", kvstore.ErrUnavailable)
			}
			return nil
		})
		ran, err := c.OncePer(t.Context(), "job", time.Hour, runs.fn)
		require.ErrorIs(t, err, natslock.ErrUnavailable)
		require.False(t, ran)
		require.Empty(t, r.live(">"))
		f.FailReads(nil)
		f.OnSend(func(int, kvstore.Write) faults.Fate { return faults.Drop })
		ran, err = c.OncePer(t.Context(), "job", time.Hour, runs.fn)
		require.ErrorIs(t, err, natslock.ErrUnavailable)
		require.False(t, ran)
		require.Zero(t, runs.count())
		f.OnSend(nil)
		ran, err = c.OncePer(t.Context(), "job", time.Hour, runs.fn)
		require.NoError(t, err)
		require.True(t, ran)
		require.Equal(t, 1, runs.count())
	})
}

// A call that finds its period taken costs an attempt and a read. A run costs an attempt
// and a request for the time.
func TestOncePerMessages(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, other := join(t, s), join(t, s)
		var runs runs
		for _, m := range []*member{c, other} {
			_, err := m.OncePer(t.Context(), "warm", time.Hour, runs.fn)
			require.NoError(t, err)
		}
		for _, m := range []*member{c, other, c} {
			out := m.nc.Stats().OutMsgs
			_, err := m.OncePer(t.Context(), "job", time.Hour, runs.fn)
			require.NoError(t, err)
			require.EqualValues(t, 2, m.nc.Stats().OutMsgs-out)
		}
		require.Equal(t, 2, runs.count())
	})
}

// Bad input is refused before anything is sent. The error names the job.
func TestOncePerInvalid(t *testing.T) {
	s := testutil.RunServer(t)
	c := join(t, s)
	out := c.nc.Stats().OutMsgs
	var runs runs
	for what, x := range map[string]struct {
		name   string
		period time.Duration
		opts   []natslock.LockOption
		err    error
	}{
		"no name": {"", time.Hour, nil, natslock.ErrInvalid},
		"short":   {"job", time.Second - 1, nil, natslock.ErrInvalid},
		"long":    {"job", 365*24*time.Hour + 1, nil, natslock.ErrInvalid},
		"TTL":     {"job", time.Hour, []natslock.LockOption{natslock.TTL(time.Minute)}, natslock.ErrInvalid},
		"Until":   {"job", time.Hour, []natslock.LockOption{natslock.Until(time.Now().Add(time.Hour))}, natslock.ErrInvalid},
		"NoRenew": {"job", time.Hour, []natslock.LockOption{natslock.NoRenew()}, natslock.ErrInvalid},
		"Linger":  {"job", time.Hour, []natslock.LockOption{natslock.Linger(time.Minute)}, natslock.ErrInvalid},
		"MinHold": {"job", time.Hour, []natslock.LockOption{natslock.MinHold(time.Minute)}, natslock.ErrInvalid},
		"nil":     {"job", time.Hour, []natslock.LockOption{nil}, natslock.ErrInvalid},
	} {
		ran, err := c.OncePer(t.Context(), x.name, x.period, runs.fn, x.opts...)
		require.False(t, ran, what)
		require.ErrorIs(t, err, x.err, what)
		require.ErrorContains(t, err, fmt.Sprintf("%q", x.name), what)
	}
	_, err := c.OncePer(t.Context(), "job", time.Hour, nil)
	refused(t, err, "nil")
	for _, zero := range []*natslock.Client{nil, {}} {
		_, err = zero.OncePer(t.Context(), "job", time.Hour, runs.fn)
		refused(t, err, "made without New")
	}
	require.Equal(t, out, c.nc.Stats().OutMsgs, "nothing is sent")
	require.Zero(t, runs.count())
	ran, err := c.OncePer(t.Context(), "yearly", 365*24*time.Hour, runs.fn)
	require.NoError(t, err)
	require.True(t, ran)
}

// Periods are those of UTC. A daily schedule in local time has two ticks in one of them when
// summer time begins: of half a day it has not.
func TestOncePerSummerTime(t *testing.T) {
	history.InMemory(t, func(t *testing.T, bucket *kvstore.Memory) {
		c, _ := joinInMemory(t, bucket)
		day := time.Now().UTC().Truncate(24 * time.Hour).Add(24 * time.Hour)
		for _, tick := range []time.Duration{30 * time.Minute, 23*time.Hour + 30*time.Minute, 47*time.Hour + 30*time.Minute} {
			time.Sleep(time.Until(day.Add(tick)))
			var runs runs
			ran, err := c.OncePer(t.Context(), "whole", 24*time.Hour, runs.fn)
			require.NoError(t, err)
			require.Equal(t, tick.Hours() != 23.5, ran, "at %v", tick)
			ran, err = c.OncePer(t.Context(), "half", 12*time.Hour, runs.fn)
			require.NoError(t, err)
			require.True(t, ran, "at %v", tick)
		}
	})
}
