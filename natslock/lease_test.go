package natslock_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/history"
	"github.com/natslock/locks/kvstore"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

// wantLost checks everything that shows a lock as lost.
func wantLost(t testing.TB, l *natslock.Lock, cause error) {
	t.Helper()
	require.Equal(t, natslock.Lost, l.State())
	require.Zero(t, l.Remaining())
	require.False(t, l.ValidUntil().After(time.Now()))
	require.ErrorIs(t, l.Err(), cause)
	require.ErrorIs(t, context.Cause(l.Context()), cause)
	require.Error(t, l.Context().Err())
	require.ErrorIs(t, l.Unlock(context.Background()), cause)
	require.ErrorIs(t, l.Unlock(context.Background()), cause, "again")
	require.Equal(t, natslock.Lost.String(), "lost")
	require.NotErrorIs(t, l.Err(), natslock.ErrEnded)
}

// wantEnded checks everything that shows a lock as held to its planned end.
func wantEnded(t testing.TB, l *natslock.Lock) {
	t.Helper()
	require.Equal(t, natslock.Ended, l.State())
	require.Equal(t, "ended", l.State().String())
	require.Zero(t, l.Remaining())
	require.False(t, l.ValidUntil().After(time.Now()))
	for _, err := range []error{l.Err(), context.Cause(l.Context()), l.Unlock(context.Background()), l.Unlock(context.Background())} {
		require.ErrorIs(t, err, natslock.ErrEnded)
		require.NotErrorIs(t, err, natslock.ErrLost)
	}
	require.Error(t, l.Context().Err())
}

// wantHeld checks everything that shows a lock as held.
func wantHeld(t testing.TB, l *natslock.Lock) {
	t.Helper()
	require.Equal(t, natslock.Held, l.State())
	require.Positive(t, l.Remaining())
	require.True(t, l.ValidUntil().After(time.Now()))
	require.NoError(t, l.Err())
	require.NoError(t, l.Context().Err())
}

func TestLeaseHolderCutOff(t *testing.T) {
	for _, how := range []string{"blackhole", "cut"} {
		t.Run(how, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				const ttl = 10 * time.Second
				holder, other := join(t, s, natslock.WithTTL(ttl)), join(t, s, natslock.WithTTL(ttl))
				l := mustLock(t, holder.Client, "l")
				w := other.await(t, "l")
				time.Sleep(5 * time.Second)
				var renewed time.Time
				for _, ev := range holder.rec.all() {
					if ev.Type == natslock.EventRenewed {
						renewed = ev.Time
					}
				}
				require.False(t, renewed.IsZero())
				until := l.ValidUntil()
				require.WithinDuration(t, renewed.Add(ttl-time.Second), until, time.Millisecond, "the last renewal and the TTL without the margin")
				if how == "cut" {
					holder.link.Cut()
				} else {
					holder.link.Blackhole(true)
				}
				time.Sleep(time.Until(until) - time.Millisecond)
				wantHeld(t, l)
				receive(t, l.Done(), "the end")
				require.WithinDuration(t, until, time.Now(), time.Millisecond)
				require.False(t, w.over())
				begun := time.Now()
				wantLost(t, l, natslock.ErrLost)
				require.Zero(t, time.Since(begun), "Unlock waits for nobody")
				require.NotErrorIs(t, l.Err(), natslock.ErrBroken)
				require.EqualValues(t, 1, holder.Stats().Lost)
				require.Zero(t, holder.Stats().Held)
				ev := holder.rec.wait(t, natslock.EventExpired, "l")
				require.ErrorIs(t, ev.Cause, natslock.ErrLost)

				next := w.granted(t)
				require.LessOrEqual(t, w.at.Sub(renewed), ttl+500*time.Millisecond)
				require.GreaterOrEqual(t, w.at.Sub(until), 500*time.Millisecond, "the margin")
				require.Greater(t, next.Token(), l.Token())

				// What was held back arrives now, and changes nothing.
				holder.link.Heal()
				time.Sleep(5 * time.Second)
				wantHeld(t, next)
				require.Equal(t, next.Token(), inspect(t, other.Client, "l").Holder.Token)
			})
		})
	}
}

