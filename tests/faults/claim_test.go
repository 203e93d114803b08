package faults_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

// TestFreeIsNotGranted checks that a claim has not taken the lock if it was refused because the
// lock was free in a different way than it expected: at a tombstone, or at no record any more.
func TestFreeIsNotGranted(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, fa := kit.Faulty(t, s.Connect(), 1)
		b, _ := kit.Faulty(t, s.Connect(), 1)
		held := func(l *natslock.Lock, err error) {
			t.Helper()
			require.NoError(t, err)
			_, err = b.TryLock(t.Context(), "x")
			require.ErrorIs(t, err, natslock.ErrLocked)
			require.NoError(t, l.Unlock(t.Context()))
		}
		kit.Unlock(t, kit.Must(t, b.Lock, "x"))
		held(a.TryLock(t.Context(), "x")) // expects no record but meets the tombstone
		time.Sleep(800 * time.Millisecond)
		fa.OnSend(kit.Between("lock take", 1, 1, faults.Delay(500*time.Millisecond)))
		held(a.TryLock(t.Context(), "x")) // expects its tombstone, which expires before the claim arrives
		require.Equal(t, 1, fa.Counts().Delayed)

		// Now expect one tombstone and meet another.
		time.Sleep(200 * time.Millisecond)
		fa.OnSend(func(_ int, w kvstore.Write) faults.Fate {
			if kit.Stage(w) == "lock take" && w.Expect > 0 {
				fa.OnSend(nil)
				return faults.Delay(50 * time.Millisecond)
			}
			return faults.Pass
		})
		time.AfterFunc(20*time.Millisecond, func() {
			l, err := b.Lock(context.Background(), "x")
			if assert.NoError(t, err) {
				assert.NoError(t, l.Unlock(context.Background()))
			}
		})
		held(a.TryLock(t.Context(), "x"))
		require.Equal(t, 2, fa.Counts().Delayed)
	})
}

// TestHeldIsHeld checks that if the first attempt of a claim goes unanswered and the second finds
// another client's record, that client is a holder, whatever the attempt numbers.
func TestHeldIsHeld(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a := kit.Join(t, s, natslock.WithTuning(natslock.Tuning{WatchAfter: -1}))
		b, fb := kit.Faulty(t, s.Connect(), 1)
		l := kit.Must(t, a.Lock, "x", natslock.TTL(time.Hour))
		fb.OnSend(func(n int, _ kvstore.Write) faults.Fate {
			if n == 1 {
				return faults.Drop
			}
			return faults.Pass
		})
		_, err := b.Lock(t.Context(), "x", natslock.MaxWait(10*time.Second))
		require.ErrorIs(t, err, natslock.ErrTimeout)
		require.Equal(t, 1, fb.Counts().Dropped)
		kit.WantHeld(t, l)
		require.NoError(t, l.Extend(t.Context(), 0))
	})
}

// TestLateAnswerCleansUp checks that if an attempt is acknowledged too late, the client deletes the
// acknowledged record, so that the next attempt does not have to wait for it to expire.
func TestLateAnswerCleansUp(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, fa := kit.Faulty(t, s.Connect(), 1, natslock.WithTTL(time.Second))
		fa.OnSend(func(n int, _ kvstore.Write) faults.Fate {
			if n == 1 {
				return faults.DelayAnswer(930 * time.Millisecond)
			}
			return faults.Pass
		})
		begun := time.Now()
		l, err := a.Lock(t.Context(), "x")
		require.NoError(t, err)
		require.GreaterOrEqual(t, time.Since(begun), 930*time.Millisecond)
		require.Less(t, time.Since(begun), 990*time.Millisecond)
		require.NoError(t, l.Unlock(t.Context()))
	})
}

// TestInFlightIsNotHeld checks that a write in flight (10164) is not taken as a sign of a holder.
func TestInFlightIsNotHeld(t *testing.T) {
	for name, pick := range map[string]func(*natslock.Client) kit.Taking{
		"TryLock": func(c *natslock.Client) kit.Taking { return c.TryLock },
		"Lock":    func(c *natslock.Client) kit.Taking { return c.Lock },
	} {
		t.Run(name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				a, fa := kit.Faulty(t, s.Connect(), 1, natslock.WithTTL(9*time.Second), natslock.WithTuning(natslock.Tuning{WatchAfter: -1}))
				n := map[string]int{}
				fa.OnSend(func(_ int, w kvstore.Write) faults.Fate {
					if n[kit.Stage(w)]++; n[kit.Stage(w)] <= 3 {
						return faults.Refuse(kvstore.ErrInFlight)
					}
					return faults.Pass
				})
				l, err := pick(a)(t.Context(), "x")
				require.NoError(t, err)
				time.Sleep(4 * time.Second)
				require.NoError(t, l.Err())
				require.Equal(t, uint64(1), a.Stats().Renewed, "tried again at once")
				require.NoError(t, l.Unlock(t.Context()))
				synctest.Wait()
				require.Equal(t, map[string]int{"lock take": 4, "lock renew": 4, "lock delete": 4}, n)
				require.Empty(t, kit.KeysLeft(t, s.Connect()))
			})
		})
	}
}

