package protocol_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/election"
	"github.com/natslock/locks/fence"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/rwlock"
	"github.com/natslock/locks/semaphore"
	"github.com/natslock/locks/testutil"
)

// both returns a client of the library and one that does without it, in the same bucket.
func both(t *testing.T) (*testutil.Server, *natslock.Client, *raw) {
	t.Helper()
	s := testutil.RunServer(t)
	return s, client(t, s), newRaw(t, s.Connect())
}

// client returns a client of the library whose leases outlast the test.
func client(t *testing.T, s *testutil.Server) *natslock.Client {
	t.Helper()
	return kit.NewClient(t, s.Connect(), natslock.WithTTL(time.Minute))
}

// TestHandOver has the library wait for the plain locker and the plain locker wait for the library, in one
// queue of three.
func TestHandOver(t *testing.T) {
	s, c, l := both(t)
	p := startPlain(t, s)
	a, err := c.Lock(t.Context(), "x")
	require.NoError(t, err)
	places := l.watch("wait.x.*")
	l.probe("lock.x")

	got := make(chan line, 1)
	go func() { got <- p.ask(map[string]any{"do": "lock", "name": "x", "wait": kit.Patience.Milliseconds()}) }()
	first := l.next(places)
	require.EqualValues(t, 2, first.number("s"), "a place")

	second := client(t, s)
	last := kit.Begin(t, func(ctx context.Context) (*natslock.Lock, error) { return second.Lock(ctx, "x") })
	place := l.next(places)
	require.EqualValues(t, 2, place.number("s"), "a place")
	require.NotEqual(t, first.key, place.key)

	require.NoError(t, a.Unlock(t.Context()))
	h := kit.Receive(t, got, "the answer of the program")
	require.Equal(t, "ok", h.Result, h.Why)
	require.Greater(t, h.Token, a.Token())
	ended := func() (place stored) {
		for !place.deleted { // skips its renewals
			place = l.next(places)
		}
		return place
	}
	gone := ended()
	require.Equal(t, first.key, gone.key, "the locker came first")
	require.EqualValues(t, 5, gone.number("s"), "the locker's place ends as granted")
	info, err := admin.New(second).Inspect(t.Context(), admin.KindMutex, "x")
	require.NoError(t, err)
	require.Equal(t, l.read("lock.x").text("id"), info.Holder.ID)
	require.Equal(t, h.Token, info.Holder.Token)
	require.Equal(t, "plain", info.Holder.Owner)
	require.Len(t, info.Queue, 1)

	require.Equal(t, "ok", p.ask(map[string]any{"do": "unlock", "name": "x"}).Result)
	b := last.Granted(t)
	require.Greater(t, b.Token(), h.Token)
	claim := l.read("lock.x")
	require.EqualValues(t, 1, claim.number("s"))
	require.Equal(t, b.Token(), claim.revision<<6, "the first write of a claim gives its token")
	gone = ended()
	require.Equal(t, place.key, gone.key)
	require.EqualValues(t, 5, gone.number("s"), "and so does the library's")
	require.NoError(t, b.Unlock(t.Context()))
	require.True(t, l.read("lock.x").deleted || l.read("lock.x").revision == 0)
}

// TestContention has plain lockers and clients of the library take one lock over and over. Only one of them
// is inside at a time, and the tokens rise.
func TestContention(t *testing.T) {
	s := testutil.RunServer(t)
	contend(t, []*natslock.Client{client(t, s), client(t, s)}, []*scripted{startPlain(t, s), startPlain(t, s)}, func() {})
}

// TestWrites compares the headers of the library's own writes with those in the specification.
func TestWrites(t *testing.T) {
	s, c, _ := both(t)
	nc := s.Connect()
	writes, err := nc.SubscribeSync("$KV.natslock.>")
	require.NoError(t, err)
	newRaw(t, nc).probe("lock.x") // after the subscription
	require.Equal(t, "$KV.natslock.lock.x", received(t, writes).Subject)

	a, err := c.Lock(t.Context(), "x", natslock.TTL(1500*time.Millisecond))
	require.NoError(t, err)
	require.NoError(t, a.Unlock(t.Context()))
	rw := rwlock.New(c)
	r, err := rw.RLock(t.Context(), "index")
	require.NoError(t, err)
	require.NoError(t, r.Unlock(t.Context()))
	claim, release := received(t, writes), received(t, writes)
	require.Equal(t, nats.Header{"Nats-Expected-Last-Subject-Sequence": {"0"}, "Nats-TTL": {"2s"}}, claim.Header)
	require.Equal(t, nats.Header{"Nats-Expected-Last-Subject-Sequence": {decimal(record.TokenRevision(a.Token()))}, "Nats-TTL": {"1s"}, "KV-Operation": {"DEL"}}, release.Header)
	join := received(t, writes)
	require.Equal(t, nats.Header{
		"Nats-Expected-Last-Subject-Sequence":         {"0"},
		"Nats-Expected-Last-Subject-Sequence-Subject": {"$KV.natslock.rw.index"}, "Nats-TTL": {"60s"},
	}, join.Header)
}

