package operate_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

// TestWatchTellsWho checks that events name the holder or waiter and how long it held or waited,
// even for clients that arrived before the watch began.
func TestWatchTellsWho(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b, c, viewer := kit.Join(t, s, natslock.WithOwner("alice")), kit.Join(t, s, natslock.WithOwner("bob")), kit.Join(t, s, natslock.WithOwner("carol")), kit.Join(t, s)
		l := kit.Must(t, a.Lock, "l", natslock.Meta(map[string]string{"k": "v"}))
		w := b.Await(t, "l")
		begun := time.Now()
		f := kit.Follow(t, viewer, ">")
		gone := c.Await(t, "l")
		ev := f.Next(admin.EventQueued)
		require.Equal(t, "carol", ev.Holder.Owner)
		time.Sleep(40 * time.Second) // long enough for many renewals
		gone.Cancel(nil)
		gone.Failed(t)
		ev = f.Next(admin.EventGaveUp)
		require.Equal(t, "carol", ev.Holder.Owner)
		require.Equal(t, 40*time.Second, ev.Waited.Round(100*time.Millisecond))

		kit.Unlock(t, l)
		next := w.Granted(t)
		ev = f.Next(admin.EventReleased)
		require.Equal(t, "alice", ev.Holder.Owner)
		require.Equal(t, map[string]string{"k": "v"}, ev.Holder.Meta)
		require.Equal(t, l.Token(), ev.Token)
		require.Equal(t, l.Token(), ev.Holder.Token)
		require.WithinDuration(t, begun, ev.Holder.Since, time.Second)
		require.WithinDuration(t, time.Now(), ev.Time, time.Second)
		ev = f.Next(admin.EventGranted)
		require.Equal(t, "bob", ev.Holder.Owner)
		require.Equal(t, 40*time.Second, ev.Waited.Round(100*time.Millisecond))
		info, err := admin.New(viewer.Client).Inspect(t.Context(), admin.KindMutex, "l")
		require.NoError(t, err)
		require.Equal(t, ev.Waited, info.Holder.Waited)

		time.Sleep(30 * time.Second) // renewals preserve the waiting time
		info, err = admin.New(viewer.Client).Inspect(t.Context(), admin.KindMutex, "l")
		require.NoError(t, err)
		require.Equal(t, ev.Waited, info.Holder.Waited)
		kit.Unlock(t, next)
		f.Next(admin.EventReleased)
		kit.Unlock(t, kit.Must(t, a.Lock, "l"))
		require.Zero(t, f.Next(admin.EventGranted).Waited)
		f.Next(admin.EventReleased)
		f.Nothing()
	})
}

// TestWatchExpiryFromBefore checks that the watch reports the end of a dead holder's lease even if
// the grant preceded the watch.
func TestWatchExpiryFromBefore(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, viewer := kit.Join(t, s, natslock.WithOwner("alice")), kit.Join(t, s)
		begun := time.Now()
		l := kit.Must(t, a.Lock, "l", natslock.NoRenew(), natslock.TTL(20*time.Second))
		time.Sleep(5 * time.Second)
		f := kit.Follow(t, viewer, ">")
		a.Link.Cut()
		ev := f.Next(admin.EventExpired)
		require.Equal(t, l.Token(), ev.Token)
		require.Equal(t, "alice", ev.Holder.Owner)
		require.WithinDuration(t, begun.Add(20*time.Second), ev.Time, 100*time.Millisecond, "the end, not the last renewal")
		require.WithinDuration(t, begun.Add(20*time.Second), time.Now(), 500*time.Millisecond)
		f.Nothing()
	})
}

// TestWatchExpiryBeforeNextGrant checks that Watch reports the end of a lease exactly once, before
// the grant of the next lease. Here the watch hears of the first lease late, so by its own clock
// that lease still runs when the successor's grant arrives.
func TestWatchExpiryBeforeNextGrant(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b, viewer := kit.Join(t, s, natslock.WithOwner("alice")), kit.Join(t, s, natslock.WithOwner("bob")), kit.Join(t, s)
		f := kit.Follow(t, viewer, ">")
		viewer.Link.Blackhole(true)
		begun := time.Now()
		l := kit.Must(t, a.Lock, "l", natslock.NoRenew(), natslock.TTL(3*time.Second))
		a.Link.Cut()
		time.Sleep(time.Second)
		viewer.Link.Blackhole(false)
		f.Next(admin.EventGranted)
		w := b.Await(t, "l")
		f.Next(admin.EventQueued)
		next := w.Granted(t)
		require.Less(t, time.Since(begun), 4*time.Second, "before the watcher's clock ends the lease")
		ev := f.Next(admin.EventExpired)
		require.Equal(t, l.Token(), ev.Token)
		require.Equal(t, "alice", ev.Holder.Owner)
		require.WithinDuration(t, begun.Add(3*time.Second), ev.Time, 100*time.Millisecond)
		require.Equal(t, next.Token(), f.Next(admin.EventGranted).Token)
		kit.Unlock(t, next)
		f.Next(admin.EventReleased)
		time.Sleep(time.Minute)
		f.Nothing()
	})
}

