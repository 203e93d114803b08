package natslock_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/machine"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

func TestLeaseHolderCutOff(t *testing.T) {
	for _, how := range []string{"blackhole", "cut"} {
		t.Run(how, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				const ttl = 10 * time.Second
				holder, other := kit.Join(t, s, natslock.WithTTL(ttl)), kit.Join(t, s, natslock.WithTTL(ttl))
				l := kit.Must(t, holder.Lock, "l")
				w := other.Await(t, "l")
				time.Sleep(5 * time.Second)
				var renewed time.Time
				for _, ev := range holder.Events.All() {
					if ev.Type == admin.EventRenewed {
						renewed = ev.Time
					}
				}
				require.False(t, renewed.IsZero())
				until := kit.ValidUntil(l)
				require.WithinDuration(t, renewed.Add(ttl-time.Second), until, time.Millisecond, "the last renewal and the TTL without the margin")
				if how == "cut" {
					holder.Link.Cut()
				} else {
					holder.Link.Blackhole(true)
				}
				time.Sleep(time.Until(until) - time.Millisecond)
				kit.WantHeld(t, l)
				kit.Receive(t, l.Context().Done(), "the end")
				require.WithinDuration(t, until, time.Now(), time.Millisecond)
				require.False(t, w.Over())
				begun := time.Now()
				kit.WantLost(t, l, natslock.ErrLost)
				require.Zero(t, time.Since(begun), "Unlock waits for nobody")
				require.NotErrorIs(t, l.Err(), natslock.ErrBroken)
				require.EqualValues(t, 1, holder.Stats().Lost)
				require.Zero(t, holder.Stats().Held)
				ev := holder.Events.Wait(t, admin.EventExpired, "l")
				require.ErrorIs(t, ev.Cause, natslock.ErrLost)

				next := w.Granted(t)
				require.LessOrEqual(t, w.At.Sub(renewed), ttl+500*time.Millisecond)
				require.GreaterOrEqual(t, w.At.Sub(until), 500*time.Millisecond, "the margin")
				require.Greater(t, next.Token(), l.Token())

				// The delayed renewals arrive now and change nothing.
				holder.Link.Heal()
				time.Sleep(5 * time.Second)
				kit.WantHeld(t, next)
				require.Equal(t, next.Token(), kit.Inspect(t, other.Client, "l").Holder.Token)
			})
		})
	}
}

func TestLeaseShortCut(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		holder, other := kit.Join(t, s), kit.Join(t, s)
		l := kit.Must(t, holder.Lock, "l", natslock.TTL(10*time.Second))
		w := other.Await(t, "l")
		for i := range 20 {
			time.Sleep(7 * time.Second)
			if i%2 == 0 {
				holder.Link.Cut()
			} else {
				holder.Link.Blackhole(true)
			}
			time.Sleep(4 * time.Second)
			holder.Link.Heal()
		}
		kit.WantHeld(t, l)
		require.False(t, w.Over())
		require.Zero(t, holder.Stats().Lost)
		kit.Unlock(t, l)
		kit.Unlock(t, w.Granted(t))

		// Renewals in flight may be lost, so the client renews all locks after a reconnect.
		l = kit.Must(t, holder.Lock, "long", natslock.TTL(time.Hour))
		time.Sleep(10 * time.Second)
		renewed := holder.Stats().Renewed
		holder.Link.Cut()
		time.Sleep(time.Second)
		holder.Link.Heal()
		time.Sleep(time.Second)
		require.Equal(t, renewed+1, holder.Stats().Renewed)
		require.Greater(t, l.Remaining(), time.Hour-5*time.Second)
	})
}

