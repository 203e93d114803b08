package faults_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/history"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

// faultySteps are the writes into which [faultAtSteps] injects faults.
var faultySteps = []struct {
	stage string
	ofB   bool
	first int // range of the writes of that stage that go wrong
	last  int
}{
	{stage: "lock take", first: 1, last: 1},
	{stage: "lock take", first: 1, last: 2},
	{stage: "lock renew", first: 1, last: 1},
	{stage: "lock renew", first: 2, last: 3},
	{stage: "lock renew", first: 1, last: 1000},
	{stage: "lock delete", first: 1, last: 1},
	{stage: "lock delete", first: 1, last: 2},
	{stage: "wait take", ofB: true, first: 1, last: 1},
	{stage: "wait take", ofB: true, first: 1, last: 3},
	{stage: "wait renew", ofB: true, first: 1, last: 2},
	{stage: "wait renew", ofB: true, first: 1, last: 1000},
	{stage: "wait delete", ofB: true, first: 1, last: 1},
	{stage: "lock take", ofB: true, first: 1, last: 1},
	{stage: "lock take", ofB: true, first: 2, last: 2},
	{stage: "lock take", ofB: true, first: 3, last: 3},
	{stage: "lock take", ofB: true, first: 2, last: 4},
}

// TestFaultAtEveryStep combines each step with each fate. The bucket is in memory, so the scenarios
// run in parallel.
func TestFaultAtEveryStep(t *testing.T) {
	faultAtSteps(t, 1, func(t *testing.T, scenario func(*testing.T, kit.FaultyBucket)) {
		t.Parallel()
		kit.WithMemoryBucket(t, scenario)
	})
}

// TestFaultAtEveryStepServer is TestFaultAtEveryStep on a server, where by default each step is
// combined with only two fates.
func TestFaultAtEveryStepServer(t *testing.T) {
	apart := 6
	if tier.IsProof() {
		apart = 1
	}
	faultAtSteps(t, apart, kit.WithServerBucket)
}

// faultAtSteps runs one scenario repeatedly, each time with a fault in a different write. A takes a
// lock and keeps it over several renewals while B queues for it. A releases the lock, then B takes
// and releases it. Whatever happens, the two never hold the lock at the same time, B gets in, and
// nothing is left behind.
//
// Each step is combined with every apart-th fate, shifted by one from step to step.
func faultAtSteps(t *testing.T, apart int, in func(t *testing.T, scenario func(*testing.T, kit.FaultyBucket))) {
	for i, step := range faultySteps {
		for j, f := range kit.Fates {
			if (i+j)%apart != 0 {
				continue
			}
			who := "A"
			if step.ofB {
				who = "B"
			}
			t.Run(fmt.Sprintf("%s %s %d-%d/%s", who, step.stage, step.first, step.last, f.Name), func(t *testing.T) {
				in(t, func(t *testing.T, bucket kit.FaultyBucket) {
					a, fa := bucket.Client(t, 1, natslock.WithTTL(5*time.Second), natslock.WithOwner("A"))
					b, fb := bucket.Client(t, 1, natslock.WithTTL(5*time.Second), natslock.WithOwner("B"))
					ref := history.NewRecorder()
					target := fa
					if step.ofB {
						target = fb
					}
					target.OnSend(kit.Between(step.stage, step.first, step.last, f.Fate))

					la, err := a.Lock(t.Context(), "x")
					require.NoError(t, err)
					ref.Granted(admin.KindMutex, admin.Exclusive, la)
					time.Sleep(time.Second)
					gotB := make(chan time.Time, 1)
					go func() {
						lb, err := b.Lock(context.Background(), "x")
						if !assert.NoError(t, err) {
							close(gotB)
							return
						}
						ref.Granted(admin.KindMutex, admin.Exclusive, lb)
						gotB <- time.Now()
						time.Sleep(2 * time.Second)
						assert.NoError(t, lb.Unlock(context.Background()))
					}()
					select {
					case <-time.After(11 * time.Second):
					case <-la.Context().Done():
					}
					lost := la.Err() != nil
					released := time.Now()
					switch err := la.Unlock(t.Context()); {
					case lost:
						require.ErrorIs(t, err, natslock.ErrLost)
					case err != nil:
						// A held the lock to the end, but the server did not confirm the release.
						require.ErrorIs(t, err, natslock.ErrUnavailable)
					}
					got := <-gotB
					require.False(t, got.IsZero(), "B failed")
					assert.Less(t, got.Sub(released), 6500*time.Millisecond, "B waited longer than the lease and a bit")
					n := target.Counts()
					assert.Positive(t, n.Sends-n.Passed, "the fault was never injected")

					time.Sleep(2 * time.Minute) // late writes land, and are deleted
					ref.Check(t)
					assert.Empty(t, bucket.KeysLeft(t), "left in the bucket")
					for _, c := range []*natslock.Client{a, b} {
						l, err := c.TryLock(t.Context(), "x")
						require.NoError(t, err, "blocked by an own orphan")
						ref.Granted(admin.KindMutex, admin.Exclusive, l)
						require.NoError(t, l.Unlock(t.Context()))
						require.NoError(t, c.Close(t.Context()))
					}
					ref.Check(t)
				})
			})
		}
	}
}

