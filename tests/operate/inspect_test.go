package operate_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/rwlock"
	"github.com/natslock/locks/testutil"
)

func TestInspect(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b := kit.Join(t, s, natslock.WithOwner("alice")), kit.Join(t, s, natslock.WithOwner("bob"))
		host, _ := os.Hostname()
		info := kit.Inspect(t, a.Client, "l")
		require.Equal(t, admin.Info{Kind: admin.KindMutex, Name: "l"}, info, "nobody's")

		time.Sleep(time.Second)
		meta := map[string]string{"build": "17"}
		took := time.Now()
		l := kit.Must(t, a.Lock, "l", natslock.Meta(meta), natslock.TTL(20*time.Second))
		meta["build"] = "18" // l keeps its own copy of the map
		time.Sleep(1100 * time.Millisecond)
		asked := time.Now()
		b.Await(t, "l", natslock.Meta(map[string]string{"x": "y"}))
		a.Await(t, "l")
		check := func(renewed time.Time) {
			t.Helper()
			info = kit.Inspect(t, b.Client, "l")
			h := info.Holder
			require.NotNil(t, h)
			require.Equal(t, admin.Holder{Holder: natslock.Holder{Token: l.Token(), ID: l.ID(), Owner: "alice", Host: host, PID: os.Getpid(), Since: h.Since, Expires: h.Expires, Meta: map[string]string{"build": "17"}}, Grants: 1, TTL: 20 * time.Second, Revision: h.Revision}, *h)
			require.WithinDuration(t, took, h.Since, time.Millisecond)
			require.WithinDuration(t, renewed.Add(20*time.Second), h.Expires, 10*time.Millisecond)
			require.Len(t, info.Queue, 2)
			q := info.Queue[0]
			require.Equal(t, admin.Waiter{Ticket: q.Ticket, ID: q.ID, Owner: "bob", Host: host, PID: os.Getpid(), Since: q.Since, Mode: admin.Exclusive, Goroutines: 1, TTL: 15 * time.Second, Expires: q.Expires}, q)
			require.False(t, q.Expires.Before(q.Since.Add(15*time.Second)), "a renewal makes it later")
			require.WithinDuration(t, asked, q.Since, time.Millisecond)
			require.Equal(t, "alice", info.Queue[1].Owner)
			require.Greater(t, info.Queue[1].Ticket, q.Ticket)
			require.Empty(t, info.Readers)
		}
		check(a.Events.Wait(t, admin.EventRenewed, "l").Time) // starting to watch causes a renewal
		ticket := info.Queue[0].Ticket
		time.Sleep(time.Until(a.Events.Wait(t, admin.EventRenewed, "l").Time.Add(21300 * time.Millisecond)))
		renewals := a.Events.Count(admin.EventRenewed, "l")
		var last admin.Event
		for _, ev := range a.Events.All() {
			if ev.Type == admin.EventRenewed {
				last = ev
			}
		}
		require.Greater(t, renewals, 2)
		check(last.Time)
		require.Equal(t, ticket, info.Queue[0].Ticket, "it stays that of the first record")

		info, err := admin.New(a.Client).Inspect(t.Context(), admin.KindRW, "l")
		require.NoError(t, err)
		require.Equal(t, admin.Info{Kind: admin.KindRW, Name: "l"}, info, "another lock")
		require.Equal(t, "mutex", admin.KindMutex.String())
	})
}

// TestInspectQueueOrder checks that the queue is listed in ticket order, no matter which waiter
// renewed last.
func TestInspectQueueOrder(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a := kit.Join(t, s)
		kit.Must(t, a.Lock, "l")
		for _, b := range kit.Crowd(t, s, 7) {
			b.Await(t, "l")
			time.Sleep(1300 * time.Millisecond)
		}
		for range 20 {
			time.Sleep(700 * time.Millisecond)
			want := kit.Inspect(t, a.Client, "l").Queue
			require.Len(t, want, 7)
			require.True(t, slices.IsSortedFunc(want, func(a, b admin.Waiter) int { return int(a.Ticket) - int(b.Ticket) }))
			for info, err := range admin.New(a.Client).List(t.Context(), ">") {
				require.NoError(t, err)
				require.Equal(t, want, info.Queue)
			}
		}
	})
}

