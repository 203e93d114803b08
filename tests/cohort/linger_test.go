package cohort_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

// TestLingerCycles checks that a lingering lock is taken again without sending a message.
func TestLingerCycles(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s)
		lingers := natslock.Linger(time.Minute)
		token := uint64(0)
		cycle := func() {
			l := kit.Must(t, c.Lock, "l", lingers)
			require.Greater(t, l.Token(), token)
			token = l.Token()
			kit.Unlock(t, l)
		}
		cycle()
		synctest.Wait() // until the client has subscribed and listed the queue
		taps := kit.NewTap(t, s.Connect(), ">")
		before := c.NC.Stats().OutMsgs
		for range 320 {
			cycle()
		}
		require.LessOrEqual(t, c.NC.Stats().OutMsgs-before, uint64(10))
		require.LessOrEqual(t, len(taps.Take(t, c.NC)), 20)
		l, err := c.TryLock(t.Context(), "l")
		require.NoError(t, err)
		kit.Unlock(t, l) // this one does not linger
		require.Nil(t, kit.Inspect(t, c.Client, "l").Holder)
		kit.WantNothing(t, s)
	})
}

// TestLingerEnds checks that the lock is free when its linger time is over.
func TestLingerEnds(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s)
		for _, d := range []time.Duration{time.Second, 7 * time.Second, time.Minute} {
			kit.Unlock(t, kit.Must(t, c.Lock, "l", natslock.Linger(d)))
			time.Sleep(d - time.Millisecond)
			require.NotNil(t, kit.Inspect(t, c.Client, "l").Holder, d)
			time.Sleep(10 * time.Millisecond)
			require.Nil(t, kit.Inspect(t, c.Client, "l").Holder, d)
			kit.WantNothing(t, s)
		}
	})
}

// TestLingerRecalled checks that the client gives up an idle lock when another client queues for
// it.
func TestLingerRecalled(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, other := kit.Join(t, s), kit.Join(t, s)
		kit.Unlock(t, kit.Must(t, c.Lock, "l", lingers))
		time.Sleep(time.Minute)
		begun := time.Now()
		l := kit.Must(t, other.Lock, "l")
		require.Less(t, time.Since(begun), 10*time.Millisecond)
		w := c.Settle(t, lingers)
		third := kit.Join(t, s).Settle(t)
		kit.Unlock(t, l)
		mine := w.Granted(t)
		kit.UnlockAll(t, mine, third)
		kit.WantNothing(t, s)
	})
}

// TestLingerLostNotification checks how a client that missed the notification of a waiter learns of
// it: from the renewal of the waiter's place, or when a goroutine asks for the lease after five
// seconds. Otherwise the waiter waits until the linger time is over.
func TestLingerLostNotification(t *testing.T) {
	for name, tc := range map[string]struct{ asks, waits time.Duration }{
		"place":    {time.Hour, 5 * time.Second},
		"all":      {5 * time.Second, 5 * time.Second},
		"all long": {time.Hour, 20 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				lingers := natslock.Linger(80 * time.Second)
				c, f := kit.JoinFaulty(t, s)
				other := kit.Join(t, s)
				kit.Unlock(t, kit.Must(t, c.Lock, "l", lingers))
				time.Sleep(time.Minute)
				if kit.Deaf(f); name == "place" {
					dropPlaces(f)
				}
				w := other.Settle(t)
				begun := time.Now()
				var own *kit.Waiting
				if tc.asks < tc.waits*2 {
					time.Sleep(tc.asks)
					own = c.Settle(t, lingers)
				}
				l := w.Granted(t)
				require.InDelta(t, tc.waits, w.At.Sub(begun), float64(100*time.Millisecond))
				if own != nil {
					require.False(t, own.Over(), "another one is inside")
					f.DropEvents(nil)
				}
				kit.Unlock(t, l)
				if own != nil {
					kit.Unlock(t, own.Granted(t))
				}
			})
		})
	}
}

// TestLingerSibling checks that the client gives up an idle lease immediately when one of its own
// goroutines wants a different lease.
func TestLingerSibling(t *testing.T) {
	for _, try := range []bool{false, true} {
		testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
			c := kit.Join(t, s)
			kit.Unlock(t, kit.Must(t, c.Lock, "l", lingers))
			time.Sleep(time.Minute)
			begun := time.Now()
			lock := c.Lock
			if try {
				lock = c.TryLock
			}
			l, err := lock(t.Context(), "l", natslock.TTL(20*time.Second))
			require.NoError(t, err)
			require.Less(t, time.Since(begun), 10*time.Millisecond)
			kit.Unlock(t, l)
			kit.WantNothing(t, s)
		})
	}
}

// TestLingerClose checks that Close releases idle locks immediately.
func TestLingerClose(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s)
		for _, name := range []string{"a", "b"} {
			kit.Unlock(t, kit.Must(t, c.Lock, name, lingers))
		}
		begun := time.Now()
		require.NoError(t, c.Client.Close(context.Background()))
		require.Less(t, time.Since(begun), 10*time.Millisecond)
		kit.WantNothing(t, s)
	})
}

