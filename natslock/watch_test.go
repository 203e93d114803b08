package natslock_test

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

// follower takes the events of a Watch one by one, renewals left out.
type follower struct {
	t      *testing.T
	events chan admin.Event
	ended  chan error
}

func follow(t *testing.T, m *member, pattern string) *follower {
	f := &follower{t: t, events: make(chan admin.Event, 1000), ended: make(chan error, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	go func() {
		for ev, err := range admin.New(m.Client).Watch(ctx, pattern) {
			if err != nil {
				f.ended <- err
				return
			}
			if ev.Type != admin.EventRenewed {
				f.events <- ev
			}
		}
		f.ended <- nil
	}()
	f.next(admin.EventWatching)
	return f
}

func (f *follower) next(typ admin.EventType) admin.Event {
	f.t.Helper()
	ev := kit.Receive(f.t, f.events, typ.String())
	require.Equal(f.t, typ, ev.Type)
	return ev
}

func (f *follower) nothing() {
	f.t.Helper()
	synctest.Wait()
	require.Empty(f.t, f.events)
}

// The events name the holder or waiter, and say how long it held or waited. That holds also
// for clients that came before the watch.
func TestWatchTellsWho(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b, c, viewer := join(t, s, natslock.WithOwner("alice")), join(t, s, natslock.WithOwner("bob")), join(t, s, natslock.WithOwner("carol")), join(t, s)
		l := mustLock(t, a.Client, "l", natslock.Meta(map[string]string{"k": "v"}))
		w := b.await(t, "l")
		begun := time.Now()
		f := follow(t, viewer, ">")
		gone := c.await(t, "l")
		ev := f.next(admin.EventQueued)
		require.Equal(t, "carol", ev.Holder.Owner)
		time.Sleep(40 * time.Second) // past many renewals
		gone.Cancel(nil)
		gone.Failed(t)
		ev = f.next(admin.EventGaveUp)
		require.Equal(t, "carol", ev.Holder.Owner)
		require.Equal(t, 40*time.Second, ev.Waited.Round(100*time.Millisecond))

		kit.Unlock(t, l)
		next := w.Granted(t)
		ev = f.next(admin.EventReleased)
		require.Equal(t, "alice", ev.Holder.Owner)
		require.Equal(t, map[string]string{"k": "v"}, ev.Holder.Meta)
		require.Equal(t, l.Token(), ev.Token)
		require.Equal(t, l.Token(), ev.Holder.Token)
		require.WithinDuration(t, begun, ev.Holder.Since, time.Second)
		require.WithinDuration(t, time.Now(), ev.Time, time.Second)
		ev = f.next(admin.EventGranted)
		require.Equal(t, "bob", ev.Holder.Owner)
		require.Equal(t, 40*time.Second, ev.Waited.Round(100*time.Millisecond))
		info, err := admin.New(viewer.Client).Inspect(t.Context(), admin.KindMutex, "l")
		require.NoError(t, err)
		require.Equal(t, ev.Waited, info.Holder.Waited)

		time.Sleep(30 * time.Second) // renewed, it still says so
		info, err = admin.New(viewer.Client).Inspect(t.Context(), admin.KindMutex, "l")
		require.NoError(t, err)
		require.Equal(t, ev.Waited, info.Holder.Waited)
		kit.Unlock(t, next)
		f.next(admin.EventReleased)
		kit.Unlock(t, mustLock(t, a.Client, "l"))
		require.Zero(t, f.next(admin.EventGranted).Waited)
		f.next(admin.EventReleased)
		f.nothing()
	})
}

// When a holder dies that came before the watch, the watch reports it at the end of the
// lease.
func TestWatchExpiryFromBefore(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, viewer := join(t, s, natslock.WithOwner("alice")), join(t, s)
		begun := time.Now()
		l := mustLock(t, a.Client, "l", natslock.NoRenew(), natslock.TTL(20*time.Second))
		time.Sleep(5 * time.Second)
		f := follow(t, viewer, ">")
		a.link.Cut()
		ev := f.next(admin.EventExpired)
		require.Equal(t, l.Token(), ev.Token)
		require.Equal(t, "alice", ev.Holder.Owner)
		require.WithinDuration(t, begun.Add(20*time.Second), ev.Time, 100*time.Millisecond, "the end, not the last renewal")
		require.WithinDuration(t, begun.Add(20*time.Second), time.Now(), 500*time.Millisecond)
		f.nothing()
	})
}

