package kvstore_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/testutil"
)

func TestConditionalWrites(t *testing.T) {
	ctx := t.Context()
	nc := testutil.RunServer(t).Connect()
	s := open(t, nc, kvstore.Config{})

	wantConflict := func(err error, expected, last uint64) {
		t.Helper()
		wantErr(t, err, kvstore.ErrConflict)
		var c *kvstore.ConflictError
		if !errors.As(err, &c) || c.Expected != expected || c.Last != last || c.Key == "" {
			t.Fatalf("conflict is %+v, should name %d and %d", c, expected, last)
		}
		equal(t, "matches ErrExists", errors.Is(err, kvstore.ErrExists), expected == 0)
	}

	one, err := s.Create(ctx, "lock.a", []byte("1"), ttl)
	check(t, err)
	_, err = s.Create(ctx, "lock.a", []byte("2"), ttl)
	wantConflict(err, 0, one)
	two, err := s.Update(ctx, "lock.a", []byte("2"), ttl, one)
	check(t, err)
	_, err = s.Update(ctx, "lock.a", []byte("3"), ttl, one)
	wantConflict(err, one, two)
	_, err = s.Update(ctx, "lock.none", nil, ttl, one)
	wantConflict(err, one, 0)
	_, err = s.Delete(ctx, "lock.a", one)
	wantConflict(err, one, two)

	r, err := s.Get(ctx, "lock.a", two)
	check(t, err)
	if string(r.Value) != "2" || r.Revision != two || r.TTL != ttl || r.Deleted || r.Key != "lock.a" || r.Time.IsZero() {
		t.Fatalf("record is %+v", r)
	}

	gone, err := s.Delete(ctx, "lock.a", two)
	check(t, err)
	r, err = s.Get(ctx, "lock.a", gone)
	check(t, err)
	if !r.Deleted || r.Revision != gone || r.TTL != time.Second {
		t.Fatalf("tombstone is %+v", r)
	}
	_, err = s.Create(ctx, "lock.a", nil, ttl)
	wantConflict(err, 0, gone)
	_, err = s.Update(ctx, "lock.a", nil, ttl, gone) // a tombstone is claimed at its revision
	check(t, err)
}

func TestCreateGuarded(t *testing.T) {
	ctx := t.Context()
	nc := testutil.RunServer(t).Connect()
	s := open(t, nc, kvstore.Config{})

	_, err := s.CreateGuarded(ctx, "read.a.1", nil, ttl, "rw.a", 0)
	check(t, err)
	gate := create(t, s, "rw.a", "writer")
	_, err = s.CreateGuarded(ctx, "read.a.2", nil, ttl, "rw.a", 0)
	var c *kvstore.ConflictError
	if !errors.As(err, &c) || c.Last != gate {
		t.Fatalf("a join against a taken gate: %v", err)
	}
	open, err := s.Delete(ctx, "rw.a", gate)
	check(t, err)
	_, err = s.CreateGuarded(ctx, "read.a.3", nil, ttl, "rw.a", open)
	check(t, err)

	// The guard is this key and no other.
	create(t, s, "rw.b", "another writer")
	_, err = s.CreateGuarded(ctx, "read.a.4", nil, ttl, "rw.a", open)
	check(t, err)

	for _, guard := range []string{"", "rw.*", "rw.>", "*", ">", "rw a"} {
		_, err = s.CreateGuarded(ctx, "read.a.5", nil, ttl, guard, 0)
		wantErr(t, err, kvstore.ErrInvalidKey)
		if guard != "" { // a plain write has no guard
			_, err = s.Send(kvstore.Write{Key: "read.a.5", TTL: ttl, Guard: guard}, func(kvstore.Answer) { t.Error("answered") })
			wantErr(t, err, kvstore.ErrInvalidKey)
		}
	}
	equal(t, "readers", keysOf(t, s, "read.a.*", open), "read.a.1 read.a.3 read.a.4 ")
}

