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
		c := kit.Join(t, s)
		p := kit.NewTap(t, s.Connect(), ">")
		l := kit.Must(t, c.Lock, "l", natslock.NoRenew(), natslock.TTL(10*time.Second))
		begun := time.Now()
		time.Sleep(8 * time.Second)
		require.Len(t, p.Take(t, c.NC), 1, "not renewed")
		kit.WantHeld(t, l)
		kit.Receive(t, l.Context().Done(), "the end")
		require.Equal(t, 9*time.Second, time.Since(begun).Round(time.Millisecond))
		kit.WantLost(t, l, natslock.ErrLost)

		// Extend the lease to the same, a longer and a shorter TTL.
		time.Sleep(2 * time.Second)
		l = kit.Must(t, c.Lock, "l", natslock.NoRenew(), natslock.TTL(10*time.Second))
		p.Take(t, c.NC)
		time.Sleep(5 * time.Second)
		require.NoError(t, l.Extend(t.Context(), 0))
		require.Len(t, p.Take(t, c.NC), 1)
		require.Equal(t, 9*time.Second, l.Remaining().Round(time.Millisecond))
		require.NoError(t, l.Extend(t.Context(), time.Minute))
		require.Equal(t, 59*time.Second, l.Remaining().Round(time.Millisecond))
		time.Sleep(50 * time.Second)
		kit.WantHeld(t, l)
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
		c := kit.Join(t, s, natslock.WithTuning(natslock.Tuning{WatchAfter: -1}))
		r := kit.NewRaw(t, s.Connect())
		p := kit.NewTap(t, s.Connect(), ">")
		l := kit.Must(t, c.Lock, "l", natslock.TTL(10*time.Second))

		// A renewed lease continues with the new TTL.
		require.NoError(t, l.Extend(t.Context(), time.Minute))
		require.Equal(t, "60s", r.Get("lock.l").Header.Get("Nats-TTL"))
		p.Take(t, c.NC)
		time.Sleep(10 * time.Minute)
		require.InDelta(t, 30, len(p.Take(t, c.NC)), 1)
		require.NoError(t, l.Extend(t.Context(), 3*time.Second))
		require.Equal(t, 2700*time.Millisecond, l.Remaining().Round(time.Millisecond))
		p.Take(t, c.NC)
		time.Sleep(time.Minute + 500*time.Millisecond)
		require.InDelta(t, 60, len(p.Take(t, c.NC)), 2)
		kit.WantHeld(t, l)

		for _, ttl := range []time.Duration{-1, time.Millisecond, time.Second - 1, 25 * time.Hour} {
			require.ErrorIs(t, l.Extend(t.Context(), ttl), natslock.ErrInvalid)
		}
		require.Empty(t, p.Take(t, c.NC))
		kit.WantHeld(t, l)

		// If an Extend gets no reply, the lock is as valid as before.
		require.NoError(t, l.Extend(t.Context(), 10*time.Second))
		until := kit.ValidUntil(l)
		c.Link.Blackhole(true)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		err := l.Extend(ctx, time.Hour)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, natslock.ErrLost)
		kit.WantHeld(t, l)
		require.Equal(t, until.UnixMilli(), kit.ValidUntil(l).UnixMilli())
		// It is valid for less time if a shorter TTL was requested, because the server may have applied
		// it.
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, l.Extend(ctx, 2*time.Second), context.DeadlineExceeded)
		require.LessOrEqual(t, l.Remaining(), 2*time.Second)
		// An Extend that is waiting when the lock is lost returns the reason.
		err = l.Extend(t.Context(), 0)
		require.ErrorIs(t, err, natslock.ErrLost)
		require.ErrorIs(t, l.Extend(t.Context(), 0), natslock.ErrLost)
		kit.WantLost(t, l, natslock.ErrLost)

		c.Link.Heal()
		time.Sleep(2 * time.Hour)
		l = kit.Must(t, c.Lock, "l")
		kit.Unlock(t, l)
		require.ErrorIs(t, l.Extend(t.Context(), 0), natslock.ErrReleased)
	})
}

