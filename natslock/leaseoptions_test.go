package natslock_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

func TestLeaseNoRenew(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := join(t, s)
		p := newTap(t, s.Connect(), ">")
		l := mustLock(t, c.Client, "l", natslock.NoRenew(), natslock.TTL(10*time.Second))
		begun := time.Now()
		time.Sleep(8 * time.Second)
		require.Len(t, p.take(t, c.nc), 1, "not renewed")
		wantHeld(t, l)
		kit.Receive(t, l.Context().Done(), "the end")
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
		kit.Receive(t, l.Context().Done(), "the end")
		require.Equal(t, 1800*time.Millisecond, time.Since(begun).Round(time.Millisecond))
		time.Sleep(500 * time.Millisecond)
		kept, err := c.TryLock(t.Context(), "l")
		require.NoError(t, err, "the shorter TTL is the server's too")
		kit.Keep(t, kept)
	})
}

func TestLeaseExtend(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := join(t, s, natslock.WithTuning(natslock.Tuning{WatchAfter: -1}))
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
			require.ErrorIs(t, l.Extend(t.Context(), ttl), natslock.ErrInvalid)
		}
		require.Empty(t, p.take(t, c.nc))
		wantHeld(t, l)

		// An Extend that is not answered: the lock is as valid as before.
		require.NoError(t, l.Extend(t.Context(), 10*time.Second))
		until := kit.ValidUntil(l)
		c.link.Blackhole(true)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		err := l.Extend(ctx, time.Hour)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, natslock.ErrLost)
		wantHeld(t, l)
		require.Equal(t, until.UnixMilli(), kit.ValidUntil(l).UnixMilli())
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
		kit.Unlock(t, l)
		require.ErrorIs(t, l.Extend(t.Context(), 0), natslock.ErrReleased)
	})
}

// An Extend at the very moment of a renewal: the two expect the same revision, so
// one is refused, and is tried again at once.
func TestLeaseExtendMeetsRenewal(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, f := kit.Faulty(t, s.Connect(), 1, natslock.WithTuning(natslock.Tuning{WatchAfter: -1}))
		for i := range 100 {
			l := mustLock(t, c, fmt.Sprint("l", i), natslock.TTL(3*time.Second))
			extended := make(chan error, 1)
			var begun time.Time
			f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
				if kit.Stage(w) == "lock renew" {
					f.OnSend(nil)
					begun = time.Now()
					go func() { extended <- l.Extend(context.Background(), time.Minute) }()
				}
				return faults.Pass
			})
			require.NoError(t, kit.Receive(t, extended, "the extension"))
			require.Less(t, time.Since(begun), 100*time.Millisecond)
			time.Sleep(20 * time.Second)
			begun = time.Now()
			require.NoError(t, l.Extend(t.Context(), 0))
			require.Less(t, time.Since(begun), 100*time.Millisecond)
			kit.Unlock(t, l)
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
			require.Equal(t, end.UnixMilli(), kit.ValidUntil(l).UnixMilli())
			require.ErrorIs(t, l.Extend(t.Context(), 0), natslock.ErrInvalid)
			require.ErrorIs(t, l.Extend(t.Context(), time.Hour), natslock.ErrInvalid)
			require.Len(t, p.take(t, c.nc), 1)
			if d > time.Hour { // a waiter would renew its place all the while
				kit.Unlock(t, l)
				p.take(t, c.nc)
				continue
			}
			w := other.await(t, name)
			p.take(t, other.nc)
			time.Sleep(d - time.Millisecond)
			wantHeld(t, l)
			require.False(t, w.Over())
			require.Equal(t, record.TokenRevision(l.Token()), r.get("lock."+name).Sequence, "not renewed")
			<-l.Context().Done()
			require.Equal(t, end.UnixMilli(), time.Now().UnixMilli())
			wantEnded(t, l)
			<-w.Done
			require.NoError(t, w.Err)
			require.Less(t, w.At.Sub(end), 2*time.Second+margin(d), "the server frees it soon after")
			kit.Unlock(t, w.Value)
			p.take(t, c.nc, other.nc)
		}

		// Unlock ends it before.
		l := mustLock(t, c.Client, "early", natslock.Until(time.Now().Add(time.Hour)))
		kit.Unlock(t, l)
		kit.Unlock(t, mustLock(t, other.Client, "early"))

		// The lease that is left shrinks while the client waits.
		l = mustLock(t, c.Client, "busy")
		asked := time.Now()
		w := other.await(t, "busy", natslock.Until(time.Now().Add(10*time.Second)))
		missed := other.await(t, "busy", natslock.Until(time.Now().Add(3*time.Second)))
		time.Sleep(6 * time.Second)
		kit.Unlock(t, l)
		l = w.Granted(t)
		require.Equal(t, 4*time.Second, l.Remaining().Round(10*time.Millisecond))
		kit.Unlock(t, l)
		require.ErrorIs(t, missed.Failed(t), natslock.ErrTimeout)
		require.Equal(t, 3*time.Second, missed.At.Sub(asked).Round(10*time.Millisecond), "there is nothing left to wait for")
	})
}

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
		ev := c.rec.Wait(t, admin.EventEnded, "l")
		require.ErrorIs(t, ev.Cause, natslock.ErrEnded)
		require.Equal(t, "ended", ev.Type.String())
		synctest.Wait()
		require.Equal(t, natslock.Stats{Granted: 2, Released: 1, Ended: 1}, c.Stats())
		require.Zero(t, c.rec.Count(admin.EventExpired, "l"))

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
		require.ErrorIs(t, err, natslock.ErrInvalid)
		_, err = c.TryLock(t.Context(), "l", opts...)
		require.ErrorIs(t, err, natslock.ErrInvalid)
	}
	_, err := c.Lock(t.Context(), "l", natslock.Until(time.Now().Add(time.Hour)), natslock.NoRenew())
	require.ErrorIs(t, err, natslock.ErrInvalid)
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
			w := kit.Receive(t, warnings, "a warning")
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
		w := kit.Receive(t, warnings, "a warning")
		kit.Receive(t, l.Context().Done(), "the end")
		require.Equal(t, 4*time.Second, time.Since(w.at).Round(10*time.Millisecond), "so long before the end")
		require.Empty(t, warnings)

		_, err := c.Lock(t.Context(), "x", natslock.EarlyWarning(0, func(*natslock.Lock) {}))
		require.ErrorIs(t, err, natslock.ErrInvalid)
		_, err = c.Lock(t.Context(), "x", natslock.EarlyWarning(1, nil))
		require.ErrorIs(t, err, natslock.ErrInvalid)
	})
}

