package natslock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

// TestCloseWithHolderAtWork checks that a holder that is still working when its client is closed
// keeps others out until its TTL ends.
func TestCloseWithHolderAtWork(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		const ttl = 12 * time.Second
		c, other := kit.Join(t, s, natslock.WithTTL(ttl)), kit.Join(t, s)
		r := kit.NewRaw(t, s.Connect())
		l := kit.Must(t, c.Lock, "busy")
		kit.Must(t, c.Lock, "also busy", natslock.NoRenew())
		kit.Unlock(t, kit.Must(t, c.Lock, "done"))
		w := other.Await(t, "busy")
		time.Sleep(3 * time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		begun := time.Now()
		err := c.Close(ctx)
		require.InDelta(t, 20*time.Second, time.Since(begun), float64(10*time.Millisecond))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, `"busy"`)
		require.NotContains(t, err.Error(), "also busy", "lost before")
		require.NotContains(t, err.Error(), "done")
		require.ErrorIs(t, context.Cause(l.Context()), natslock.ErrClosed)
		require.ErrorIs(t, l.Err(), natslock.ErrClosed)
		require.Zero(t, l.Remaining())

		renewed := r.Get("lock.busy").Time
		require.WithinDuration(t, time.Now(), renewed, ttl/3+time.Second, "kept to the end")
		require.ErrorIs(t, l.Unlock(t.Context()), natslock.ErrClosed)
		time.Sleep(time.Until(renewed.Add(ttl - 10*time.Millisecond)))
		require.False(t, w.Over(), "the work may still be stopping")
		w.Granted(t)
		require.LessOrEqual(t, w.At.Sub(renewed), ttl+500*time.Millisecond)
	})
}

func TestCloseWaitsForHolders(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, other := kit.Join(t, s), kit.Join(t, s)
		var locks []*natslock.Lock
		for _, name := range []string{"a", "b", "c"} {
			locks = append(locks, kit.Must(t, c.Lock, name, natslock.TTL(3*time.Second)))
		}
		begun := time.Now()
		closed := make(chan error, 1)
		go func() { closed <- c.Close(t.Context()) }()
		for i, l := range locks {
			time.Sleep(5 * time.Second)
			kit.WantHeld(t, l)
			require.Empty(t, closed)
			_, err := c.TryLock(t.Context(), "new")
			require.ErrorIs(t, err, natslock.ErrClosed)
			if i == 1 {
				require.NoError(t, l.Extend(t.Context(), time.Minute), "as usual, but for new ones")
			}
			kit.Unlock(t, l)
		}
		require.NoError(t, kit.Receive(t, closed, "Close"))
		require.Equal(t, 15*time.Second, time.Since(begun).Round(100*time.Millisecond))
		for _, name := range []string{"a", "b", "c"} {
			kept, err := other.TryLock(t.Context(), name)
			require.NoError(t, err)
			kit.Keep(t, kept)
		}
	})
}

func TestCloseEndsWaiters(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, other, third := kit.Join(t, s), kit.Join(t, s), kit.Join(t, s)
		r := kit.NewRaw(t, s.Connect())
		l := kit.Must(t, other.Lock, "l")
		ws := []*kit.Waiting{c.Await(t, "l")}
		synctest.Wait()
		last := third.Await(t, "l")
		for range 4 { // at the first waiter's place
			ws = append(ws, c.Await(t, "l"))
			synctest.Wait() // it has listed the queue
		}
		require.Len(t, r.Live("wait.l.*"), 2)
		require.Equal(t, len(ws), c.Stats().Waiting)
		begun := time.Now()
		require.NoError(t, c.Close(t.Context()))
		for _, w := range ws {
			err := w.Failed(t)
			require.ErrorIs(t, err, natslock.ErrClosed)
			require.NotErrorIs(t, err, natslock.ErrTimeout)
		}
		synctest.Wait()
		require.Len(t, r.Live("wait.l.*"), 1)
		require.Zero(t, c.Stats().Waiting)
		require.Less(t, time.Since(begun), 100*time.Millisecond)
		kit.Unlock(t, l)
		last.Granted(t)
		require.Less(t, time.Since(begun), 200*time.Millisecond)
	})
}

