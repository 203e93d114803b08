package natslock_test

import (
	"context"
	"errors"
	"log"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

// nothing is a job that finishes immediately.
func nothing(context.Context, *natslock.Lock) error { return nil }

// never is a job that must not run, because another call runs it or has done it.
func never(context.Context, *natslock.Lock) error { return errors.New("it runs again") }

// isDone checks that every client is told that the job is done.
func isDone(t *testing.T, name string, members ...*kit.Member) {
	t.Helper()
	for _, m := range members {
		err := m.Once(t.Context(), name, time.Hour, never)
		require.ErrorIs(t, err, natslock.ErrDone)
		require.ErrorIs(t, err, natslock.ErrLocked)
		locked, ok := errors.AsType[*natslock.LockedError](err)
		require.True(t, ok)
		require.True(t, locked.Done)
		require.ErrorContains(t, err, "the job was done by ")
	}
}

// isFree checks that the job can run, by running it.
func isFree(t *testing.T, name string, m *kit.Member) {
	t.Helper()
	ran := false
	require.NoError(t, m.Once(t.Context(), name, time.Hour, func(context.Context, *natslock.Lock) error {
		ran = true
		return nil
	}))
	require.True(t, ran)
}

// TestOnce runs a job that takes longer than it is kept. While it runs, its lock is renewed, and
// other callers are told that it is held. Afterwards, the job is kept as a record that marks it as
// done, and nothing is held.
func TestOnce(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, other := kit.Join(t, s), kit.Join(t, s)
		require.NoError(t, c.Once(t.Context(), "job", time.Minute, func(ctx context.Context, l *natslock.Lock) error {
			for range 3 {
				time.Sleep(time.Minute)
				require.NoError(t, ctx.Err())
				for _, m := range []*kit.Member{c, other} {
					err := m.Once(t.Context(), "job", time.Minute, never)
					require.ErrorIs(t, err, natslock.ErrLocked)
					require.NotErrorIs(t, err, natslock.ErrDone)
				}
				h := kit.Inspect(t, other.Client, "job").Holder
				require.False(t, h.Fixed)
				require.Empty(t, h.Purpose)
			}
			return nil
		}, natslock.Meta(map[string]string{"k": "v"})))
		end := time.Now()
		require.Zero(t, c.Stats().Held)
		isDone(t, "job", c, other)
		h := kit.Inspect(t, other.Client, "job").Holder
		require.True(t, h.Fixed)
		require.Equal(t, "job", h.Purpose)
		require.Equal(t, map[string]string{"k": "v"}, h.Meta)
		time.Sleep(time.Until(end.Add(time.Minute)) - time.Millisecond)
		isDone(t, "job", c, other)
		time.Sleep(2 * time.Second)
		isFree(t, "job", other)
	})
}

// TestOnceFails checks that a job that fails or panics is not done, so the next call runs it.
func TestOnceFails(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, other := kit.Join(t, s), kit.Join(t, s)
		r := kit.NewRaw(t, s.Connect())
		fault := errors.New("fault")
		require.ErrorIs(t, c.Once(t.Context(), "job", time.Hour, func(context.Context, *natslock.Lock) error { return fault }), fault)
		require.Empty(t, r.Live(">"))
		require.Panics(t, func() {
			_ = other.Once(t.Context(), "job", time.Hour, func(context.Context, *natslock.Lock) error { panic("test") })
		})
		require.Empty(t, r.Live(">"))
		require.NoError(t, c.Once(t.Context(), "job", time.Hour, func(ctx context.Context, l *natslock.Lock) error { return l.Unlock(ctx) }))
		require.Empty(t, r.Live(">"), "it was given back")
		isFree(t, "job", c)
		isDone(t, "job", c, other)
	})
}

// TestOnceCrash kills the process that runs a job. Another process runs it after the TTL.
func TestOnceCrash(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, other := kit.Join(t, s), kit.Join(t, s)
		var all sync.WaitGroup
		begun := make(chan struct{})
		all.Go(func() {
			assert.ErrorIs(t, c.Once(t.Context(), "job", time.Hour, func(ctx context.Context, _ *natslock.Lock) error {
				close(begun)
				<-ctx.Done()
				return nil
			}), natslock.ErrLost)
		})
		kit.Receive(t, begun, "the run")
		c.NC.Close()
		crashed := time.Now()
		for {
			err := other.Once(t.Context(), "job", time.Hour, nothing)
			if err == nil {
				break
			}
			require.NotErrorIs(t, err, natslock.ErrDone)
			time.Sleep(time.Second)
		}
		require.Less(t, time.Since(crashed), 17*time.Second)
		all.Wait()
		isDone(t, "job", other)
	})
}