func TestInspectList(t *testing.T) {
	s := testutil.RunServer(t)
	c, other := kit.Join(t, s), kit.Join(t, s)
	for _, name := range []string{"orders", "orders.1", "orders.2", "orders.2.x", "ordersx", "users.1", "users.1.y", "odd name"} {
		kit.Must(t, c.Lock, name)
	}
	kit.Unlock(t, kit.Must(t, c.Lock, "orders.gone"))
	other.Await(t, "orders")
	other.Await(t, "orders.2")
	other.Await(t, "orders.2.x")
	for pattern, want := range map[string][]string{
		">":             {"odd name", "orders", "orders.1", "orders.2", "orders.2.x", "ordersx", "users.1", "users.1.y"},
		"*":             {"odd name", "orders", "ordersx"},
		"orders":        {"orders"},
		"orders.*":      {"orders.1", "orders.2"},
		"orders.>":      {"orders.1", "orders.2", "orders.2.x"},
		"orders.2.>":    {"orders.2.x"},
		"*.*":           {"orders.1", "orders.2", "users.1"},
		"*.1":           {"orders.1", "users.1"},
		"*.1.>":         {"users.1.y"},
		"orders.2":      {"orders.2"},
		"odd name":      {"odd name"},
		"odd*":          nil, // the wildcard is not a whole token
		"orders.gone":   nil,
		"nobody's.>":    nil,
		"orders.2.x.>":  nil,
		"\x00*":         nil,
		"orders.2.x.*":  nil,
		"orders.*.*.*":  nil,
		"orders.\x00*":  nil,
		"users.*.>":     {"users.1.y"},
		"orders.*.>":    {"orders.2.x"},
		"*.*.*":         {"orders.2.x", "users.1.y"},
		"orders.2.\x00": nil,
	} {
		var got []string
		for info, err := range admin.New(c.Client).List(t.Context(), pattern) {
			require.NoError(t, err, pattern)
			got = append(got, info.Name)
			require.NotNil(t, info.Holder, "%s: %s", pattern, info.Name)
			queued := map[string]int{"orders": 1, "orders.2": 1, "orders.2.x": 1}[info.Name]
			require.Len(t, info.Queue, queued, "%s: %s", pattern, info.Name)
		}
		require.Equal(t, want, got, pattern)
	}
	// The caller may break out of the loop early.
	for range admin.New(c.Client).List(t.Context(), ">") {
		break
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	n := 0
	for _, err := range admin.New(c.Client).List(ctx, ">") {
		require.ErrorIs(t, err, context.Canceled)
		n++
	}
	require.Equal(t, 1, n)
}

func TestInspectListMany(t *testing.T) {
	s := testutil.RunServer(t)
	c := kit.Join(t, s)
	const n = 1500 // more than fit in one response from the server
	for i := range n {
		l, err := c.TryLock(t.Context(), fmt.Sprintf("many.%04d", i))
		require.NoError(t, err)
		defer l.Unlock(t.Context())
	}
	var names []string
	for info, err := range admin.New(c.Client).List(t.Context(), "many.*") {
		require.NoError(t, err)
		names = append(names, info.Name)
	}
	require.Len(t, names, n)
	require.True(t, slices.IsSorted(names))
}

// story collects the events of a Watch as text.
type story struct {
	lines chan string
	done  chan struct{}
}

func watchStory(t testing.TB, m *kit.Member, ctx context.Context, pattern string) *story {
	t.Helper()
	s := &story{lines: make(chan string, 1000), done: make(chan struct{})}
	go func() {
		defer close(s.done)
		for ev, err := range admin.New(m.Client).Watch(ctx, pattern) {
			if err != nil {
				s.lines <- err.Error()
			} else if ev.Type != admin.EventRenewed && ev.Type != admin.EventWatching {
				s.lines <- fmt.Sprintf("%v %s", ev.Type, ev.Name)
			}
		}
	}()
	synctest.Wait()
	require.NoError(t, m.NC.Flush())
	return s
}

func (s *story) reported() []string {
	synctest.Wait()
	var lines []string
	for len(s.lines) > 0 {
		lines = append(lines, <-s.lines)
	}
	return lines
}

func TestInspectWatch(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b, c, viewer := kit.Join(t, s), kit.Join(t, s), kit.Join(t, s), kit.Join(t, s)
		ctx, stop := context.WithCancel(t.Context())
		all, some, below := watchStory(t, viewer, ctx, ">"), watchStory(t, viewer, ctx, "orders.*"), watchStory(t, viewer, ctx, "orders.1.>")

		l := kit.Must(t, a.Lock, "orders.1")
		require.Equal(t, []string{"granted orders.1"}, all.reported())
		w := b.Await(t, "orders.1")
		require.Equal(t, []string{"queued orders.1"}, all.reported())
		gone := c.Await(t, "orders.1")
		gone.Cancel(nil)
		gone.Failed(t)
		require.Equal(t, []string{"queued orders.1", "gave up orders.1"}, all.reported())
		time.Sleep(time.Minute) // the stories leave out renewals
		require.Empty(t, all.reported())
		kit.Unlock(t, l)
		l = w.Granted(t)
		require.Equal(t, []string{"released orders.1", "granted orders.1"}, all.reported())
		time.Sleep(2 * time.Second)
		kit.Break(t, viewer.Client, l, "because")
		require.Equal(t, []string{"broken orders.1"}, all.reported())
		require.ErrorIs(t, l.Unlock(ctx), natslock.ErrBroken)
		require.Equal(t, []string{"released orders.1"}, all.reported())
		kit.Must(t, a.Lock, "orders.1", natslock.NoRenew(), natslock.TTL(3*time.Second))
		require.Equal(t, []string{"granted orders.1"}, all.reported())
		time.Sleep(4 * time.Second)
		require.Equal(t, []string{"expired orders.1"}, all.reported())
		l = kit.Must(t, a.Lock, "orders.1")
		breakNow(t, viewer.Client, l, "now")
		require.Equal(t, []string{"granted orders.1", "broken orders.1"}, all.reported())

		require.Equal(t, []string{
			"granted orders.1", "queued orders.1", "queued orders.1", "gave up orders.1", "released orders.1", "granted orders.1",
			"broken orders.1", "released orders.1", "granted orders.1", "expired orders.1", "granted orders.1", "broken orders.1",
		}, some.reported())
		require.Empty(t, below.reported(), "waiters of orders.1 are not below it")
		kit.Unlock(t, kit.Must(t, a.Lock, "users"))
		kit.Unlock(t, kit.Must(t, a.Lock, "orders.1.x"))
		require.Empty(t, some.reported())
		require.Equal(t, []string{"granted orders.1.x", "released orders.1.x"}, below.reported())
		stop()
		for _, st := range []*story{all, some, below} {
			kit.Receive(t, st.done, "the end of Watch")
		}
		require.Equal(t, []string{"granted users", "released users", "granted orders.1.x", "released orders.1.x"}, all.reported(), "no error at the end")
	})
}