// TestClaimAtZeroLandsLate is the ABA problem. A claim that expects an empty key is stuck in the
// network, and its client gives it up. Other clients come and go until the key is empty again, and
// then the claim arrives.
func TestClaimAtZeroLandsLate(t *testing.T) {
	for _, tc := range []struct {
		name       string
		alive      bool // whether the claimant lives to delete what lands
		deaf, mute bool // whether it misses the notification or the reply
	}{
		{name: "by both", alive: true},
		{name: "by the answer", alive: true, deaf: true},
		{name: "by the notification", alive: true, mute: true},
		{name: "crashed"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				// Write the stuck record through another connection's store, so that it can land
				// long after its client has crashed.
				nc, link := s.ConnectLink(nats.MaxReconnects(0))
				a, fa := kit.Faulty(t, nc, 1, natslock.WithTTL(5*time.Second), natslock.WithOwner("A"))
				b, _ := kit.Faulty(t, s.Connect(), 1, natslock.WithTTL(5*time.Second), natslock.WithOwner("B"))
				ref := history.NewRecorder()
				var stuck *kvstore.Write
				fa.OnSend(func(_ int, w kvstore.Write) faults.Fate {
					if kit.Stage(w) == "lock take" {
						if stuck == nil {
							stuck = &w
						}
						if tc.mute {
							return faults.Hold.Silent()
						}
						return faults.Hold
					}
					return faults.Pass
				})
				fa.DropAllEvents(tc.deaf)
				ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
				_, err := a.Lock(ctx, "x")
				cancel()
				require.ErrorIs(t, err, natslock.ErrTimeout)
				require.ErrorIs(t, err, context.DeadlineExceeded)

				lb, err := b.Lock(t.Context(), "x")
				require.NoError(t, err)
				ref.Granted(admin.KindMutex, admin.Exclusive, lb)
				require.NoError(t, lb.Unlock(t.Context()))
				time.Sleep(3 * time.Second)
				require.Empty(t, kit.KeysLeft(t, s.Connect()), "the key is empty again")

				raw := kit.OpenStore(t, s.Connect())
				if tc.alive {
					landed := make(chan struct{}, 8)
					w, err := raw.Watch("lock.x", func(kvstore.Event) { landed <- struct{}{} })
					require.NoError(t, err)
					defer w.Stop()
					_, err = raw.State(t.Context(), "") // the reply proves the subscription
					require.NoError(t, err)
					require.Positive(t, fa.ReleaseHeld())
					<-landed
				} else {
					link.Cut()
					_, err := raw.Create(t.Context(), stuck.Key, stuck.Value, stuck.TTL)
					require.NoError(t, err)
				}
				began := time.Now()
				lb, err = b.Lock(t.Context(), "x")
				require.NoError(t, err)
				ref.Granted(admin.KindMutex, admin.Exclusive, lb)
				waited := time.Since(began)
				if tc.alive {
					// The claimant deletes the record that landed late.
					assert.Less(t, waited, 500*time.Millisecond)
				} else {
					assert.Less(t, waited, 6*time.Second, "an orphan costs at most one TTL")
					assert.Greater(t, waited, 3*time.Second, "a live record is not overwritten, whichever client wrote it")
				}
				ref.Check(t)
				require.NoError(t, lb.Unlock(t.Context()))
				require.Zero(t, a.Stats().Granted)
			})
		})
	}
}

