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

// TestCohortShown checks that views and events count goroutines and grants, not records. Renewals
// update the records, and the release reports the remaining grants.
func TestCohortShown(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b, viewer := kit.Join(t, s), kit.Join(t, s), kit.Join(t, s)
		ctx, stop := context.WithCancel(t.Context())
		var grants uint64
		var waited time.Duration
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for ev, err := range admin.New(viewer.Client).Watch(ctx, "l") {
				if err != nil {
					return
				}
				if grants += ev.Grants; ev.Grants > 0 {
					waited += ev.Waited
				}
			}
		}()
		synctest.Wait()
		holder := kit.Must(t, a.Lock, "l")
		var queue []*kit.Waiting
		for range 5 {
			queue = append(queue, b.Settle(t))
		}
		require.Equal(t, 5, b.Stats().Waiting)
		time.Sleep(6 * time.Second) // the renewal of a place
		info := kit.Inspect(t, viewer.Client, "l")
		require.Equal(t, 5, info.Waiting())
		require.Len(t, info.Queue, 1)
		require.Equal(t, 5, info.Queue[0].Goroutines)
		var locked *natslock.LockedError
		_, err := viewer.TryLock(ctx, "l")
		require.ErrorAs(t, err, &locked)
		require.Equal(t, 5, locked.Queued)
		impatient := b.Begin(t, "l", natslock.MaxWait(time.Second))
		var late *natslock.TimeoutError
		require.ErrorAs(t, impatient.Failed(t), &late)
		require.Equal(t, 6, late.Position)

		kit.Unlock(t, holder)
		kit.Unlock(t, queue[0].Granted(t))
		for i, w := range queue[1:] {
			l := w.Granted(t)
			time.Sleep(1100 * time.Millisecond)
			info := kit.Inspect(t, viewer.Client, "l")
			require.Equal(t, l.Token(), info.Holder.Token)
			require.Equal(t, uint64(i+2), info.Holder.Grants, "of this lease")
			require.Equal(t, 3-i, info.Holder.Waiting)
			require.Equal(t, 3-i, info.Waiting())
			require.Equal(t, 3-i, b.Stats().Waiting)
			require.WithinDuration(t, time.Now().Add(-1100*time.Millisecond), info.Holder.Since, 10*time.Millisecond)
			impatient := b.Begin(t, "l", natslock.MaxWait(time.Millisecond))
			require.ErrorAs(t, impatient.Failed(t), &late)
			require.Equal(t, 4-i, late.Position)
			require.Equal(t, l.Token(), late.Holder.Token)
			kit.Unlock(t, l)
		}
		// These grants are too short for a renewal, so the release reports them.
		l := kit.Must(t, b.Lock, "l")
		first, second := b.Await(t, "l"), b.Await(t, "l")
		synctest.Wait()
		kit.Unlock(t, l)
		kit.Unlock(t, first.Granted(t))
		kit.Unlock(t, second.Granted(t))
		synctest.Wait()
		stop()
		<-ended
		require.Equal(t, uint64(1+5+3), grants)
		require.Equal(t, b.Stats().Granted+1, grants)
		require.InDelta(t, 41600*time.Millisecond, waited, float64(200*time.Millisecond))
	})
}

// TestLingerWatched checks that Watch and the views show that a lock lingers and whether it was
// idle when its record was written.
func TestLingerWatched(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, viewer := kit.Join(t, s, natslock.WithOwner("alice")), kit.Join(t, s)
		plain := kit.Must(t, c.Lock, "plain")
		events := make(chan admin.Event, 1000)
		go func() {
			for ev, err := range admin.New(viewer.Client).Watch(t.Context(), "l") {
				if err == nil {
					events <- ev
				}
			}
		}()
		next := func(typ admin.EventType, idle bool) {
			t.Helper()
			ev := kit.Receive(t, events, typ.String())
			for typ == admin.EventReleased && ev.Type == admin.EventRenewed {
				require.True(t, ev.Holder.Idle)
				ev = kit.Receive(t, events, typ.String())
			}
			require.Equal(t, typ, ev.Type)
			require.True(t, ev.Holder.Lingers)
			require.Equal(t, idle, ev.Holder.Idle)
			require.Equal(t, "alice", ev.Holder.Owner)
		}
		require.Equal(t, admin.EventWatching, kit.Receive(t, events, "the watch").Type)
		l := kit.Must(t, c.Lock, "l", natslock.Linger(12*time.Second))
		next(admin.EventGranted, false)
		h := kit.Inspect(t, viewer.Client, "l").Holder
		require.True(t, h.Lingers && !h.Idle)
		kit.Unlock(t, l)
		synctest.Wait()
		require.False(t, kit.Inspect(t, viewer.Client, "l").Holder.Idle, "the record is older")
		require.Equal(t, 1, c.Stats().Idle)
		next(admin.EventRenewed, true)
		h = kit.Inspect(t, viewer.Client, "l").Holder
		require.True(t, h.Lingers && h.Idle)
		next(admin.EventReleased, true)
		h = kit.Inspect(t, viewer.Client, "plain").Holder
		require.False(t, h.Lingers || h.Idle)
		kit.Unlock(t, plain)
	})
}

// TestLingerObserved checks that an observer sees each Unlock of a lingering lock as a release, and
// sees neither an event nor a changed count when the idle lock ends.
func TestLingerObserved(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		for what, end := range map[string]func(c, other *kit.Member){
			"the end of its time": func(*kit.Member, *kit.Member) {},
			"another client": func(_, other *kit.Member) {
				kit.Unlock(t, kit.Must(t, other.Lock, "l"))
			},
			"a break": func(_, other *kit.Member) {
				h := kit.Inspect(t, other.Client, "l").Holder
				require.NoError(t, admin.New(other.Client).Break(t.Context(), admin.BreakRequest{Name: "l", ID: h.ID}))
			},
			"a cut": func(c, _ *kit.Member) { c.Link.Blackhole(true) },
			"Close": func(c, _ *kit.Member) { require.NoError(t, c.Client.Close(t.Context())) },
		} {
			c, other := kit.Join(t, s), kit.Join(t, s)
			var ids []string
			for range 3 {
				l := kit.Must(t, c.Lock, "l", natslock.Linger(30*time.Second))
				ids = append(ids, l.ID())
				kit.Unlock(t, l)
				synctest.Wait()
			}
			require.Equal(t, 1, c.Stats().Idle, what)
			time.Sleep(time.Second)
			end(c, other)
			time.Sleep(time.Minute)
			var want, got []string
			for _, id := range ids {
				want = append(want, "granted "+id, "released "+id)
			}
			for _, ev := range c.Events.All() {
				if ev.Type != admin.EventRenewed {
					got = append(got, ev.Type.String()+" "+ev.ID)
				}
			}
			require.Equal(t, want, got, what)
			stats := c.Stats()
			require.Equal(t, natslock.Stats{Granted: 3, Released: 3, Renewed: stats.Renewed}, stats, what)
		}
	})
}
