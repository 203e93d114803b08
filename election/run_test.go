package election_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/election"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

// fleet is a set of members that all run for the same election.
type fleet struct {
	members []*member
	runners []*runner
	reign   *reign
}

func launch(t testing.TB, s *testutil.Server, n int, opts ...election.Option) *fleet {
	t.Helper()
	f := &fleet{reign: newReign()}
	for i := range n {
		m := join(t, s)
		f.members = append(f.members, m)
		f.runners = append(f.runners, run(t, m.elect(fmt.Sprint(i), opts...), f.reign, fmt.Sprint(i)))
		synctest.Wait()
	}
	return f
}

// leader returns the index of the leader, or -1 if there is none. It fails the test if there are
// several.
func (f *fleet) leader(t testing.TB) int {
	t.Helper()
	found := -1
	for i, r := range f.runners {
		if _, ok := r.IsLeader(); ok {
			require.Negative(t, found, "%d and %d lead at once", found, i)
			found = i
		}
	}
	return found
}

// TestRunSuccession checks that a new leader takes over within the TTL plus half a second after a
// crash, no matter where in its renewal cycle the old leader was, and immediately after one that
// returns.
func TestRunSuccession(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		const ttl = 2 * time.Second
		seed := rand.Uint64()
		t.Log("seed", seed)
		rng := rand.New(rand.NewPCG(seed, 0))
		f := launch(t, s, 3, election.TTL(ttl))
		o := observe(t, join(t, s).elect(""))
		n := 0
		for range 20 {
			f.reign.wait(t, n)
			time.Sleep(15*time.Second + rand.N(3*time.Second))
			i := f.leader(t)
			require.GreaterOrEqual(t, i, 0)
			begun, limit := time.Now(), ttl+500*time.Millisecond
			link := f.members[i].link
			fault := rng.IntN(4)
			switch fault {
			case 0:
				link.Cut()
			case 1:
				link.Blackhole(true)
			case 2:
				f.runners[i].resign <- struct{}{}
				limit = 0
			case 3: // nobody is notified
				for _, m := range f.members {
					m.faults.DropAllEvents(true)
				}
				f.runners[i].resign <- struct{}{}
			}
			n++
			next := f.reign.wait(t, n)
			require.LessOrEqual(t, next.begin.Sub(begun), limit)
			if fault != 3 { // after a quiet second the order of a mutex may change
				require.NotEqual(t, fmt.Sprint(i), next.name)
			}
			time.Sleep(5 * time.Second)
			l, _ := o.last()
			require.Equal(t, next.token, l.Token)
			require.Equal(t, next.name, string(l.Value))
			link.Blackhole(false)
			link.Heal()
			for _, m := range f.members {
				m.faults.DropAllEvents(false)
			}
		}
		f.reign.judge(t)
	})
}

// TestRunFaults checks that at most one member leads by its own clock while links fail,
// notifications get lost, operators break claims and leaders resign.
func TestRunFaults(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		seed := rand.Uint64()
		t.Log("seed", seed)
		rng := rand.New(rand.NewPCG(seed, 0))
		between := func(a, b time.Duration) time.Duration { return a + time.Duration(rng.Int64N(int64(b-a))) }
		f := launch(t, s, 5, election.TTL(2*time.Second))
		operator, o := join(t, s), observe(t, join(t, s).elect(""))
		var healing sync.WaitGroup
		for end := time.Now().Add(5 * time.Minute); time.Now().Before(end); {
			for next := time.Now().Add(between(100*time.Millisecond, 4*time.Second)); time.Now().Before(next); {
				time.Sleep(20 * time.Millisecond)
				f.leader(t)
			}
			i := rng.IntN(len(f.members))
			if l := f.leader(t); l >= 0 && rng.IntN(2) == 0 {
				i = l
			}
			m, d := f.members[i], between(10*time.Millisecond, 6*time.Second)
			var undo func()
			switch rng.IntN(6) {
			case 0:
				m.link.Cut()
				undo = m.link.Heal
			case 1:
				m.link.Blackhole(true)
				undo = func() { m.link.Blackhole(false) }
			case 2:
				m.faults.DropAllEvents(true)
				undo = func() { m.faults.DropAllEvents(false) }
			case 3:
				m.faults.Random(faults.Rates{Drop: 0.2, LoseAnswer: 0.2, Delay: 0.2, MaxDelay: 3 * time.Second})
				undo = func() { m.faults.Random(faults.Rates{}) }
			case 4:
				select {
				case f.runners[i].resign <- struct{}{}:
				default:
				}
			case 5:
				if l, err := operator.elect("").Leader(t.Context()); err == nil {
					_ = admin.New(operator.Client).Break(t.Context(), admin.BreakRequest{Name: name, ID: l.ID})
				}
			}
			if undo != nil {
				healing.Go(func() {
					time.Sleep(d)
					undo()
				})
			}
		}
		healing.Wait()
		time.Sleep(30 * time.Second)
		i := f.leader(t)
		require.GreaterOrEqual(t, i, 0)
		l, _ := o.last()
		require.Equal(t, fmt.Sprint(i), string(l.Value))
		f.reign.judge(t)
		t.Log(len(f.reign.all()), "terms")
		require.Greater(t, len(f.reign.all()), 20)
	})
}

