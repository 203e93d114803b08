package faults_test

import (
	"fmt"
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

// TestGoneIsNotWrittenAgain checks that a renewal does not rewrite a record that no longer exists.
// A refusal without a revision means that the lock is lost.
func TestGoneIsNotWrittenAgain(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, _ := kit.Faulty(t, s.Connect(), 1, natslock.WithTTL(30*time.Second), natslock.WithTuning(natslock.Tuning{WatchAfter: -1}))
		r := kit.NewRaw(t, s.Connect())
		l, err := a.Lock(t.Context(), "x")
		require.NoError(t, err)
		granted := time.Now()
		_, err = kit.OpenStore(t, s.Connect()).Delete(t.Context(), "lock.x", record.TokenRevision(l.Token()))
		require.NoError(t, err)
		time.Sleep(2 * time.Second)
		require.Nil(t, r.Get("lock.x"), "its tombstone has ended")
		kit.Receive(t, l.Context().Done(), "the end")
		require.Less(t, time.Since(granted), 11*time.Second, "by the first renewal")
		require.ErrorIs(t, l.Err(), natslock.ErrLost)
		time.Sleep(time.Minute)
		require.Nil(t, r.Get("lock.x"))
	})
}

// TestReleaseGoesOn checks that a release that the server does not receive in time continues after
// its caller has returned.
func TestReleaseGoesOn(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, fa := kit.Faulty(t, s.Connect(), 1, natslock.WithTTL(time.Minute), natslock.WithTuning(natslock.Tuning{ReleaseTimeout: 2 * time.Second}))
		l, err := a.Lock(t.Context(), "x")
		require.NoError(t, err)
		fa.OnSend(func(int, kvstore.Write) faults.Fate { return faults.Drop })
		require.ErrorIs(t, l.Unlock(t.Context()), natslock.ErrUnavailable)
		require.Equal(t, []string{"lock.x"}, kit.KeysLeft(t, s.Connect()))
		fa.OnSend(nil)
		time.Sleep(5 * time.Second)
		require.Empty(t, kit.KeysLeft(t, s.Connect()))
	})
}

// TestFoundRenewalCountsFromItsOwnSending checks that if the reply to a renewal is lost, the next
// one is refused and discovers it. The validity counts from the sending of the renewal that was
// found.
func TestFoundRenewalCountsFromItsOwnSending(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, fa := kit.Faulty(t, s.Connect(), 1, natslock.WithTTL(9*time.Second), natslock.WithTuning(natslock.Tuning{WatchAfter: -1}))
		var sent []time.Time
		kit.OnRenewal(fa, func(n int) faults.Fate {
			sent = append(sent, time.Now())
			switch n {
			case 1:
				return faults.LoseAnswer
			case 2:
				return faults.Pass
			}
			return faults.Drop
		})
		l, err := a.Lock(t.Context(), "x")
		require.NoError(t, err)
		kit.Receive(t, l.Context().Done(), "the end")
		ended := time.Now()
		synctest.Wait()
		require.Greater(t, sent[1].Sub(sent[0]), 500*time.Millisecond)
		require.WithinDuration(t, sent[0].Add(8100*time.Millisecond), ended, 10*time.Millisecond)
		require.Equal(t, uint64(1), a.Stats().Renewed)
	})
}

// TestBreakOfUnseenRenewal breaks the record of a renewal whose reply was lost. The broken record
// looks like that renewal, but must end the lease.
func TestBreakOfUnseenRenewal(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, fa := kit.Faulty(t, s.Connect(), 1, natslock.WithTTL(9*time.Second), natslock.WithTuning(natslock.Tuning{WatchAfter: -1}))
		b, _ := kit.Faulty(t, s.Connect(), 1)
		kit.OnRenewal(fa, func(n int) faults.Fate {
			if n == 1 {
				return faults.LoseAnswer
			}
			return faults.Pass
		})
		l, err := a.Lock(t.Context(), "x")
		require.NoError(t, err)
		time.Sleep(3200 * time.Millisecond)
		require.Equal(t, 1, fa.Counts().AnswersLost)
		require.NoError(t, admin.New(b).Break(t.Context(), admin.BreakRequest{Kind: admin.KindMutex, Name: "x", ID: l.ID(), Reason: "test"}))
		broken := time.Now()
		kit.Receive(t, l.Context().Done(), "the end")
		require.ErrorIs(t, l.Err(), natslock.ErrBroken)
		require.Less(t, time.Since(broken), 2*time.Second, "by the next renewal")
		time.Sleep(2 * time.Second)
		require.NotNil(t, kit.Inspect(t, b, "x").Holder.Broken, "a renewal has undone the break")
		require.ErrorIs(t, l.Unlock(t.Context()), natslock.ErrBroken)
	})
}

// TestRenewalsGoTogether checks that renewals of a client that are due at about the same time are
// sent together, a little early, and separately from the others. The first renewal, at the start of
// a watch, is exempt.
func TestRenewalsGoTogether(t *testing.T) {
	for ttl, span := range map[time.Duration]time.Duration{15 * time.Second: 100 * time.Millisecond, time.Second: 11 * time.Millisecond} {
		t.Run(ttl.String(), func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				a, f := kit.Faulty(t, s.Connect(), 1, natslock.WithTTL(ttl), natslock.WithTuning(natslock.Tuning{WatchAfter: -1}))
				sent := map[string][]time.Time{} // the first is when the lock was taken
				var times []time.Time
				f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
					sent[w.Key] = append(sent[w.Key], time.Now())
					if w.Expect > 0 && (len(times) == 0 || !times[len(times)-1].Equal(time.Now())) {
						times = append(times, time.Now())
					}
					return faults.Pass
				})
				const locks, rounds = 50, 4
				var held []*natslock.Lock
				for i := range locks {
					held = append(held, kit.Must(t, a.Lock, fmt.Sprint(i)))
					time.Sleep(span / 10)
				}
				time.Sleep(ttl*rounds/3 - 6*span)
				synctest.Wait()
				f.OnSend(nil)
				for key, at := range sent {
					require.GreaterOrEqual(t, len(at), rounds, key)
					for i, begun := range at[:len(at)-1] {
						early := ttl/3 - at[i+1].Sub(begun)
						require.GreaterOrEqual(t, early, time.Duration(0), "late")
						require.LessOrEqual(t, early, span, "early")
					}
				}
				require.LessOrEqual(t, len(times), rounds*(locks/10+1), "not each by itself")
				for _, l := range held {
					kit.Unlock(t, l)
				}
			})
		})
	}
}
