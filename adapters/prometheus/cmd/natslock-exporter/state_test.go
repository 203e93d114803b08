package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	natslockprom "github.com/natslock/locks/adapters/prometheus"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/rwlock"
	"github.com/natslock/locks/semaphore"
	natstest "github.com/natslock/locks/testutil"
)

func TestMatches(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pattern, name string
		want          bool
	}{
		{">", "orders", true}, {">", "orders.1", true}, {"*", "orders", true}, {"*", "orders.1", false},
		{"orders", "orders", true}, {"orders", "orders.1", false}, {"orders.>", "orders", false},
		{"orders.>", "orders.1", true}, {"orders.>", "orders.1.2", true}, {"orders.*", "orders.1.2", false},
		{"orders.*.lines", "orders.1.lines", true}, {"orders.*.lines", "orders.1", false}, {"orders.*.lines", "orders.1.2", false},
		{"*.1", "orders.1", true}, {"*.1", "orders.2", false}, {"orders.>", "order.1", false},
	} {
		require.Equal(t, c.want, matches(c.pattern, c.name), "%s %s", c.pattern, c.name)
	}
	label := labeler([]string{"orders.vip.>", "orders.>"})
	require.Equal(t, "orders.vip.>", label("orders.vip.1"))
	require.Equal(t, "orders.>", label("orders.1"))
	require.Equal(t, other, label("stock.1"))
	require.Equal(t, "stock", labeler(nil)("stock.1"))
	require.Equal(t, "lockctl", labeler(nil)("lockctl.doctor"))
	for _, probe := range []string{"lockctl/doctor.jzb7v2fyad", "lockctl/doctor/jzb7v2fyad.x"} {
		require.Equal(t, other, labeler(nil)(probe))
	}
}

// TestMatchesAsList compares the patterns with those of the library.
func TestMatchesAsList(t *testing.T) {
	t.Parallel()
	s := natstest.RunServer(t)
	c, _ := client(t, s)
	names := []string{"a", "b", "a.b", "a.c", "a.b.c", "b.b", "b.a.c", natslock.Join("a", "b.c")}
	for _, name := range names {
		hold(t, c, name)
	}
	for _, pattern := range []string{">", "*", "a", "a.>", "a.*", "*.b", "*.*.c", "*.>", "a.b.c"} {
		listed := map[string]bool{}
		for info, err := range admin.New(c).List(t.Context(), pattern) {
			require.NoError(t, err)
			listed[info.Name] = true
		}
		for _, name := range names {
			require.Equal(t, listed[name], matches(pattern, name), "%s %s", pattern, name)
		}
	}
}

// TestLabelsAreFew: names with an id in front do not make a label each.
func TestLabelsAreFew(t *testing.T) {
	t.Parallel()
	s := newState(labeler(nil), func() bool { return true })
	s.listed(nil, 0)
	s.apply(admin.Event{Type: admin.EventQueued, Name: "\xff.2", ID: "more bytes"})
	s.apply(admin.Event{Type: admin.EventGaveUp, Name: "\xff.2", ID: "more bytes"})
	for i := range 2 * natslockprom.MaxLabels {
		s.apply(admin.Event{Type: admin.EventGranted, Name: fmt.Sprint("id-", i), ID: fmt.Sprint(i), Grants: 1})
	}
	s.apply(admin.Event{Type: admin.EventGranted, Name: "\xff.1", ID: "bytes", Grants: 1}) // no UTF-8
	s.apply(admin.Event{Type: admin.EventReleased, Name: "\xff.1", ID: "bytes"})
	totals, current := s.totals()
	require.True(t, current)
	require.Len(t, totals, natslockprom.MaxLabels+1)
	require.Equal(t, natslockprom.MaxLabels+1, totals[other].held)
	require.Equal(t, float64(natslockprom.MaxLabels+1), testutil.ToFloat64(s.grants.WithLabelValues(other)))
}