// TestRunDeletedByHand checks that deleting the leader's record by hand ends its term, and that
// another term begins.
func TestRunDeletedByHand(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		f := launch(t, s, 3)
		nc := s.Connect()
		for n := range 5 {
			f.reign.wait(t, n)
			time.Sleep(20 * time.Second)
			begun := time.Now()
			require.NoError(t, nc.PublishMsg(message("$KV.natslock.lock."+name, "KV-Operation", "DEL")))
			next := f.reign.wait(t, n+1)
			require.LessOrEqual(t, next.begin.Sub(begun), time.Second)
			synctest.Wait()
			require.False(t, f.reign.all()[n].end.IsZero())
		}
	})
}

// TestRunDoesNotSpin checks that Run does not spin if lead returns immediately, with or without an
// error, or resigns first. After a long lead, Run campaigns again without a pause.
func TestRunDoesNotSpin(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		for what, lead := range map[string]func(context.Context, *election.Term) error{
			"returns":         func(context.Context, *election.Term) error { return nil },
			"fails":           func(context.Context, *election.Term) error { return errors.New("it cannot lead") },
			"resigns":         func(ctx context.Context, t *election.Term) error { return t.Resign(ctx) },
			"fails after 9 s": func(context.Context, *election.Term) error { time.Sleep(9 * time.Second); return errors.New("no") },
		} {
			m := join(t, s)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
			sent, n := m.nc.Stats().OutMsgs, 0
			err := m.elect("").Run(ctx, func(ctx context.Context, t *election.Term) error {
				n++
				return lead(ctx, t)
			})
			cancel()
			require.ErrorIs(t, err, context.DeadlineExceeded)
			t.Logf("%s: %d terms and %d messages in 20 minutes", what, n, m.nc.Stats().OutMsgs-sent)
			require.Less(t, n, 1200/5+10)
			require.Greater(t, n, 1200/20)
		}

		m := join(t, s)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour-time.Second) // must not coincide with the end of a term
		defer cancel()
		n := 0
		_ = m.elect("").Run(ctx, func(context.Context, *election.Term) error {
			n++
			time.Sleep(10 * time.Second)
			return nil
		})
		require.Equal(t, 360, n)
	})
}

// TestRunRestart checks that Run and an observer survive a server restart.
func TestRunRestart(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		f := launch(t, s, 3)
		o := observe(t, join(t, s).elect(""))
		time.Sleep(20 * time.Second)
		for _, down := range []time.Duration{0, 5 * time.Second, time.Minute} {
			s.Stop()
			for range int(down / (100 * time.Millisecond)) {
				time.Sleep(100 * time.Millisecond)
				f.leader(t)
			}
			s.Restart()
			time.Sleep(40 * time.Second)
			i := f.leader(t)
			require.GreaterOrEqual(t, i, 0)
			l, _ := o.last()
			require.Equal(t, fmt.Sprint(i), string(l.Value))
		}
		f.reign.judge(t)
	})
}