func TestLeaseRenewals(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s, natslock.WithTuning(natslock.Tuning{WatchAfter: -1}))
		p := kit.NewTap(t, s.Connect(), ">")
		l := kit.Must(t, c.Lock, "l", natslock.TTL(9*time.Second))
		require.Len(t, p.Take(t, c.NC), 1)
		time.Sleep(1500 * time.Millisecond) // so that the count starts between two renewals
		for range 9 {
			time.Sleep(10 * 3 * time.Second)
			n := len(p.Take(t, c.NC))
			require.InDelta(t, 10, n, 1, "one renewal in a third of the TTL")
		}
		require.InDelta(t, 90, int(c.Stats().Renewed), 1)
		kit.WantHeld(t, l)
		token := l.Token()
		kit.Unlock(t, l)
		require.Equal(t, token, l.Token(), "renewals do not change the token")

		before := c.NC // the server may acknowledge a write before forwarding it
		c = kit.Join(t, s, natslock.WithTuning(natslock.Tuning{WatchAfter: -1}))
		l = kit.Must(t, c.Lock, "l", natslock.TTL(18*time.Second))
		p.Take(t, before, c.NC)
		time.Sleep(5900 * time.Millisecond)
		for _, m := range p.Take(t, c.NC) {
			t.Errorf("before it was due: %s %v, %v after the grant", m.Subject, m.Header, 5900*time.Millisecond)
		}
		time.Sleep(200 * time.Millisecond)
		require.Len(t, p.Take(t, c.NC), 1)
		kit.WantHeld(t, l)
	})
}

// TestLeaseWatchAfter checks that a holder starts watching its record after a while, which takes a
// renewal to confirm.
func TestLeaseWatchAfter(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		subs := func(m *kit.Member) int { return m.NC.NumSubscriptions() }
		c := kit.Join(t, s)
		l := kit.Must(t, c.Lock, "l")
		before := subs(c)
		time.Sleep(990 * time.Millisecond)
		require.Equal(t, before, subs(c))
		time.Sleep(20 * time.Millisecond)
		require.Equal(t, before+1, subs(c))
		kit.Unlock(t, l)
		synctest.Wait()
		require.Equal(t, before, subs(c))

		c = kit.Join(t, s, natslock.WithTuning(natslock.Tuning{WatchAfter: 1}))
		kit.Unlock(t, kit.Must(t, c.Lock, "warm"))
		synctest.Wait()
		before = subs(c)
		l = kit.Must(t, c.Lock, "l")
		synctest.Wait()
		require.Equal(t, before+1, subs(c))
		kit.Unlock(t, l)

		c = kit.Join(t, s, natslock.WithTuning(natslock.Tuning{WatchAfter: -1}))
		kit.Must(t, c.Lock, "l")
		before = subs(c)
		time.Sleep(time.Hour)
		require.Equal(t, before, subs(c))
	})
}

func TestLeaseFractionIsRoundedUp(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s)
		r := kit.NewRaw(t, s.Connect())
		begun := time.Now()
		l := kit.Must(t, c.Lock, "l", natslock.TTL(1500*time.Millisecond))
		require.Equal(t, "2s", r.Get("lock.l").Header.Get("Nats-TTL"))
		require.Equal(t, 2*time.Second, kit.Inspect(t, c.Client, "l").Holder.TTL)
		require.Equal(t, 1800*time.Millisecond, l.Remaining().Round(time.Millisecond))
		c.Link.Cut()
		time.Sleep(1900*time.Millisecond - time.Since(begun))
		require.NotNil(t, r.Get("lock.l"))
		time.Sleep(300 * time.Millisecond)
		require.Nil(t, r.Get("lock.l"), "two seconds, not more")
	})
}

func TestLeaseSafetyMargin(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		m := kit.Join(t, s)
		for _, c := range []struct{ ttl, want time.Duration }{
			{time.Second, 900 * time.Millisecond},
			{5 * time.Second, 4500 * time.Millisecond},
			{10 * time.Second, 9 * time.Second},
			{15 * time.Second, 14 * time.Second},           // never more than 1 s
			{time.Hour, time.Hour - 3600*time.Millisecond}, // never less than a thousandth
		} {
			l := kit.Must(t, m.Lock, c.ttl.String(), natslock.TTL(c.ttl), natslock.NoRenew())
			require.InDelta(t, c.want, l.Remaining(), float64(time.Millisecond), "%+v", c)
			begun := time.Now()
			<-l.Context().Done()
			require.InDelta(t, c.want, time.Since(begun), float64(2*time.Millisecond), "%+v", c)
		}
	})
}

