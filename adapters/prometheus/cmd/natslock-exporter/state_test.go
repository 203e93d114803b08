package main

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	natslockprom "github.com/natslock/locks/adapters/prometheus"
	"github.com/natslock/locks/internal/mirror"
	"github.com/natslock/locks/internal/tool"
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

// TestMatchesAsList checks that the exporter's patterns match the same names as the library's.
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

// copy is a mirror whose locks are set by a test.
type copy struct {
	state mirror.State
	locks map[mirror.ID]admin.Info
}

func newCopy(infos ...admin.Info) *copy {
	c := &copy{state: mirror.State{Condition: mirror.Live, Current: 1, Replicas: 1}, locks: map[mirror.ID]admin.Info{}}
	for _, info := range infos {
		c.locks[mirror.IDOf(info)] = info
	}
	return c
}

func (c *copy) State() mirror.State       { return c.state }
func (c *copy) Below(string) []admin.Info { return slices.Collect(maps.Values(c.locks)) }
func (c *copy) Ahead() time.Duration      { return 0 }
func (c *copy) Counts(id mirror.ID) (int, int) {
	info := c.locks[id]
	held := len(info.Readers) + len(info.Permits)
	if info.Holder != nil {
		held++
	}
	return held, len(info.Queue)
}

// TestLabelsAreFew checks that names that begin with an ID do not create a label each.
func TestLabelsAreFew(t *testing.T) {
	t.Parallel()
	c := newCopy()
	s := newState(labeler(nil), c)
	s.event(admin.Event{Type: admin.EventQueued, Name: "\xff.2", ID: "more bytes"}) // not UTF-8
	for i := range 2 * natslockprom.MaxLabels {
		name := fmt.Sprint("id-", i)
		s.event(admin.Event{Type: admin.EventGranted, Name: name, ID: fmt.Sprint(i), Grants: 1})
		c.locks[mirror.ID{Name: name}] = admin.Info{Name: name, Holder: &admin.Holder{}}
	}
	totals, current := s.totals()
	require.True(t, current)
	require.Len(t, totals, natslockprom.MaxLabels+1)
	require.Equal(t, natslockprom.MaxLabels+1, totals[other].held)
	require.Equal(t, float64(natslockprom.MaxLabels+1), testutil.ToFloat64(s.grants.WithLabelValues(other)))
}

// TestCounts checks that a break counts once and that its end is not an expiry. A hand-over lasts
// from the end of a hold until the next grant, if a client was queued.
func TestCounts(t *testing.T) {
	t.Parallel()
	c := newCopy()
	s := newState(labeler(nil), c)
	begun := time.Now()
	id := mirror.ID{Name: "held"}
	event := func(typ admin.EventType, at time.Duration, h *admin.Holder) {
		s.event(admin.Event{Type: typ, Name: id.Name, ID: h.ID, Time: begun.Add(at), Holder: h})
	}
	handovers := func() float64 {
		r := prometheus.NewRegistry()
		r.MustRegister(s)
		families, err := r.Gather()
		require.NoError(t, err)
		for _, f := range families {
			if f.GetName() == "natslock_bucket_handover_seconds" {
				return f.Metric[0].Histogram.GetSampleSum()
			}
		}
		return 0
	}
	h := &admin.Holder{Holder: natslock.Holder{ID: "1"}, TTL: time.Minute}
	event(admin.EventBroken, 0, h)
	event(admin.EventBroken, 0, h)
	event(admin.EventExpired, 0, h)
	require.Equal(t, 1.0, testutil.ToFloat64(s.breaks.WithLabelValues("held")))
	require.Equal(t, 0.0, testutil.ToFloat64(s.expiries.WithLabelValues("held")))
	event(admin.EventGranted, time.Second, h)
	require.Zero(t, handovers(), "nobody was queued")

	c.locks[id] = admin.Info{Name: id.Name, Queue: []admin.Waiter{{ID: "2"}}}
	event(admin.EventExpired, 2*time.Second, h)
	require.Equal(t, 1.0, testutil.ToFloat64(s.expiries.WithLabelValues("held")))
	event(admin.EventGranted, 5*time.Second, h)
	require.Equal(t, 3.0, handovers())
	event(admin.EventReleased, 6*time.Second, h)
	delete(c.locks, id)
	event(admin.EventGaveUp, 7*time.Second, h)
	event(admin.EventGranted, 8*time.Second, h)
	require.Equal(t, 3.0, handovers(), "nobody was left")

	// A gap counts once, regardless of the conditions that it passes through.
	for _, to := range []mirror.Condition{mirror.Stale, mirror.Live, mirror.Unfit, mirror.Live, mirror.Stale, mirror.NoLeader, mirror.Live} {
		s.turned(mirror.State{Condition: to})
	}
	require.Equal(t, 1.0, testutil.ToFloat64(s.gaps))
}