// TestInspectWatchDetails checks that each event of a Watch carries the details of the holder it
// concerns.
func TestInspectWatchDetails(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, viewer := kit.Join(t, s, natslock.WithOwner("alice")), kit.Join(t, s)
		events := make(chan admin.Event, 100)
		ended := make(chan error, 1)
		go func() {
			for ev, err := range admin.New(viewer.Client).Watch(context.Background(), "l") {
				if err != nil {
					ended <- err
					return
				}
				events <- ev
			}
		}()
		require.Equal(t, admin.EventWatching, kit.Receive(t, events, "the mark").Type)
		l := kit.Must(t, a.Lock, "l", natslock.Meta(map[string]string{"k": "v"}))
		ev := kit.Receive(t, events, "an event")
		require.Equal(t, admin.EventGranted, ev.Type)
		require.Equal(t, admin.KindMutex, ev.Kind)
		require.Equal(t, l.Token(), ev.Token)
		require.Equal(t, l.ID(), ev.ID)
		require.Equal(t, "alice", ev.Holder.Owner)
		require.Equal(t, map[string]string{"k": "v"}, ev.Holder.Meta)
		require.WithinDuration(t, time.Now(), ev.Time, time.Second)
		time.Sleep(1500 * time.Millisecond)
		ev = kit.Receive(t, events, "an event")
		require.Equal(t, admin.EventRenewed, ev.Type)
		require.Equal(t, l.Token(), ev.Token)
		breakNow(t, viewer.Client, l, "why")
		ev = kit.Receive(t, events, "an event")
		require.Equal(t, admin.EventBroken, ev.Type)
		require.Equal(t, l.Token(), ev.Token)
		require.Equal(t, "why", ev.Holder.Broken.Reason)
		kit.CloseNow(viewer.Client)
		require.ErrorIs(t, kit.Receive(t, ended, "the end"), natslock.ErrClosed)
	})
}