// TestReaders has a raw client read and write alongside the library.
func TestReaders(t *testing.T) {
	_, c, l := both(t)
	rw := rwlock.New(c)
	gates, readers := l.watch("rw.x"), l.watch("read.x.*")
	l.probe("rw.x")

	// The raw client reads. A writer of the library takes the gate and waits.
	id := rand.Text()
	guard := []string{"Nats-Expected-Last-Subject-Sequence-Subject", "$KV.natslock.rw.x"}
	joined, _, ok := l.write("read.x."+id, l.record(1, id, fields{"m": 1}), 0, lease, guard...)
	require.True(t, ok)
	l.next(readers)
	write := kit.Begin(t, func(ctx context.Context) (*natslock.Lock, error) { return rw.Lock(ctx, "x") })
	gate := l.next(gates)
	late := rand.Text()
	_, last, ok := l.write("read.x."+late, l.record(1, late, fields{"m": 1}), 0, lease, guard...)
	require.False(t, ok, "nobody joins while the gate stands")
	require.Equal(t, gate.revision, last)
	l.remove("read.x."+id, 4, id, joined)
	l.next(readers)
	w := write.Granted(t)
	require.Greater(t, w.Token(), joined<<6)
	require.NoError(t, w.Unlock(t.Context()))

	// The library reads. The raw client takes the gate and drains.
	r, err := rw.RLock(t.Context(), "x")
	require.NoError(t, err)
	require.EqualValues(t, 1, l.next(readers).number("m"))
	id, taken := l.take("rw.x")
	require.NotEmpty(t, l.reading(taken, "x"))
	require.NoError(t, r.Unlock(t.Context()))
	require.True(t, l.next(readers).deleted, "the reader's tombstone is the hint")
	require.Empty(t, l.reading(taken, "x"), "the leader's answer is the proof")

	// A reader of the library queues behind the gate.
	places := l.watch("rwait.x.*")
	l.probe("rw.x")
	read := kit.Begin(t, func(ctx context.Context) (*natslock.Lock, error) { return rw.RLock(ctx, "x") })
	require.EqualValues(t, 1, l.next(places).number("m"), "the place of a reader")
	l.remove("rw.x", 4, id, taken)
	r = read.Granted(t)
	require.Greater(t, r.Token(), taken<<6)
	require.NoError(t, r.Unlock(t.Context()))
}

// TestPermits has a raw client and the library share a semaphore of two.
func TestPermits(t *testing.T) {
	_, c, l := both(t)
	sem := semaphore.New(c, 2)
	id := rand.Text()
	taken, _, ok := l.write("sem.pool.1", l.record(1, id, fields{"q": 2}), 0, lease)
	require.True(t, ok)
	a, err := sem.Acquire(t.Context(), "pool")
	require.NoError(t, err)
	slot, ok := semaphore.Slot(a)
	require.True(t, ok)
	require.Zero(t, slot, "the raw client has slot 1")
	_, err = sem.TryAcquire(t.Context(), "pool")
	require.ErrorIs(t, err, natslock.ErrLocked)

	places := l.watch("swait.pool.*")
	l.probe("sem.pool.1")
	wait := kit.Begin(t, func(ctx context.Context) (*natslock.Lock, error) { return sem.Acquire(ctx, "pool") })
	require.EqualValues(t, 2, l.next(places).number("q"), "a place says how many permits its client knows of")
	l.remove("sem.pool.1", 4, id, taken)
	b := wait.Granted(t)
	slot, _ = semaphore.Slot(b)
	require.Equal(t, 1, slot)
	require.NoError(t, a.Unlock(t.Context()))
	require.NoError(t, b.Unlock(t.Context()))
}

