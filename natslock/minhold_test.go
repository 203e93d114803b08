package natslock_test

import (
	"context"
	"errors"
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
	"github.com/natslock/locks/rwlock"
	"github.com/natslock/locks/testutil"
)

const minHold = 5 * time.Second

// TestMinHoldOnce starts a 10 ms job in several replicas at the same time, on clocks that are a
// second apart. It runs once, and again only after the minimum hold. The same goes for goroutines
// of one client.
func TestMinHoldOnce(t *testing.T) {
	for name, shared := range map[string]bool{"replicas": false, "siblings": true} {
		t.Run(name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				replicas := kit.Crowd(t, s, 3)
				begun := time.Now()
				var ran []time.Duration
				tick := func(n int) error {
					c := replicas[n%3]
					if shared {
						c = replicas[0]
					}
					return c.TryDo(t.Context(), "job", func(context.Context, *natslock.Lock) error {
						ran = append(ran, time.Since(begun))
						time.Sleep(10 * time.Millisecond)
						return nil
					}, natslock.MinHold(minHold))
				}
				for period := range 3 {
					time.Sleep(time.Duration(period)*10*time.Second - time.Since(begun))
					require.NoError(t, tick(period))
					for n := 1; n <= 2; n++ {
						time.Sleep(500 * time.Millisecond)
						var locked *natslock.LockedError
						require.ErrorAs(t, tick(period+n), &locked)
						require.Equal(t, shared, locked.Own)
						require.ErrorContains(t, locked, "kept for a minimum hold")
					}
				}
				require.Len(t, ran, 3)
			})
		})
	}
}

// TestMinHoldWaits checks that a client waiting for a lock in cooldown gets it when the minimum
// hold ends by the server's clock, and no earlier. The same goes for goroutines of the holder's
// client, whether or not they want a minimum hold themselves. Lost replies change nothing.
func TestMinHoldWaits(t *testing.T) {
	answers := map[string]func(n int) faults.Fate{
		"clean":     func(int) faults.Fate { return faults.Pass },
		"lost":      func(n int) faults.Fate { return first(n, faults.LoseAnswer) },
		"dropped":   func(n int) faults.Fate { return first(n, faults.Drop) },
		"late":      func(n int) faults.Fate { return first(n, faults.Delay(1500*time.Millisecond)) },
		"in flight": func(n int) faults.Fate { return first(n, faults.Refuse(kvstore.ErrInFlight)) },
	}
	for name, fate := range answers {
		for who := range 3 {
			t.Run(name+"/"+[]string{"stranger", "sibling", "sibling with a cooldown"}[who], func(t *testing.T) {
				testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
					c, f := kit.JoinFaulty(t, s)
					n := 0
					f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
						if !lastRenewal(w) {
							return faults.Pass
						}
						n++
						return fate(n)
					})
					waiter, opts := c, []natslock.LockOption(nil)
					switch who {
					case 0:
						waiter = kit.Join(t, s)
					case 2:
						opts = append(opts, natslock.MinHold(time.Second))
					}
					l := kit.Must(t, c.Lock, "l", natslock.MinHold(minHold))
					granted := time.Now()
					w := waiter.Await(t, "l", opts...)
					time.Sleep(10 * time.Millisecond)
					kit.Unlock(t, l)
					require.ErrorIs(t, l.Err(), natslock.ErrReleased)
					require.ErrorIs(t, context.Cause(l.Context()), natslock.ErrReleased)
					next := w.Granted(t)
					kept := w.At.Sub(granted)
					require.GreaterOrEqual(t, kept, minHold)
					require.LessOrEqual(t, kept, minHold+2*time.Second)
					require.Greater(t, next.Token(), l.Token())
					require.Positive(t, n)
					kit.Unlock(t, next)
				})
			})
		}
	}
}

// first returns fate for the first write and Pass for all others.
func first(n int, fate faults.Fate) faults.Fate {
	if n == 1 {
		return fate
	}
	return faults.Pass
}