// A network write that blocks holds up everything that uses the connection, but
// not the end of the lock's context. Over TCP, because the bubble's clock stands
// while a mutex is waited for.
func TestLeaseBlockedWrite(t *testing.T) {
	s := testutil.RunServer(t)
	holder := join(t, s)
	l := mustLock(t, holder.Client, "l", natslock.TTL(time.Second))
	slow := mustLock(t, holder.Client, "slow", natslock.TTL(2*time.Second))
	holder.link.BlockWrites(true)
	defer holder.link.BlockWrites(false) // before the client is closed
	until := l.ValidUntil()
	receive(t, l.Done(), "the end")
	require.WithinDuration(t, until, time.Now(), 700*time.Millisecond)
	wantLost(t, l, natslock.ErrLost)
	require.WithinDuration(t, until, time.Now(), 900*time.Millisecond, "nor is Unlock of a lost lock delayed")
	wantHeld(t, slow)
	receive(t, slow.Done(), "the end")
	wantLost(t, slow, natslock.ErrLost)
}

func TestLeaseShortCut(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		holder, other := join(t, s), join(t, s)
		l := mustLock(t, holder.Client, "l", natslock.TTL(10*time.Second))
		w := other.await(t, "l")
		for i := range 20 {
			time.Sleep(7 * time.Second)
			if i%2 == 0 {
				holder.link.Cut()
			} else {
				holder.link.Blackhole(true)
			}
			time.Sleep(4 * time.Second)
			holder.link.Heal()
		}
		wantHeld(t, l)
		require.False(t, w.over())
		require.Zero(t, holder.Stats().Lost)
		mustUnlock(t, l)
		mustUnlock(t, w.granted(t))

		// What was on its way may be lost: all is confirmed after a reconnect.
		l = mustLock(t, holder.Client, "long", natslock.TTL(time.Hour))
		time.Sleep(10 * time.Second)
		renewed := holder.Stats().Renewed
		holder.link.Cut()
		time.Sleep(time.Second)
		holder.link.Heal()
		time.Sleep(time.Second)
		require.Equal(t, renewed+1, holder.Stats().Renewed)
		require.Greater(t, l.Remaining(), time.Hour-5*time.Second)
	})
}

func TestLeaseRenewals(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := join(t, s, natslock.WithWatchAfter(-1))
		p := newTap(t, s.Connect(), ">")
		l := mustLock(t, c.Client, "l", natslock.TTL(9*time.Second))
		require.Len(t, p.take(t, c.nc), 1)
		time.Sleep(1500 * time.Millisecond) // to look between two renewals, not at one
		for range 9 {
			time.Sleep(10 * 3 * time.Second)
			n := len(p.take(t, c.nc))
			require.InDelta(t, 10, n, 1, "one renewal in a third of the TTL")
		}
		require.InDelta(t, 90, int(c.Stats().Renewed), 1)
		wantHeld(t, l)
		token := l.Token()
		mustUnlock(t, l)
		require.Equal(t, token, l.Token(), "renewals do not change the token")

		before := c.nc // the server may acknowledge a write before it has passed it on
		c = join(t, s, natslock.WithWatchAfter(-1), natslock.WithRenewFraction(0.6))
		l = mustLock(t, c.Client, "l", natslock.TTL(10*time.Second))
		p.take(t, before, c.nc)
		time.Sleep(5900 * time.Millisecond)
		for _, m := range p.take(t, c.nc) {
			t.Errorf("before it was due: %s %v, %v after the grant", m.Subject, m.Header, 5900*time.Millisecond)
		}
		time.Sleep(200 * time.Millisecond)
		require.Len(t, p.take(t, c.nc), 1)
		time.Sleep(60 * time.Second)
		require.InDelta(t, 10, len(p.take(t, c.nc)), 1)
		wantHeld(t, l)

		// Never so late that a renewal could come too late, though.
		c = join(t, s, natslock.WithWatchAfter(-1), natslock.WithRenewFraction(0.999))
		l = mustLock(t, c.Client, "m", natslock.TTL(2*time.Second))
		time.Sleep(time.Minute)
		wantHeld(t, l)
	})
}

