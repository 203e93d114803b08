package kvstore_test

import (
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/testutil"
)

func TestWatch(t *testing.T) {
	ctx := t.Context()
	nc := testutil.RunServer(t).Connect()
	s := open(t, nc, kvstore.Config{})
	create(t, s, "lock.before", "")
	_, one := watch(t, s, "lock.a")
	_, many := watch(t, s, "lock.*")

	rev := create(t, s, "lock.a", "1")
	e := wantEvent(t, one, kvstore.Put, "lock.a", rev)
	if string(e.Record.Value) != "1" || e.Record.TTL != ttl || e.Record.Time.IsZero() {
		t.Fatalf("record is %+v", e.Record)
	}
	wantEvent(t, many, kvstore.Put, "lock.a", rev)
	other := create(t, s, "lock.b", "")
	wantEvent(t, many, kvstore.Put, "lock.b", other)
	create(t, s, "wait.a.1", "") // matches neither
	rev, err := s.Update(ctx, "lock.a", []byte("2"), ttl, rev)
	check(t, err)
	wantEvent(t, one, kvstore.Put, "lock.a", rev)
	wantEvent(t, many, kvstore.Put, "lock.a", rev)
	a := send(t, s, kvstore.Write{Key: "lock.a", Value: []byte("granted"), Expect: rev, Delete: true})
	check(t, a.Err)
	e = wantEvent(t, one, kvstore.Deleted, "lock.a", a.Revision)
	if string(e.Record.Value) != "granted" || !e.Record.Deleted {
		t.Fatalf("tombstone is %+v", e.Record)
	}
	wantEvent(t, many, kvstore.Deleted, "lock.a", a.Revision)
}

func TestWatchesShareASubscription(t *testing.T) {
	nc := testutil.RunServer(t).Connect()
	s := open(t, nc, kvstore.Config{})
	create(t, s, "lock.x", "")
	before := nc.NumSubscriptions()
	w1, e1 := watch(t, s, "lock.a")
	w2, e2 := watch(t, s, "lock.a")
	w3, _ := watch(t, s, "lock.>")
	equal(t, "subscriptions", nc.NumSubscriptions(), before+2)
	rev := create(t, s, "lock.a", "")
	wantEvent(t, e1, kvstore.Put, "lock.a", rev)
	wantEvent(t, e2, kvstore.Put, "lock.a", rev)

	w1.Stop()
	w1.Stop() // stopping twice does no harm
	equal(t, "subscriptions", nc.NumSubscriptions(), before+2)
	rev, err := s.Update(t.Context(), "lock.a", nil, ttl, rev)
	check(t, err)
	wantEvent(t, e2, kvstore.Put, "lock.a", rev)
	equal(t, "events of a stopped watch", len(e1), 0)
	w2.Stop()
	check(t, s.Healthy()) // queued behind the end of the subscription
	equal(t, "subscriptions", nc.NumSubscriptions(), before+1)
	w3.Stop()
	check(t, s.Healthy())
	equal(t, "subscriptions", nc.NumSubscriptions(), before)

	_, e4 := watch(t, s, "lock.a")
	rev, err = s.Update(t.Context(), "lock.a", nil, ttl, rev)
	check(t, err)
	wantEvent(t, e4, kvstore.Put, "lock.a", rev)
}