// TestMinHoldAgainstRenewal checks that a renewal in flight during Unlock does not end the minimum
// hold, whether the server stores it before the cooldown record, after it, or never.
func TestMinHoldAgainstRenewal(t *testing.T) {
	for name, fate := range map[string]faults.Fate{
		"before": faults.LoseAnswer, "after": faults.Delay(200 * time.Millisecond), "never": faults.Drop,
	} {
		t.Run(name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				c, f := kit.JoinFaulty(t, s, natslock.WithTTL(3*time.Second))
				other := kit.Join(t, s)
				l := kit.Must(t, c.Lock, "l", natslock.MinHold(minHold))
				granted := time.Now()
				sent := make(chan struct{})
				f.OnSend(func(n int, w kvstore.Write) faults.Fate {
					if body, err := record.Decode(w.Value); err == nil && body.Renewal == 1 && !body.Fixed {
						close(sent)
						return fate
					}
					return faults.Pass
				})
				kit.Receive(t, sent, "a renewal")
				kit.Unlock(t, l)
				info := kit.Inspect(t, other.Client, "l")
				require.True(t, info.Holder.Fixed)
				require.Equal(t, "rest", info.Holder.Purpose)
				require.False(t, info.Holder.Expires.Before(granted.Add(minHold)))
				time.Sleep(time.Until(granted.Add(minHold)) - time.Millisecond)
				_, err := other.TryLock(t.Context(), "l")
				require.ErrorIs(t, err, natslock.ErrLocked)
				time.Sleep(2 * time.Second)
				kit.Must(t, other.Lock, "l")
			})
		})
	}
}

// TestMinHoldOver checks that an Unlock after the minimum hold, or without one, releases the lock
// immediately.
func TestMinHoldOver(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, other := kit.Join(t, s), kit.Join(t, s)
		l := kit.Must(t, c.Lock, "l", natslock.MinHold(2*time.Second))
		time.Sleep(2 * time.Second)
		kit.Unlock(t, l)
		info := kit.Inspect(t, other.Client, "l")
		require.NotNil(t, info.Holder, "the client's clock may be fast")
		require.True(t, info.Holder.Fixed)
		time.Sleep(time.Until(info.Holder.Expires) + 300*time.Millisecond)
		l = kit.Must(t, c.Lock, "l", natslock.MinHold(2*time.Second))
		time.Sleep(2300 * time.Millisecond)
		kit.Unlock(t, l)
		l, err := other.TryLock(t.Context(), "l")
		require.NoError(t, err)
		kit.Unlock(t, l)
	})
}

// TestMinHoldCrash checks that a crashed holder keeps others out for the minimum hold, even if it
// requested a shorter TTL at the grant or through Extend.
func TestMinHoldCrash(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		for _, extended := range []bool{false, true} {
			dead, other := kit.Join(t, s), kit.Join(t, s)
			l := kit.Must(t, dead.Lock, "l", natslock.MinHold(minHold), natslock.TTL(time.Second))
			granted := time.Now()
			if extended {
				require.NoError(t, l.Extend(t.Context(), time.Second))
				require.NoError(t, l.Extend(t.Context(), 10*time.Second))
				require.NoError(t, l.Extend(t.Context(), 2*time.Second))
			}
			dead.Link.Blackhole(true)
			w := other.Await(t, "l")
			next := w.Granted(t)
			require.GreaterOrEqual(t, w.At.Sub(granted), minHold)
			require.Less(t, w.At.Sub(granted), minHold+2*time.Second)
			require.ErrorIs(t, l.Unlock(t.Context()), natslock.ErrLost)
			kit.Unlock(t, next)
		}
	})
}