// Nothing invalid may reach the server, so the test watches everything that is sent.
func TestRefusedBeforeIO(t *testing.T) {
	ctx := t.Context()
	srv := testutil.RunServer(t)
	s := open(t, srv.Connect(), kvstore.Config{})
	spy := srv.Connect()
	sent, err := spy.SubscribeSync("$KV.>")
	check(t, err)
	check(t, spy.Flush())

	for _, d := range []time.Duration{0, -1, -time.Second, kvstore.MaxTTL + 1, 1<<63 - 1} {
		_, err := s.Create(ctx, "lock.a", nil, d)
		wantErr(t, err, kvstore.ErrInvalidTTL)
		_, err = s.Update(ctx, "lock.a", nil, d, 1)
		wantErr(t, err, kvstore.ErrInvalidTTL)
		_, err = s.CreateGuarded(ctx, "lock.a", nil, d, "rw.a", 1)
		wantErr(t, err, kvstore.ErrInvalidTTL)
	}
	_, err = s.Send(kvstore.Write{Key: "lock.a", Delete: true, TTL: -1}, nil)
	wantErr(t, err, kvstore.ErrInvalidTTL)
	for _, key := range []string{
		"", ".", ".a", "a.", "a..b", "*", ">", "a.*", "a.>", "a*", "a b", " a", "a\tb", "a\r\nPUB x 0\r\n", "a\x00",
		"ä", "a\xff", "$a", "a:b", "a%b", "a\\b", strings.Repeat("a", 1025),
	} {
		_, err := s.Create(ctx, key, nil, ttl)
		wantErr(t, err, kvstore.ErrInvalidKey)
		_, err = s.Get(ctx, key, 0)
		wantErr(t, err, kvstore.ErrInvalidKey)
	}
	for _, pattern := range []string{"", "a.", "a.>.b", "a*", "a.>b", "a b", strings.Repeat("a.", 600) + "a"} {
		_, err := s.List(ctx, pattern, 0)
		wantErr(t, err, kvstore.ErrInvalidKey)
		_, err = s.Watch(pattern, func(kvstore.Event) {})
		wantErr(t, err, kvstore.ErrInvalidKey)
	}
	if _, err = s.Create(ctx, "lock.a", make([]byte, kvstore.MaxRecord+1), ttl); err == nil {
		t.Fatal("a value larger than MaxRecord was accepted")
	}
	canceled, cancel := context.WithCancelCause(ctx)
	why := errors.New("because")
	cancel(why)
	_, err = s.Create(canceled, "lock.a", nil, ttl)
	wantErr(t, err, context.Canceled, why)

	create(t, s, "lock.first", "")
	m, err := sent.NextMsg(10 * time.Second)
	check(t, err)
	equal(t, "first message seen", m.Subject, "$KV.natslock.lock.first")
}

func TestLargestWrite(t *testing.T) {
	nc := testutil.RunServer(t).Connect()
	s := open(t, nc, kvstore.Config{})
	key := strings.Repeat("a.", 511) + "ab"
	a := send(t, s, kvstore.Write{Key: key, Value: make([]byte, kvstore.MaxRecord), TTL: kvstore.MaxTTL, Guard: key})
	check(t, a.Err)
	r, err := s.Get(t.Context(), key, a.Revision)
	check(t, err)
	equal(t, "TTL", r.TTL, kvstore.MaxTTL)
	equal(t, "size", len(r.Value), kvstore.MaxRecord)
	equal(t, "listed", keysOf(t, s, key, a.Revision), key+" ")
}

func TestFullBucketRefuses(t *testing.T) {
	nc := testutil.RunServer(t).Connect()
	s := open(t, nc, kvstore.Config{MaxBytes: 2 * kvstore.MaxRecord})
	held := create(t, s, "lock.a", strings.Repeat("x", kvstore.MaxRecord))
	_, err := s.Create(t.Context(), "lock.b", make([]byte, kvstore.MaxRecord), ttl)
	wantErr(t, err, kvstore.ErrUnavailable)
	if errors.Is(err, kvstore.ErrConflict) {
		t.Fatalf("a full bucket is no conflict: %v", err)
	}
	_, err = s.Get(t.Context(), "lock.a", held)
	check(t, err)
}