// Watch reports the end of a lease before the grant of the next lease, and once. It does so
// even when it was notified of the lease late: its own clock ends that lease after the
// successor has come.
func TestWatchExpiryBeforeNextGrant(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b, viewer := join(t, s, natslock.WithOwner("alice")), join(t, s, natslock.WithOwner("bob")), join(t, s)
		f := follow(t, viewer, ">")
		viewer.link.Blackhole(true)
		begun := time.Now()
		l := mustLock(t, a.Client, "l", natslock.NoRenew(), natslock.TTL(3*time.Second))
		a.link.Cut()
		time.Sleep(time.Second)
		viewer.link.Blackhole(false)
		f.next(admin.EventGranted)
		w := b.await(t, "l")
		f.next(admin.EventQueued)
		next := w.Granted(t)
		require.Less(t, time.Since(begun), 4*time.Second, "before the watcher's clock ends the lease")
		ev := f.next(admin.EventExpired)
		require.Equal(t, l.Token(), ev.Token)
		require.Equal(t, "alice", ev.Holder.Owner)
		require.WithinDuration(t, begun.Add(3*time.Second), ev.Time, 100*time.Millisecond)
		require.Equal(t, next.Token(), f.next(admin.EventGranted).Token)
		kit.Unlock(t, next)
		f.next(admin.EventReleased)
		time.Sleep(time.Minute)
		f.nothing()
	})
}

// A holder whose tombstone the watch has missed has not expired. The next grant does not
// make the watch say that it has.
func TestWatchMissedRelease(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b, viewer := join(t, s), join(t, s), join(t, s)
		f := follow(t, viewer, ">")
		l := mustLock(t, a.Client, "l")
		f.next(admin.EventGranted)
		viewer.link.Blackhole(true)
		kit.Unlock(t, l)
		viewer.link.Cut()
		viewer.link.Heal()
		f.next(admin.EventWatching)
		mustLock(t, b.Client, "l")
		f.next(admin.EventGranted)
		f.nothing()
	})
}

// After an outage there is a mark, because events were missed.
func TestWatchMarksOutage(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, viewer := join(t, s, natslock.WithOwner("alice")), join(t, s)
		f := follow(t, viewer, ">")
		kit.Unlock(t, mustLock(t, a.Client, "l"))
		f.next(admin.EventGranted)
		f.next(admin.EventReleased)
		viewer.link.Cut()
		l := mustLock(t, a.Client, "l")
		time.Sleep(30 * time.Second)
		f.nothing()
		viewer.link.Heal()
		f.next(admin.EventWatching)
		synctest.Wait()
		kit.Unlock(t, l)
		require.Equal(t, "alice", f.next(admin.EventReleased).Holder.Owner, "known from the look")
		time.Sleep(time.Minute)
		f.nothing()
	})
}

// A re-created bucket has other notifications. The watch ends with an error that says so,
// instead of receiving nothing forever. The next watch receives them.
func TestWatchOfRemadeBucket(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		viewer := join(t, s)
		f := follow(t, viewer, ">")
		js, err := viewer.nc.JetStream()
		require.NoError(t, err)
		time.Sleep(time.Second) // buckets are told apart by when they were made
		require.NoError(t, js.DeleteStream(streamName))
		a := join(t, s) // makes it again
		err = kit.Receive(t, f.ended, "the end of the watch")
		require.ErrorIs(t, err, natslock.ErrUnavailable)
		require.ErrorContains(t, err, "re-created")
		time.Sleep(time.Second) // or what else has found the new bucket is a gap of the next watch
		f = follow(t, viewer, ">")
		kit.Unlock(t, mustLock(t, a.Client, "l"))
		f.next(admin.EventGranted)
		f.next(admin.EventReleased)

		require.NoError(t, js.DeleteStream(streamName))
		err = kit.Receive(t, f.ended, "the end of the watch")
		require.ErrorIs(t, err, natslock.ErrUnavailable)
		require.ErrorContains(t, err, "not found")
	})
}

// A waiter that is granted the lock out of turn has not given up.
func TestWatchGrantedOutOfTurn(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, paused, c, viewer := join(t, s), join(t, s), join(t, s, natslock.WithOwner("carol")), join(t, s)
		holder := mustLock(t, a.Client, "l")
		paused.await(t, "l")
		w := c.await(t, "l")
		time.Sleep(3 * time.Second)
		f := follow(t, viewer, ">")
		paused.link.Blackhole(true)
		kit.Unlock(t, holder)
		l := w.Granted(t)
		f.next(admin.EventReleased)
		ev := f.next(admin.EventGranted)
		require.Equal(t, "carol", ev.Holder.Owner)
		synctest.Wait()
		kit.Unlock(t, l)
		// Of the two waiters the other one has left: its place was deleted.
		f.next(admin.EventGaveUp)
		f.next(admin.EventReleased)
		f.nothing()
	})
}