// TestLateRenewalDoesNotRevive delays the confirmation of renewals past the end of the validity. By
// then the context has ended, and the late reply must not revive the lock.
func TestLateRenewalDoesNotRevive(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, fa := kit.Faulty(t, s.Connect(), 1, natslock.WithTTL(5*time.Second))
		fa.OnSend(kit.At("lock renew", faults.DelayAnswer(4*time.Second)))
		l, err := a.Lock(t.Context(), "x")
		require.NoError(t, err)
		end := kit.ValidUntil(l)
		<-l.Context().Done()
		require.False(t, time.Now().After(end), "the context ended %v after the validity", time.Since(end))
		require.ErrorIs(t, context.Cause(l.Context()), natslock.ErrLost)
		require.ErrorIs(t, l.Err(), natslock.ErrLost)
		// The server did apply the renewal, so the record still exists ...
		require.Equal(t, []string{"lock.x"}, kit.KeysLeft(t, s.Connect()))
		// ... until the late confirmation arrives and the client deletes it, well before its TTL
		// ends 6 s after the start.
		time.Sleep(time.Second)
		require.Empty(t, kit.KeysLeft(t, s.Connect()))
		require.ErrorIs(t, l.Err(), natslock.ErrLost)
		require.Zero(t, l.Remaining())
		require.ErrorIs(t, l.Unlock(t.Context()), natslock.ErrLost)
	})
}

// TestValidityCountsFromSending delays the last confirmation that arrives. The validity counts from
// the sending of the write, because the server starts counting soon after. A holder that counted
// from the reply would overlap with the next holder.
func TestValidityCountsFromSending(t *testing.T) {
	for _, step := range []string{"lock take", "lock renew"} {
		for _, delay := range []time.Duration{300 * time.Millisecond, 700 * time.Millisecond, 2 * time.Second, 2900 * time.Millisecond} {
			if step == "lock take" && delay > time.Second {
				continue // by then a retry has found the record
			}
			t.Run(fmt.Sprintf("%s %v", step, delay), func(t *testing.T) {
				testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
					a, fa := kit.Faulty(t, s.Connect(), 1, natslock.WithTTL(5*time.Second))
					b, _ := kit.Faulty(t, s.Connect(), 1, natslock.WithTTL(5*time.Second))
					ref := history.NewRecorder()
					hit := false
					var sent time.Time
					fa.OnSend(func(_ int, w kvstore.Write) faults.Fate {
						switch {
						case !hit && kit.Stage(w) == step:
							hit, sent = true, time.Now()
							return faults.DelayAnswer(delay)
						case hit:
							return faults.Drop
						}
						return faults.Pass
					})
					la, err := a.Lock(t.Context(), "x")
					require.NoError(t, err)
					ref.Granted(admin.KindMutex, admin.Exclusive, la)
					lb, err := b.Lock(t.Context(), "x")
					require.NoError(t, err)
					ref.Granted(admin.KindMutex, admin.Exclusive, lb)
					require.ErrorIs(t, la.Err(), natslock.ErrLost)
					<-la.Context().Done()
					ref.Check(t)
					require.True(t, hit)
					// The lease lasts 5 s, 10% of which are margin.
					require.WithinDuration(t, sent.Add(4500*time.Millisecond), kit.ValidUntil(la), 10*time.Millisecond)
					require.WithinDuration(t, sent.Add(5*time.Second), time.Now(), 500*time.Millisecond)
				})
			})
		}
	}
}

