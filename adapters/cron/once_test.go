package cronlock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/robfig/cron/v3"
	"github.com/stretchr/testify/require"

	cronlock "github.com/natslock/locks/adapters/cron"
	"github.com/natslock/locks/locktest"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

const (
	// name is the lock's name in each test.
	name = "billing.report"
	// period is the time between two ticks of spec.
	period = 20 * time.Second
	spec   = "*/20 * * * * *"
)

// skews holds how far the clock of each replica lags.
var skews = []time.Duration{0, 400 * time.Millisecond, 900 * time.Millisecond}

// late is a schedule that follows a lagging clock.
type late struct {
	cron.Schedule
	by time.Duration
}

func (l late) Next(t time.Time) time.Time { return l.Schedule.Next(t.Add(-l.by)).Add(l.by) }

// replica stands for a process that has a Cron and its own connection, client and clock.
type replica struct {
	*natslock.Client
	link *testutil.Link
	cron *cron.Cron

	mu     sync.Mutex
	errs   []error
	tokens []uint64 // one for each run
	ticks  []time.Time
}

func join(t *testing.T, s *testutil.Server) *replica {
	t.Helper()
	r := &replica{}
	nc, link := s.ConnectLink()
	c, err := natslock.New(t.Context(), nc, natslock.WithTuning(natslock.Tuning{ReleaseTimeout: time.Second}))
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = c.Close(ctx)
	})
	r.Client, r.link = c, link
	return r
}

// schedule starts a Cron with one job, whose clock lags by skew.
func (r *replica) schedule(t *testing.T, skew time.Duration, job cron.Job) {
	t.Helper()
	if now := time.Now(); now.Sub(now.Truncate(period)) <= slices.Max(skews) { // the lagging clocks have yet to reach this tick
		time.Sleep(slices.Max(skews) + time.Second)
	}
	every, err := cron.NewParser(cron.Second | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow).Parse(spec)
	require.NoError(t, err)
	r.cron = cron.New(cron.WithLogger(cron.DiscardLogger))
	r.cron.Schedule(late{every, skew}, job)
	r.cron.Start()
	t.Cleanup(func() { <-r.cron.Stop().Done() })
}

// fail records the errors that OnError receives.
func (r *replica) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.errs = append(r.errs, err)
}

func (r *replica) failed() []error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.errs)
}

// run is a job that takes 10 ms.
func (r *replica) run(_ context.Context, l *natslock.Lock) error {
	r.mu.Lock()
	r.tokens, r.ticks = append(r.tokens, l.Token()), append(r.ticks, time.Now().Truncate(period))
	r.mu.Unlock()
	time.Sleep(10 * time.Millisecond)
	return nil
}

// ran returns the tokens of the runs at a tick.
func (r *replica) ran(tick time.Time) (tokens []uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, t := range r.ticks {
		if t.Equal(tick) {
			tokens = append(tokens, r.tokens[i])
		}
	}
	return tokens
}

// untilTick sleeps until all replicas have passed the next tick and returns its time. It must be
// called in a bubble.
func untilTick() time.Time {
	tick := time.Now().Truncate(period).Add(period)
	time.Sleep(time.Until(tick) + slices.Max(skews) + time.Second)
	synctest.Wait()
	return tick
}

// launch starts three replicas with a short job.
func launch(t *testing.T, s *testutil.Server, opts ...cronlock.Option) []*replica {
	t.Helper()
	var all []*replica
	for _, skew := range skews {
		r := join(t, s)
		r.schedule(t, skew, cronlock.OnceFunc(r, name, r.run, append(opts, cronlock.OnError(r.fail))...))
		all = append(all, r)
	}
	return all
}

// TestOncePerTick checks that three replicas with different clocks run a short job once per tick,
// even after the first one stops. The minimum hold keeps the others from getting the lock, and
// tokens increase from run to run.
func TestOncePerTick(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		replicas := launch(t, s)
		const ticks = 20
		last := uint64(0)
		for n := range ticks {
			if n == ticks/2 {
				<-replicas[0].cron.Stop().Done()
			}
			tick := untilTick()
			var tokens []uint64
			for _, r := range replicas {
				tokens = append(tokens, r.ran(tick)...)
			}
			require.Len(t, tokens, 1, "tick %d", n)
			require.Len(t, replicas[n/(ticks/2)].ran(tick), 1)
			require.Greater(t, tokens[0], last)
			last = tokens[0]
		}
		require.Empty(t, replicas[0].failed())
		require.Len(t, replicas[1].failed(), ticks/2)
		require.Len(t, replicas[2].failed(), ticks)
		for _, err := range replicas[2].failed() {
			require.ErrorIs(t, err, natslock.ErrLocked)
			require.ErrorContains(t, err, "minimum hold")
		}
	})
}