// A warning has its own way: no observer and no warning of another lock comes before it.
func TestLeaseEarlyWarningIsDue(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		const ttl, before = 10 * time.Second, 4 * time.Second
		slow := func(context.Context, admin.Event) { time.Sleep(10 * time.Millisecond) }
		c, release := join(t, s, admin.WithObserver(slow)), make(chan struct{})
		defer close(release)
		warned := make(chan time.Duration, 10)
		warning := func(fn func()) natslock.LockOption {
			return natslock.EarlyWarning(before, func(l *natslock.Lock) { warned <- l.Remaining(); fn() })
		}
		mustLock(t, c.Client, "blocks", natslock.TTL(ttl), warning(func() { <-release }))
		mustLock(t, c.Client, "late", natslock.TTL(ttl), warning(func() {}))
		for range 1000 {
			kit.Unlock(t, mustLock(t, c.Client, "events"))
		}
		c.link.Blackhole(true)
		for range 2 {
			require.Equal(t, before, kit.Receive(t, warned, "a warning").Round(10*time.Millisecond))
		}
		time.Sleep(time.Minute)
		require.Empty(t, warned, "once, and not after the end")
	})
}

// A holder that has unlocked is not warned: neither of an end that it does not wait for, nor
// of one that was due when it left.
func TestLeaseEarlyWarningAfterUnlock(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		blocked := make(chan struct{})
		c := join(t, s, admin.WithObserver(func(context.Context, admin.Event) { <-blocked }))
		var late atomic.Int32
		l := mustLock(t, c.Client, "l", natslock.TTL(10*time.Second), natslock.EarlyWarning(4*time.Second, func(l *natslock.Lock) {
			if l.Remaining() == 0 {
				late.Add(1)
			}
		}))
		c.link.Blackhole(true)
		time.Sleep(6 * time.Second) // the warning is due
		c.link.Heal()
		_ = l.Unlock(t.Context())
		close(blocked)
		time.Sleep(time.Minute)
		require.Zero(t, late.Load())
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
		kit.Receive(t, l.Context().Done(), "the end")
		require.Equal(t, 9*time.Second, time.Since(begun).Round(10*time.Millisecond))
		wantHeld(t, kept)
		kit.Unlock(t, kept)
	})
}