// A holder begins to watch its record after a while; that takes a renewal to be
// sure of it.
func TestLeaseWatchAfter(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		subs := func(m *member) int { return m.nc.NumSubscriptions() }
		c := join(t, s)
		l := mustLock(t, c.Client, "l")
		before := subs(c)
		time.Sleep(990 * time.Millisecond)
		require.Equal(t, before, subs(c))
		time.Sleep(20 * time.Millisecond)
		require.Equal(t, before+1, subs(c))
		mustUnlock(t, l)
		synctest.Wait()
		require.Equal(t, before, subs(c))

		c = join(t, s, natslock.WithWatchAfter(0))
		mustUnlock(t, mustLock(t, c.Client, "warm"))
		synctest.Wait()
		before = subs(c)
		l = mustLock(t, c.Client, "l")
		synctest.Wait()
		require.Equal(t, before+1, subs(c))
		mustUnlock(t, l)

		c = join(t, s, natslock.WithWatchAfter(-1))
		mustLock(t, c.Client, "l")
		before = subs(c)
		time.Sleep(time.Hour)
		require.Equal(t, before, subs(c))
	})
}

func TestLeaseFractionIsRoundedUp(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := join(t, s)
		r := newRaw(t, s.Connect())
		begun := time.Now()
		l := mustLock(t, c.Client, "l", natslock.TTL(1500*time.Millisecond))
		require.Equal(t, "2s", r.get("lock.l").Header.Get("Nats-TTL"))
		require.Equal(t, 2*time.Second, inspect(t, c.Client, "l").Holder.TTL)
		require.Equal(t, 1800*time.Millisecond, l.Remaining().Round(time.Millisecond))
		c.link.Cut()
		time.Sleep(1900*time.Millisecond - time.Since(begun))
		require.NotNil(t, r.get("lock.l"))
		time.Sleep(300 * time.Millisecond)
		require.Nil(t, r.get("lock.l"), "two seconds, not more")
	})
}

func TestLeaseSafetyMargin(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		for _, c := range []struct {
			fraction  float64
			ttl, want time.Duration
		}{
			{0.1, time.Second, 900 * time.Millisecond},
			{0.1, 5 * time.Second, 4500 * time.Millisecond},
			{0.1, 10 * time.Second, 9 * time.Second},
			{0.1, 15 * time.Second, 14 * time.Second}, // never more than 1 s
			{0.5, time.Second, 500 * time.Millisecond},
			{0.5, 10 * time.Second, 9 * time.Second},
			{0.01, 10 * time.Second, 9900 * time.Millisecond},
			{0.1, time.Hour, time.Hour - 3600*time.Millisecond}, // never less than a thousandth
		} {
			m := join(t, s, natslock.WithSafetyMargin(c.fraction))
			l := mustLock(t, m.Client, fmt.Sprintf("%v/%v", c.fraction, c.ttl), natslock.TTL(c.ttl), natslock.NoRenew())
			require.InDelta(t, c.want, l.Remaining(), float64(time.Millisecond), "%+v", c)
			begun := time.Now()
			<-l.Done()
			require.InDelta(t, c.want, time.Since(begun), float64(2*time.Millisecond), "%+v", c)
		}
	})
}