// TestRunNewBucket checks that Run and an observer carry on in a bucket that was deleted and
// re-created, and that the tokens keep increasing.
func TestRunNewBucket(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		f := launch(t, s, 3)
		o := observe(t, join(t, s).elect(""))
		js, err := jetstream.New(s.Connect())
		require.NoError(t, err)
		for n, gone := range []time.Duration{0, time.Second, time.Minute} {
			before := f.reign.wait(t, n)
			time.Sleep(20 * time.Second)
			require.NoError(t, js.DeleteStream(t.Context(), "KV_natslock"))
			time.Sleep(gone)
			create(t, s)
			time.Sleep(30 * time.Second)
			i := f.leader(t)
			require.GreaterOrEqual(t, i, 0)
			after := f.reign.wait(t, n+1)
			require.Greater(t, after.token, before.token)
			require.Len(t, f.reign.all(), n+2)
			l, at := o.last()
			require.Equal(t, after.token, l.Token)
			require.LessOrEqual(t, at.Sub(after.begin), 5*time.Second)
		}
		for _, r := range f.runners {
			r.cancel()
		}
	})
}

// create has a new client create the bucket. It retries, because the server may still be removing
// the old bucket's files.
func create(t *testing.T, s *testutil.Server) {
	t.Helper()
	nc := s.Connect()
	for end := time.Now().Add(kit.Patience); ; time.Sleep(10 * time.Millisecond) {
		c, err := natslock.New(t.Context(), nc)
		if err == nil {
			require.NoError(t, c.Close(t.Context()))
			return
		}
		require.True(t, time.Now().Before(end), "%v", err)
	}
}

// TestRunPanic checks that Run lets a panic in lead propagate, after ending the term.
func TestRunPanic(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		e := join(t, s).elect("")
		require.PanicsWithValue(t, "it breaks", func() {
			_ = e.Run(t.Context(), func(context.Context, *election.Term) error { panic("it breaks") })
		})
		_, ok := e.IsLeader()
		require.False(t, ok)
		_, err := e.Leader(t.Context())
		require.ErrorIs(t, err, election.ErrNoLeader)
	})
}

// TestRunEnds checks that Run's error matches both its context's error and the cause.
func TestRunEnds(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		m := join(t, s)
		why := errors.New("the service stops")
		ctx, cancel := context.WithCancelCause(t.Context())
		err := m.elect("").Run(ctx, func(ctx context.Context, _ *election.Term) error {
			cancel(why)
			<-ctx.Done()
			return ctx.Err()
		})
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, why)
		require.ErrorContains(t, err, name)
		require.ErrorIs(t, m.elect("").Run(ctx, func(context.Context, *election.Term) error { panic("it leads") }), why)

		// The client is closed while Run waits.
		term := campaign(t, m.elect(""))
		other := join(t, s)
		x := run(t, other.elect(""), newReign(), "other")
		synctest.Wait()
		require.NoError(t, other.Close(closing(t)))
		kit.Receive(t, x.done, "the end of Run")
		require.ErrorIs(t, x.err, natslock.ErrClosed)
		require.NoError(t, term.Resign(t.Context()))
	})
}

// TestClosedConnection checks that Run gives up once the connection is closed for good, because no
// retry can succeed.
func TestClosedConnection(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		for _, before := range []bool{true, false} {
			m := join(t, s)
			e := m.elect("a", election.OnChange(func(election.Leader) {}))
			ran, observed := make(chan error, 1), make(chan error, 1)
			if before {
				m.nc.Close()
			}
			go func() {
				ran <- e.Run(t.Context(), func(ctx context.Context, _ *election.Term) error {
					<-ctx.Done()
					return nil
				})
			}()
			go func() {
				var last error
				for _, err := range m.elect("b").Observe(t.Context()) {
					last = err
				}
				observed <- last
			}()
			if !before {
				time.Sleep(time.Second)
				m.nc.Close()
			}
			for what, ch := range map[string]chan error{"Run": ran, "Observe": observed} {
				err := kit.Receive(t, ch, what)
				require.ErrorIs(t, err, natslock.ErrUnavailable, what)
				require.ErrorIs(t, err, nats.ErrConnectionClosed, what)
			}
		}
	})
}