// TestCloseWhileSending closes a client just as it fails to send a claim.
func TestCloseWhileSending(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		for _, acquire := range []func(*natslock.Client, context.Context, string, ...natslock.LockOption) (*natslock.Lock, error){
			(*natslock.Client).Lock, (*natslock.Client).TryLock,
		} {
			c, f := kit.JoinFaulty(t, s)
			closed := make(chan error, 1)
			f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
				if kit.Stage(w) != "lock take" {
					return faults.Pass
				}
				go func() { closed <- c.Close(context.Background()) }()
				synctest.Wait() // Close waits for the acquire
				return faults.NotSent(kvstore.ErrUnavailable)
			})
			_, err := acquire(c.Client, t.Context(), "l")
			require.ErrorIs(t, err, natslock.ErrClosed)
			require.NotErrorIs(t, err, natslock.ErrUnavailable)
			require.NoError(t, kit.Receive(t, closed, "Close"))
		}
	})
}

func TestCloseRefusesAll(t *testing.T) {
	s := testutil.RunServer(t)
	c := kit.Join(t, s)
	ctx := t.Context()
	require.NoError(t, c.Healthy())
	kit.Unlock(t, kit.Must(t, c.Lock, "l"))
	require.NoError(t, c.Close(ctx))
	before := c.NC.Stats().OutMsgs
	_, err := c.Lock(ctx, "l")
	require.ErrorIs(t, err, natslock.ErrClosed)
	_, err = c.TryLock(ctx, "l")
	require.ErrorIs(t, err, natslock.ErrClosed)
	fn := func(context.Context, *natslock.Lock) error { t.Error("ran"); return nil }
	require.ErrorIs(t, c.Do(ctx, "l", fn), natslock.ErrClosed)
	require.ErrorIs(t, c.TryDo(ctx, "l", fn), natslock.ErrClosed)
	require.ErrorIs(t, c.Healthy(), natslock.ErrClosed)
	_, err = admin.New(c.Client).Inspect(ctx, admin.KindMutex, "l")
	require.ErrorIs(t, err, natslock.ErrClosed)
	require.ErrorIs(t, admin.New(c.Client).Break(ctx, admin.BreakRequest{Kind: admin.KindMutex, Name: "l", ID: "A"}), natslock.ErrClosed)
	for _, err := range admin.New(c.Client).List(ctx, ">") {
		require.ErrorIs(t, err, natslock.ErrClosed)
	}
	n := 0
	for _, err := range admin.New(c.Client).Watch(ctx, ">") {
		require.ErrorIs(t, err, natslock.ErrClosed)
		n++
	}
	require.Equal(t, 1, n)
	require.NoError(t, c.Close(ctx), "again")
	require.Equal(t, before, c.NC.Stats().OutMsgs)
	require.True(t, c.NC.IsConnected(), "it is the caller's")
}

// TestCloseRaces calls Close at arbitrary moments, several times concurrently, while locks come and
// go.
func TestCloseRaces(t *testing.T) {
	s := testutil.RunServer(t)
	other := kit.Join(t, s)
	for range 20 {
		c := kit.Join(t, s)
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for {
					err := c.Do(context.Background(), "l", func(context.Context, *natslock.Lock) error { return nil })
					if err != nil {
						if !errors.Is(err, natslock.ErrClosed) {
							t.Error(err)
						}
						return
					}
				}
			})
		}
		c.Events.Wait(t, admin.EventReleased, "l")
		for range 2 {
			wg.Go(func() {
				if err := c.Close(context.Background()); err != nil {
					t.Error(err)
				}
			})
		}
		done := make(chan struct{})
		go func() { wg.Wait(); close(done) }()
		kit.Receive(t, done, "all to end")
		st := c.Stats()
		require.Zero(t, st.Held+st.Waiting)
		require.Equal(t, st.Granted, st.Released)
		l, err := other.TryLock(t.Context(), "l")
		require.NoError(t, err, "the record of a client that has closed")
		kit.Unlock(t, l)
	}
}