func TestTTLIsRoundedUp(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, srv *testutil.Server) {
		ctx := t.Context()
		s := open(t, srv.Connect(), kvstore.Config{})
		begun := time.Now()
		_, err := s.Create(ctx, "lock.a", nil, 1500*time.Millisecond)
		check(t, err)
		rev, err := s.Create(ctx, "lock.b", nil, ttl)
		check(t, err)
		gone, err := s.Delete(ctx, "lock.b", rev)
		check(t, err)

		time.Sleep(time.Until(begun.Add(900 * time.Millisecond)))
		_, err = s.Get(ctx, "lock.b", gone)
		check(t, err)
		time.Sleep(time.Until(begun.Add(1900 * time.Millisecond)))
		r, err := s.Get(ctx, "lock.a", 0)
		check(t, err)
		equal(t, "TTL", r.TTL, 2*time.Second)
		_, err = s.Get(ctx, "lock.b", gone)
		wantErr(t, err, kvstore.ErrNotFound)
		time.Sleep(time.Until(begun.Add(2300 * time.Millisecond)))
		_, err = s.Get(ctx, "lock.a", 0)
		wantErr(t, err, kvstore.ErrNotFound)
		_, err = s.Create(ctx, "lock.a", nil, time.Nanosecond)
		check(t, err)
	})
}

// While a connection drains, its subscriptions are gone, but handlers that are still running hold locks.
func TestDraining(t *testing.T) {
	ctx := t.Context()
	closed := make(chan struct{})
	nc := testutil.RunServer(t).Connect(nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
	s := open(t, nc, kvstore.Config{})
	rev := create(t, s, "lock.a", "")
	started, finish := make(chan struct{}), make(chan struct{})
	_, err := nc.Subscribe("work", func(*nats.Msg) { close(started); <-finish })
	check(t, err)
	check(t, nc.Publish("work", nil))
	kit.Receive(t, started, "the handler")

	check(t, nc.Drain())
	equal(t, "status", nc.Status(), nats.DRAINING_SUBS)
	for range 3 {
		rev, err = s.Update(ctx, "lock.a", nil, ttl, rev)
		check(t, err)
	}
	a := send(t, s, kvstore.Write{Key: "lock.a", TTL: ttl, Expect: rev})
	check(t, a.Err)
	_, err = s.Get(ctx, "lock.a", a.Revision)
	check(t, err)
	equal(t, "list", keysOf(t, s, "lock.*", a.Revision), "lock.a ")
	check(t, s.Verify(ctx))
	_, err = s.Watch("lock.a", func(kvstore.Event) {})
	wantErr(t, err, kvstore.ErrUnavailable)
	_, err = s.Delete(ctx, "lock.a", a.Revision)
	check(t, err)

	close(finish)
	kit.Receive(t, closed, "the end of the connection")
	_, err = s.Create(ctx, "lock.b", nil, ttl)
	wantErr(t, err, kvstore.ErrUnavailable)
	wantErr(t, s.Healthy(), kvstore.ErrUnavailable)
}

// Even a store's first request may meet a draining connection.
func TestDrainingFromTheStart(t *testing.T) {
	nc := testutil.RunServer(t).Connect()
	s := open(t, nc, kvstore.Config{})
	started, finish := make(chan struct{}), make(chan struct{})
	_, err := nc.Subscribe("work", func(*nats.Msg) { close(started); <-finish })
	check(t, err)
	defer close(finish)
	check(t, nc.Publish("work", nil))
	kit.Receive(t, started, "the handler")
	check(t, nc.Drain())
	create(t, s, "lock.a", "")
}

// A tombstone queued before Close is sent even by a store that has sent nothing before, and even while the connection
// drains.
func TestTombstoneBeforeClose(t *testing.T) {
	srv := testutil.RunServer(t)
	other := open(t, srv.Connect(), kvstore.Config{})
	for key, c := range map[string]struct{ drains, queued bool }{
		"lock.first": {false, true}, "lock.draining": {true, false}, "lock.draining.queued": {true, true},
	} {
		t.Run(key, func(t *testing.T) {
			rev := create(t, other, key, "")
			_, events := watch(t, other, key)
			wantErr(t, send(t, other, kvstore.Write{Key: key, Expect: kvstore.NoRevision, TTL: ttl}).Err, kvstore.ErrConflict) // the watch is in place
			nc := srv.Connect()
			s := open(t, nc, kvstore.Config{})
			if c.drains {
				started, finish := make(chan struct{}), make(chan struct{})
				_, err := nc.Subscribe("work", func(*nats.Msg) { close(started); <-finish })
				check(t, err)
				defer close(finish)
				check(t, nc.Publish("work", nil))
				kit.Receive(t, started, "the handler")
				check(t, nc.Drain())
			}
			closing := make(chan struct{})
			if c.queued {
				s.OnSender(func() { <-closing })
			}
			_, err := s.Send(kvstore.Write{Key: key, Expect: rev, Delete: true}, func(kvstore.Answer) {})
			check(t, err)
			var wg sync.WaitGroup
			wg.Go(s.Close)
			awaitClose(s)
			close(closing)
			wg.Wait()
			wantEvent(t, events, kvstore.Deleted, key, rev+1)
		})
	}
}

// A store that has sent nothing yet does not listen to its connection. With its first request it learns that the
// connection was lost and has everyone verify what may have changed in the meantime.
func TestReconnectBeforeTheFirstWrite(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, srv *testutil.Server) {
		open(t, srv.Connect(), kvstore.Config{}) // creates the bucket, and so listens
		nc, link := srv.ConnectLink()
		s := open(t, nc, kvstore.Config{})
		states := make(chan kvstore.ConnState, 10)
		s.OnConnection(func(st kvstore.ConnState) { states <- st })
		link.Cut()
		link.Heal()
		for nc.Stats().Reconnects == 0 {
			time.Sleep(10 * time.Millisecond)
		}
		create(t, s, "lock.a", "")
		equal(t, "state", kit.Receive(t, states, "the reconnect"), kvstore.Connected)
	})
}