// TestListAndEvents: events during a list are newer than the list, and a list from before
// a gap does not end the gap.
func TestListAndEvents(t *testing.T) {
	t.Parallel()
	s := newState(labeler(nil), func() bool { return true })
	holder := func(id string) *admin.Holder {
		return &admin.Holder{Holder: natslock.Holder{ID: id, Owner: "web", Since: time.Now()}, TTL: time.Second}
	}
	event := func(typ admin.EventType, name, id string) admin.Event {
		return admin.Event{Type: typ, Name: name, ID: id, Time: time.Now(), Holder: holder(id)}
	}
	gap := s.listing()
	list := []admin.Info{
		{Name: "released", Holder: holder("1")},
		{Name: "held", Holder: holder("2"), Queue: []admin.Waiter{{ID: "3"}, {ID: "4"}, {ID: "5", Overdue: true}}},
		{Name: "read", Kind: admin.KindRW, Readers: []admin.Holder{*holder("7"), *holder("8")}},
	}
	s.apply(event(admin.EventReleased, "released", "1"))
	s.apply(event(admin.EventGaveUp, "held", "3"))
	s.apply(event(admin.EventGranted, "new", "9"))
	s.missed()
	s.listed(list, gap)
	require.False(t, s.watching())
	s.listed(list[1:], s.listing())
	require.True(t, s.watching())
	all, _ := s.totals()
	held := map[string]int{}
	for label, t := range all {
		held[label] = t.held
	}
	require.Equal(t, map[string]int{"released": 0, "held": 1, "read": 2, "new": 0}, held, "the second list does not have new")
	require.Equal(t, 2, all["held"].queued)

	// A mutex has one holder: a grant ends a hold whose end was missed.
	s.apply(event(admin.EventGranted, "held", "10"))
	all, _ = s.totals()
	require.Equal(t, 1, all["held"].held)

	// A break is one, and its end is no expiry.
	broken := event(admin.EventBroken, "held", "10")
	s.apply(broken)
	s.apply(broken)
	s.apply(event(admin.EventExpired, "held", "10"))
	require.Equal(t, 1.0, testutil.ToFloat64(s.breaks.WithLabelValues("held")))
	require.Equal(t, 0.0, testutil.ToFloat64(s.expiries.WithLabelValues("held")))
	s.listed(nil, s.listing())
	require.Empty(t, s.claims)
	require.Empty(t, s.locks)
}

// TestRenewalLag: a renewal is late from a third of the TTL on, until an event or a list shows
// the next one. Records that no client renews are never late.
func TestRenewalLag(t *testing.T) {
	t.Parallel()
	now := time.Now()
	s := newState(labeler(nil), func() bool { return true })
	s.now = func() time.Time { return now }
	holder := func(id string, revision uint64) *admin.Holder {
		return &admin.Holder{Holder: natslock.Holder{ID: id}, TTL: 15 * time.Second, Revision: revision}
	}
	list := func(holders ...*admin.Holder) {
		var infos []admin.Info
		for _, h := range holders {
			infos = append(infos, admin.Info{Name: h.ID + ".x", Holder: h})
		}
		s.listed(infos, s.listing())
	}
	lag := func(label string, want time.Duration) {
		t.Helper()
		all, _ := s.totals()
		require.Equal(t, want, all[label].lag, label)
	}
	idle, fixed, broken := holder("idle", 1), holder("fixed", 2), holder("broken", 3)
	idle.Idle, fixed.Fixed, broken.Broken = true, true, &admin.Broken{}
	list(holder("held", 4), idle, fixed, broken)
	now = now.Add(5 * time.Second)
	lag("held", 0)
	now = now.Add(3 * time.Second)
	lag("held", 3*time.Second)
	lag("idle", 3*time.Second)
	lag("fixed", 0)
	lag("broken", 0)

	list(holder("held", 4), idle, fixed, broken) // the same records
	lag("held", 3*time.Second)
	s.apply(admin.Event{Type: admin.EventRenewed, Name: "held.x", ID: "held", Holder: holder("held", 5)})
	lag("held", 0)
	now = now.Add(6 * time.Second)
	lag("held", time.Second)
	list(holder("held", 6), idle, fixed, broken) // whose event was missed
	lag("held", 0)
	lag("idle", 9*time.Second)
	s.apply(admin.Event{Type: admin.EventReleased, Name: "idle.x", ID: "idle"})
	lag("idle", 0)
}

// shape is what a list and the state have in common, of one lock.
type shape struct{ held, queued int }