// Starting, stopping and closing race against each other and against events.
func TestWatchRaces(t *testing.T) {
	nc := testutil.RunServer(t).Connect()
	s := open(t, nc, kvstore.Config{})
	before := nc.NumSubscriptions()
	done := make(chan struct{})
	const n = 8
	for i := range n {
		go func() {
			defer func() { done <- struct{}{} }()
			for range 50 {
				w, err := s.Watch("lock.a", func(kvstore.Event) {})
				if err != nil {
					t.Error(err)
					return
				}
				w.Track(kvstore.Record{Key: "lock.a", Time: time.Now(), TTL: time.Minute})
				if i%2 == 0 {
					_, _ = s.Send(kvstore.Write{Key: "lock.a", TTL: ttl}, func(kvstore.Answer) {})
				}
				w.Stop()
			}
		}()
	}
	for range n {
		kit.Receive(t, done, "the watches")
	}
	check(t, s.Healthy()) // queued behind the ends of the subscriptions
	equal(t, "subscriptions", nc.NumSubscriptions(), before)

	for range n {
		go func() {
			defer func() { done <- struct{}{} }()
			for {
				w, err := s.Watch("lock.b", func(kvstore.Event) {})
				if err != nil {
					return
				}
				w.Stop()
			}
		}()
	}
	s.Close()
	for range n {
		kit.Receive(t, done, "the watches' end")
	}
	equal(t, "subscriptions", nc.NumSubscriptions(), 1)
}

// A subscription ends with its store even if several goroutines close the store
// simultaneously.
func TestClosesTogether(t *testing.T) {
	nc := testutil.RunServer(t).Connect()
	open(t, nc, kvstore.Config{}) // creates the bucket
	s := open(t, nc, kvstore.Config{})
	before := nc.NumSubscriptions()
	watch(t, s, "lock.a")
	equal(t, "subscriptions", nc.NumSubscriptions(), before+2)
	release := s.HoldHooks()
	var wg sync.WaitGroup
	wg.Go(s.Close)
	awaitClose(s)
	second := make(chan struct{})
	wg.Go(func() { s.Close(); close(second) })
	select {
	case <-second:
		t.Error("the second Close is done before the first")
	case <-time.After(50 * time.Millisecond):
	}
	release()
	wg.Wait()
	equal(t, "subscriptions", nc.NumSubscriptions(), before)
}

func TestForgedNotifications(t *testing.T) {
	nc := testutil.RunServer(t).Connect()
	s := open(t, nc, kvstore.Config{})
	str, err := kit.JetStream(t, nc).Stream(t.Context(), "KV_natslock")
	check(t, err)
	subject := "natslock.natslock." + str.CachedInfo().Config.Metadata["natslock.id"] + ".lock.a"
	_, events := watch(t, s, "lock.a")

	good := nats.Header{
		"Nats-Subject": {"$KV.natslock.lock.a"}, "Nats-Sequence": {"7"}, "Nats-Time-Stamp": {"2025-01-01T00:00:00Z"},
	}
	for _, change := range []func(nats.Header){
		func(h nats.Header) { clear(h) },
		func(h nats.Header) { h.Del("Nats-Sequence") },
		func(h nats.Header) { h.Set("Nats-Sequence", "-1") },
		func(h nats.Header) { h.Set("Nats-Sequence", "18446744073709551616") },
		func(h nats.Header) { h["Nats-Subject"] = nil },
		func(h nats.Header) { h.Set("Nats-Subject", "$KV.other.lock.a") },
		func(h nats.Header) { h.Set("Nats-Subject", "$KV.natslock.") },
		func(h nats.Header) { h.Set("Nats-Subject", "$KV.natslock.lock.>") },
		func(h nats.Header) { h.Set("Nats-Time-Stamp", "yesterday") },
	} {
		h := nats.Header{}
		for k, v := range good {
			h[k] = v
		}
		change(h)
		check(t, nc.PublishMsg(&nats.Msg{Subject: subject, Header: h, Data: []byte("x")}))
	}
	check(t, nc.Publish(subject, nil))
	// A well-formed notification is passed on, because events are only hints.
	h := nats.Header{"Nats-TTL": {"99999999999999s"}}
	for k, v := range good {
		h[k] = v
	}
	check(t, nc.PublishMsg(&nats.Msg{Subject: subject, Header: h}))
	e := wantEvent(t, events, kvstore.Put, "lock.a", 7)
	equal(t, "TTL", e.Record.TTL, 0)
	rev := create(t, s, "lock.a", "")
	wantEvent(t, events, kvstore.Put, "lock.a", rev)
}