// TestOnceBroken checks that a run that has lost its lock, or was broken, does not mark its job as
// done. An operator can then make a completed job run again.
func TestOnceBroken(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, other := kit.Join(t, s, natslock.WithTuning(natslock.Tuning{WatchAfter: 1})), kit.Join(t, s)
		stop := func(now bool) {
			h := kit.Inspect(t, other.Client, "job").Holder
			require.NoError(t, admin.New(other.Client).Break(t.Context(), admin.BreakRequest{Kind: admin.KindMutex, Name: "job", ID: h.ID, Reason: "test", Immediately: now}))
		}
		for _, now := range []bool{false, true} {
			err := c.Once(t.Context(), "job", time.Hour, func(ctx context.Context, l *natslock.Lock) error {
				stop(now)
				kit.Receive(t, ctx.Done(), "the break")
				return nil
			})
			require.ErrorIs(t, err, natslock.ErrBroken)
			isFree(t, "job", other)
			isDone(t, "job", c, other)
			stop(true)
		}
		c.Link.Blackhole(true)
		require.ErrorIs(t, c.Once(t.Context(), "job", time.Hour, nothing), natslock.ErrUnavailable)
		c.Link.Heal()
		c.Link.Blackhole(false)
		err := c.Once(t.Context(), "other", time.Hour, func(ctx context.Context, l *natslock.Lock) error {
			c.Link.Blackhole(true)
			<-ctx.Done()
			c.Link.Blackhole(false)
			return nil
		})
		require.ErrorIs(t, err, natslock.ErrLost)
		time.Sleep(20 * time.Second)
		isFree(t, "other", other)
	})
}

// TestOnceClose checks that Close ends a running job, which is then not done, and does not wait for
// completed ones.
func TestOnceClose(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, other := kit.Join(t, s), kit.Join(t, s)
		isFree(t, "done", c)
		closed := make(chan error, 1)
		err := c.Once(t.Context(), "job", time.Hour, func(ctx context.Context, _ *natslock.Lock) error {
			ended, cancel := context.WithCancel(t.Context())
			cancel()
			closed <- c.Close(ended)
			<-ctx.Done()
			return nil
		})
		require.ErrorIs(t, err, natslock.ErrClosed)
		require.Error(t, <-closed, "it gave up")
		isDone(t, "done", other)
		time.Sleep(17 * time.Second)
		isFree(t, "job", other)
		require.NoError(t, other.Close(context.Background()), "it waits for nothing")
	})
}

// TestOnceAnswers checks that the job is done whatever happens to the reply to the write that marks
// it as done.
func TestOnceAnswers(t *testing.T) {
	for name, fate := range map[string]faults.Fate{
		"lost": faults.LoseAnswer, "dropped": faults.Drop, "late": faults.Delay(1500 * time.Millisecond), "in flight": faults.Refuse(kvstore.ErrInFlight),
	} {
		t.Run(name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				c, f := kit.JoinFaulty(t, s)
				other := kit.Join(t, s)
				n := 0
				f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
					if !lastRenewal(w) {
						return faults.Pass
					}
					n++
					return first(n, fate)
				})
				require.NoError(t, c.Once(t.Context(), "job", time.Hour, nothing))
				require.Positive(t, n)
				isDone(t, "job", c, other)
			})
		})
	}
}

// TestOnceBesideLock checks that a goroutine of the same client that waits for the job's lock gets
// it only once the job is no longer kept. If the lease were passed to it immediately, nothing would
// record that the job is done.
func TestOnceBesideLock(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s)
		var w *kit.Waiting
		require.NoError(t, c.Once(t.Context(), "job", time.Minute, func(context.Context, *natslock.Lock) error {
			w = c.Await(t, "job")
			time.Sleep(time.Second)
			return nil
		}))
		end := time.Now()
		time.Sleep(time.Minute)
		l := w.Granted(t)
		require.GreaterOrEqual(t, w.At.Sub(end), time.Minute)
		require.Less(t, w.At.Sub(end), time.Minute+2*time.Second)
		kit.Unlock(t, l)
	})
}

// TestOnceMessages checks that a call that finds the job done costs no more than a TryLock.
func TestOnceMessages(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, other := kit.Join(t, s), kit.Join(t, s)
		isFree(t, "warm", c)
		isDone(t, "warm", other)
		for i, m := range []*kit.Member{c, other, c} {
			out := m.NC.Stats().OutMsgs
			if i == 0 {
				isFree(t, "job", m)
			} else {
				isDone(t, "job", m)
			}
			require.EqualValues(t, 2, m.NC.Stats().OutMsgs-out)
		}
	})
}