func TestLeaseNoRenew(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := join(t, s)
		p := newTap(t, s.Connect(), ">")
		l := mustLock(t, c.Client, "l", natslock.NoRenew(), natslock.TTL(10*time.Second))
		begun := time.Now()
		time.Sleep(8 * time.Second)
		require.Len(t, p.take(t, c.nc), 1, "not renewed")
		wantHeld(t, l)
		receive(t, l.Done(), "the end")
		require.Equal(t, 9*time.Second, time.Since(begun).Round(time.Millisecond))
		wantLost(t, l, natslock.ErrLost)

		// Extended, to the same, a longer and a shorter TTL.
		time.Sleep(2 * time.Second)
		l = mustLock(t, c.Client, "l", natslock.NoRenew(), natslock.TTL(10*time.Second))
		p.take(t, c.nc)
		time.Sleep(5 * time.Second)
		require.NoError(t, l.Extend(t.Context(), 0))
		require.Len(t, p.take(t, c.nc), 1)
		require.Equal(t, 9*time.Second, l.Remaining().Round(time.Millisecond))
		require.NoError(t, l.Extend(t.Context(), time.Minute))
		require.Equal(t, 59*time.Second, l.Remaining().Round(time.Millisecond))
		time.Sleep(50 * time.Second)
		wantHeld(t, l)
		require.NoError(t, l.Extend(t.Context(), 2*time.Second))
		require.Equal(t, 1800*time.Millisecond, l.Remaining().Round(time.Millisecond))
		begun = time.Now()
		receive(t, l.Done(), "the end")
		require.Equal(t, 1800*time.Millisecond, time.Since(begun).Round(time.Millisecond))
		time.Sleep(500 * time.Millisecond)
		_, err := c.TryLock(t.Context(), "l")
		require.NoError(t, err, "the shorter TTL is the server's too")
	})
}

func TestLeaseExtend(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := join(t, s, natslock.WithWatchAfter(-1))
		r := newRaw(t, s.Connect())
		p := newTap(t, s.Connect(), ">")
		l := mustLock(t, c.Client, "l", natslock.TTL(10*time.Second))

		// A lease that is renewed goes on with the new TTL.
		require.NoError(t, l.Extend(t.Context(), time.Minute))
		require.Equal(t, "60s", r.get("lock.l").Header.Get("Nats-TTL"))
		p.take(t, c.nc)
		time.Sleep(10 * time.Minute)
		require.InDelta(t, 30, len(p.take(t, c.nc)), 1)
		require.NoError(t, l.Extend(t.Context(), 3*time.Second))
		require.Equal(t, 2700*time.Millisecond, l.Remaining().Round(time.Millisecond))
		p.take(t, c.nc)
		time.Sleep(time.Minute + 500*time.Millisecond)
		require.InDelta(t, 60, len(p.take(t, c.nc)), 2)
		wantHeld(t, l)

		for _, ttl := range []time.Duration{-1, time.Millisecond, time.Second - 1, 25 * time.Hour} {
			require.ErrorIs(t, l.Extend(t.Context(), ttl), natslock.ErrInvalidTTL)
		}
		require.Empty(t, p.take(t, c.nc))
		wantHeld(t, l)

		// An Extend that is not answered: the lock is as valid as before.
		require.NoError(t, l.Extend(t.Context(), 10*time.Second))
		until := l.ValidUntil()
		c.link.Blackhole(true)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		err := l.Extend(ctx, time.Hour)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, natslock.ErrLost)
		wantHeld(t, l)
		require.Equal(t, until.UnixMilli(), l.ValidUntil().UnixMilli())
		// Or shorter, if that was asked for: the server may have taken it.
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, l.Extend(ctx, 2*time.Second), context.DeadlineExceeded)
		require.LessOrEqual(t, l.Remaining(), 2*time.Second)
		// One that waits when the lock is lost returns why.
		err = l.Extend(t.Context(), 0)
		require.ErrorIs(t, err, natslock.ErrLost)
		require.ErrorIs(t, l.Extend(t.Context(), 0), natslock.ErrLost)
		wantLost(t, l, natslock.ErrLost)

		c.link.Heal()
		time.Sleep(2 * time.Hour)
		l = mustLock(t, c.Client, "l")
		mustUnlock(t, l)
		require.ErrorIs(t, l.Extend(t.Context(), 0), natslock.ErrReleased)
	})
}

