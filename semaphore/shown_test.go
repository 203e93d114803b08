package semaphore_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/semaphore"
	"github.com/natslock/locks/testutil"
)

func inspect(t testing.TB, c *natslock.Client, name string) admin.Info {
	t.Helper()
	info, err := admin.New(c).Inspect(context.Background(), admin.KindSemaphore, name)
	require.NoError(t, err)
	return info
}

// TestShown checks that Inspect and List show holders by slot, along with the numbers of permits.
func TestShown(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b := join(t, s, natslock.WithOwner("a")), join(t, s, natslock.WithOwner("b"))
		sem := semaphore.New(a.Client, 12)
		var held []*natslock.Lock
		for range 12 {
			held = append(held, must(t, sem, "s.1"))
		}
		w := b.await(t, semaphore.New(b.Client, 5), "s.1", natslock.Meta(map[string]string{"k": "v"}))
		info := inspect(t, b.Client, "s.1")
		require.Equal(t, admin.KindSemaphore, info.Kind)
		require.Nil(t, info.Holder)
		require.Len(t, info.Permits, 12)
		for i, h := range info.Permits {
			require.Equal(t, i, h.Slot)
			require.Equal(t, 12, h.Of)
			require.Equal(t, "a", h.Owner)
			require.Equal(t, held[11-i].ID(), h.ID)
			require.Equal(t, held[11-i].Token(), h.Token)
		}
		require.Len(t, info.Queue, 1)
		require.Equal(t, 5, info.Queue[0].Of)
		require.Equal(t, 1, info.Waiting())
		n := 0
		for listed, err := range admin.New(b.Client).List(t.Context(), "s.*") {
			require.NoError(t, err)
			require.Equal(t, info, listed)
			n++
		}
		require.Equal(t, 1, n)
		w.Cancel(nil)
		<-w.Done
		kit.Unlock(t, held...)
		synctest.Wait()
		require.Empty(t, inspect(t, b.Client, "s.1").Permits)
		for l := range admin.New(b.Client).List(t.Context(), ">") {
			t.Errorf("%+v", l)
		}
	})
}

// TestBreak checks that a break ends only the holder that it names, and that the slot becomes free
// once that holder has stopped.
func TestBreak(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		ctx := t.Context()
		a, b := join(t, s, natslock.WithTuning(natslock.Tuning{WatchAfter: 1})), join(t, s)
		sem := semaphore.New(a.Client, 2)
		one, zero := must(t, sem, "s"), must(t, sem, "s")
		w := b.await(t, semaphore.New(b.Client, 2), "s")
		req := admin.BreakRequest{Kind: admin.KindSemaphore, Name: "s", ID: "another"}
		require.ErrorIs(t, admin.New(b.Client).Break(ctx, req), natslock.ErrReleased)
		req.ID = zero.ID()
		require.NoError(t, admin.New(b.Client).Break(ctx, req))
		kit.Receive(t, zero.Context().Done(), "the end of the lock")
		require.ErrorIs(t, zero.Err(), natslock.ErrBroken)
		require.NoError(t, one.Err())
		require.NoError(t, admin.New(b.Client).Break(ctx, req), "again")
		time.Sleep(3 * time.Second)
		require.False(t, w.Over(), "its holder has not stopped")
		require.NotNil(t, inspect(t, b.Client, "s").Permits[0].Broken)
		require.ErrorIs(t, zero.Unlock(ctx), natslock.ErrBroken)
		l := w.Granted(t)
		require.Zero(t, slot(t, l))

		req.ID, req.Immediately = l.ID(), true
		require.NoError(t, admin.New(a.Client).Break(ctx, req))
		next := must(t, sem, "s")
		require.Zero(t, slot(t, next))
		require.Greater(t, next.Token(), l.Token())
		require.ErrorIs(t, l.Unlock(ctx), natslock.ErrLost)
		kit.Unlock(t, next, one)
	})
}

// TestWatch checks that Watch reports what happens to each permit.
func TestWatch(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		ctx, cancel := context.WithCancel(t.Context())
		a, b, c := join(t, s), join(t, s), join(t, s)
		events, over := make(chan admin.Event, 100), make(chan struct{})
		go func() {
			defer close(over)
			for ev, err := range admin.New(b.Client).Watch(ctx, "s") {
				if err == nil {
					events <- ev
				}
			}
		}()
		require.Equal(t, admin.EventWatching, kit.Receive(t, events, "the mark").Type)
		l := must(t, semaphore.New(a.Client, 1), "s")
		w := c.await(t, semaphore.New(c.Client, 1), "s")
		kit.Unlock(t, l)
		kit.Unlock(t, w.Granted(t))
		for _, want := range []admin.EventType{admin.EventGranted, admin.EventQueued, admin.EventReleased, admin.EventGranted, admin.EventReleased} {
			ev := kit.Receive(t, events, "an event")
			require.Equal(t, want, ev.Type)
			require.Equal(t, admin.KindSemaphore, ev.Kind)
			require.Equal(t, 1, ev.Holder.Of)
		}
		cancel()
		<-over
	})
}
