package gocronlock_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/stretchr/testify/require"

	gocronlock "github.com/natslock/locks/adapters/gocron"
	"github.com/natslock/locks/election"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

// candidate is a replica with a campaigning Elector.
type candidate struct {
	*replica
	*gocronlock.Elector
	resign context.CancelFunc
	done   chan error
}

func campaign(t *testing.T, r *replica) *candidate {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	c := &candidate{r, gocronlock.NewElector(election.New(r.Client, "billing.scheduler")), cancel, make(chan error, 1)}
	ended := make(chan struct{})
	t.Cleanup(func() { cancel(); <-ended })
	go func() {
		defer close(ended)
		c.done <- c.Run(ctx)
	}()
	synctest.Wait()
	return c
}

// TestLeaderRuns checks that the leader runs all ticks until it resigns or loses the server, and
// that another replica then takes over. No tick runs twice, and tokens increase with each term.
func TestLeaderRuns(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		l := newLedger()
		var all []*candidate
		for i, skew := range skews {
			c := campaign(t, join(t, s, skew))
			c.schedule(t, gocron.WithDistributedElector(c), func() { l.add(i, c.Term().Token()) })
			all = append(all, c)
		}
		last := uint64(0)
		lead := func(who int) {
			t.Helper()
			for range 5 {
				runs := l.at(untilTick())
				require.Len(t, runs, 1)
				require.Equal(t, who, runs[0].replica)
				require.GreaterOrEqual(t, runs[0].token, last)
				require.Equal(t, all[who].Term().Token(), runs[0].token)
				last = runs[0].token
			}
		}
		lead(0)

		all[0].resign()
		require.ErrorIs(t, <-all[0].done, context.Canceled)
		require.ErrorIs(t, all[0].IsLeader(t.Context()), gocronlock.ErrNotLeader)
		synctest.Wait()
		require.NoError(t, all[1].IsLeader(t.Context()))
		lead(1)

		all[1].link.Blackhole(true)
		require.LessOrEqual(t, len(l.at(untilTick())), 1)
		lead(2)
		all[1].link.Heal()
		lead(2)
	})
}

// TestIsLeaderIsLocal checks that IsLeader does no I/O, so it works even while the server does not
// respond, and that it reports true only while a confirmed term is valid.
func TestIsLeaderIsLocal(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		r := join(t, s, 0)
		idle := gocronlock.NewElector(election.New(r.Client, "billing.scheduler"))
		require.ErrorIs(t, idle.IsLeader(t.Context()), gocronlock.ErrNotLeader)
		require.Zero(t, idle.Term().Token())
		require.Error(t, idle.Term().Context().Err())

		// The reply to the campaign does not arrive, so the term is not confirmed.
		waiting := join(t, s, 0)
		waiting.link.Blackhole(true)
		unconfirmed := campaign(t, waiting)
		time.Sleep(time.Second)
		require.ErrorIs(t, unconfirmed.IsLeader(t.Context()), gocronlock.ErrNotLeader)
		unconfirmed.resign()
		<-unconfirmed.done
		waiting.link.Heal()

		c := campaign(t, r)
		time.Sleep(30 * time.Second) // until the other client's late claim has expired
		require.NoError(t, c.IsLeader(t.Context()))
		term := c.Term()
		sent, begun := r.nc.Stats().OutMsgs, time.Now()
		r.link.Blackhole(true)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		for range 1000 {
			require.NoError(t, c.IsLeader(ended))
		}
		require.Equal(t, sent, r.nc.Stats().OutMsgs)
		require.Equal(t, begun, time.Now())

		<-term.Context().Done()
		require.ErrorIs(t, context.Cause(term.Context()), natslock.ErrLost)
		require.ErrorIs(t, c.IsLeader(t.Context()), gocronlock.ErrNotLeader)
		require.Zero(t, term.Remaining())
		require.Less(t, time.Since(begun), 15*time.Second)
		synctest.Wait()
		require.Zero(t, c.Term().Token())
		r.link.Heal()
	})
}

// TestTermLost checks that when the term is lost during a job, the term's context ends, although
// gocron lets the job continue.
func TestTermLost(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := campaign(t, join(t, s, 0))
		ended, host := make(chan error, 10), make(chan error, 10)
		c.schedule(t, gocron.WithDistributedElector(c), func(ctx context.Context) {
			term := c.Term()
			<-term.Context().Done()
			ended <- context.Cause(term.Context())
			host <- ctx.Err()
		})
		untilTick()
		c.link.Blackhole(true)
		require.ErrorIs(t, <-ended, natslock.ErrLost)
		require.NoError(t, <-host)
		c.link.Heal()
	})
}

// TestElectorWins checks that gocron ignores the Locker of a scheduler that has an Elector.
func TestElectorWins(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := campaign(t, join(t, s, 0))
		locker, ran := gocronlock.NewLocker(c), make(chan uint64, 1)
		scheduler, err := gocron.NewScheduler(gocron.WithDistributedElector(c), gocron.WithDistributedLocker(locker))
		require.NoError(t, err)
		_, err = scheduler.NewJob(gocron.OneTimeJob(gocron.OneTimeJobStartImmediately()),
			gocron.NewTask(func() { ran <- locker.Held(name).Token() }), gocron.WithName(name))
		require.NoError(t, err)
		scheduler.Start()
		require.Zero(t, <-ran)
		require.NoError(t, scheduler.Shutdown())
	})
}