// TestTotals checks that locks and waits that are long by design are counted but have no age. A
// renewal is late after a third of the TTL, and a record that no client renews is never late.
func TestTotals(t *testing.T) {
	t.Parallel()
	now := time.Now()
	holder := func(name string, change func(*admin.Holder)) admin.Info {
		ttl := 15 * time.Second
		h := &admin.Holder{Holder: natslock.Holder{ID: name, Since: now.Add(-time.Hour), Expires: now.Add(ttl - 8*time.Second)}, TTL: ttl}
		change(h)
		return admin.Info{Name: name, Holder: h}
	}
	waits := func(name string, waiters ...admin.Waiter) admin.Info { return admin.Info{Name: name, Queue: waiters} }
	since := now.Add(-time.Minute)
	c := newCopy(
		holder("held", func(*admin.Holder) {}),
		holder("idle", func(h *admin.Holder) { h.Idle = true }),
		holder("fixed", func(h *admin.Holder) { h.Fixed = true }),
		holder("broken", func(h *admin.Holder) { h.Broken = &admin.Broken{} }),
		holder("overdue", func(h *admin.Holder) { h.Overdue = true }),
		holder("elected", func(h *admin.Holder) { h.Purpose = "election" }),
		waits("queue", admin.Waiter{Since: since}, admin.Waiter{Since: now}, admin.Waiter{Since: since.Add(-time.Hour), Overdue: true}),
		waits("standbys", admin.Waiter{Since: since, Purpose: "election"}, admin.Waiter{Since: since, Purpose: "partition"}),
		admin.Info{Kind: admin.KindRW, Name: "read", Readers: make([]admin.Holder, 2)},
	)
	s := newState(labeler(nil), c)
	s.now = func() time.Time { return now }
	all, live := s.totals()
	require.True(t, live)
	all["read"].oldest = 0
	require.Equal(t, map[string]*totals{
		"held":     {held: 1, oldest: time.Hour, lag: 3 * time.Second},
		"idle":     {idle: 1, lag: 3 * time.Second},
		"fixed":    {held: 1, oldest: time.Hour},
		"broken":   {held: 1, oldest: time.Hour},
		"overdue":  {},
		"elected":  {held: 1, lag: 3 * time.Second},
		"queue":    {queued: 2, longest: 2, wait: time.Minute},
		"standbys": {queued: 2},
		"read":     {held: 2},
	}, all)
}

// TestBucketMetrics checks that without a leader, or with an unfit bucket, the bucket is not
// writable and there are no metrics of locks. Unknown values are omitted.
func TestBucketMetrics(t *testing.T) {
	t.Parallel()
	c := newCopy(admin.Info{Name: "held", Holder: &admin.Holder{}})
	s := newState(labeler(nil), c)
	_, _ = s.totals() // creates the series
	for _, step := range []struct {
		state mirror.State
		shows map[string]float64
	}{
		{mirror.State{Condition: mirror.Live, Current: 3, Replicas: 3}, map[string]float64{"natslock_exporter_up": 1, "natslock_bucket_writable": 1, "natslock_bucket_replicas": 3, "natslock_bucket_replicas_current": 3, "natslock_bucket_held": 1}},
		{mirror.State{Condition: mirror.NoLeader, Replicas: 3}, map[string]float64{"natslock_exporter_up": 0, "natslock_bucket_writable": 0, "natslock_bucket_replicas": 3, "natslock_bucket_replicas_current": 0}},
		{mirror.State{Condition: mirror.Unfit, Current: 3, Replicas: 3}, map[string]float64{"natslock_exporter_up": 0, "natslock_bucket_writable": 0, "natslock_bucket_replicas": 3, "natslock_bucket_replicas_current": 3}},
		{mirror.State{Condition: mirror.Stale, Current: 3}, map[string]float64{"natslock_exporter_up": 0}},
	} {
		c.state = step.state
		r := prometheus.NewPedanticRegistry()
		r.MustRegister(s)
		families, err := r.Gather()
		require.NoError(t, err)
		got := map[string]float64{}
		for _, f := range families {
			if name := f.GetName(); slices.Contains([]string{"natslock_exporter_up", "natslock_bucket_writable", "natslock_bucket_replicas", "natslock_bucket_replicas_current", "natslock_bucket_held"}, name) {
				got[name] = f.Metric[0].Gauge.GetValue()
			}
		}
		require.Equal(t, step.shows, got, "%v", step.state.Condition)
	}
}