// TestMinHoldLost checks that a lock lost because its confirmation was late keeps others out until
// its minimum hold is over, whether or not its holder unlocks.
func TestMinHoldLost(t *testing.T) {
	for name, unlocks := range map[string]bool{"unlocked": true, "not unlocked": false} {
		t.Run(name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				const least = 5400 * time.Millisecond // the entire validity
				c, f := kit.JoinFaulty(t, s)
				other := kit.Join(t, s)
				late := time.Now().Add(5500 * time.Millisecond)
				var stored atomic.Bool
				f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
					switch body, err := record.Decode(w.Value); {
					case err != nil || body.Status != record.StatusHeld:
						return faults.Pass
					case body.Renewal == 0:
						return faults.Delay(300 * time.Millisecond)
					case time.Until(late) < 500*time.Millisecond && stored.CompareAndSwap(false, true):
						return faults.DelayAnswer(max(time.Until(late), 0))
					}
					return faults.Drop
				})
				l := kit.Must(t, c.Lock, "l", natslock.MinHold(least), natslock.TTL(time.Second))
				granted := time.Now()
				w := other.Await(t, "l")
				kit.Receive(t, l.Context().Done(), "the loss")
				require.True(t, stored.Load())
				time.Sleep(time.Until(late) + 50*time.Millisecond)
				require.ErrorIs(t, l.Err(), natslock.ErrLost)
				if unlocks {
					require.ErrorIs(t, l.Unlock(t.Context()), natslock.ErrLost)
				}
				kit.Unlock(t, w.Granted(t))
				require.GreaterOrEqual(t, w.At.Sub(granted), least)
			})
		})
	}
}

// TestMinHoldBroken checks that breaking a lock in cooldown either waits for the end of the minimum
// hold or frees the lock immediately, and that breaking a lock that is held frees it once the
// holder has stopped.
func TestMinHoldBroken(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, other := kit.Join(t, s), kit.Join(t, s)
		for _, held := range []bool{false, true} {
			for _, now := range []bool{false, true} {
				l := kit.Must(t, c.Lock, "l", natslock.MinHold(20*time.Second))
				begun := time.Now()
				w := other.Await(t, "l")
				if !held {
					kit.Unlock(t, l)
				}
				require.NoError(t, admin.New(other.Client).Break(t.Context(), admin.BreakRequest{Name: "l", ID: l.ID(), Reason: "test", Immediately: now}))
				if held && now {
					require.ErrorIs(t, l.Unlock(t.Context()), natslock.ErrLost)
				} else if held {
					require.ErrorIs(t, l.Unlock(t.Context()), natslock.ErrBroken)
				}
				kit.Unlock(t, w.Granted(t))
				if held || now {
					require.Less(t, time.Since(begun), time.Second)
				} else {
					require.GreaterOrEqual(t, time.Since(begun), 20*time.Second)
				}
			}
		}
	})
}

// TestMinHoldOverdue checks that a lock in cooldown becomes overdue like any other if the server
// forgets to remove its record.
func TestMinHoldOverdue(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, other := kit.Join(t, s), kit.Join(t, s)
		kit.Unlock(t, kit.Must(t, c.Lock, "l", natslock.MinHold(minHold)))
		granted := time.Now()
		kit.RestartWithoutTTLs(t, s)
		w := other.Begin(t, "l")
		kit.Unlock(t, w.Granted(t))
		require.GreaterOrEqual(t, w.At.Sub(granted), minHold)
		require.Less(t, w.At.Sub(granted), minHold+500*time.Millisecond)
	})
}

// TestMinHoldOfWriter checks that a writer's minimum hold keeps readers out.
func TestMinHoldOfWriter(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, other := kit.Join(t, s), kit.Join(t, s)
		l, err := rwlock.New(c.Client).Lock(t.Context(), "l", natslock.MinHold(minHold))
		require.NoError(t, err)
		granted := time.Now()
		kit.Unlock(t, l)
		_, err = rwlock.New(other.Client).TryRLock(t.Context(), "l")
		require.ErrorIs(t, err, natslock.ErrLocked)
		read, err := rwlock.New(other.Client).RLock(t.Context(), "l")
		require.NoError(t, err)
		require.GreaterOrEqual(t, time.Since(granted), minHold)
		kit.Unlock(t, read)
	})
}