// TestOnceInvalid checks that bad input is refused before anything is sent, with an error that
// names the job.
func TestOnceInvalid(t *testing.T) {
	s := testutil.RunServer(t)
	c := kit.Join(t, s)
	out := c.NC.Stats().OutMsgs
	for what, x := range map[string]struct {
		name string
		keep time.Duration
		opt  natslock.LockOption
	}{
		"no name": {"", time.Hour, natslock.Detached()},
		"short":   {"job", time.Second - 1, natslock.Detached()},
		"long":    {"job", 365*24*time.Hour + 1, natslock.Detached()},
		"Until":   {"job", time.Hour, natslock.Until(time.Now().Add(time.Hour))},
		"NoRenew": {"job", time.Hour, natslock.NoRenew()},
		"Linger":  {"job", time.Hour, natslock.Linger(time.Minute)},
		"MinHold": {"job", time.Hour, natslock.MinHold(time.Minute)},
		"nil":     {"job", time.Hour, nil},
	} {
		err := c.Once(t.Context(), x.name, x.keep, never, x.opt)
		require.ErrorIs(t, err, natslock.ErrInvalid, what)
		require.ErrorContains(t, err, x.name, what)
	}
	refused(t, c.Once(t.Context(), "job", time.Hour, nil), "nil")
	for _, zero := range []*natslock.Client{nil, {}} {
		refused(t, zero.Once(t.Context(), "job", time.Hour, never), "was not created by New")
	}
	require.Equal(t, out, c.NC.Stats().OutMsgs, "nothing is sent")
	require.NoError(t, c.Once(t.Context(), "job.2026", 365*24*time.Hour, nothing, natslock.TTL(time.Minute)))
	isDone(t, "job.2026", c)
}

// dailyReport is the program from docs/guide/periodic.md.
func dailyReport(ctx context.Context, locks *natslock.Client, zone *time.Location, report func(context.Context, *natslock.Lock) error) {
	tick := time.Tick(5 * time.Minute)
	for ctx.Err() == nil {
		if now := time.Now().In(zone); now.Hour() >= 2 {
			err := locks.Once(ctx, "report."+now.Format(time.DateOnly), 48*time.Hour, report, natslock.Detached())
			if err != nil && !errors.Is(err, natslock.ErrLocked) {
				log.Print(err) // the next tick retries
			}
		}
		select {
		case <-tick:
		case <-ctx.Done():
		}
	}
}

// TestOnceDaily runs three replicas of the guide's program around the days on which daylight saving
// time starts and ends. The job is due at 02:00, in the hour that is skipped or repeated. Every
// third run fails. The report must be produced once on each local day.
func TestOnceDaily(t *testing.T) {
	log.SetOutput(t.Output())
	t.Cleanup(func() { log.SetOutput(os.Stderr) })
	for name, changes := range map[string][]string{
		"Europe/Berlin":    {"2026-03-29", "2026-10-25"},
		"Australia/Sydney": {"2026-04-05", "2026-10-04"},
	} {
		for _, change := range changes {
			t.Run(name+"/"+change, func(t *testing.T) {
				kit.InMemory(t, func(t *testing.T, bucket *kvstore.Memory) {
					zone, err := time.LoadLocation(name)
					require.NoError(t, err)
					day, err := time.ParseInLocation(time.DateOnly, change, zone)
					require.NoError(t, err)
					require.NotEqual(t, 24*time.Hour, day.AddDate(0, 0, 1).Sub(day), "the day of the change")
					first, last := day.AddDate(0, 0, -2), day.AddDate(0, 0, 3)
					time.Sleep(time.Until(first))

					var mu sync.Mutex
					done, n := map[string]int{}, 0
					report := func(_ context.Context, l *natslock.Lock) error {
						time.Sleep(7 * time.Minute)
						mu.Lock()
						defer mu.Unlock()
						if n++; n%3 == 1 {
							return errors.New("the data are not there yet")
						}
						done[l.Name()]++
						return nil
					}
					ctx, cancel := context.WithDeadline(t.Context(), last)
					defer cancel()
					var all sync.WaitGroup
					for range 3 {
						c, _ := kit.JoinInMemory(t, bucket)
						all.Go(func() { dailyReport(ctx, c.Client, zone, report) })
						time.Sleep(time.Minute)
					}
					all.Wait()
					want := map[string]int{}
					for d := first; d.Before(last); d = d.AddDate(0, 0, 1) {
						want["report."+d.Format(time.DateOnly)] = 1
					}
					require.Equal(t, want, done)
				})
			})
		}
	}
}

// TestOnceTogether makes many calls concurrently, over and over, and checks that each job is done
// once.
func TestOnceTogether(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		members := kit.Crowd(t, s, 3)
		for _, name := range []string{"a", "b", "c", "d"} {
			var n, told atomic.Int64
			var all sync.WaitGroup
			for i := range 12 {
				all.Go(func() {
					switch err := members[i%3].Once(t.Context(), name, time.Hour, func(context.Context, *natslock.Lock) error {
						n.Add(1)
						return nil
					}); {
					case errors.Is(err, natslock.ErrLocked):
						told.Add(1)
					default:
						assert.NoError(t, err)
					}
				})
			}
			all.Wait()
			synctest.Wait()
			require.EqualValues(t, 1, n.Load())
			require.EqualValues(t, 11, told.Load())
		}
	})
}