// shape is the part of a lock's state that a list and the exporter have in common.
type shape struct{ held, queued int }

// TestFollowsList has clients acquire, wait for and give up locks of all kinds, some of which are
// broken. At each pause the mirror must equal a new list, and at the end it must be empty.
func TestFollowsList(t *testing.T) {
	t.Parallel()
	s := natstest.RunServer(t)
	f, err := newFollower(&cli{Bucket: "natslock", Names: ">", Connection: tool.Connection{Server: s.URL(), NoContext: true, Timeout: 5 * time.Second}}, slog.New(slog.NewTextHandler(t.Output(), nil)))
	require.NoError(t, err)
	defer f.nc.Close()
	watcher := clientOn(t, s.Connect()) // also creates the bucket
	st := f.state
	watching, end := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- f.run(watching) }()
	defer func() { end(); require.NoError(t, <-ended) }()
	require.Eventually(t, func() bool { return f.healthy() == nil }, patience, 10*time.Millisecond)

	const seed = 7
	var clients []*natslock.Client
	for i := range 5 { // two share a name with another one, as clients of one process do
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
			return semaphore.New(c, 3).Acquire(ctx, "sem."+name, wait)
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
						held[i] = append(held[i], l) // hold it until the pause
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
		same(t, watcher, f)
		for _, locks := range held {
			for _, l := range locks {
				_ = l.Unlock(context.Background())
			}
		}
	}
	same(t, watcher, f)
	require.Empty(t, f.mirror.Below(""))
	require.Greater(t, testutil.ToFloat64(st.grants.WithLabelValues("mutex")), 5.0)
	require.Positive(t, testutil.ToFloat64(st.gaveUp.WithLabelValues("mutex")))
	require.Positive(t, testutil.ToFloat64(st.breaks.WithLabelValues("mutex")))
	require.Positive(t, testutil.CollectAndCount(st, "natslock_bucket_handover_seconds"))
}

// same waits until the mirror equals a list.
func same(t *testing.T, c *natslock.Client, f *follower) {
	t.Helper()
	shapes := func(infos []admin.Info) map[mirror.ID]shape {
		all := map[mirror.ID]shape{}
		for _, info := range infos {
			sh := shape{len(info.Readers) + len(info.Permits), len(info.Queue)}
			if info.Holder != nil {
				sh.held++
			}
			all[mirror.IDOf(info)] = sh
		}
		return all
	}
	require.EventuallyWithT(t, func(t *assert.CollectT) {
		var listed []admin.Info
		for info, err := range admin.New(c).List(context.Background(), ">") {
			require.NoError(t, err)
			listed = append(listed, info)
		}
		require.Equal(t, shapes(listed), shapes(f.mirror.Below("")))
	}, patience, 20*time.Millisecond)
}

// TestLabelNotUTF8 checks that names that are not UTF-8 get distinct labels, in the form that
// lockctl prints and accepts.
func TestLabelNotUTF8(t *testing.T) {
	t.Parallel()
	s := newState(labeler(nil), newCopy())
	for _, name := range []string{"\xff.1", "\xfe.1"} {
		h := &admin.Holder{Holder: natslock.Holder{ID: name}}
		s.event(admin.Event{Type: admin.EventGranted, Name: name, ID: name, Holder: h, Grants: 1})
	}
	require.Equal(t, float64(1), testutil.ToFloat64(s.grants.WithLabelValues(`"\xff"`)))
	require.Equal(t, float64(1), testutil.ToFloat64(s.grants.WithLabelValues(`"\xfe"`)))
}