// TestInFlightIsTriedAgainSoon checks the pauses between retries: a write is usually in flight only
// briefly, but may take longer between continents.
func TestInFlightIsTriedAgainSoon(t *testing.T) {
	for tries, limits := range map[int][2]time.Duration{
		6:  {0, 0},
		20: {200 * time.Millisecond, 1200 * time.Millisecond},
	} {
		t.Run(fmt.Sprint(tries), func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				a, fa := kit.Faulty(t, s.Connect(), 1)
				n := 0
				fa.OnSend(func(int, kvstore.Write) faults.Fate {
					if n++; n <= tries {
						return faults.Refuse(kvstore.ErrInFlight)
					}
					return faults.Pass
				})
				begun := time.Now()
				l := kit.Must(t, a.Lock, "x")
				require.GreaterOrEqual(t, time.Since(begun), limits[0])
				require.LessOrEqual(t, time.Since(begun), limits[1])
				kit.Unlock(t, l)
			})
		})
	}
}

// TestRefusalIsReadUpOn checks that the client reads a record from a state that contains the
// revision named in the refusal. A lagging replica may not know the holder.
func TestRefusalIsReadUpOn(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a := kit.Join(t, s)
		b := kit.Join(t, s, faults.WrapStore(func(kv kvstore.KV) kvstore.KV { return &kit.Lagging{KV: kv, Answers: 1000} }))
		l := kit.Must(t, a.Lock, "x")
		_, err := b.TryLock(t.Context(), "x")
		require.ErrorIs(t, err, natslock.ErrLocked)
		var locked *natslock.LockedError
		require.ErrorAs(t, err, &locked)
		require.Equal(t, l.Token(), locked.Holder.Token)
	})
}

// TestAdoptedCountsFromItsOwnSending checks that if an attempt's reply is lost or late, the next
// attempt finds its record. The validity counts from the sending of the first attempt, and a late
// reply changes nothing.
func TestAdoptedCountsFromItsOwnSending(t *testing.T) {
	for what, fate := range map[string]faults.Fate{"lost": faults.LoseAnswer, "late": faults.DelayAnswer(2 * time.Second)} {
		t.Run(what, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				a, fa := kit.Faulty(t, s.Connect(), 1, natslock.WithTTL(9*time.Second), natslock.WithTuning(natslock.Tuning{WatchAfter: -1}))
				fa.OnSend(func(n int, _ kvstore.Write) faults.Fate {
					if n == 1 {
						return fate
					}
					return faults.Pass
				})
				sent := time.Now()
				l, err := a.Lock(t.Context(), "x")
				require.NoError(t, err)
				require.Greater(t, time.Since(sent), time.Second, "the first answer was waited for")
				require.WithinDuration(t, sent.Add(8100*time.Millisecond), kit.ValidUntil(l), 10*time.Millisecond)
				time.Sleep(1500 * time.Millisecond) // not renewed yet
				require.Equal(t, []string{"lock.x"}, kit.KeysLeft(t, s.Connect()))
				require.NoError(t, l.Unlock(t.Context()))
			})
		})
	}
}

// TestAdoptedTooLate checks that an attempt found after the end of its own validity is not a grant,
// even while the server still has its record.
func TestAdoptedTooLate(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		// The first attempt is valid for 3.6 of its 4 s. The fourth is sent after 3.2 to 3.6 s and
		// arrives after 3.7 s.
		a, fa := kit.Faulty(t, s.Connect(), 1, natslock.WithTTL(4*time.Second))
		begun := time.Now()
		fa.OnSend(func(n int, _ kvstore.Write) faults.Fate {
			switch n {
			case 1:
				return faults.LoseAnswer
			case 2, 3:
				return faults.Drop
			case 4:
				assert.Equal(t, []string{"lock.x"}, kit.KeysLeft(t, s.Connect()), "it comes too late to find anything")
				return faults.Delay(3700*time.Millisecond - time.Since(begun))
			}
			return faults.Pass
		})
		l, err := a.Lock(t.Context(), "x")
		require.NoError(t, err)
		require.Greater(t, time.Since(begun), 3*time.Second)
		require.Less(t, time.Since(begun), 4*time.Second, "its record was waited for, not deleted")
		require.Positive(t, l.Remaining(), "granted when it was over")
		require.Greater(t, l.Remaining(), 2900*time.Millisecond, "granted by a new write")
		require.NoError(t, l.Unlock(t.Context()))
	})
}