func TestInspectObserver(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b := kit.Join(t, s), kit.Join(t, s)
		l := kit.Must(t, a.Lock, "l")
		begun := make(chan struct{})
		type mine struct{}
		var got *natslock.Lock
		go func() {
			defer close(begun)
			ctx, cancel := context.WithCancel(context.WithValue(context.Background(), mine{}, "mine"))
			defer cancel()
			got, _ = b.Lock(ctx, "l", natslock.Detached())
		}()
		b.Events.Wait(t, admin.EventQueued, "l")
		time.Sleep(800 * time.Millisecond)
		kit.Unlock(t, l)
		<-begun
		time.Sleep(1500 * time.Millisecond)
		kit.Unlock(t, got)
		synctest.Wait()
		var types []string
		for i, ev := range b.Events.All() {
			types = append(types, ev.Type.String())
			require.Equal(t, "l", ev.Name)
			require.Equal(t, admin.KindMutex, ev.Kind)
			require.NotEmpty(t, ev.ID)
			require.Nil(t, ev.Holder)
			ctx := b.Events.Contexts()[i]
			require.Equal(t, "mine", ctx.Value(mine{}), "the acquire's values")
			require.NoError(t, ctx.Err(), "and not its end")
			switch ev.Type {
			case admin.EventGranted:
				require.Equal(t, 800*time.Millisecond, ev.Waited.Round(time.Millisecond))
				require.Equal(t, got.ID(), ev.ID)
				fallthrough
			case admin.EventRenewed, admin.EventReleased:
				require.Equal(t, got.Token(), ev.Token)
				require.NoError(t, ev.Cause)
			}
		}
		require.Equal(t, []string{"queued", "granted", "renewed", "released"}, types)

		types = nil
		mark := b.Events.Len()
		l = kit.Must(t, a.Lock, "l")
		w := b.Await(t, "l", natslock.MaxWait(time.Second))
		require.ErrorIs(t, w.Failed(t), natslock.ErrTimeout)
		synctest.Wait()
		for _, ev := range b.Events.All()[mark:] {
			types = append(types, ev.Type.String())
		}
		require.Equal(t, []string{"queued", "gave up"}, types)
		ev := b.Events.All()[mark+1]
		require.ErrorIs(t, ev.Cause, natslock.ErrTimeout)
		var timeout *natslock.TimeoutError
		require.ErrorAs(t, ev.Cause, &timeout)
		require.Equal(t, time.Second, ev.Waited.Round(time.Millisecond))
		kit.Unlock(t, l)
	})
}

// TestInspectObserverBlocks checks that a blocked observer delays neither renewals nor Unlock.
func TestInspectObserverBlocks(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		release := make(chan struct{})
		defer close(release)
		c := kit.NewClient(t, s.Connect(), admin.WithObserver(func(context.Context, admin.Event) { <-release }))
		l := kit.Must(t, c.Lock, "l")
		time.Sleep(time.Minute)
		kit.WantHeld(t, l)
		kit.Unlock(t, l)
	})
}

