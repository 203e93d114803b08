package faults_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/history"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

// TestForgedAttempt has another client write a record with the ID of a pending claim and an attempt
// that the claim never made. No client holds the lock by that record, so it must keep all clients
// out.
func TestForgedAttempt(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		for _, attempt := range []int{0, 7, -1} {
			a, fa := kit.Faulty(t, s.Connect(), 1)
			r := kit.NewRaw(t, s.Connect())
			var forged time.Time
			fa.OnSend(func(n int, w kvstore.Write) faults.Fate {
				if n > 1 {
					return faults.Pass
				}
				var claim struct {
					ID string `msgpack:"id"`
				}
				assert.NoError(t, msgpack.Unmarshal(w.Value, &claim))
				forged = time.Now()
				forge(t, r, claim.ID, attempt, 10*time.Second)
				return faults.Drop
			})
			l, err := a.Lock(t.Context(), "x")
			require.NoError(t, err)
			require.GreaterOrEqual(t, time.Since(forged), 10*time.Second)
			require.NoError(t, l.Unlock(t.Context()))
			time.Sleep(2 * time.Second)
		}
	})
}

// A review of the finished mutex found the following bugs. Each test guards against one of them.

// TestForgedRecord checks that a claim that waits for the cleanup of its attempt does not delete
// another client's record even if a forged notification presents it as that attempt.
func TestForgedRecord(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		nc := s.Connect()
		a, _ := kit.Faulty(t, nc, 1, natslock.WithTuning(natslock.Tuning{WatchAfter: -1}))
		b, fb := kit.Faulty(t, s.Connect(), 1)
		ref := history.NewRecorder()
		la, err := a.Lock(t.Context(), "x")
		require.NoError(t, err)
		ref.Granted(admin.KindMutex, admin.Exclusive, la)
		var claim struct {
			ID string `msgpack:"id"`
		}
		fb.OnSend(func(_ int, w kvstore.Write) faults.Fate {
			if kit.Stage(w) == "lock take" {
				assert.NoError(t, msgpack.Unmarshal(w.Value, &claim))
				return faults.Drop
			}
			return faults.Pass
		})
		_, err = b.TryLock(t.Context(), "x")
		require.ErrorIs(t, err, natslock.ErrUnavailable)
		fb.OnSend(nil)
		time.Sleep(20 * time.Second)
		r, err := kit.OpenStore(t, nc).Get(t.Context(), "lock.x", 0)
		require.NoError(t, err)
		forged, err := msgpack.Marshal(map[string]any{"v": 1, "s": 1, "id": claim.ID, "a": 1, "l": 15})
		require.NoError(t, err)
		watchers := fb.Forge(kvstore.Event{Kind: kvstore.Put, Record: kvstore.Record{
			Key: "lock.x", Value: forged, Revision: r.Revision, Time: time.Now(), TTL: 15 * time.Second}})
		require.Positive(t, watchers, "nobody listens: the test shows nothing")
		time.Sleep(time.Second)
		_, err = b.TryLock(t.Context(), "x")
		require.ErrorIs(t, err, natslock.ErrLocked)
		require.Positive(t, la.Remaining())
		ref.Check(t)
	})
}

// TestOwnAttemptLandsWhileWaiting checks that when a waiter's own first attempt lands while it is
// queued, the waiter adopts the record. The record looks like another holder's, so the waiter might
// otherwise wait for itself.
func TestOwnAttemptLandsWhileWaiting(t *testing.T) {
	for name, notified := range map[string]bool{"notified": true, "seen": false} {
		t.Run(name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				a, _ := kit.Faulty(t, s.Connect(), 1, natslock.WithTTL(time.Hour))
				b, fb := kit.Faulty(t, s.Connect(), 1, natslock.WithTTL(time.Hour))
				la, err := a.Lock(t.Context(), "x")
				require.NoError(t, err)
				n := 0
				fb.OnSend(func(_ int, w kvstore.Write) faults.Fate {
					if kit.Stage(w) == "lock take" {
						if n++; n == 1 {
							return faults.Hold // this attempt expects an empty key
						}
					}
					return faults.Pass
				})
				got := make(chan *natslock.Lock, 1)
				go func() {
					l, err := b.Lock(context.Background(), "x")
					assert.NoError(t, err)
					got <- l
				}()
				time.Sleep(5 * time.Second)
				require.Equal(t, 1, b.Stats().Waiting)
				// The lock is broken and its tombstone expires, but B cannot read and gets no
				// notification, not even of the expiry. Then B's first attempt lands.
				fb.DropEvents(func(kvstore.Event) bool { return true })
				fb.FailReads(func(faults.ReadOp, string) error { return kvstore.ErrUnavailable })
				require.NoError(t, admin.New(a).Break(t.Context(), admin.BreakRequest{Kind: admin.KindMutex, Name: "x", ID: la.ID(), Reason: "test", Immediately: true}))
				r := kit.NewRaw(t, s.Connect())
				for r.Get("lock.x") != nil { // the server may remove it some tenths of a second late
					time.Sleep(100 * time.Millisecond)
				}
				fb.DropEvents(func(ev kvstore.Event) bool { return !notified || ev.Kind != kvstore.Put })
				require.Positive(t, fb.ReleaseHeld())
				synctest.Wait()
				require.NotNil(t, r.Get("lock.x"), "it is stored before B can look")
				fb.DropEvents(nil)
				fb.FailReads(nil)
				landed := time.Now()
				l := <-got
				require.Less(t, time.Since(landed), 5*time.Second, "waited for its own record")
				require.Positive(t, l.Remaining())
				require.NoError(t, l.Unlock(t.Context()))
			})
		})
	}
}