// forge writes a record, without using the library, that pretends to belong to the claim with this
// ID.
func forge(t testing.TB, r *kit.Raw, id string, attempt int, ttl time.Duration) {
	t.Helper()
	value, err := msgpack.Marshal(map[string]any{"v": 1, "s": 1, "id": id, "a": attempt, "l": int(ttl / time.Second)})
	require.NoError(t, err)
	r.Put("lock.x", value, ttl)
}

// TestGivenUpDoesNotLand checks that an attempt of an abandoned claim cannot land late. The
// attempt, which expects a tombstone, is stuck in the network, and the client gets neither a
// notification nor the reply. The client therefore replaces the tombstone, so that the server
// refuses the attempt.
func TestGivenUpDoesNotLand(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, fa := kit.Faulty(t, s.Connect(), 1)
		l, err := a.Lock(t.Context(), "x")
		require.NoError(t, err)
		require.NoError(t, l.Unlock(t.Context()))
		fa.DropAllEvents(true)
		fa.OnSend(kit.At("lock take", faults.Hold.Silent()))
		_, err = a.Lock(t.Context(), "x", natslock.MaxWait(300*time.Millisecond))
		require.ErrorIs(t, err, natslock.ErrTimeout)
		synctest.Wait()
		require.Equal(t, 1, fa.ReleaseHeld(), "long before the tombstone's end")
		synctest.Wait()
		require.Empty(t, kit.KeysLeft(t, s.Connect()))
	})
}

// TestOldAttemptLandsUnderTheLease checks that an attempt made before the grant does not belong to
// the lease, even though it belongs to the same claim, if it lands after the granted record was
// deleted.
func TestOldAttemptLandsUnderTheLease(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, fa := kit.Faulty(t, s.Connect(), 1, natslock.WithTTL(30*time.Second), natslock.WithTuning(natslock.Tuning{WatchAfter: -1}))
		fa.DropAllEvents(true)
		fa.OnSend(func(n int, _ kvstore.Write) faults.Fate {
			if n == 1 {
				return faults.Hold.Silent()
			}
			return faults.Pass
		})
		l, err := a.Lock(t.Context(), "x")
		require.NoError(t, err)
		granted := time.Now()
		store := kit.OpenStore(t, s.Connect())
		_, err = store.Delete(t.Context(), "lock.x", record.TokenRevision(l.Token()))
		require.NoError(t, err)
		time.Sleep(1500 * time.Millisecond) // until the tombstone has expired
		require.Equal(t, 1, fa.ReleaseHeld())
		synctest.Wait()
		require.Equal(t, []string{"lock.x"}, kit.KeysLeft(t, s.Connect()))
		require.NoError(t, l.Err(), "no notification has come")
		kit.Receive(t, l.Context().Done(), "the end")
		require.ErrorIs(t, l.Err(), natslock.ErrLost)
		require.Less(t, time.Since(granted), 11*time.Second, "by the first renewal")
		synctest.Wait()
		require.Empty(t, kit.KeysLeft(t, s.Connect()), "nobody has to wait for it")
	})
}

// replicated is a store that presents its bucket as replicated.
type replicated struct{ kvstore.KV }

func (replicated) Alone() bool { return false }

// TestClaimRefusedByDeposedLeader has a deposed leader refuse an attempt that the current leader
// applies. The refused client then has the lock and must not wait a whole TTL for itself.
func TestClaimRefusedByDeposedLeader(t *testing.T) {
	for name, refusal := range map[string]func(w kvstore.Write) error{
		"it has a holder":   func(w kvstore.Write) error { return &kvstore.ConflictError{Key: w.Key, Last: 1} },
		"it has a write on": func(kvstore.Write) error { return kvstore.ErrInFlight },
	} {
		t.Run(name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				a, fa := kit.FaultyOver(t, s.Connect(), 1, func(kv kvstore.KV) kvstore.KV { return replicated{kv} })
				real := kit.OpenStore(t, s.Connect())
				fa.OnSend(func(_ int, w kvstore.Write) faults.Fate {
					fa.OnSend(nil)
					_, err := real.Create(t.Context(), w.Key, w.Value, w.TTL)
					assert.NoError(t, err)
					return faults.Refuse(refusal(w))
				})
				begun := time.Now()
				l, err := a.Lock(t.Context(), "x")
				require.NoError(t, err)
				require.Less(t, time.Since(begun), time.Second)
				require.NoError(t, l.Unlock(t.Context()))
				require.Empty(t, kit.KeysLeft(t, s.Connect()))
			})
		})
	}
}