// TestInspectIsCurrent checks that Inspect and List show the latest writes of other clients even if
// the nearest replica lags.
func TestInspectIsCurrent(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, waiter := kit.Join(t, s), kit.Join(t, s)
		b := kit.NewClient(t, s.Connect(), faults.WrapStore(func(kv kvstore.KV) kvstore.KV { return &kit.Lagging{KV: kv, Answers: 1000} }))
		l := kit.Must(t, a.Lock, "x")
		w := waiter.Await(t, "x")
		info := kit.Inspect(t, b, "x")
		require.NotNil(t, info.Holder)
		require.Equal(t, l.Token(), info.Holder.Token)
		require.Len(t, info.Queue, 1)
		n := 0
		for info, err := range admin.New(b).List(t.Context(), ">") {
			require.NoError(t, err)
			require.NotNil(t, info.Holder)
			require.Len(t, info.Queue, 1)
			n++
		}
		require.Equal(t, 1, n)
		kit.Unlock(t, l)
		kit.Unlock(t, w.Granted(t))
	})
}

// TestListNeedsLeader checks that List fails if the stream has no leader. Replicas still answer
// reads then, and an empty reply from one must not pass for a list of free locks.
func TestListNeedsLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, f := kit.FaultyInMemory(t, kvstore.NewMemory("natslock"), 1)
		kit.Must(t, c.Lock, "l")
		f.FailReads(func(op faults.ReadOp, _ string) error {
			if op == faults.ReadState {
				return faults.Hang
			}
			return nil
		})
		var listed error
		for _, err := range admin.New(c).List(t.Context(), ">") {
			listed = err
		}
		require.ErrorIs(t, listed, natslock.ErrUnavailable)
	})
}

// counted counts the calls of List.
type counted struct {
	kvstore.KV
	lists *atomic.Int64
}

func (c counted) List(ctx context.Context, pattern string, min uint64, opts ...kvstore.ListOption) (kvstore.Listing, error) {
	c.lists.Add(1)
	return c.KV.List(ctx, pattern, min, opts...)
}

// TestListInParts checks that List reads many locks in parts. It yields the locks of one part
// before it requests the next, which then shows the locks as they are at that moment.
func TestListInParts(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, srv *testutil.Server) {
		const n, part = 1500, 256
		ctx := t.Context()
		owner := kit.NewClient(t, srv.Connect())
		held := make([]*natslock.Lock, n)
		for i := range held {
			var err error
			held[i], err = owner.TryLock(ctx, fmt.Sprintf("many.%04d", i), natslock.Detached())
			require.NoError(t, err)
			kit.Keep(t, held[i])
		}
		reader, err := rwlock.New(kit.NewClient(t, srv.Connect())).RLock(ctx, "many.0700")
		require.NoError(t, err)
		kit.Keep(t, reader)

		var lists atomic.Int64
		c := kit.NewClient(t, srv.Connect(), faults.WrapStore(func(kv kvstore.KV) kvstore.KV { return counted{kv, &lists} }))
		var names []string
		readers := 0
		for info, err := range admin.New(c).List(ctx, "many.*") {
			require.NoError(t, err)
			readers += len(info.Readers)
			names = append(names, info.Name)
			asked := int64(len(names)-1)/part + 1
			if want := 7 + asked; len(names) <= part && lists.Load() != want {
				t.Fatalf("%d lists before lock %d, not %d", lists.Load(), len(names), want)
			}
			if len(names) == 1 {
				require.NoError(t, held[n-1].Unlock(ctx))
				require.NoError(t, held[n-2].Unlock(ctx))
				again, err := owner.TryLock(ctx, held[n-2].Name(), natslock.Meta(map[string]string{"taken": "again"}))
				require.NoError(t, err)
				kit.Keep(t, again)
				time.Sleep(2 * time.Second) // so that the tombstone has expired, too
			}
			if info.Name == held[n-2].Name() {
				require.Equal(t, "again", info.Holder.Meta["taken"])
			}
		}
		require.Len(t, names, n) // many.0700 appears as two kinds, and the last lock was released
		require.IsNonDecreasing(t, names)
		require.Equal(t, 1, readers)
		require.Equal(t, int64(7+(n+part-1)/part), lists.Load())

		lists.Store(0)
		for _, err := range admin.New(c).List(ctx, "many.*") {
			require.NoError(t, err)
			break
		}
		require.Equal(t, int64(8), lists.Load(), "nothing is read that nobody wants")
	})
}