// TestFollowsList has clients of all kinds of locks take, wait, give up and be broken. At
// each pause the state, which has followed events alone since its first list, is that of a
// new list. At the end it is empty.
func TestFollowsList(t *testing.T) {
	t.Parallel()
	s := natstest.RunServer(t)
	watcher := clientOn(t, s.Connect())
	st := newState(labeler(nil), func() bool { return true })
	began := make(chan struct{})
	watching, end := context.WithCancel(context.WithoutCancel(t.Context()))
	var watch sync.WaitGroup
	defer watch.Wait()
	defer end()
	watch.Go(func() {
		for ev, err := range admin.New(watcher).Watch(watching, ">") {
			switch {
			case err != nil:
				t.Errorf("watch: %v", err)
			case ev.Type == admin.EventWatching:
				st.listed(nil, st.listing())
				close(began)
			default:
				st.apply(ev)
			}
		}
	})
	<-began

	const seed = 7
	var clients []*natslock.Client
	for i := range 5 { // two have the name of another one, as clients of one process have
		c, _ := client(t, s, natslock.WithTTL(time.Second), natslock.WithOwner(fmt.Sprint("owner-", i%3)))
		clients = append(clients, c)
	}
	lock := func(c *natslock.Client, n int) (*natslock.Lock, error) {
		ctx, wait := t.Context(), natslock.MaxWait(time.Duration(1+n%7)*20*time.Millisecond)
		switch name := fmt.Sprint("lock.", n%3); n / 3 % 4 {
		case 0:
			return c.Lock(ctx, "mutex."+name, wait)
		case 1:
			return rwlock.New(c).Lock(ctx, "rw."+name, wait)
		case 2:
			return rwlock.New(c).RLock(ctx, "rw."+name, wait)
		default:
			return semaphore.New(c, "sem."+name, 3).Acquire(ctx, wait)
		}
	}
	for round := range 2 {
		held := make([][]*natslock.Lock, len(clients)*3)
		var work sync.WaitGroup
		for i := range held {
			work.Go(func() {
				r := rand.New(rand.NewPCG(seed, uint64(round*100+i)))
				c := clients[i%len(clients)]
				for range 12 {
					l, err := lock(c, r.IntN(1000))
					if err != nil {
						continue
					}
					switch r.IntN(8) {
					case 0:
						held[i] = append(held[i], l) // until the pause
						continue
					case 1:
						kind := admin.KindMutex
						if strings.HasPrefix(l.Name(), "rw.") {
							kind = admin.KindRW
						} else if strings.HasPrefix(l.Name(), "sem.") {
							kind = admin.KindSemaphore
						}
						id, _, _ := strings.Cut(l.ID(), ".") // the claim of a run
						_ = admin.New(clients[0]).Break(t.Context(), admin.BreakRequest{Kind: kind, Name: l.Name(), ID: id, Reason: "test", Immediately: r.IntN(2) == 0})
					}
					_ = l.Unlock(context.Background())
				}
			})
		}
		work.Wait()
		same(t, watcher, st)
		for _, locks := range held {
			for _, l := range locks {
				_ = l.Unlock(context.Background())
			}
		}
	}
	same(t, watcher, st)
	require.Empty(t, st.claims)
	require.Greater(t, testutil.ToFloat64(st.grants.WithLabelValues("mutex")), 5.0)
	require.Positive(t, testutil.ToFloat64(st.gaveUp.WithLabelValues("mutex")))
	require.Positive(t, testutil.ToFloat64(st.breaks.WithLabelValues("mutex")))
	require.Positive(t, testutil.CollectAndCount(st, "natslock_bucket_handover_seconds"))
}

// same waits until the state is that of a list.
func same(t *testing.T, c *natslock.Client, st *state) {
	t.Helper()
	listed := func() map[lockID]shape {
		shapes := map[lockID]shape{}
		for info, err := range admin.New(c).List(t.Context(), ">") {
			require.NoError(t, err)
			sh := shape{len(info.Readers) + len(info.Permits), len(info.Queue)}
			if info.Holder != nil {
				sh.held++
			}
			shapes[lockID{info.Kind, info.Name}] = sh
		}
		return shapes
	}
	followed := func() map[lockID]shape {
		_, _ = st.totals()
		st.mu.Lock()
		defer st.mu.Unlock()
		shapes := map[lockID]shape{}
		for id, l := range st.locks {
			shapes[id] = shape{len(l.held), len(l.queue)}
		}
		return shapes
	}
	require.EventuallyWithT(t, func(t *assert.CollectT) { require.Equal(t, listed(), followed()) }, patience, 20*time.Millisecond)
}