// An Extend at the very moment of a renewal: the two expect the same revision, so
// one is refused, and is tried again at once.
func TestLeaseExtendMeetsRenewal(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, f := history.Faulty(t, s.Connect(), 1, natslock.WithWatchAfter(-1))
		for i := range 100 {
			l := mustLock(t, c, fmt.Sprint("l", i), natslock.TTL(3*time.Second))
			extended := make(chan error, 1)
			var begun time.Time
			f.OnSend(func(_ int, w kvstore.Write) testutil.Fate {
				if history.Stage(w) == "lock renew" {
					f.OnSend(nil)
					begun = time.Now()
					go func() { extended <- l.Extend(context.Background(), time.Minute) }()
				}
				return testutil.Pass
			})
			require.NoError(t, receive(t, extended, "the extension"))
			require.Less(t, time.Since(begun), 100*time.Millisecond)
			time.Sleep(20 * time.Second)
			begun = time.Now()
			require.NoError(t, l.Extend(t.Context(), 0))
			require.Less(t, time.Since(begun), 100*time.Millisecond)
			mustUnlock(t, l)
		}
	})
}

func TestLeaseUntil(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, other := join(t, s), join(t, s)
		r := newRaw(t, s.Connect())
		p := newTap(t, s.Connect(), "lock.>")
		for i, d := range []time.Duration{500 * time.Millisecond, 2 * time.Second, 90*time.Second + 300*time.Millisecond, 30 * 24 * time.Hour, 365 * 24 * time.Hour} {
			name := fmt.Sprint("l", i)
			end := time.Now().Add(d)
			l := mustLock(t, c.Client, name, natslock.Until(end))
			require.Equal(t, end.UnixMilli(), l.ValidUntil().UnixMilli())
			require.ErrorIs(t, l.Extend(t.Context(), 0), natslock.ErrInvalidTTL)
			require.ErrorIs(t, l.Extend(t.Context(), time.Hour), natslock.ErrInvalidTTL)
			require.Len(t, p.take(t, c.nc), 1)
			if d > time.Hour { // a waiter would renew its place all the while
				mustUnlock(t, l)
				p.take(t, c.nc)
				continue
			}
			w := other.await(t, name)
			p.take(t, other.nc)
			time.Sleep(d - time.Millisecond)
			wantHeld(t, l)
			require.False(t, w.over())
			require.Equal(t, l.Token(), r.get("lock."+name).Sequence, "not renewed")
			<-l.Done()
			require.Equal(t, end.UnixMilli(), time.Now().UnixMilli())
			wantEnded(t, l)
			<-w.done
			require.NoError(t, w.err)
			require.Less(t, w.at.Sub(end), 2*time.Second+margin(d), "the server frees it soon after")
			mustUnlock(t, w.lock)
			p.take(t, c.nc, other.nc)
		}

		// Unlock ends it before.
		l := mustLock(t, c.Client, "early", natslock.Until(time.Now().Add(time.Hour)))
		mustUnlock(t, l)
		mustUnlock(t, mustLock(t, other.Client, "early"))

		// What is left shrinks while waiting.
		l = mustLock(t, c.Client, "busy")
		asked := time.Now()
		w := other.await(t, "busy", natslock.Until(time.Now().Add(10*time.Second)))
		missed := other.await(t, "busy", natslock.Until(time.Now().Add(3*time.Second)))
		time.Sleep(6 * time.Second)
		mustUnlock(t, l)
		l = w.granted(t)
		require.Equal(t, 4*time.Second, l.Remaining().Round(10*time.Millisecond))
		mustUnlock(t, l)
		require.ErrorIs(t, missed.failed(t), natslock.ErrTimeout)
		require.Equal(t, 3*time.Second, missed.at.Sub(asked).Round(10*time.Millisecond), "there is nothing left to wait for")
	})
}