// TestWatchMissedRelease checks that Watch does not report a holder as expired merely because it
// missed the tombstone and then sees the next grant.
func TestWatchMissedRelease(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b, viewer := kit.Join(t, s), kit.Join(t, s), kit.Join(t, s)
		f := kit.Follow(t, viewer, ">")
		l := kit.Must(t, a.Lock, "l")
		f.Next(admin.EventGranted)
		viewer.Link.Blackhole(true)
		kit.Unlock(t, l)
		viewer.Link.Cut()
		viewer.Link.Heal()
		f.Next(admin.EventWatching)
		kit.Must(t, b.Lock, "l")
		f.Next(admin.EventGranted)
		f.Nothing()
	})
}

// TestWatchMarksOutage checks that after an outage Watch sends a mark, because events were missed.
func TestWatchMarksOutage(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, viewer := kit.Join(t, s, natslock.WithOwner("alice")), kit.Join(t, s)
		f := kit.Follow(t, viewer, ">")
		kit.Unlock(t, kit.Must(t, a.Lock, "l"))
		f.Next(admin.EventGranted)
		f.Next(admin.EventReleased)
		viewer.Link.Cut()
		l := kit.Must(t, a.Lock, "l")
		time.Sleep(30 * time.Second)
		f.Nothing()
		viewer.Link.Heal()
		f.Next(admin.EventWatching)
		synctest.Wait()
		kit.Unlock(t, l)
		require.Equal(t, "alice", f.Next(admin.EventReleased).Holder.Owner, "known from the look")
		time.Sleep(time.Minute)
		f.Nothing()
	})
}

// TestWatchOfRemadeBucket checks that the watch of a re-created bucket ends with an error that says
// so. Notifications of the new bucket never reach the old watch, which would otherwise stay silent
// forever.
func TestWatchOfRemadeBucket(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		viewer := kit.Join(t, s)
		f := kit.Follow(t, viewer, ">")
		js, err := viewer.NC.JetStream()
		require.NoError(t, err)
		time.Sleep(time.Second) // buckets are told apart by their creation times
		require.NoError(t, js.DeleteStream(kit.StreamName))
		a := kit.Join(t, s) // re-creates the bucket
		err = kit.Receive(t, f.Ended, "the end of the watch")
		require.ErrorIs(t, err, natslock.ErrUnavailable)
		require.ErrorContains(t, err, "re-created")
		time.Sleep(time.Second) // otherwise the next watch reports a gap as others discover the new bucket
		f = kit.Follow(t, viewer, ">")
		kit.Unlock(t, kit.Must(t, a.Lock, "l"))
		f.Next(admin.EventGranted)
		f.Next(admin.EventReleased)

		require.NoError(t, js.DeleteStream(kit.StreamName))
		err = kit.Receive(t, f.Ended, "the end of the watch")
		require.ErrorIs(t, err, natslock.ErrUnavailable)
		require.ErrorContains(t, err, "not found")
	})
}

// TestWatchGrantedOutOfTurn checks that a waiter granted the lock out of turn is not reported as
// having given up.
func TestWatchGrantedOutOfTurn(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, paused, c, viewer := kit.Join(t, s), kit.Join(t, s), kit.Join(t, s, natslock.WithOwner("carol")), kit.Join(t, s)
		holder := kit.Must(t, a.Lock, "l")
		paused.Await(t, "l")
		w := c.Await(t, "l")
		time.Sleep(3 * time.Second)
		f := kit.Follow(t, viewer, ">")
		paused.Link.Blackhole(true)
		kit.Unlock(t, holder)
		l := w.Granted(t)
		f.Next(admin.EventReleased)
		ev := f.Next(admin.EventGranted)
		require.Equal(t, "carol", ev.Holder.Owner)
		synctest.Wait()
		kit.Unlock(t, l)
		// The waiter that gave up is the paused one, whose place was deleted.
		f.Next(admin.EventGaveUp)
		f.Next(admin.EventReleased)
		f.Nothing()
	})
}

// TestWatchLateRenewal checks that Watch reports a renewal as late if it comes after two thirds of
// the TTL.
func TestWatchLateRenewal(t *testing.T) {
	for name, of := range map[string]struct {
		silent time.Duration // since the grant
		late   bool
	}{"in time": {0, false}, "before two thirds": {8 * time.Second, false}, "after two thirds": {10 * time.Second, true}} {
		t.Run(name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				a, faulty := kit.JoinFaulty(t, s, natslock.WithTTL(15*time.Second), natslock.WithTuning(natslock.Tuning{WatchAfter: -1}))
				viewer := kit.Join(t, s)
				events := make(chan admin.Event, 100)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				go func() {
					for ev, err := range admin.New(viewer.Client).Watch(ctx, "x") {
						if err == nil {
							events <- ev
						}
					}
				}()
				require.Equal(t, admin.EventWatching, kit.Receive(t, events, "the watch").Type)
				begun := time.Now()
				kit.OnRenewal(faulty, func(int) faults.Fate {
					if time.Since(begun) < of.silent {
						return faults.Drop
					}
					return faults.Pass
				})
				l := kit.Must(t, a.Lock, "x")
				granted := kit.Receive(t, events, "the grant")
				require.Equal(t, admin.EventGranted, granted.Type)
				for i := range 2 {
					ev := kit.Receive(t, events, "a renewal")
					require.Equal(t, admin.EventRenewed, ev.Type)
					if of.late && i == 0 {
						require.Equal(t, ev.Time.Sub(granted.Time), ev.Late)
						require.Greater(t, ev.Late, 10*time.Second)
					} else {
						require.Zero(t, ev.Late, "%v after the grant", ev.Time.Sub(granted.Time))
					}
				}
				kit.Unlock(t, l)
			})
		})
	}
}