// TestCloseDrain drains a connection, which ends its subscriptions while handlers are still
// working. The locks that those handlers hold must be kept meanwhile.
func TestCloseDrain(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		const ttl = 2 * time.Second
		c, other := kit.Join(t, s, natslock.WithTTL(ttl)), kit.Join(t, s)
		sender := s.Connect()
		begun := make(chan *natslock.Lock, 1)
		finished := make(chan error, 1)
		_, err := c.NC.Subscribe("work", func(*nats.Msg) {
			finished <- c.Do(context.Background(), "l", func(ctx context.Context, l *natslock.Lock) error {
				begun <- l
				select {
				case <-time.After(8 * ttl):
				case <-ctx.Done():
					return context.Cause(ctx)
				}
				if l.Remaining() == 0 {
					return errors.New("not held")
				}
				// A handler can even acquire a new lock during the drain.
				l2, err := c.Lock(ctx, "l2")
				if err != nil {
					return err
				}
				if err := l.Extend(ctx, 10*time.Second); err != nil {
					return err
				}
				return l2.Unlock(ctx)
			})
		})
		require.NoError(t, err)
		require.NoError(t, c.NC.Flush())
		require.NoError(t, sender.Publish("work", nil))
		l := kit.Receive(t, begun, "the handler")
		w := other.Await(t, "l")
		time.Sleep(1500 * time.Millisecond)
		require.NoError(t, c.NC.Drain())
		time.Sleep(4 * ttl)
		require.True(t, c.NC.IsDraining())
		kit.WantHeld(t, l)
		require.False(t, w.Over())
		require.NoError(t, kit.Receive(t, finished, "the handler"))
		ended := time.Now()
		w.Granted(t)
		require.Less(t, time.Since(ended), 100*time.Millisecond, "unlocked, from inside the drain")
		require.Zero(t, c.Stats().Lost)
		require.ErrorIs(t, l.Err(), natslock.ErrReleased)
		kit.Eventually(t, "the drain is over", c.NC.IsClosed)
	})
}

// TestCloseOfConnection checks that closing the connection under a client ends its waiters. Its
// holders are notified immediately, but keep their locks until the validity ends.
func TestCloseOfConnection(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, other := kit.Join(t, s), kit.Join(t, s)
		warned := make(chan time.Duration, 1)
		l := kit.Must(t, c.Lock, "l", natslock.EarlyWarning(2*time.Second, func(l *natslock.Lock) { warned <- l.Remaining() }))
		unlocked := kit.Must(t, c.Lock, "unlocked")
		kit.Must(t, other.Lock, "theirs")
		w := c.Await(t, "theirs")
		next := other.Await(t, "l")
		time.Sleep(7 * time.Second)
		until := kit.ValidUntil(l)
		closed := time.Now()
		c.NC.Close()
		err := w.Failed(t)
		require.ErrorIs(t, err, natslock.ErrUnavailable)
		require.NotErrorIs(t, err, natslock.ErrTimeout)
		left := kit.Receive(t, warned, "the warning")
		require.Greater(t, left, 5*time.Second, "at once")
		require.ErrorIs(t, c.Events.Wait(t, admin.EventAtRisk, "l").Cause, natslock.ErrUnavailable)
		require.ErrorIs(t, c.Healthy(), natslock.ErrUnavailable)
		require.Zero(t, time.Since(closed).Round(10*time.Millisecond))
		kit.WantHeld(t, l)

		begun := time.Now()
		_, err = c.Lock(t.Context(), "new")
		require.ErrorIs(t, err, natslock.ErrUnavailable)
		_, err = c.TryLock(t.Context(), "new")
		require.ErrorIs(t, err, natslock.ErrUnavailable)
		require.Zero(t, time.Since(begun).Round(10*time.Millisecond))
		require.ErrorIs(t, unlocked.Unlock(t.Context()), natslock.ErrUnavailable)
		require.LessOrEqual(t, time.Since(begun), 5100*time.Millisecond)

		time.Sleep(time.Until(until) - 10*time.Millisecond)
		kit.WantHeld(t, l)
		require.False(t, next.Over())
		kit.Receive(t, l.Context().Done(), "the end")
		require.WithinDuration(t, until, time.Now(), 10*time.Millisecond)
		kit.WantLost(t, l, natslock.ErrLost)
		next.Granted(t)
		require.NoError(t, c.Close(t.Context()))
	})
}