// TestLingerTryLock checks that a lingering lock refuses another client's TryLock, which writes
// nothing but its claim. The error reports whether the lock was idle when last renewed. Lock gets
// it immediately.
func TestLingerTryLock(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s)
		other, f := kit.JoinFaulty(t, s)
		refused := func(idle bool, text string) {
			t.Helper()
			writes := f.Counts().Sends
			begun, sent := time.Now(), other.NC.Stats().OutMsgs
			_, err := other.TryLock(t.Context(), "l")
			var locked *natslock.LockedError
			require.ErrorAs(t, err, &locked)
			require.Zero(t, time.Since(begun))
			require.LessOrEqual(t, other.NC.Stats().OutMsgs-sent, uint64(3), "its claim, a read, and now and then a verification")
			require.LessOrEqual(t, f.Counts().Sends-writes, 1)
			require.True(t, locked.Lingers)
			require.Equal(t, idle, locked.Idle)
			require.Contains(t, err.Error(), text)
		}
		free := func() {
			t.Helper()
			begun := time.Now()
			kit.Unlock(t, kit.Must(t, other.Lock, "l"))
			require.Less(t, time.Since(begun), 10*time.Millisecond)
			time.Sleep(2 * time.Second)
			kit.WantNothing(t, s)
		}
		for name, lock := range map[string]func(context.Context, string, ...natslock.LockOption) (*natslock.Lock, error){"Lock": c.Lock, "TryLock": c.TryLock} {
			l, err := lock(t.Context(), "l", lingers)
			require.NoError(t, err)
			time.Sleep(time.Second)
			refused(false, "which lingers and may be idle")
			sent := c.NC.Stats().OutMsgs
			kit.Unlock(t, l)
			l = kit.Must(t, c.Lock, "l", lingers)
			require.LessOrEqual(t, c.NC.Stats().OutMsgs-sent, uint64(2), "%s: a list, from a subscription that is older, and now and then a verification", name)
			kit.Unlock(t, l)
			refused(false, "which lingers and may be idle")
			time.Sleep(time.Minute)
			refused(true, "idle when last renewed")
			require.Equal(t, 1, c.Stats().Idle, name)
			free()
		}
	})
}

// TestLingerEvicted checks that the least recently used lock is given up when MaxLingering is
// reached.
func TestLingerEvicted(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s, natslock.WithTuning(natslock.Tuning{MaxLingering: 2}))
		for _, name := range []string{"a", "b", "a", "c"} {
			kit.Unlock(t, kit.Must(t, c.Lock, name, lingers))
		}
		synctest.Wait()
		require.Equal(t, 2, c.Stats().Idle)
		require.Zero(t, c.Stats().Held)
		for name, idle := range map[string]bool{"a": true, "b": false, "c": true} {
			require.Equal(t, idle, kit.Inspect(t, c.Client, name).Holder != nil, name)
		}
	})
}

// TestLingerBroken checks that a broken idle lock is free immediately if its client is alive.
func TestLingerBroken(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, other := kit.Join(t, s), kit.Join(t, s)
		for _, crashed := range []bool{false, true} {
			kit.Unlock(t, kit.Must(t, c.Lock, "l", lingers))
			time.Sleep(time.Minute)
			h := kit.Inspect(t, other.Client, "l").Holder
			require.True(t, h.Lingers && h.Idle)
			if crashed {
				c.Link.Blackhole(true)
			}
			begun := time.Now()
			require.NoError(t, admin.New(other.Client).Break(t.Context(), admin.BreakRequest{Name: "l", ID: h.ID}))
			kit.Unlock(t, kit.Must(t, other.Lock, "l"))
			if !crashed {
				require.Less(t, time.Since(begun), 10*time.Millisecond)
				require.Zero(t, c.Stats().Idle)
				continue
			}
			require.Less(t, time.Since(begun), 16*time.Second)
			require.Greater(t, time.Since(begun), 10*time.Second)
		}
	})
}

// TestLingerLost checks that a client that is cut off keeps no idle lock beyond the end of its
// lease.
func TestLingerLost(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, other := kit.Join(t, s), kit.Join(t, s)
		l := kit.Must(t, c.Lock, "l", lingers)
		token := l.Token()
		kit.Unlock(t, l)
		time.Sleep(time.Minute)
		c.Link.Cut()
		begun := time.Now()
		l = kit.Must(t, other.Lock, "l")
		require.Less(t, time.Since(begun), 15*time.Second+500*time.Millisecond)
		require.Greater(t, l.Token(), token)
		require.Zero(t, c.Stats().Idle)
		kit.Unlock(t, l)
		require.Zero(t, c.Stats().Lost, "nobody held it")
	})
}

// TestLingerTwoClients checks that lingering does not slow down two clients that alternate.
func TestLingerTwoClients(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b := kit.Join(t, s), kit.Join(t, s)
		begun := time.Now()
		for range 20 {
			for _, m := range []*kit.Member{a, b} {
				kit.Unlock(t, kit.Must(t, m.Lock, "l", lingers))
				synctest.Wait()
			}
		}
		require.Less(t, time.Since(begun), time.Second)
	})
}

func TestLingerInvalid(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s)
		for _, opts := range [][]natslock.LockOption{
			{natslock.Linger(0)}, {natslock.Linger(-1)}, {natslock.Linger(time.Hour + 1)},
			{natslock.Linger(time.Second), natslock.NoRenew()},
			{natslock.Linger(time.Second), natslock.Until(time.Now().Add(time.Minute))},
		} {
			_, err := c.Lock(t.Context(), "l", opts...)
			require.ErrorIs(t, err, natslock.ErrInvalid)
		}
		_, err := kit.Join(t, s, exactly()).Lock(t.Context(), "l", lingers)
		require.ErrorIs(t, err, natslock.ErrInvalid, "each goroutine queues by itself")
	})
}