func TestWatchAfterReconnect(t *testing.T) {
	nc, link := testutil.RunServer(t).ConnectLink()
	s := open(t, nc, kvstore.Config{})
	rev := create(t, s, "lock.a", "")
	_, events := watch(t, s, "lock.a")
	link.Cut()
	link.Heal()
	equal(t, "event", kit.Receive(t, events, "a recheck").Kind, kvstore.Recheck)
	rev, err := s.Update(t.Context(), "lock.a", nil, ttl, rev)
	check(t, err)
	wantEvent(t, events, kvstore.Put, "lock.a", rev)
}

func TestServerRestart(t *testing.T) {
	srv := testutil.RunServer(t)
	s := open(t, srv.Connect(), kvstore.Config{})
	rev := create(t, s, "lock.a", "held")
	_, events := watch(t, s, "lock.a")
	srv.Restart()
	equal(t, "event", kit.Receive(t, events, "a recheck").Kind, kvstore.Recheck)
	check(t, s.Verify(t.Context()))
	rev, err := s.Update(t.Context(), "lock.a", nil, ttl, rev)
	check(t, err)
	wantEvent(t, events, kvstore.Put, "lock.a", rev)
}

func TestExpired(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, srv *testutil.Server) {
		ctx := t.Context()
		s := open(t, srv.Connect(), kvstore.Config{})
		all, events := watch(t, s, "lock.*")
		all.Track(kvstore.Record{})
		_, untracked := watch(t, s, "lock.a")
		none := func() {
			t.Helper()
			if len(events) > 0 {
				t.Fatalf("unexpected event %+v", <-events)
			}
		}
		begun := time.Now()
		at := func(d time.Duration) { time.Sleep(time.Until(begun.Add(d))) }
		rev, err := s.Create(ctx, "lock.a", nil, 3*time.Second)
		check(t, err)
		wantEvent(t, events, kvstore.Put, "lock.a", rev)
		at(2 * time.Second)
		rev, err = s.Update(ctx, "lock.a", nil, 3*time.Second, rev) // restarts the lease
		check(t, err)
		wantEvent(t, events, kvstore.Put, "lock.a", rev)
		at(4900 * time.Millisecond)
		none()
		wantEvent(t, events, kvstore.Expired, "lock.a", rev)
		if d := time.Since(begun); d < 5*time.Second || d > 5100*time.Millisecond {
			t.Fatalf("expired after %v", d)
		}
		at(6 * time.Second)
		_, err = s.Get(ctx, "lock.a", 0)
		wantErr(t, err, kvstore.ErrNotFound)
		equal(t, "events without tracking: what was written", len(untracked), 2)

		// The record was deleted and the watch stopped, so no end is reported.
		rev, err = s.Create(ctx, "lock.a", nil, 2*time.Second)
		check(t, err)
		wantEvent(t, events, kvstore.Put, "lock.a", rev)
		rev, err = s.Delete(ctx, "lock.a", rev)
		check(t, err)
		wantEvent(t, events, kvstore.Deleted, "lock.a", rev)
		w, stopped := watch(t, s, "lock.b")
		w.Track(kvstore.Record{})
		rev, err = s.Create(ctx, "lock.b", nil, 2*time.Second)
		check(t, err)
		wantEvent(t, stopped, kvstore.Put, "lock.b", rev)
		wantEvent(t, events, kvstore.Put, "lock.b", rev)
		w.Stop()
		at(10 * time.Second)
		wantEvent(t, events, kvstore.Expired, "lock.b", rev)
		none()
		equal(t, "events of a stopped watch", len(stopped), 0)

		// Closing the store stops the timers too.
		_, err = s.Create(ctx, "lock.c", nil, 2*time.Second)
		check(t, err)
		kit.Receive(t, events, "the event")
		s.Close()
		at(20 * time.Second)
		none()
	})
}