// TestBreaks has the library and a raw client break each other's claims.
func TestBreaks(t *testing.T) {
	_, c, l := both(t)
	a, err := c.Lock(t.Context(), "x")
	require.NoError(t, err)
	was := l.read("lock.x")
	broken := fields{}
	for name, value := range was.fields {
		broken[name] = value
	}
	broken["s"], broken["t"], broken["bb"], broken["br"], broken["ba"] = 3, a.Token(), "ops", "it hangs", time.Now().UnixMilli()
	at, _, ok := l.write("lock.x", broken, was.revision, lease)
	require.True(t, ok)
	require.ErrorIs(t, a.Extend(t.Context(), 0), natslock.ErrBroken)
	kit.Receive(t, a.Context().Done(), "the end of the context")
	_, err = c.TryLock(t.Context(), "x")
	require.ErrorIs(t, err, natslock.ErrLocked, "a broken record keeps others out")
	require.Equal(t, at, l.read("lock.x").revision)
	require.ErrorIs(t, a.Unlock(t.Context()), natslock.ErrBroken)

	id, taken := l.take("lock.x")
	changes := l.watch("lock.x")
	l.probe("lock.x")
	require.NoError(t, admin.New(c).Break(t.Context(), admin.BreakRequest{Kind: admin.KindMutex, Name: "x", ID: id, Reason: "it hangs"}))
	seen := l.next(changes)
	require.EqualValues(t, 3, seen.number("s"))
	require.Equal(t, id, seen.text("id"))
	require.Equal(t, taken<<6, seen.number("t"))
	require.Equal(t, "it hangs", seen.text("br"))
	_, last, ok := l.write("lock.x", l.record(1, id, fields{"r": 1, "t": taken << 6}), taken, lease)
	require.False(t, ok, "the holder cannot renew")
	require.Equal(t, seen.revision, last)
	l.remove("lock.x", 4, id, last)
	b, err := c.Lock(t.Context(), "x")
	require.NoError(t, err)
	require.Greater(t, b.Token(), taken<<6)
	require.NoError(t, b.Unlock(t.Context()))
}

// TestIdleLease has the library queue for an idle lease of the raw client, which gives the lease up when it
// sees the place.
func TestIdleLease(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, l := client(t, s), newRaw(t, s.Connect())
		id := rand.Text()
		at, _, ok := l.write("lock.x", l.record(1, id, fields{"k": true}), 0, lease)
		require.True(t, ok)
		places := l.watch("wait.x.*")
		l.probe("lock.x")
		_, err := c.TryLock(t.Context(), "x")
		var locked *natslock.LockedError
		require.ErrorAs(t, err, &locked)
		require.True(t, locked.Idle)

		lock := kit.Begin(t, func(ctx context.Context) (*natslock.Lock, error) { return c.Lock(ctx, "x") })
		require.EqualValues(t, 2, l.next(places).number("s"), "the TryLock has written nothing")
		l.remove("lock.x", 4, id, at)
		granted := lock.Granted(t)
		require.Greater(t, granted.Token(), at<<6)
		require.NoError(t, granted.Unlock(t.Context()))
	})
}

// TestOverdue has a server forget the TTLs of records. The library and a raw client take each other's lock
// once its record is overdue, but not before.
func TestOverdue(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		conns := []*nats.Conn{s.Connect(), s.Connect()}
		c := kit.NewClient(t, conns[0], natslock.WithTTL(time.Minute))
		l := newRaw(t, conns[1])
		restarts := uint64(0)
		forget := func() {
			kit.RestartWithoutTTLs(t, s)
			restarts++
			for _, nc := range conns { // not the status, which is outdated until a connection has noticed
				for nc.Stats().Reconnects < restarts {
					time.Sleep(10 * time.Millisecond)
				}
			}
		}
		id := rand.Text()
		dead, _, ok := l.write("lock.x", l.record(1, id, fields{"l": 5}), 0, "5s")
		require.True(t, ok)
		forget()
		was := l.read("lock.x")
		time.Sleep(time.Until(was.end.Add(250 * time.Millisecond)))
		require.Equal(t, dead, l.read("lock.x").revision, "the server has forgotten the TTL")
		_, err := c.TryLock(t.Context(), "x")
		require.ErrorIs(t, err, natslock.ErrLocked, "not overdue yet")
		require.False(t, l.overdue(was))
		a, err := c.Lock(t.Context(), "x", natslock.NoRenew(), natslock.TTL(5*time.Second))
		require.NoError(t, err)
		require.False(t, time.Now().Before(was.end.Add(300*time.Millisecond)))
		require.Greater(t, a.Token(), dead<<6)

		forget()
		was = l.read("lock.x")
		time.Sleep(time.Until(was.end.Add(250 * time.Millisecond)))
		require.False(t, l.overdue(was))
		require.ErrorIs(t, a.Err(), natslock.ErrLost, "its validity is over")
		time.Sleep(time.Until(was.end.Add(300 * time.Millisecond)))
		require.True(t, l.overdue(l.read("lock.x")))
		at, _, ok := l.write("lock.x", l.record(1, rand.Text(), nil), was.revision, lease)
		require.True(t, ok)
		require.Greater(t, at<<6, a.Token())
	})
}