// TestLeaseExtendMeetsRenewal calls Extend at the very moment of a renewal. Both expect the same
// revision, so one of them is refused and immediately retried.
func TestLeaseExtendMeetsRenewal(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, f := kit.Faulty(t, s.Connect(), 1, natslock.WithTuning(natslock.Tuning{WatchAfter: -1}))
		for i := range 100 {
			l := kit.Must(t, c.Lock, fmt.Sprint("l", i), natslock.TTL(3*time.Second))
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
		c, other := kit.Join(t, s), kit.Join(t, s)
		r := kit.NewRaw(t, s.Connect())
		p := kit.NewTap(t, s.Connect(), "lock.>")
		for i, d := range []time.Duration{500 * time.Millisecond, 2 * time.Second, 90*time.Second + 300*time.Millisecond, 30 * 24 * time.Hour, 365 * 24 * time.Hour} {
			name := fmt.Sprint("l", i)
			end := time.Now().Add(d)
			l := kit.Must(t, c.Lock, name, natslock.Until(end))
			require.Equal(t, end.UnixMilli(), kit.ValidUntil(l).UnixMilli())
			require.ErrorIs(t, l.Extend(t.Context(), 0), natslock.ErrInvalid)
			require.ErrorIs(t, l.Extend(t.Context(), time.Hour), natslock.ErrInvalid)
			require.Len(t, p.Take(t, c.NC), 1)
			if d > time.Hour { // a waiter would keep renewing its place
				kit.Unlock(t, l)
				p.Take(t, c.NC)
				continue
			}
			w := other.Await(t, name)
			p.Take(t, other.NC)
			time.Sleep(d - time.Millisecond)
			kit.WantHeld(t, l)
			require.False(t, w.Over())
			require.Equal(t, record.TokenRevision(l.Token()), r.Get("lock."+name).Sequence, "not renewed")
			<-l.Context().Done()
			require.Equal(t, end.UnixMilli(), time.Now().UnixMilli())
			kit.WantEnded(t, l)
			<-w.Done
			require.NoError(t, w.Err)
			require.Less(t, w.At.Sub(end), 2*time.Second+margin(d), "the server frees it soon after")
			kit.Unlock(t, w.Value)
			p.Take(t, c.NC, other.NC)
		}

		// Unlock ends the lock early.
		l := kit.Must(t, c.Lock, "early", natslock.Until(time.Now().Add(time.Hour)))
		kit.Unlock(t, l)
		kit.Unlock(t, kit.Must(t, other.Lock, "early"))

		// The remaining lease shrinks while the client waits.
		l = kit.Must(t, c.Lock, "busy")
		asked := time.Now()
		w := other.Await(t, "busy", natslock.Until(time.Now().Add(10*time.Second)))
		missed := other.Await(t, "busy", natslock.Until(time.Now().Add(3*time.Second)))
		time.Sleep(6 * time.Second)
		kit.Unlock(t, l)
		l = w.Granted(t)
		require.Equal(t, 4*time.Second, l.Remaining().Round(10*time.Millisecond))
		kit.Unlock(t, l)
		require.ErrorIs(t, missed.Failed(t), natslock.ErrTimeout)
		require.Equal(t, 3*time.Second, missed.At.Sub(asked).Round(10*time.Millisecond), "there is nothing left to wait for")
	})
}

// TestLeaseUntilEnds checks that a lock held to its planned end is not reported or counted as lost.
// Do returns nil for work that was done by then.
func TestLeaseUntilEnds(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s)
		until := func() natslock.LockOption { return natslock.Until(time.Now().Add(10 * time.Second)) }
		work := func(d time.Duration) func(context.Context, *natslock.Lock) error {
			return func(context.Context, *natslock.Lock) error { time.Sleep(d); return nil }
		}
		require.NoError(t, c.Do(t.Context(), "l", work(9*time.Second), until()))
		err := c.Do(t.Context(), "l", work(11*time.Second), until())
		require.ErrorIs(t, err, natslock.ErrEnded)
		require.NotErrorIs(t, err, natslock.ErrLost)
		ev := c.Events.Wait(t, admin.EventEnded, "l")
		require.ErrorIs(t, ev.Cause, natslock.ErrEnded)
		require.Equal(t, "ended", ev.Type.String())
		synctest.Wait()
		require.Equal(t, natslock.Stats{Granted: 2, Released: 1, Ended: 1}, c.Stats())
		require.Zero(t, c.Events.Count(admin.EventExpired, "l"))

		// An earlier end is a loss or a break.
		l := kit.Must(t, c.Lock, "l", until())
		kit.NewRaw(t, s.Connect()).Remove("lock.l")
		require.NoError(t, l.Err())
		time.Sleep(5 * time.Second) // it is watching its record by now
		synctest.Wait()
		kit.WantLost(t, l, natslock.ErrLost)
		l = kit.Must(t, c.Lock, "m", until())
		kit.Break(t, kit.Join(t, s).Client, l, "it hangs")
		time.Sleep(5 * time.Second)
		kit.WantLost(t, l, natslock.ErrBroken)
		require.Equal(t, uint64(1), c.Stats().Ended)
	})
}