func TestClosedConnection(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, srv *testutil.Server) {
		ctx := t.Context()
		nc, link := srv.ConnectLink()
		s := open(t, nc, kvstore.Config{})
		rev := create(t, s, "lock.a", "")
		states := make(chan kvstore.ConnState, 10)
		s.OnConnection(func(st kvstore.ConnState) { states <- st })
		_, events := watch(t, s, "lock.a")

		// One call waits for a reply that never comes.
		link.Blackhole(true)
		waiting := afterSending(nc, func() error {
			_, err := s.Update(ctx, "lock.a", nil, ttl, rev)
			return err
		})
		nc.Close()
		wantErr(t, kit.Quickly(t, fast, "waiting call", func() error { return <-waiting }), kvstore.ErrUnavailable)
		equal(t, "state", kit.Receive(t, states, "the connection's end"), kvstore.Closed)
		equal(t, "event", kit.Receive(t, events, "a recheck").Kind, kvstore.Recheck)

		for what, fn := range map[string]func() error{
			"Create": func() error { _, err := s.Create(ctx, "lock.b", nil, ttl); return err },
			"Get":    func() error { _, err := s.Get(ctx, "lock.a", 0); return err },
			"List":   func() error { _, err := s.List(ctx, ">", 0); return err },
			"State":  func() error { _, err := s.State(ctx, ""); return err },
			"Verify": func() error { return s.Verify(ctx) },
			"Watch":  func() error { _, err := s.Watch("lock.b", func(kvstore.Event) {}); return err },
			"Send": func() error {
				_, err := s.Send(kvstore.Write{Key: "lock.b", TTL: ttl}, func(kvstore.Answer) { t.Error("answered") })
				return err
			},
			"Healthy": s.Healthy,
			"Open": func() error {
				_, err := kvstore.Open(ctx, kit.JetStream(t, nc), kvstore.Config{})
				return err
			},
		} {
			wantErr(t, kit.Quickly(t, fast, what, fn), kvstore.ErrUnavailable)
		}
	})
}

// Closing a store ends the calls that are waiting.
func TestCloseEndsWaitingCalls(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, srv *testutil.Server) {
		nc, link := srv.ConnectLink()
		s := open(t, nc, kvstore.Config{})
		create(t, s, "lock.a", "")
		link.Blackhole(true)
		waiting := afterSending(nc, func() error {
			_, err := s.Create(t.Context(), "lock.b", nil, ttl)
			return err
		})
		s.Close()
		wantErr(t, kit.Quickly(t, fast, "waiting call", func() error { return <-waiting }), kvstore.ErrClosed)
		s.Close() // closing twice does no harm
		_, err := s.Create(t.Context(), "lock.b", nil, ttl)
		wantErr(t, err, kvstore.ErrClosed)
		_, err = s.Watch("lock.b", func(kvstore.Event) {})
		wantErr(t, err, kvstore.ErrClosed)
	})
}