// TestMinHoldWaitTogether checks that goroutines waiting together for a lock do not pass it on to
// one another if they want a minimum hold.
func TestMinHoldWaitTogether(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s)
		l := kit.Must(t, kit.Join(t, s).Lock, "l")
		var waiters []*kit.Waiting
		for range 3 {
			waiters = append(waiters, c.Await(t, "l", natslock.MinHold(minHold)))
		}
		kit.Unlock(t, l)
		granted := time.Now()
		for i, w := range waiters {
			l := w.Granted(t)
			require.GreaterOrEqual(t, w.At.Sub(granted), min(time.Duration(i), 1)*minHold)
			granted = w.At
			kit.Unlock(t, l)
		}
	})
}

// TestMinHoldJoinsNothing checks that a goroutine that wants a minimum hold does not take over its
// client's idle lock, and that no other goroutine joins its lease.
func TestMinHoldJoinsNothing(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s)
		kit.Unlock(t, kit.Must(t, c.Lock, "l", natslock.Linger(time.Hour)))
		l := kit.Must(t, c.Lock, "l", natslock.MinHold(minHold))
		granted := time.Now()
		var waiters []*kit.Waiting
		for range 3 {
			waiters = append(waiters, c.Await(t, "l", natslock.TTL(6*time.Second)))
		}
		kit.Unlock(t, l)
		time.Sleep(minHold - time.Millisecond)
		synctest.Wait()
		for _, w := range waiters {
			require.False(t, w.Over())
		}
		for _, w := range waiters {
			kit.Unlock(t, w.Granted(t))
			require.GreaterOrEqual(t, w.At.Sub(granted), minHold)
		}
	})
}

// TestMinHoldWatched checks that the watch reports the end of a minimum hold as the lock's release.
func TestMinHoldWatched(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s)
		w := kit.Follow(t, kit.Join(t, s), "l")
		kit.Unlock(t, kit.Must(t, c.Lock, "l", natslock.MinHold(minHold)))
		w.Next(admin.EventGranted)
		kit.Unlock(t, kit.Must(t, c.Lock, "l"))
		w.Next(admin.EventQueued)
		w.Next(admin.EventReleased)
		w.Next(admin.EventGranted)
		w.Next(admin.EventReleased)
		w.Nothing()
	})
}

func TestMinHoldRefused(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s)
		out := c.NC.Stats().OutMsgs
		for name, opts := range map[string][]natslock.LockOption{
			"zero":     {natslock.MinHold(0)},
			"negative": {natslock.MinHold(-1)},
			"too long": {natslock.MinHold((12 * time.Hour) + 1)},
			"until":    {natslock.MinHold(1), natslock.Until(time.Now().Add(time.Hour))},
			"linger":   {natslock.Linger(1), natslock.MinHold(1)},
		} {
			_, err := c.Lock(t.Context(), "l", opts...)
			require.Equal(t, "Invalid", matched(err), name)
			_, err = c.TryLock(t.Context(), "l", opts...)
			require.Equal(t, "Invalid", matched(err), name)
		}
		_, err := rwlock.New(c.Client).RLock(t.Context(), "l", natslock.MinHold(1))
		require.Equal(t, "Invalid", matched(err))
		require.Equal(t, out, c.NC.Stats().OutMsgs, "nothing was sent")
		l, err := c.Lock(t.Context(), "l", natslock.MinHold((12 * time.Hour)), natslock.NoRenew())
		require.NoError(t, err)
		require.Less(t, (12 * time.Hour), l.Remaining())
		require.NoError(t, errors.Join(l.Unlock(t.Context())))
	})
}