// TestFirstAnswerTooLate delays the acknowledgment of a claim until the lease is over for its
// holder. It must not be treated as a grant, and the record must be removed.
func TestFirstAnswerTooLate(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, fa := kit.Faulty(t, s.Connect(), 1, natslock.WithTTL(5*time.Second))
		var sent atomic.Int32 // includes cleanup writes, which run alongside the next attempt
		fa.OnSend(func(_ int, w kvstore.Write) faults.Fate {
			if n := sent.Add(1); n == 1 {
				return faults.DelayAnswer(4700 * time.Millisecond)
			} else if kit.Stage(w) == "lock take" && n < 6 {
				return faults.Drop
			}
			return faults.Pass
		})
		begun := time.Now()
		l, err := a.Lock(t.Context(), "x")
		require.NoError(t, err)
		require.Positive(t, l.Remaining(), "granted when it was over")
		require.GreaterOrEqual(t, time.Since(begun), 4700*time.Millisecond)
		require.Greater(t, l.Remaining(), 4*time.Second, "granted by a new write")
		require.NoError(t, l.Unlock(t.Context()))
	})
}

// TestLateAnswerKeepsThePlace checks that a waiter whose claim is acknowledged too late keeps its
// place. It claims again, and no other waiter passes it.
func TestLateAnswerKeepsThePlace(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		holder := kit.QuietHolder(t, s)
		c, f := kit.JoinFaulty(t, s, natslock.WithTTL(5*time.Second))
		first := c.Settle(t)
		second := kit.Join(t, s).Settle(t)
		var takes atomic.Int32
		f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
			if kit.Stage(w) != "lock take" {
				return faults.Pass
			}
			switch n := takes.Add(1); {
			case n == 1:
				return faults.DelayAnswer(4700 * time.Millisecond)
			case n < 6: // otherwise a second attempt would adopt the first one's record
				return faults.Drop
			}
			return faults.Pass
		})
		kit.UnlockAll(t, holder, first, second)
	})
}

// TestBreakAgainstStaleRenewal breaks a lock while one of its renewals is in transit. The renewal
// must not undo the break, whether or not it was applied first.
func TestBreakAgainstStaleRenewal(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, fa := kit.Faulty(t, s.Connect(), 1, natslock.WithTTL(6*time.Second), natslock.WithOwner("A"))
		b, _ := kit.Faulty(t, s.Connect(), 1, natslock.WithTTL(6*time.Second), natslock.WithOwner("B"))
		ref := history.NewRecorder()
		la, err := a.Lock(t.Context(), "x")
		require.NoError(t, err)
		ref.Granted(admin.KindMutex, admin.Exclusive, la)
		held := make(chan struct{}, 100)
		fa.OnSend(func(_ int, w kvstore.Write) faults.Fate {
			if kit.Stage(w) == "lock renew" {
				held <- struct{}{}
				return faults.Hold
			}
			return faults.Pass
		})
		<-held
		require.NoError(t, admin.New(b).Break(t.Context(), admin.BreakRequest{Kind: admin.KindMutex, Name: "x", ID: la.ID(), Reason: "test"}))
		fa.OnSend(nil)
		synctest.Wait() // the channel reports the renewal before it is held
		require.Positive(t, fa.ReleaseHeld())
		<-la.Context().Done()
		require.ErrorIs(t, context.Cause(la.Context()), natslock.ErrBroken)
		require.ErrorContains(t, context.Cause(la.Context()), "test")
		info, err := admin.New(b).Inspect(t.Context(), admin.KindMutex, "x")
		require.NoError(t, err)
		require.NotNil(t, info.Holder)
		require.NotNil(t, info.Holder.Broken, "a renewal has undone the break")

		_, err = b.TryLock(t.Context(), "x")
		require.ErrorIs(t, err, natslock.ErrLocked, "a broken lock keeps others out until its holder has stopped")
		require.ErrorIs(t, la.Unlock(t.Context()), natslock.ErrBroken)
		lb, err := b.TryLock(t.Context(), "x")
		require.NoError(t, err)
		ref.Granted(admin.KindMutex, admin.Exclusive, lb)
		ref.Check(t)
		require.NoError(t, lb.Unlock(t.Context()))
	})
}