// margin is what a fixed lease outlives its validity at least.
func margin(d time.Duration) time.Duration { return d / 900 }

// A lock that is held to its planned end is neither lost nor counted so. Do returns
// nil for work that was done by then.
func TestLeaseUntilEnds(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := join(t, s)
		until := func() natslock.LockOption { return natslock.Until(time.Now().Add(10 * time.Second)) }
		work := func(d time.Duration) func(context.Context, *natslock.Lock) error {
			return func(context.Context, *natslock.Lock) error { time.Sleep(d); return nil }
		}
		require.NoError(t, c.Do(t.Context(), "l", work(9*time.Second), until()))
		err := c.Do(t.Context(), "l", work(11*time.Second), until())
		require.ErrorIs(t, err, natslock.ErrEnded)
		require.NotErrorIs(t, err, natslock.ErrLost)
		ev := c.rec.wait(t, natslock.EventEnded, "l")
		require.ErrorIs(t, ev.Cause, natslock.ErrEnded)
		require.Equal(t, "ended", ev.Type.String())
		synctest.Wait()
		require.Equal(t, natslock.Stats{Granted: 2, Released: 1, Ended: 1}, c.Stats())
		require.Zero(t, c.rec.count(natslock.EventExpired, "l"))

		// An end before that is a loss, or a break.
		l := mustLock(t, c.Client, "l", until())
		newRaw(t, s.Connect()).remove("lock.l")
		require.NoError(t, l.Err())
		time.Sleep(5 * time.Second) // it watches its record by now
		synctest.Wait()
		wantLost(t, l, natslock.ErrLost)
		l = mustLock(t, c.Client, "m", until())
		breakLock(t, join(t, s).Client, l, "it hangs")
		time.Sleep(5 * time.Second)
		wantLost(t, l, natslock.ErrBroken)
		require.Equal(t, uint64(1), c.Stats().Ended)
	})
}

func TestLeaseUntilRefused(t *testing.T) {
	s := testutil.RunServer(t)
	c := join(t, s)
	before := c.nc.Stats().OutMsgs
	for _, opts := range [][]natslock.LockOption{
		{natslock.Until(time.Now().Add(-time.Second))},
		{natslock.Until(time.Time{})},
		{natslock.Until(time.Now().Add(367 * 24 * time.Hour))},
	} {
		_, err := c.Lock(t.Context(), "l", opts...)
		require.ErrorIs(t, err, natslock.ErrInvalidTTL)
		_, err = c.TryLock(t.Context(), "l", opts...)
		require.ErrorIs(t, err, natslock.ErrInvalidTTL)
	}
	_, err := c.Lock(t.Context(), "l", natslock.Until(time.Now().Add(time.Hour)), natslock.NoRenew())
	require.ErrorIs(t, err, natslock.ErrInvalidOption)
	require.Equal(t, before, c.nc.Stats().OutMsgs)
}

func TestLeaseEarlyWarning(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := join(t, s)
		type warning struct {
			at   time.Time
			left time.Duration
			lock *natslock.Lock
		}
		warnings := make(chan warning, 10)
		l := mustLock(t, c.Client, "l", natslock.TTL(10*time.Second), natslock.EarlyWarning(4*time.Second, func(l *natslock.Lock) {
			warnings <- warning{time.Now(), l.Remaining(), l}
		}))
		time.Sleep(time.Minute)
		require.Empty(t, warnings, "renewals come in time")
		for range 3 { // armed again by each confirmation
			c.link.Blackhole(true)
			w := receive(t, warnings, "a warning")
			require.Same(t, l, w.lock)
			require.Equal(t, 4*time.Second, w.left.Round(10*time.Millisecond))
			time.Sleep(1500 * time.Millisecond)
			require.ErrorIs(t, c.Healthy(), natslock.ErrUnavailable, "overdue")
			c.link.Blackhole(false)
			time.Sleep(10 * time.Second)
			require.Empty(t, warnings, "once per confirmation")
			wantHeld(t, l)
			require.NoError(t, c.Healthy())
		}
		c.link.Blackhole(true)
		w := receive(t, warnings, "a warning")
		receive(t, l.Done(), "the end")
		require.Equal(t, 4*time.Second, time.Since(w.at).Round(10*time.Millisecond), "so long before the end")
		require.Empty(t, warnings)

		_, err := c.Lock(t.Context(), "x", natslock.EarlyWarning(0, func(*natslock.Lock) {}))
		require.ErrorIs(t, err, natslock.ErrInvalidOption)
		_, err = c.Lock(t.Context(), "x", natslock.EarlyWarning(1, nil))
		require.ErrorIs(t, err, natslock.ErrInvalidOption)
	})
}