// If a connection accepts no bytes, whatever it has not taken within a second is no longer sent, except tombstones, and
// nothing more is queued.
func TestStuck(t *testing.T) {
	nc, link := testutil.RunServer(t).ConnectLink()
	t.Cleanup(func() { link.BlockWrites(false) })
	s := open(t, nc, kvstore.Config{})
	rev := create(t, s, "lock.a", "")
	link.BlockWrites(true)
	check(t, nc.Publish("x", nil))
	for { // until the connection holds its mutex
		free := make(chan struct{})
		go func() { nc.Status(); close(free) }()
		select {
		case <-free:
			continue
		case <-time.After(50 * time.Millisecond):
		}
		break
	}
	claim, tombstone := make(chan kvstore.Answer, 1), make(chan kvstore.Answer, 1)
	_, err := s.Send(kvstore.Write{Key: "lock.c", Expect: 1, TTL: ttl}, func(kvstore.Answer) {}) // the sender is stuck on this one
	check(t, err)
	_, err = s.Send(kvstore.Write{Key: "lock.b", TTL: ttl}, func(a kvstore.Answer) { claim <- a })
	check(t, err)
	_, err = s.Send(kvstore.Write{Key: "lock.a", Expect: rev, Delete: true}, func(a kvstore.Answer) { tombstone <- a })
	check(t, err)
	for { // until nothing more is queued, which takes as long as a claim may be queued
		if _, err = s.Send(kvstore.Write{Key: "lock.c", Expect: 1, TTL: ttl}, func(kvstore.Answer) {}); err != nil {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	wantErr(t, err, kvstore.ErrUnavailable)
	equal(t, "certainly not sent", kvstore.NotSent(err), true)
	wantErr(t, s.Healthy(), kvstore.ErrUnavailable)
	time.Sleep(200 * time.Millisecond) // by now the claim has been queued for as long
	link.BlockWrites(false)
	a := kit.Receive(t, claim, "what came of the claim")
	wantErr(t, a.Err, kvstore.ErrUnavailable)
	equal(t, "certainly not sent", kvstore.NotSent(a.Err), true)
	check(t, kit.Receive(t, tombstone, "the answer to the tombstone").Err)
	create(t, s, "lock.b", "")
}

// The same holds for a store's first write, when the store does not know its connection yet.
func TestDisconnectedFromTheStart(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, srv *testutil.Server) {
		open(t, srv.Connect(), kvstore.Config{}) // creates the bucket
		nc, link := srv.ConnectLink()
		s := open(t, nc, kvstore.Config{})
		link.Cut()
		synctest.Wait()
		equal(t, "status", nc.Status(), nats.RECONNECTING)
		a := send(t, s, kvstore.Write{Key: "lock.a", TTL: ttl})
		wantErr(t, a.Err, kvstore.ErrUnavailable)
		equal(t, "certainly not sent", kvstore.NotSent(a.Err), true)
		link.Heal()
		time.Sleep(10 * time.Second)
		create(t, s, "lock.a", "")
	})
}

// A write that cannot be sent now is not sent later either.
func TestDisconnected(t *testing.T) {
	ctx := t.Context()
	nc, link := testutil.RunServer(t).ConnectLink()
	s := open(t, nc, kvstore.Config{})
	create(t, s, "lock.a", "")
	states := make(chan kvstore.ConnState, 10)
	stop := s.OnConnection(func(st kvstore.ConnState) { states <- st })

	link.Cut()
	equal(t, "state", kit.Receive(t, states, "the cut"), kvstore.Disconnected)
	_, err := s.Send(kvstore.Write{Key: "lock.b", TTL: ttl}, func(kvstore.Answer) { t.Error("answered") })
	wantErr(t, err, kvstore.ErrUnavailable)
	_, err = s.Get(ctx, "lock.a", 0)
	wantErr(t, err, kvstore.ErrUnavailable)
	wantErr(t, s.Healthy(), kvstore.ErrUnavailable)
	link.Heal()
	equal(t, "state", kit.Receive(t, states, "the connection"), kvstore.Connected)
	stop()
	_, err = s.Get(ctx, "lock.b", 0)
	wantErr(t, err, kvstore.ErrNotFound)
	check(t, s.Healthy())
}