// TestBreakAgainstLateAnswer breaks the record of a claim whose client does not know yet that it
// was applied. The claim must never become a lock.
func TestBreakAgainstLateAnswer(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, fa := kit.Faulty(t, s.Connect(), 1, natslock.WithTTL(10*time.Second), natslock.WithOwner("A"))
		b, _ := kit.Faulty(t, s.Connect(), 1, natslock.WithTTL(10*time.Second), natslock.WithOwner("B"))
		n := 0
		fa.OnSend(func(_ int, w kvstore.Write) faults.Fate {
			if kit.Stage(w) == "lock take" {
				if n++; n == 1 {
					return faults.DelayAnswer(1500 * time.Millisecond)
				}
			}
			return faults.Pass
		})
		type result struct {
			l   *natslock.Lock
			err error
		}
		done := make(chan result, 1)
		go func() {
			l, err := a.Lock(context.Background(), "x")
			done <- result{l, err}
		}()
		time.Sleep(100 * time.Millisecond)
		info, err := admin.New(b).Inspect(t.Context(), admin.KindMutex, "x")
		require.NoError(t, err)
		require.NotNil(t, info.Holder)
		first := info.Holder.Token
		require.NoError(t, admin.New(b).Break(t.Context(), admin.BreakRequest{Kind: admin.KindMutex, Name: "x", ID: info.Holder.ID, Reason: "test"}))
		r := <-done
		require.NoError(t, r.err)
		// The claim granted in the end is a different one, made after the break.
		require.Greater(t, r.l.Token(), first)
		require.NotEqual(t, info.Holder.ID, r.l.ID())
		require.NoError(t, r.l.Unlock(t.Context()))
	})
}

// TestBreakAnswerLost injects every fate into the first write of a break.
func TestBreakAnswerLost(t *testing.T) {
	for _, f := range kit.Fates {
		for _, now := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s now=%v", f.Name, now), func(t *testing.T) {
				t.Parallel()
				kit.InMemory(t, func(t *testing.T, bucket *kvstore.Memory) {
					a, _ := kit.FaultyInMemory(t, bucket, 1, natslock.WithTTL(5*time.Second), natslock.WithTuning(natslock.Tuning{WatchAfter: 1}))
					b, fb := kit.FaultyInMemory(t, bucket, 1, natslock.WithTTL(5*time.Second))
					la, err := a.Lock(t.Context(), "x")
					require.NoError(t, err)
					n := 0
					fb.OnSend(func(int, kvstore.Write) faults.Fate {
						if n++; n == 1 {
							return f.Fate
						}
						return faults.Pass
					})
					if err := admin.New(b).Break(t.Context(), admin.BreakRequest{Kind: admin.KindMutex, Name: "x", ID: la.ID(), Reason: "test", Immediately: now}); err != nil {
						// If the reply was lost, the retry may find the holder gone.
						require.ErrorIs(t, err, natslock.ErrReleased)
					}
					<-la.Context().Done()
					require.ErrorIs(t, context.Cause(la.Context()), natslock.ErrBroken)
					require.ErrorIs(t, la.Unlock(t.Context()), natslock.ErrBroken)
					time.Sleep(time.Minute)
					require.Empty(t, kit.KeysLeftInMemory(t, bucket))
				})
			})
		}
	}
}

// TestReleaseUnnotified releases a lock with a TTL of an hour whose waiters get no notifications. A
// waiter still reads the lock every few seconds.
func TestReleaseUnnotified(t *testing.T) {
	for _, waiters := range []int{1, 2, 8} { // the second waiter would take a lock out of turn if the first left it free
		t.Run(fmt.Sprint(waiters), func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				a, _ := kit.Faulty(t, s.Connect(), 1, natslock.WithTTL(time.Hour))
				l, err := a.Lock(t.Context(), "x")
				require.NoError(t, err)
				got := make(chan time.Time)
				var over sync.WaitGroup
				for i := range waiters {
					b, fb := kit.Faulty(t, s.Connect(), uint64(i), natslock.WithTTL(time.Hour))
					fb.DropAllEvents(true)
					over.Go(func() {
						assert.NoError(t, b.Do(context.Background(), "x", func(context.Context, *natslock.Lock) error {
							got <- time.Now()
							return nil
						}))
					})
				}
				time.Sleep(10 * time.Second)
				released := time.Now()
				require.NoError(t, l.Unlock(t.Context()))
				first := <-got
				require.Less(t, first.Sub(released), 4*time.Second)
				last := first
				for range waiters - 1 {
					next := <-got
					require.Less(t, next.Sub(last), 8*time.Second, "the one behind it did not learn that it is first")
					last = next
				}
				over.Wait()
				require.Empty(t, kit.KeysLeft(t, s.Connect()))
			})
		})
	}
}