func TestTrack(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, srv *testutil.Server) {
		ctx := t.Context()
		nc := srv.Connect()
		s := open(t, nc, kvstore.Config{})
		rev, err := s.Create(ctx, "lock.a", nil, 5*time.Second)
		check(t, err)
		begun := time.Now()
		time.Sleep(2 * time.Second)
		r, err := s.Get(ctx, "lock.a", rev)
		check(t, err)
		w, events := watch(t, s, "lock.a")
		w.Track(r)
		wantEvent(t, events, kvstore.Expired, "lock.a", rev)
		if d := time.Since(begun); d < 5*time.Second || d > 5100*time.Millisecond {
			t.Fatalf("expired after %v", d)
		}

		// An old record does not replace a newer one.
		time.Sleep(time.Second)
		rev, err = s.Create(ctx, "lock.a", nil, 5*time.Second)
		check(t, err)
		begun = time.Now()
		wantEvent(t, events, kvstore.Put, "lock.a", rev)
		w.Track(r)
		wantEvent(t, events, kvstore.Expired, "lock.a", rev)
		if d := time.Since(begun); d < 5*time.Second || d > 5100*time.Millisecond {
			t.Fatalf("expired after %v", d)
		}

		// A watch sets no timer for a record without an end, such as a foreign record
		// without a TTL or a tombstone.
		js, err := jetstream.New(nc)
		check(t, err)
		_, err = js.Publish(ctx, "$KV.natslock.lock.b", []byte("foreign"))
		check(t, err)
		r, err = s.Get(ctx, "lock.b", 0)
		check(t, err)
		equal(t, "TTL", r.TTL, 0)
		equal(t, "remaining", r.Remaining(time.Now()), -1)
		w.Track(r)
		w.Track(kvstore.Record{Key: "lock.a", Revision: 1 << 60, TTL: time.Second, Deleted: true})
		time.Sleep(time.Hour)
		if len(events) > 0 {
			t.Fatalf("unexpected event %+v", <-events)
		}
	})
}

// nats.go drops notifications beyond 8,192 that arrive while a program is not running, or
// faster than it handles them. Watches are told about the loss and when it began.
func TestFlood(t *testing.T) {
	srv := testutil.RunServer(t)
	nc := srv.Connect()
	s := open(t, nc, kvstore.Config{})
	other := srv.Connect()
	began, goOn, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	marks := make(chan kvstore.Event, 8)
	w, err := s.Watch("lock.*", func(ev kvstore.Event) {
		switch {
		case ev.Kind == kvstore.Recheck:
			marks <- ev
		case ev.Record.Key == "lock.first":
			close(began)
			<-goOn
		case ev.Record.Key == "lock.last":
			close(ended)
		}
	})
	check(t, err)
	t.Cleanup(w.Stop)
	rev := create(t, s, "lock.first", "")
	first, err := s.Get(t.Context(), "lock.first", rev)
	check(t, err)
	<-began
	subject := s.Notifications() + "lock.other"
	for range 10_000 {
		check(t, other.Publish(subject, nil))
	}
	check(t, other.Flush())
	check(t, nc.Flush()) // everything has been delivered to the client
	close(goOn)
	mark := <-marks
	if mark.Since.IsZero() || mark.Since.After(first.Time) {
		t.Fatalf("since %v, after the last event that was delivered, of %v", mark.Since, first.Time)
	}
	// A second flood that drops nothing does not count.
	for range 5_000 {
		check(t, other.Publish(subject, nil))
	}
	check(t, other.Flush())
	check(t, nc.Flush())
	last := create(t, s, "lock.last", "")
	<-ended
	_, err = s.Get(t.Context(), "lock.last", last) // by then the sender has checked the counts
	check(t, err)
	if len(marks) > 0 {
		t.Fatalf("a mark that tells nothing new: %+v", <-marks)
	}
}
