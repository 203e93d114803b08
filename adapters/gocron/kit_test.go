package gocronlock_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/google/uuid"
	"github.com/jonboulle/clockwork"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

const (
	// name is the name of the job and of its lock in each test.
	name = "billing.report"
	// period is the time between two ticks.
	period = 20 * time.Second
)

// skews holds how far the clock of each replica lags.
var skews = []time.Duration{0, 400 * time.Millisecond, 900 * time.Millisecond}

// late is a clock that lags.
type late struct {
	clockwork.Clock
	by time.Duration
}

func (c late) Now() time.Time { return c.Clock.Now().Add(-c.by) }

// replica stands for a process that has a scheduler and its own connection, client and clock.
type replica struct {
	*natslock.Client
	nc        *nats.Conn
	link      *testutil.Link
	skew      time.Duration
	scheduler gocron.Scheduler

	mu      sync.Mutex
	skipped []error // passed to gocron's listener for lock errors
	errs    []error // passed to OnError
}

func join(t *testing.T, s *testutil.Server, skew time.Duration, opts ...natslock.Option) *replica {
	t.Helper()
	r := &replica{skew: skew}
	r.nc, r.link = s.ConnectLink()
	var err error
	r.Client, err = natslock.New(t.Context(), r.nc, opts...)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = r.Close(ctx)
	})
	return r
}

// schedule starts a scheduler with one job, which ticks at the multiples of period by the replica's
// clock.
func (r *replica) schedule(t *testing.T, distributed gocron.SchedulerOption, job any) {
	t.Helper()
	clock := late{clockwork.NewRealClock(), r.skew}
	var err error
	r.scheduler, err = gocron.NewScheduler(gocron.WithClock(clock), distributed)
	require.NoError(t, err)
	t.Cleanup(func() { _ = r.scheduler.Shutdown() })
	_, err = r.scheduler.NewJob(gocron.DurationJob(period), gocron.NewTask(job), gocron.WithName(name),
		gocron.WithStartAt(gocron.WithStartDateTime(time.Now().Truncate(period).Add(period))),
		gocron.WithEventListeners(gocron.AfterLockError(func(_ uuid.UUID, _ string, err error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.skipped = append(r.skipped, err)
		})))
	require.NoError(t, err)
	r.scheduler.Start()
}

// report records the errors that OnError receives.
func (r *replica) report(job string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.errs = append(r.errs, fmt.Errorf("%s: %w", job, err))
}

func (r *replica) skips() []error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.skipped)
}

func (r *replica) reported() []error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.errs)
}

// ledger records the replica and the token of each run of the job, by tick.
type ledger struct {
	mu   sync.Mutex
	runs map[time.Time][]entry
}

type entry struct {
	replica int
	token   uint64
}

func newLedger() *ledger { return &ledger{runs: map[time.Time][]entry{}} }

func (l *ledger) add(replica int, token uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	tick := time.Now().Truncate(period)
	l.runs[tick] = append(l.runs[tick], entry{replica, token})
}

func (l *ledger) at(tick time.Time) []entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.runs[tick])
}

// untilTick sleeps until all replicas have passed the next tick and returns its time. It must be
// called in a bubble.
func untilTick() time.Time {
	tick := time.Now().Truncate(period).Add(period)
	time.Sleep(time.Until(tick) + slices.Max(skews) + time.Second)
	synctest.Wait()
	return tick
}