// TestWithoutMinHold checks that without a minimum hold every replica runs a short job, which shows
// that the default prevents this.
func TestWithoutMinHold(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		replicas := launch(t, s, cronlock.MinHold(0))
		for range 5 {
			tick := untilTick()
			for _, r := range replicas {
				require.Len(t, r.ran(tick), 1)
			}
		}
	})
}

// TestLost checks that a replica cut off from the server loses its lock in time. OnceFunc's context
// ends, and the loss is reported, before another replica runs the job with a greater token. A job
// of Once has no context, so the loss is reported while it runs.
func TestLost(t *testing.T) {
	for _, withContext := range []bool{true, false} {
		testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
			first, second := join(t, s), join(t, s)
			finish, cause := make(chan struct{}), make(chan error, 1)
			ended := sync.OnceFunc(func() { close(finish) })
			if withContext {
				first.schedule(t, 0, cronlock.OnceFunc(first, name, func(ctx context.Context, l *natslock.Lock) error {
					defer ended()
					_ = first.run(ctx, l)
					<-ctx.Done()
					cause <- context.Cause(ctx)
					return nil
				}, cronlock.OnError(first.fail)))
			} else {
				once := cronlock.Once(first, name, cronlock.OnError(first.fail))
				first.schedule(t, 0, once(cron.FuncJob(func() { <-finish })))
			}
			t.Cleanup(ended)
			before := make(chan []error, 10)
			second.schedule(t, skews[2], cronlock.OnceFunc(second, name, func(ctx context.Context, l *natslock.Lock) error {
				before <- first.failed()
				return second.run(ctx, l)
			}))

			begun := untilTick()
			require.Equal(t, 1, first.Stats().Held)
			first.link.Blackhole(true)
			next := untilTick() // more than a TTL later
			require.Len(t, second.ran(next), 1)
			errs := <-before
			require.Len(t, errs, 1)
			require.ErrorIs(t, errs[0], natslock.ErrLost)
			require.ErrorContains(t, errs[0], name)
			if withContext {
				require.ErrorIs(t, <-cause, natslock.ErrLost)
				require.Greater(t, second.ran(next)[0], first.ran(begun)[0])
			}
			ended()
			first.link.Heal()
			synctest.Wait()
			for _, err := range first.failed()[1:] {
				require.NotErrorIs(t, err, natslock.ErrLost, "a loss is reported once")
			}
		})
	}
}

// TestBroken checks that when an operator breaks the lock of a job, the break and the job's own
// error are both reported.
func TestBroken(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		r, operator := join(t, s), join(t, s)
		why := errors.New("the report is not whole")
		r.schedule(t, 0, cronlock.OnceFunc(r, name, func(ctx context.Context, _ *natslock.Lock) error {
			<-ctx.Done()
			return why
		}, cronlock.OnError(r.fail)))
		untilTick()
		time.Sleep(time.Second) // the client watches only locks held for a while
		info, err := admin.New(operator.Client).Inspect(t.Context(), admin.KindMutex, name)
		require.NoError(t, err)
		require.NoError(t, admin.New(operator.Client).Break(t.Context(), admin.BreakRequest{Name: name, ID: info.Holder.ID, Reason: "it hangs"}))
		synctest.Wait()
		errs := r.failed()
		require.Len(t, errs, 2)
		require.ErrorIs(t, errs[0], natslock.ErrBroken)
		require.ErrorContains(t, errs[0], "it hangs")
		require.NotErrorIs(t, errs[0], why)
		require.ErrorIs(t, errs[1], why)
		require.ErrorIs(t, errs[1], natslock.ErrBroken)
		_ = r.cron.Stop()
	})
}

// TestOnError checks that OnError receives the job's error and the errors of a lock that the server
// does not grant and of a release that it does not confirm.
func TestOnError(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		why := errors.New("the printer is on fire")
		for _, c := range []struct {
			want      error
			ran       bool
			blackhole int // 1: before the job, 2: during the job
			err       error
			opts      []cronlock.Option
		}{
			{want: why, ran: true, err: why},
			{want: natslock.ErrUnavailable, blackhole: 1},
			{want: natslock.ErrUnavailable, blackhole: 2, ran: true},
			{want: natslock.ErrInvalid, opts: []cronlock.Option{cronlock.MinHold(-1)}},
			{want: natslock.ErrInvalid, opts: []cronlock.Option{cronlock.LockOptions(natslock.Linger(time.Second))}},
		} {
			r, ran := join(t, s), false
			job := cronlock.OnceFunc(r, fmt.Sprintf("%s.%p", name, &c), func(context.Context, *natslock.Lock) error {
				ran = true
				r.link.Blackhole(c.blackhole == 2)
				return c.err
			}, append(c.opts, cronlock.OnError(r.fail))...)
			r.link.Blackhole(c.blackhole == 1)
			job.Run()
			require.Equal(t, c.ran, ran)
			require.Len(t, r.failed(), 1)
			require.ErrorIs(t, r.failed()[0], c.want)
			require.NotErrorIs(t, r.failed()[0], natslock.ErrLost)
			r.link.Heal()
		}
	})
}