// The replies to three writes arrive late, the first when nobody is listening for it any more.
func TestLateAnswers(t *testing.T) {
	nc, link := testutil.RunServer(t).ConnectLink()
	s := open(t, nc, kvstore.Config{})
	rev := create(t, s, "lock.a", "")
	link.Blackhole(true)
	answers := make(chan kvstore.Answer, 10)
	done := func(a kvstore.Answer) { answers <- a }
	forget, err := s.Send(kvstore.Write{Key: "lock.a", Value: []byte("1"), TTL: ttl, Expect: rev}, done)
	check(t, err)
	forget()
	for _, v := range []string{"2", "3"} {
		_, err := s.Send(kvstore.Write{Key: "lock.b", Value: []byte(v), TTL: ttl}, done)
		check(t, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err = s.Get(ctx, "lock.a", 0)
	wantErr(t, err, context.DeadlineExceeded)
	link.Blackhole(false)
	a := kit.Receive(t, answers, "the second write's answer")
	check(t, a.Err)
	equal(t, "revision", a.Revision, rev+2) // the forgotten one was applied all the same
	wantErr(t, kit.Receive(t, answers, "the third write's answer").Err, kvstore.ErrExists)
	if len(answers) > 0 {
		t.Fatal("a forgotten answer was delivered")
	}
}

func TestNothingLeftBehind(t *testing.T) {
	nc := testutil.RunServer(t).Connect()
	open(t, nc, kvstore.Config{}).Close()
	equal(t, "subscriptions: nats.go's own for replies", nc.NumSubscriptions(), 1)
	s := open(t, nc, kvstore.Config{})
	equal(t, "subscriptions of an idle store", nc.NumSubscriptions(), 1)
	create(t, s, "lock.a", "")
	_, err := s.Watch("lock.a", func(kvstore.Event) {})
	check(t, err)
	_, err = s.Watch("lock.>", func(kvstore.Event) {})
	check(t, err)
	_, err = s.List(t.Context(), ">", 0)
	check(t, err)
	equal(t, "subscriptions", nc.NumSubscriptions(), 1+3)
	s.Close()
	equal(t, "subscriptions after Close", nc.NumSubscriptions(), 1)
	equal(t, "goroutines after Close", kit.Goroutines("kvstore.(*Store).dispatch"), 0)
}

func TestKVIsComplete(t *testing.T) {
	nc := testutil.RunServer(t).Connect()
	var kv kvstore.KV = open(t, nc, kvstore.Config{Bucket: "other_Bucket-1"})
	equal(t, "bucket", kv.Bucket(), "other_Bucket-1")
	create(t, kv, "lock.a", "")
	check(t, kv.Denied("lock.a"))
}

// FuzzKey checks that no key with a special meaning to the server passes, and that the server accepts every key that
// does.
func FuzzKey(f *testing.F) {
	nc := testutil.RunServer(f).Connect()
	s := open(f, nc, kvstore.Config{})
	for _, k := range []string{"a", "lock.orders.42", "a..b", ".a", "a.", "*", "a.>", "a b", "a\x00", "ä", "a=2Eb/c_d-e", "$a"} {
		f.Add(k)
	}
	f.Fuzz(func(t *testing.T, key string) {
		ctx, cancel := background()
		defer cancel()
		rev, err := s.Create(ctx, key, nil, time.Second)
		if errors.Is(err, kvstore.ErrInvalidKey) {
			return
		}
		if strings.ContainsAny(key, "*> \t\r\n\x00$") || strings.HasPrefix(key, ".") || strings.HasSuffix(key, ".") {
			t.Fatalf("%q passed", key)
		}
		if errors.Is(err, kvstore.ErrExists) { // created a moment ago
			return
		}
		check(t, err)
		if r, err := s.Get(ctx, key, 0); err == nil && (r.Key != key || r.Revision < rev) {
			t.Fatalf("%q came back as %q", key, r.Key)
		}
	})
}

// A caller that has given up may reuse its buffer while its write is still waiting for a stuck network.
func TestValueIsCopied(t *testing.T) {
	s := open(t, testutil.RunServer(t).Connect(), kvstore.Config{})
	create(t, s, "lock.first", "") // so that the store runs
	stuck := make(chan struct{})
	s.OnSender(func() { <-stuck })
	ctx, cancel := context.WithCancel(t.Context())
	value, over := []byte("given"), make(chan error)
	go func() {
		_, err := s.Create(ctx, "lock.a", value, ttl)
		over <- err
	}()
	s.AwaitPending()
	cancel()
	wantErr(t, <-over, context.Canceled)
	copy(value, "other")
	close(stuck)
	create(t, s, "lock.b", "")
	r, err := s.Get(t.Context(), "lock.a", 0)
	if err == nil { // it was sent
		equal(t, "what was stored", string(r.Value), "given")
	}
}