// TestForgedTombstone checks that the first waiter does not overwrite a live record even if a
// forged notification presents it as a tombstone. Found by TestSim (check 1, seed 7).
func TestForgedTombstone(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, _ := kit.Faulty(t, s.Connect(), 1, natslock.WithTuning(natslock.Tuning{WatchAfter: -1}))
		b, fb := kit.Faulty(t, s.Connect(), 1)
		ref := history.NewRecorder()
		la, err := a.Lock(t.Context(), "x")
		require.NoError(t, err)
		ref.Granted(admin.KindMutex, admin.Exclusive, la)
		got := make(chan *natslock.Lock, 1)
		go func() {
			l, err := b.Lock(context.Background(), "x")
			assert.NoError(t, err)
			ref.Granted(admin.KindMutex, admin.Exclusive, l)
			got <- l
		}()
		time.Sleep(time.Second)
		store := kit.OpenStore(t, s.Connect())
		for range 20 { // long enough for several renewals
			r, err := store.Get(t.Context(), "lock.x", 0)
			require.NoError(t, err)
			for ahead := range uint64(3) {
				forged := r
				forged.Deleted, forged.Value, forged.Revision = true, nil, r.Revision+ahead
				require.Empty(t, got, "the waiter has overwritten a live record")
				require.Positive(t, fb.Forge(kvstore.Event{Kind: kvstore.Deleted, Record: forged}), "nobody listens: the test shows nothing")
				synctest.Wait() // otherwise the next event would replace this one
			}
			time.Sleep(time.Second)
		}
		require.Empty(t, got)
		require.Positive(t, la.Remaining())
		require.NoError(t, la.Unlock(t.Context()))
		released := time.Now()
		lb := <-got
		require.Less(t, time.Since(released), time.Second)
		require.NoError(t, lb.Unlock(t.Context()))
		ref.Check(t)
	})
}

// TestForgedRevisionDeafensNobody checks that the first waiter still handles later notifications
// after a forged one with a revision that the bucket has not reached.
func TestForgedRevisionDeafensNobody(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, _ := kit.Faulty(t, s.Connect(), 1, natslock.WithTuning(natslock.Tuning{WatchAfter: -1}))
		b, fb := kit.Faulty(t, s.Connect(), 1)
		la, err := a.Lock(t.Context(), "x")
		require.NoError(t, err)
		got := make(chan *natslock.Lock, 1)
		go func() {
			l, err := b.Lock(context.Background(), "x")
			assert.NoError(t, err)
			got <- l
		}()
		time.Sleep(time.Second)
		forged := kvstore.Record{Key: "lock.x", Revision: record.TokenRevision(la.Token()) + 1000, Deleted: true, Time: time.Now(), TTL: time.Second}
		require.Positive(t, fb.Forge(kvstore.Event{Kind: kvstore.Deleted, Record: forged}), "nobody listens: the test shows nothing")
		time.Sleep(500 * time.Millisecond)
		require.NoError(t, la.Unlock(t.Context()))
		released := time.Now()
		lb := <-got
		require.Less(t, time.Since(released), time.Second, "found by a timer")
		require.NoError(t, lb.Unlock(t.Context()))
	})
}

// TestForgedHintOnFixedLease checks that a holder verifies its record once, rather than throughout
// the lease, when a forged notification has a higher revision than a record that is never renewed.
// Found by TestSim (seed 100, by its duration).
func TestForgedHintOnFixedLease(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, f := kit.Faulty(t, s.Connect(), 1, natslock.WithTuning(natslock.Tuning{WatchAfter: 1}))
		l, err := c.Lock(t.Context(), "x", natslock.TTL(time.Hour), natslock.NoRenew())
		require.NoError(t, err)
		time.Sleep(time.Second) // by now the lock is watched
		store := kit.OpenStore(t, s.Connect())
		r, err := store.Get(t.Context(), "lock.x", 0)
		require.NoError(t, err)
		_, err = store.Create(t.Context(), "lock.other", []byte("?"), time.Hour)
		require.NoError(t, err)
		var reads atomic.Int64
		f.FailReads(func(faults.ReadOp, string) error {
			if reads.Add(1) > 100 {
				return faults.Hang // otherwise the bubble might never end
			}
			return nil
		})
		r.Deleted, r.Revision = true, r.Revision+1
		require.Positive(t, f.Forge(kvstore.Event{Kind: kvstore.Deleted, Record: r}), "nobody listens: the test shows nothing")
		time.Sleep(time.Minute)
		require.Positive(t, reads.Load())
		require.Less(t, reads.Load(), int64(5))
		require.NoError(t, l.Unlock(t.Context()))
	})
}