// TestDefaultLogger checks that without OnError, cron's default logger receives the errors, but
// nothing about ticks that other replicas run.
func TestDefaultLogger(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		var printed bytes.Buffer
		logger := cron.DefaultLogger
		defer func() { cron.DefaultLogger = logger }()
		cron.DefaultLogger = cron.PrintfLogger(log.New(&printed, "", 0))

		r := join(t, s)
		job := cronlock.OnceFunc(r, name, func(context.Context, *natslock.Lock) error { return errors.New("no paper") })
		job.Run()
		require.Contains(t, printed.String(), "no paper")
		require.Contains(t, printed.String(), name)
		printed.Reset()
		job.Run() // the minimum hold has not ended
		require.Empty(t, printed.String())
	})
}

// TestContext checks that canceling the service's context ends the job, releases its lock and
// prevents further runs.
func TestContext(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		r := join(t, s)
		ctx, stop := context.WithCancel(t.Context())
		runs := 0
		r.schedule(t, 0, cronlock.OnceFunc(r, name, func(ctx context.Context, l *natslock.Lock) error {
			runs++
			<-ctx.Done()
			require.Positive(t, l.Remaining())
			return nil
		}, cronlock.Context(ctx), cronlock.MinHold(0), cronlock.OnError(r.fail)))
		untilTick()
		stop()
		synctest.Wait()
		require.Empty(t, r.failed())
		info, err := admin.New(r.Client).Inspect(t.Context(), admin.KindMutex, name)
		require.NoError(t, err)
		require.Nil(t, info.Holder)
		untilTick()
		require.Equal(t, 1, runs)
		require.Len(t, r.failed(), 1)
		require.ErrorIs(t, r.failed()[0], natslock.ErrTimeout)
		require.ErrorIs(t, r.failed()[0], context.Canceled)
	})
}

// TestPanic checks that a panicking job releases its lock, and that the panic reaches the
// surrounding wrapper.
func TestPanic(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		r := join(t, s)
		job := cronlock.Once(r, name, cronlock.MinHold(0), cronlock.OnError(r.fail))(cron.FuncJob(func() { panic("it breaks") }))
		require.PanicsWithValue(t, "it breaks", job.Run)
		info, err := admin.New(r.Client).Inspect(t.Context(), admin.KindMutex, name)
		require.NoError(t, err)
		require.Nil(t, info.Holder)
		require.Empty(t, r.failed())
	})
}

// TestLockOptions checks that the options apply to the lock.
func TestLockOptions(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		r, ran := join(t, s), false
		cronlock.OnceFunc(r, name, func(ctx context.Context, l *natslock.Lock) error {
			ran = true
			info, err := admin.New(r.Client).Inspect(ctx, admin.KindMutex, l.Name())
			require.NoError(t, err)
			require.Equal(t, time.Minute, info.Holder.TTL)
			require.Equal(t, "it", info.Holder.Meta["job"])
			return nil
		}, cronlock.LockOptions(natslock.TTL(time.Minute)), cronlock.LockOptions(natslock.Meta(map[string]string{"job": "it"}))).Run()
		require.True(t, ran)
	})
}

// TestNil checks that nil options leave the defaults in place, and that a job that cannot run
// reports it at its tick.
func TestNil(t *testing.T) {
	locks := locktest.New()
	defer locks.Close()
	var none context.Context
	var got []error
	report := cronlock.OnError(func(err error) { got = append(got, err) })
	fn := func(context.Context, *natslock.Lock) error { return errors.New("failed") }
	var logged bytes.Buffer
	before := cron.DefaultLogger
	cron.DefaultLogger = cron.PrintfLogger(log.New(&logged, "", 0))
	defer func() { cron.DefaultLogger = before }()
	cronlock.OnceFunc(locks, name, fn, cronlock.OnError(nil), cronlock.Context(none), cronlock.MinHold(0), nil).Run()
	require.Contains(t, logged.String(), "failed", "the default")
	cronlock.OnceFunc(nil, name, fn, report).Run()
	cronlock.OnceFunc(locks, name, nil, report).Run()
	cronlock.Once(locks, name, report)(nil).Run()
	require.Len(t, got, 3)
	for _, err := range got {
		require.ErrorIs(t, err, natslock.ErrInvalid)
	}
}