// TestTokensGoBackwards re-creates the bucket with old sequences. A client that has seen higher
// ones must not accept a grant with a lower token.
func TestTokensGoBackwards(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		nc := s.Connect()
		c, _ := kit.Faulty(t, nc, 1)
		l, err := c.Lock(t.Context(), "x")
		require.NoError(t, err)
		require.NoError(t, l.Unlock(t.Context()))
		require.NoError(t, c.Healthy())
		kit.RemakeBucket(t, nc, 1000) // with sequences from long ago
		_, err = c.Lock(t.Context(), "x")
		require.ErrorIs(t, err, natslock.ErrUnavailable)
		require.ErrorContains(t, err, "backwards")
		require.ErrorContains(t, c.Healthy(), "backwards", "a service that gets no lock is not ready")
		kit.RemakeBucket(t, nc, record.TokenRevision(l.Token())+1000)
		l, err = c.Lock(t.Context(), "x")
		require.NoError(t, err)
		require.NoError(t, l.Unlock(t.Context()))
		require.NoError(t, c.Healthy())
	})
}

// TestReleaseRefusedByDeposedLeader has a deposed leader that does not know the lock refuse its
// release while the current leader applies it. The refusal then does not mean a loss, even if the
// deletion has left no trace.
func TestReleaseRefusedByDeposedLeader(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, f := kit.Faulty(t, s.Connect(), 1)
		raw := kit.OpenStore(t, s.Connect())
		l, err := a.Lock(t.Context(), "x")
		require.NoError(t, err)
		deletes := 0
		var begun time.Time
		f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
			if kit.Stage(w) != "lock delete" {
				return faults.Pass
			}
			if deletes++; deletes == 1 {
				begun = time.Now()
				time.AfterFunc(20*time.Millisecond, func() {
					_, err := raw.Send(w, func(a kvstore.Answer) { assert.NoError(t, a.Err) })
					assert.NoError(t, err)
				})
				return faults.Refuse(&kvstore.ConflictError{Key: w.Key, Expected: w.Expect})
			}
			if time.Since(begun) < 1500*time.Millisecond { // longer than the TTL of a tombstone
				return faults.Refuse(kvstore.ErrInFlight)
			}
			return faults.Pass
		})
		require.NoError(t, l.Unlock(t.Context()))
		require.Greater(t, deletes, 2)
		require.Empty(t, kit.KeysLeft(t, s.Connect()))
	})
}

// TestReleaseRefusedAndTaken is TestReleaseRefusedByDeposedLeader with another client that takes
// the lock immediately, so that the releasing client sees the record of the next holder.
func TestReleaseRefusedAndTaken(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, f := kit.FaultyOver(t, s.Connect(), 1, func(kv kvstore.KV) kvstore.KV { return replicated{kv} })
		b, real := kit.Join(t, s), kit.OpenStore(t, s.Connect())
		l, err := a.Lock(t.Context(), "x")
		require.NoError(t, err)
		var next *natslock.Lock
		f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
			f.OnSend(nil)
			_, err := real.Send(w, func(a kvstore.Answer) { assert.NoError(t, a.Err) })
			assert.NoError(t, err)
			next, err = b.Lock(t.Context(), "x")
			assert.NoError(t, err)
			return faults.Refuse(&kvstore.ConflictError{Key: w.Key, Expected: w.Expect})
		})
		require.NoError(t, l.Unlock(t.Context()))
		require.NoError(t, next.Unlock(t.Context()))
	})
}