// margin is the least time by which a fixed lease outlives its validity.
func margin(d time.Duration) time.Duration { return d / 900 }

func TestLeaseDay(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s)
		var locks []*natslock.Lock
		for _, ttl := range []time.Duration{time.Minute, 5 * time.Minute, 10 * time.Minute} {
			locks = append(locks, kit.Must(t, c.Lock, ttl.String(), natslock.TTL(ttl)))
		}
		day := machine.Part(24 * time.Hour)
		time.Sleep(day)
		for _, l := range locks {
			kit.WantHeld(t, l)
			kit.Unlock(t, l)
		}
		require.Zero(t, c.Stats().Lost)
		require.InDelta(t, day/(20*time.Second)+day/(100*time.Second)+day/(200*time.Second), int(c.Stats().Renewed), 20)
	})
}

// TestLeaseUnlockAfterTheEnd checks that the clock alone ends a lock: a caller that is ahead of the
// renewer sees the end as well, and Unlock reports it.
func TestLeaseUnlockAfterTheEnd(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, other := kit.Join(t, s), kit.Join(t, s)
		r := kit.NewRaw(t, s.Connect())
		l := kit.Must(t, c.Lock, "l", natslock.NoRenew(), natslock.TTL(5*time.Second))
		time.Sleep(4600 * time.Millisecond)
		require.NotNil(t, r.Get("lock.l"), "the record is there still")
		require.ErrorIs(t, l.Unlock(t.Context()), natslock.ErrLost)
		synctest.Wait()
		require.Empty(t, r.Live("lock.l"), "and is deleted, so that nobody waits for it")
		next, err := other.TryLock(t.Context(), "l")
		require.NoError(t, err)

		// An Unlock while another client already holds the lock does no harm.
		l2 := kit.Must(t, c.Lock, "m", natslock.NoRenew(), natslock.TTL(5*time.Second))
		time.Sleep(6 * time.Second)
		m := kit.Must(t, other.Lock, "m")
		require.ErrorIs(t, l2.Unlock(t.Context()), natslock.ErrLost)
		time.Sleep(20 * time.Second)
		kit.WantHeld(t, m)
		kit.WantHeld(t, next)
		kit.Unlock(t, m)
		kit.Unlock(t, next)
	})
}

// TestLeaseReleaseTimeout checks that a server that does not reply delays Unlock by no more than
// the release timeout.
func TestLeaseReleaseTimeout(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, other := kit.Join(t, s, natslock.WithTuning(natslock.Tuning{ReleaseTimeout: 2 * time.Second})), kit.Join(t, s)
		l := kit.Must(t, c.Lock, "l", natslock.TTL(30*time.Second))
		c.Link.Blackhole(true)
		begun := time.Now()
		err := l.Unlock(t.Context())
		require.Equal(t, 2*time.Second, time.Since(begun).Round(10*time.Millisecond))
		require.ErrorIs(t, err, natslock.ErrUnavailable)
		require.NotErrorIs(t, err, natslock.ErrLost, "it was valid to the end")
		require.ErrorIs(t, l.Err(), natslock.ErrReleased)
		require.ErrorIs(t, l.Err(), natslock.ErrReleased)
		require.Equal(t, err, l.Unlock(t.Context()), "the first result")
		require.Equal(t, 2*time.Second, time.Since(begun).Round(10*time.Millisecond))
		// The release continues in the background.
		c.Link.Blackhole(false)
		kit.Must(t, other.Lock, "l")
		require.Less(t, time.Since(begun), 5*time.Second, "long before the TTL")
	})
}