// TestRunDetached checks that a detached term outlives Run's context: the leader can finish its
// work while others stay excluded, and it still learns if the term is lost.
func TestRunDetached(t *testing.T) {
	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprint("lost ", lost), func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				m, next := join(t, s), join(t, s)
				ctx, stop := context.WithCancel(t.Context())
				e := m.elect("a", election.Detached())
				leads, ends, done := make(chan *election.Term, 1), make(chan struct{}), make(chan error, 1)
				go func() {
					done <- e.Run(ctx, func(term context.Context, t *election.Term) error {
						leads <- t
						select {
						case <-ends:
							return nil
						case <-term.Done():
							return t.Err()
						}
					})
				}()
				term := kit.Receive(t, leads, "the lead")
				follows := run(t, next.elect("b"), newReign(), "b")
				stop()
				time.Sleep(time.Minute)
				require.NoError(t, term.Err(), "the item is not finished")
				require.Empty(t, done)
				_, ok := follows.IsLeader()
				require.False(t, ok)
				if lost {
					m.link.Cut()
					require.ErrorIs(t, kit.Receive(t, done, "the end of Run"), context.Canceled)
					require.ErrorIs(t, term.Err(), natslock.ErrLost)
					return
				}
				close(ends)
				require.ErrorIs(t, kit.Receive(t, done, "the end of Run"), context.Canceled)
				synctest.Wait()
				_, ok = follows.IsLeader()
				require.True(t, ok, "it has resigned")
			})
		})
	}
}

// TestRunErrorOfLead checks that an error from lead is logged as a warning and included in Run's
// error, unless it is only the end of the term's own context.
func TestRunErrorOfLead(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		var log kit.Log
		m := join(t, s, log.Option())
		failure := errors.New("no disk")
		ctx, stop := context.WithCancelCause(t.Context())
		defer stop(nil)
		n := 0
		err := m.elect("a").Run(ctx, func(ctx context.Context, _ *election.Term) error {
			switch n++; n {
			case 1:
				return failure
			case 2:
				stop(errors.New("SIGTERM"))
				return fmt.Errorf("stopped: %w", context.Cause(ctx))
			}
			return nil
		})
		require.ErrorIs(t, err, context.Canceled)
		require.NotErrorIs(t, err, failure, "of an earlier lead")
		require.Equal(t, 1, strings.Count(log.String(), "the leader's work failed"), log.String())
		require.Contains(t, log.String(), `election=the.election token=`)
		require.Contains(t, log.String(), `error="no disk"`)

		ctx, stop = context.WithCancelCause(t.Context())
		err = m.elect("a").Run(ctx, func(context.Context, *election.Term) error {
			stop(nil)
			return failure
		})
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, failure)
		require.NotContains(t, err.Error(), "\n")

		ctx, stop = context.WithCancelCause(t.Context())
		err = m.elect("a").Run(ctx, func(ctx context.Context, _ *election.Term) error {
			stop(nil)
			return fmt.Errorf("stopped: %w", errors.Join(ctx.Err(), failure))
		})
		require.ErrorIs(t, err, failure, "it is joined with the end")
	})
}

// TestRunAfterASlowResignation checks that a lead that returned within 10 s counts as short, even
// if an outage makes its resignation take much longer.
func TestRunAfterASlowResignation(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		m := join(t, s)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		var gaps []time.Duration
		var returned time.Time
		err := m.elect("", election.TTL(time.Minute)).Run(ctx, func(context.Context, *election.Term) error {
			if !returned.IsZero() {
				gaps = append(gaps, time.Since(returned))
			}
			time.Sleep(9 * time.Second)
			m.faults.Fail(fmt.Errorf("%w: no server", natslock.ErrUnavailable))
			time.AfterFunc(4*time.Second, func() { m.faults.Fail(nil) })
			returned = time.Now()
			return nil
		})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Greater(t, gaps[len(gaps)-1], 9*time.Second, "the pauses grow: %v", gaps)
	})
}