// A warning that takes its time delays neither the renewer nor other locks.
func TestLeaseEarlyWarningBlocks(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := join(t, s)
		release := make(chan struct{})
		defer close(release)
		l := mustLock(t, c.Client, "l", natslock.NoRenew(), natslock.TTL(10*time.Second),
			natslock.EarlyWarning(8*time.Second, func(*natslock.Lock) { <-release }))
		kept := mustLock(t, c.Client, "kept", natslock.TTL(3*time.Second))
		begun := time.Now()
		receive(t, l.Done(), "the end")
		require.Equal(t, 9*time.Second, time.Since(begun).Round(10*time.Millisecond))
		wantHeld(t, kept)
		mustUnlock(t, kept)
	})
}

func TestLeaseDay(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := join(t, s)
		var locks []*natslock.Lock
		for _, ttl := range []time.Duration{time.Minute, 5 * time.Minute, 10 * time.Minute} {
			locks = append(locks, mustLock(t, c.Client, ttl.String(), natslock.TTL(ttl)))
		}
		time.Sleep(24 * time.Hour)
		for _, l := range locks {
			wantHeld(t, l)
			mustUnlock(t, l)
		}
		require.Zero(t, c.Stats().Lost)
		require.InDelta(t, 24*3600/20+24*3600/100+24*3600/200, int(c.Stats().Renewed), 20)
	})
}

// The clock ends a lock: a caller that comes before the renewer sees the end too, and
// Unlock says so.
func TestLeaseUnlockAfterTheEnd(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, other := join(t, s), join(t, s)
		r := newRaw(t, s.Connect())
		l := mustLock(t, c.Client, "l", natslock.NoRenew(), natslock.TTL(5*time.Second))
		time.Sleep(4600 * time.Millisecond)
		require.NotNil(t, r.get("lock.l"), "the record is there still")
		require.ErrorIs(t, l.Unlock(t.Context()), natslock.ErrLost)
		synctest.Wait()
		require.Empty(t, r.live("lock.l"), "and is deleted, so that nobody waits for it")
		next, err := other.TryLock(t.Context(), "l")
		require.NoError(t, err)

		// An Unlock that comes when somebody else holds it harms nobody.
		l2 := mustLock(t, c.Client, "m", natslock.NoRenew(), natslock.TTL(5*time.Second))
		time.Sleep(6 * time.Second)
		m := mustLock(t, other.Client, "m")
		require.ErrorIs(t, l2.Unlock(t.Context()), natslock.ErrLost)
		time.Sleep(20 * time.Second)
		wantHeld(t, m)
		wantHeld(t, next)
		mustUnlock(t, m)
		mustUnlock(t, next)
	})
}