func TestLeaseUntilRefused(t *testing.T) {
	s := testutil.RunServer(t)
	c := kit.Join(t, s)
	before := c.NC.Stats().OutMsgs
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
	require.Equal(t, before, c.NC.Stats().OutMsgs)
}

func TestLeaseEarlyWarning(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s)
		type warning struct {
			at   time.Time
			left time.Duration
			lock *natslock.Lock
		}
		warnings := make(chan warning, 10)
		l := kit.Must(t, c.Lock, "l", natslock.TTL(10*time.Second), natslock.EarlyWarning(4*time.Second, func(l *natslock.Lock) {
			warnings <- warning{time.Now(), l.Remaining(), l}
		}))
		time.Sleep(time.Minute)
		require.Empty(t, warnings, "renewals come in time")
		for range 3 { // each confirmation rearms the warning
			c.Link.Blackhole(true)
			w := kit.Receive(t, warnings, "a warning")
			require.Same(t, l, w.lock)
			require.Equal(t, 4*time.Second, w.left.Round(10*time.Millisecond))
			time.Sleep(1500 * time.Millisecond)
			require.ErrorIs(t, c.Healthy(), natslock.ErrUnavailable, "overdue")
			c.Link.Blackhole(false)
			time.Sleep(10 * time.Second)
			require.Empty(t, warnings, "once per confirmation")
			kit.WantHeld(t, l)
			require.NoError(t, c.Healthy())
		}
		c.Link.Blackhole(true)
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

// TestLeaseEarlyWarningIsDue checks that a warning is not delayed by observers or by warnings of
// other locks.
func TestLeaseEarlyWarningIsDue(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		const ttl, before = 10 * time.Second, 4 * time.Second
		slow := func(context.Context, admin.Event) { time.Sleep(10 * time.Millisecond) }
		c, release := kit.Join(t, s, admin.WithObserver(slow)), make(chan struct{})
		defer close(release)
		warned := make(chan time.Duration, 10)
		warning := func(fn func()) natslock.LockOption {
			return natslock.EarlyWarning(before, func(l *natslock.Lock) { warned <- l.Remaining(); fn() })
		}
		kit.Must(t, c.Lock, "blocks", natslock.TTL(ttl), warning(func() { <-release }))
		kit.Must(t, c.Lock, "late", natslock.TTL(ttl), warning(func() {}))
		for range 1000 {
			kit.Unlock(t, kit.Must(t, c.Lock, "events"))
		}
		c.Link.Blackhole(true)
		for range 2 {
			require.Equal(t, before, kit.Receive(t, warned, "a warning").Round(10*time.Millisecond))
		}
		time.Sleep(time.Minute)
		require.Empty(t, warned, "once, and not after the end")
	})
}

// TestLeaseEarlyWarningAfterUnlock checks that a holder that has unlocked gets no more warnings,
// neither of an end that no longer concerns it nor one that was already due when it left.
func TestLeaseEarlyWarningAfterUnlock(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		blocked := make(chan struct{})
		c := kit.Join(t, s, admin.WithObserver(func(context.Context, admin.Event) { <-blocked }))
		var late atomic.Int32
		l := kit.Must(t, c.Lock, "l", natslock.TTL(10*time.Second), natslock.EarlyWarning(4*time.Second, func(l *natslock.Lock) {
			if l.Remaining() == 0 {
				late.Add(1)
			}
		}))
		c.Link.Blackhole(true)
		time.Sleep(6 * time.Second) // the warning is due
		c.Link.Heal()
		_ = l.Unlock(t.Context())
		close(blocked)
		time.Sleep(time.Minute)
		require.Zero(t, late.Load())
	})
}

// TestLeaseEarlyWarningBlocks checks that a slow warning delays neither the renewer nor other
// locks.
func TestLeaseEarlyWarningBlocks(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s)
		release := make(chan struct{})
		defer close(release)
		l := kit.Must(t, c.Lock, "l", natslock.NoRenew(), natslock.TTL(10*time.Second),
			natslock.EarlyWarning(8*time.Second, func(*natslock.Lock) { <-release }))
		kept := kit.Must(t, c.Lock, "kept", natslock.TTL(3*time.Second))
		begun := time.Now()
		kit.Receive(t, l.Context().Done(), "the end")
		require.Equal(t, 9*time.Second, time.Since(begun).Round(10*time.Millisecond))
		kit.WantHeld(t, kept)
		kit.Unlock(t, kept)
	})
}