// TestCloseLeavesNothing checks that New starts no goroutines or subscriptions, and that Close
// leaves none behind.
func TestCloseLeavesNothing(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		nc := s.Connect()
		// This holder stays quiet: it has no observer, no watch and no renewals.
		holder := kit.NewClient(t, s.Connect(), natslock.WithTuning(natslock.Tuning{WatchAfter: -1}), natslock.WithTTL(time.Hour))
		kit.Must(t, holder.Lock, "theirs")
		// The connection creates its own reply subscription and a goroutine for it.
		_, err := natslock.New(t.Context(), nc)
		require.NoError(t, err)
		running := func() int {
			synctest.Wait()
			return kit.Goroutines("locks/internal/") + kit.Goroutines("nats%2ego.") // excluding the server's, which come and go
		}
		goroutines, subs := running(), nc.NumSubscriptions()
		for round := range 3 {
			c, err := natslock.New(t.Context(), nc)
			require.NoError(t, err)
			require.Equal(t, goroutines, running(), "New starts nothing")
			require.Equal(t, subs, nc.NumSubscriptions())

			m := &kit.Member{Client: c}
			var locks []*natslock.Lock
			for _, name := range []string{"a", "b", "c"} {
				l, err := c.Lock(t.Context(), fmt.Sprint(name, round))
				require.NoError(t, err)
				locks = append(locks, l)
			}
			w := m.Begin(t, "theirs")
			kit.Eventually(t, "it waits", func() bool {
				if w.Over() {
					t.Fatal(w.Err)
				}
				return c.Stats().Waiting == 1
			})
			watched := make(chan struct{})
			ctx, stop := context.WithCancel(t.Context())
			go func() {
				defer close(watched)
				for range admin.New(c).Watch(ctx, ">") {
				}
			}()
			for _, l := range locks {
				if round != 1 {
					kit.Unlock(t, l)
				}
			}
			require.Greater(t, running(), goroutines)
			require.Greater(t, nc.NumSubscriptions(), subs)
			if round == 2 {
				stop()
			}
			err = kit.CloseNow(c)
			if round == 1 {
				require.Error(t, err)
			}
			stop()
			require.ErrorIs(t, w.Failed(t), natslock.ErrClosed)
			kit.Receive(t, watched, "the end of Watch")
			kit.Eventually(t, "no goroutine is left", func() bool { return running() <= goroutines })
			require.Equal(t, subs, nc.NumSubscriptions())
		}
		require.True(t, nc.IsConnected())
	})
}

// TestCloseIdleClient checks that a client that is no longer used costs nothing but its connection.
func TestCloseIdleClient(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s)
		kit.Unlock(t, kit.Must(t, c.Lock, "l"))
		time.Sleep(3 * time.Second)
		require.Zero(t, kit.Goroutines("locks/internal/")-kit.Goroutines("locks/internal/kvstore."), "no goroutine without leases")
		p := kit.NewTap(t, s.Connect(), ">")
		out := c.NC.Stats().OutMsgs
		time.Sleep(24 * time.Hour)
		require.Empty(t, p.Take(t))
		require.Equal(t, out, c.NC.Stats().OutMsgs)
	})
}

// TestUnlockDuringClose checks that Unlock releases a lock for which Close is still waiting, rather
// than leaving it to its TTL.
func TestUnlockDuringClose(t *testing.T) {
	s := testutil.RunServer(t)
	for i := range 20 {
		c, err := natslock.New(t.Context(), s.Connect())
		require.NoError(t, err)
		var locks []*natslock.Lock
		for n := range 20 {
			l, err := c.Lock(t.Context(), fmt.Sprintf("%d.%d", i, n))
			require.NoError(t, err)
			locks = append(locks, l)
		}
		var wg sync.WaitGroup
		wg.Go(func() { assert.NoError(t, c.Close(context.Background())) })
		for _, l := range locks {
			wg.Go(func() { assert.NoError(t, l.Unlock(context.Background())) })
		}
		wg.Wait()
	}
	require.Empty(t, kit.KeysLeft(t, s.Connect()))
}

// TestSecondClose checks that a second Close whose context ends also cuts the first one short.
func TestSecondClose(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, _ := kit.Faulty(t, s.Connect(), 1)
		l, err := c.Lock(t.Context(), "x")
		require.NoError(t, err)
		first := make(chan error, 1)
		go func() { first <- c.Close(context.Background()) }()
		time.Sleep(time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		begun := time.Now()
		require.ErrorContains(t, c.Close(ctx), `"x"`)
		require.ErrorContains(t, <-first, `"x"`)
		require.Less(t, time.Since(begun), 10*time.Second)
		require.ErrorIs(t, context.Cause(l.Context()), natslock.ErrClosed)
	})
}

// TestCloseMeetsRenewal confirms a renewal after Close has ended the lease. The holder's work may
// still be stopping, so the record is left to its TTL.
func TestCloseMeetsRenewal(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		const ttl = 9 * time.Second
		a, fa := kit.Faulty(t, s.Connect(), 1, natslock.WithTTL(ttl), natslock.WithTuning(natslock.Tuning{WatchAfter: -1}))
		l, err := a.Lock(t.Context(), "x", natslock.Detached())
		require.NoError(t, err)
		other, err := a.Lock(t.Context(), "y", natslock.NoRenew())
		require.NoError(t, err)
		var renewed time.Time
		fa.OnSend(func(_ int, w kvstore.Write) faults.Fate {
			switch kit.Stage(w) {
			case "lock renew":
				renewed = time.Now()
				return faults.DelayAnswer(500 * time.Millisecond)
			case "lock delete":
				if w.Key == "lock.y" {
					return faults.Drop // so that Close has something to wait for
				}
			}
			return faults.Pass
		})
		time.Sleep(3200 * time.Millisecond)
		synctest.Wait()
		require.False(t, renewed.IsZero())
		released := make(chan struct{})
		go func() {
			defer close(released)
			assert.ErrorIs(t, other.Unlock(context.Background()), natslock.ErrUnavailable)
		}()
		time.Sleep(time.Millisecond)
		require.ErrorContains(t, kit.CloseNow(a), `"x"`)
		<-released
		require.ErrorIs(t, l.Err(), natslock.ErrClosed)
		require.Equal(t, 1, fa.Counts().AnswersDelayed, "the confirmation never came")
		time.Sleep(time.Until(renewed.Add(ttl - 100*time.Millisecond)))
		require.Contains(t, kit.KeysLeft(t, s.Connect()), "lock.x")
	})
}