// A server that does not answer does not hold up Unlock for longer than the
// release timeout.
func TestLeaseReleaseTimeout(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, other := join(t, s, natslock.WithReleaseTimeout(2*time.Second)), join(t, s)
		l := mustLock(t, c.Client, "l", natslock.TTL(30*time.Second))
		c.link.Blackhole(true)
		begun := time.Now()
		err := l.Unlock(t.Context())
		require.Equal(t, 2*time.Second, time.Since(begun).Round(10*time.Millisecond))
		require.ErrorIs(t, err, natslock.ErrUnavailable)
		require.NotErrorIs(t, err, natslock.ErrLost, "it was valid to the end")
		require.Equal(t, natslock.Released, l.State())
		require.ErrorIs(t, l.Err(), natslock.ErrReleased)
		require.Equal(t, err, l.Unlock(t.Context()), "the first result")
		require.Equal(t, 2*time.Second, time.Since(begun).Round(10*time.Millisecond))
		// It goes on in the background.
		c.link.Blackhole(false)
		mustLock(t, other.Client, "l")
		require.Less(t, time.Since(begun), 5*time.Second, "long before the TTL")
	})
}

// Nor does a network write that blocks.
func TestLeaseReleaseTimeoutBlockedWrite(t *testing.T) {
	s := testutil.RunServer(t)
	c := join(t, s, natslock.WithReleaseTimeout(500*time.Millisecond))
	l := mustLock(t, c.Client, "l", natslock.TTL(30*time.Second))
	block(t, c)
	done := make(chan error, 1)
	go func() { done <- l.Unlock(context.Background()) }()
	err := receiveIn(t, 10*time.Second, done, "Unlock")
	require.ErrorIs(t, err, natslock.ErrUnavailable)
	require.NotErrorIs(t, err, natslock.ErrLost)
	require.ErrorIs(t, l.Err(), natslock.ErrReleased)
	c.link.BlockWrites(false)
	mustLock(t, join(t, s).Client, "l") // deleted in the background
}

// A broken lock is deleted by its holder too, and that does not hold it up either.
func TestBrokenReleaseBlockedWrite(t *testing.T) {
	s := testutil.RunServer(t)
	c := join(t, s, natslock.WithReleaseTimeout(500*time.Millisecond), natslock.WithWatchAfter(0))
	l := mustLock(t, c.Client, "l", natslock.TTL(30*time.Second))
	require.NoError(t, join(t, s).Break(t.Context(), natslock.BreakRequest{Kind: natslock.KindMutex, Name: "l", ID: l.ID(), Reason: "a test"}))
	<-l.Done()
	block(t, c)
	done := make(chan error, 2)
	go func() { done <- l.Unlock(context.Background()) }()
	require.ErrorIs(t, receiveIn(t, 10*time.Second, done, "Unlock"), natslock.ErrBroken)
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	go func() { done <- c.Close(ctx) }()
	require.NoError(t, receiveIn(t, 10*time.Second, done, "Close"))
	c.link.BlockWrites(false)
	mustLock(t, join(t, s).Client, "l") // deleted in the background, or its TTL is 30 s
}

// block makes the connection's writes block, with one on its way that does.
func block(t *testing.T, c *member) {
	t.Helper()
	t.Cleanup(func() { c.link.BlockWrites(false) })
	c.link.BlockWrites(true)
	require.NoError(t, c.nc.Publish("x", nil))
	eventually(t, "the connection is stuck", func() bool {
		free := make(chan struct{})
		go func() { c.nc.Status(); close(free) }()
		select {
		case <-free:
			return false
		case <-time.After(100 * time.Millisecond):
			return true
		}
	})
}

func TestLeaseAcquireBlockedWrite(t *testing.T) {
	t.Skip("known: nats.go holds its mutex in a write, so Lock and TryLock outlive their context by up to the write's deadline of a minute")
	s := testutil.RunServer(t)
	c := join(t, s)
	block(t, c)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	failed := make(chan error, 2)
	go func() {
		_, err := c.Lock(ctx, "m")
		failed <- err
		_, err = c.TryLock(ctx, "m")
		failed <- err
	}()
	require.ErrorIs(t, receiveIn(t, 10*time.Second, failed, "Lock"), context.DeadlineExceeded)
	require.Error(t, receiveIn(t, 10*time.Second, failed, "TryLock"))
}