// TestHandedOver has the library and a raw client adopt locks that the other has handed over.
func TestHandedOver(t *testing.T) {
	_, c, l := both(t)
	a, err := c.Lock(t.Context(), "x")
	require.NoError(t, err)
	handle, err := a.Handoff(t.Context())
	require.NoError(t, err)
	was := l.read("lock.x")
	require.EqualValues(t, 1, was.number("s"))
	require.Equal(t, true, was.fields["f"])
	require.Equal(t, handle.ID, was.text("id"))
	require.Equal(t, handle.Token, was.number("t"))
	id := rand.Text()
	at, _, ok := l.write("lock.x", l.record(1, id, fields{"t": handle.Token}), was.revision, lease)
	require.True(t, ok, "the raw client adopts it")

	at, _, ok = l.write("lock.x", l.record(1, id, fields{"r": 1, "t": handle.Token, "f": true}), at, lease)
	require.True(t, ok, "the raw client hands it back")
	b, err := c.Adopt(t.Context(), natslock.Handle{Name: "x", ID: id, Token: handle.Token, TTL: time.Minute})
	require.NoError(t, err)
	require.Equal(t, handle.Token, b.Token())
	require.Greater(t, l.read("lock.x").revision, at)
	require.NoError(t, b.Unlock(t.Context()))
}

// TestLeader has the raw client lead and the library observe it.
func TestLeader(t *testing.T) {
	_, c, l := both(t)
	id := rand.Text()
	at, _, ok := l.write("lock.boss", l.record(1, id, fields{"d": map[string]string{"value": "10.0.0.7:8080"}}), 0, lease)
	require.True(t, ok)
	leader, err := election.New(c, "boss").Leader(t.Context())
	require.NoError(t, err)
	require.Equal(t, "10.0.0.7:8080", string(leader.Value))
	require.Equal(t, at<<6, leader.Token)
}

// TestFence has the library and a raw client supersede each other's fence.
func TestFence(t *testing.T) {
	s, _, l := both(t)
	js, err := jetstream.New(s.Connect())
	require.NoError(t, err)
	_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}})
	require.NoError(t, err)
	f, err := fence.Open(t.Context(), js, "ORDERS", "orders.fence", 640)
	require.NoError(t, err)
	_, err = f.Publish(t.Context(), "orders.created", []byte("1"))
	require.NoError(t, err)

	// The raw client opens the fence with a greater token.
	var got struct {
		Message struct {
			Seq  uint64
			Data []byte
		}
	}
	l.api("STREAM.MSG.GET.ORDERS", map[string]string{"last_by_subj": "orders.fence"}, &got)
	var mark struct {
		Fence, Lanes int
		Token        uint64
	}
	require.NoError(t, json.Unmarshal(got.Message.Data, &mark))
	require.EqualValues(t, 640, mark.Token)
	require.Equal(t, 1, mark.Fence)
	opened := l.publish("orders.fence", `{"fence":1,"token":641,"lanes":1,"write":"W"}`, "orders.fence", got.Message.Seq)
	require.NotZero(t, opened)
	_, err = f.Publish(t.Context(), "orders.created", []byte("2"))
	require.ErrorIs(t, err, fence.ErrSuperseded)
	require.NotZero(t, l.publish("orders.created", "3", "orders.fence", opened))

	// The library does so with an even greater one.
	_, err = fence.Open(t.Context(), js, "ORDERS", "orders.fence", 642)
	require.NoError(t, err)
	require.Zero(t, l.publish("orders.created", "4", "orders.fence", opened), "the write is refused")
}