// TestCloseWhileProbeMeetsWriteInFlight checks that a waiter does not delay its client's Close when
// its request for the last revision keeps running into a write in flight.
func TestCloseWhileProbeMeetsWriteInFlight(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		holder := kit.QuietHolder(t, s)
		first := kit.Join(t, s).Await(t, "l")
		c, f := kit.JoinFaulty(t, s)
		f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
			if w.Expect == kvstore.NoRevision {
				return faults.Refuse(kvstore.ErrInFlight)
			}
			return faults.Pass
		})
		w := c.Await(t, "l")
		time.Sleep(time.Second)
		begun := time.Now()
		require.NoError(t, kit.CloseNow(c.Client))
		require.LessOrEqual(t, time.Since(begun), 2*time.Second)
		require.ErrorIs(t, w.Failed(t), natslock.ErrClosed)
		kit.Unlock(t, holder)
		kit.Unlock(t, first.Granted(t))
	})
}

// TestCloseInObserver checks that a Close called from an observer does not wait for that observer,
// whatever its context.
func TestCloseInObserver(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		for _, second := range []bool{false, true} {
			var c *natslock.Client
			entered, go_ := make(chan struct{}), make(chan struct{})
			closed := make(chan time.Duration, 1)
			c = kit.NewClient(t, s.Connect(), admin.WithObserver(func(_ context.Context, ev admin.Event) {
				if ev.Type != admin.EventReleased {
					return
				}
				close(entered)
				<-go_
				begun := time.Now()
				err := c.Close(context.Background())
				if err != nil {
					t.Error(err)
				}
				closed <- time.Since(begun)
			}))
			kit.Unlock(t, kit.Must(t, c.Lock, "l"))
			<-entered
			other := make(chan time.Duration, 1)
			if second { // another Close is already waiting for the observer
				go func() {
					begun := time.Now()
					_ = c.Close(context.Background())
					other <- time.Since(begun)
				}()
			} else {
				other <- 0
			}
			time.Sleep(time.Second)
			close(go_)
			require.Zero(t, kit.Receive(t, closed, "Close in the observer"))
			require.LessOrEqual(t, kit.Receive(t, other, "the other Close"), time.Second)
		}
	})
}

// TestDrainOldRequestStyle checks that the release is still sent on a draining connection that uses
// old-style requests and so no longer receives replies.
func TestDrainOldRequestStyle(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		nc := s.Connect(nats.UseOldRequestStyle())
		c := kit.NewClient(t, nc)
		r := kit.NewRaw(t, s.Connect())
		inside, result := make(chan struct{}), make(chan error, 1)
		_, err := nc.Subscribe("work", func(*nats.Msg) {
			result <- c.Do(context.Background(), "l", func(context.Context, *natslock.Lock) error {
				close(inside)
				time.Sleep(3 * time.Second)
				return nil
			})
		})
		require.NoError(t, err)
		require.NoError(t, nc.Flush())
		require.NoError(t, s.Connect().Publish("work", nil))
		<-inside
		require.NoError(t, nc.Drain())
		time.Sleep(2900 * time.Millisecond)
		require.NotEmpty(t, r.Live("lock.l"))
		begun := time.Now()
		err = kit.Receive(t, result, "the handler")
		require.ErrorIs(t, err, natslock.ErrUnavailable)
		require.ErrorContains(t, err, "UseOldRequestStyle")
		require.NotErrorIs(t, err, natslock.ErrLost)
		require.Equal(t, 100*time.Millisecond, time.Since(begun).Round(10*time.Millisecond), "at once")
		synctest.Wait()
		require.Empty(t, r.Live("lock.l"), "nobody waits for its TTL")
		kit.Eventually(t, "the drain is over", nc.IsClosed)
	})
}
