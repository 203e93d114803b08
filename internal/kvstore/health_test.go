package kvstore_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/testutil"
)

// sendOff sends a write without waiting for the reply.
func sendOff(t *testing.T, s kvstore.KV, key string) (forget func()) {
	t.Helper()
	forget, err := s.Send(kvstore.Write{Key: key, TTL: time.Minute}, func(kvstore.Answer) {})
	check(t, err)
	return forget
}

// silent checks that the store considers the stream silent because of the write of key.
func silent(t *testing.T, s kvstore.KV, key string) {
	t.Helper()
	err := s.Healthy()
	wantErr(t, err, kvstore.ErrUnavailable)
	if !strings.Contains(err.Error(), `write to "`+key+`" has gone unanswered`) {
		t.Fatalf("error is %v", err)
	}
}

// The network swallows everything, and neither side has noticed yet.
func TestHealthyUnanswered(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, srv *testutil.Server) {
		nc, link := srv.ConnectLink()
		s := open(t, nc, kvstore.Config{})
		create(t, s, "lock.a", "")
		forget := sendOff(t, s, "lock.0")
		forget() // before the reply, which arrives all the same
		forget()
		time.Sleep(10 * time.Second)
		check(t, s.Healthy())
		for _, given := range []string{"awaited", "given up"} {
			link.Blackhole(true)
			forget := sendOff(t, s, "lock."+given[:1])
			if given == "given up" {
				forget()
			}
			time.Sleep(4900 * time.Millisecond)
			check(t, s.Healthy())
			sendOff(t, s, "lock.b")
			time.Sleep(200 * time.Millisecond)
			silent(t, s, "lock."+given[:1])
			time.Sleep(30 * time.Second)
			silent(t, s, "lock."+given[:1])
			link.Heal()
			create(t, s, "lock.again."+given[:1], "")
			check(t, s.Healthy())
			time.Sleep(30 * time.Second)
			check(t, s.Healthy())
		}

		// A client that has stopped writing learns nothing new.
		link.Blackhole(true)
		sendOff(t, s, "lock.d")
		time.Sleep(59 * time.Second)
		silent(t, s, "lock.d")
		time.Sleep(2 * time.Second)
		check(t, s.Healthy())

		// Replies that were under way when the connection broke are lost with it.
		sendOff(t, s, "lock.e")
		time.Sleep(10 * time.Second)
		silent(t, s, "lock.d") // the oldest
		back := make(chan struct{}, 1)
		s.OnConnection(func(st kvstore.ConnState) {
			if st == kvstore.Connected {
				back <- struct{}{}
			}
		})
		link.Cut()
		time.Sleep(time.Second)
		wantErr(t, s.Healthy(), kvstore.ErrUnavailable)
		link.Heal()
		kit.Receive(t, back, "the connection")
		time.Sleep(time.Second)
		check(t, s.Healthy())
	})
}

// A refusal by the stream is a reply, but it does not prove that the stream stores anything,
// because a leader without followers refuses too.
func TestHealthyRefusals(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, srv *testutil.Server) {
		s := open(t, srv.Connect(), kvstore.Config{})
		create(t, s, "lock.a", "")
		for range 20 { // so that a write is under way at all times
			_, err := s.Send(kvstore.Write{Key: "lock.a", TTL: ttl, Expect: 1}, func(kvstore.Answer) {})
			check(t, err)
			time.Sleep(time.Second)
			wantErr(t, send(t, s, kvstore.Write{Key: "lock.a", TTL: ttl, Expect: 1}).Err, kvstore.ErrConflict)
			check(t, s.Healthy())
		}

		// The deposed leader swallows lock.b without replying.
		proxy := srv.Connect()
		_, err := proxy.Subscribe("deposed.API.>", func(m *nats.Msg) {
			subject := strings.TrimPrefix(m.Subject, "deposed.API.")
			if subject == "$KV.natslock.lock.b" {
				return
			}
			if !strings.HasPrefix(subject, "$KV.") {
				subject = "$JS.API." + subject
			}
			_ = proxy.PublishMsg(&nats.Msg{Subject: subject, Reply: m.Reply, Header: m.Header, Data: m.Data})
		})
		check(t, err)
		check(t, proxy.Flush())
		js, err := jetstream.NewWithAPIPrefix(srv.Connect(), "deposed.API")
		check(t, err)
		far := openJS(t, js, kvstore.Config{})
		sendOff(t, far, "lock.b")
		time.Sleep(4 * time.Second)
		wantErr(t, send(t, far, kvstore.Write{Key: "lock.a", TTL: ttl, Expect: 1}).Err, kvstore.ErrConflict)
		time.Sleep(2 * time.Second)
		silent(t, far, "lock.b")
		create(t, far, "lock.c", "")
		check(t, far.Healthy())
	})
}

// A stream that refuses every write is unhealthy, and the error quotes the stream because it
// does reply to writes.
func TestHealthyFull(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, srv *testutil.Server) {
		nc := srv.Connect()
		s := open(t, nc, kvstore.Config{})
		create(t, s, "lock.a", "")
		limit := func(n int64) {
			info, err := kit.JetStream(t, nc).Stream(t.Context(), "KV_natslock")
			check(t, err)
			cfg := info.CachedInfo().Config
			cfg.MaxMsgs = n
			_, err = kit.JetStream(t, nc).UpdateStream(t.Context(), cfg)
			check(t, err)
		}
		limit(1)
		for range 6 {
			wantErr(t, send(t, s, kvstore.Write{Key: "lock.b", TTL: ttl}).Err, kvstore.ErrUnavailable)
			time.Sleep(time.Second)
		}
		err := s.Healthy()
		wantErr(t, err, kvstore.ErrUnavailable)
		if text := err.Error(); !strings.Contains(text, "maximum messages exceeded") || strings.Contains(text, "unanswered") {
			t.Fatalf("error is %v", err)
		}
		limit(-1)
		create(t, s, "lock.b", "")
		check(t, s.Healthy())
	})
}

// A write that the server forbids this user is never answered either.
func TestHealthyDenied(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, srv *testutil.Server) {
		nc := srv.Connect(nats.UserInfo("u", "p"), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
		s := open(t, nc, kvstore.Config{})
		sendOff(t, s, "lock.secret")
		time.Sleep(10 * time.Second)
		check(t, s.Healthy())
		_, err := s.Create(t.Context(), "lock.secret", nil, ttl)
		wantErr(t, err, kvstore.ErrPermission)
		time.Sleep(10 * time.Second) // the refusal is old by now
		check(t, s.Healthy())
		create(t, s, "lock.a", "")
		check(t, s.Healthy())
	}, testutil.WithConfigText(`authorization { users: [ { user: u, password: p, permissions: { publish: { deny: ["$KV.natslock.lock.secret"] } } } ] }`))
}

// The server replies immediately that no stream takes the write, and keeps doing so.
func TestHealthyWithoutStream(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, srv *testutil.Server) {
		nc := srv.Connect()
		s := open(t, nc, kvstore.Config{})
		create(t, s, "lock.a", "")
		check(t, kit.JetStream(t, nc).DeleteStream(t.Context(), "KV_natslock"))
		for range 5 {
			check(t, s.Healthy())
			wantErr(t, send(t, s, kvstore.Write{Key: "lock.a", TTL: ttl}).Err, kvstore.ErrNoStream)
			time.Sleep(time.Second)
		}
		silent(t, s, "lock.a")
		again := open(t, nc, kvstore.Config{})
		create(t, again, "lock.b", "")
		create(t, s, "lock.a", "")
		check(t, s.Healthy())
	})
}

// A publish that expects a message ID kills a replicated stream: its group loses its leader,
// and a restart does not bring one back.
func TestStoppedStream(t *testing.T) {
	tier.Proof(t)
	cluster := testutil.RunCluster(t, 3)
	nc := cluster.Connect()
	s := open(t, nc, kvstore.Config{Replicas: 3})
	create(t, s, "lock.a", "")
	poison := nats.NewMsg("$KV.natslock.lock.b")
	poison.Header.Set("Nats-Expected-Last-Msg-Id", "none")
	_, err := nc.RequestMsg(poison, 10*time.Second)
	check(t, err)
	for end := time.Now().Add(time.Minute); cluster.StreamLeader("KV_natslock") != nil; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Skip("this server survives the message")
		}
	}

	// A server that started less than ten seconds ago does not report that the stream has no
	// leader but leaves the request unanswered.
	for asked := false; !asked; {
		_, err := nc.Request("$JS.API.STREAM.INFO.KV_natslock", nil, time.Second)
		asked = err == nil
		if t.Context().Err() != nil {
			t.Fatal("nothing answers for the stream")
		}
	}

	sendOff(t, s, "lock.c")
	opened := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 6*time.Second)
		defer cancel()
		other, err := kvstore.Open(ctx, kit.JetStream(t, nc), kvstore.Config{NoCreate: true})
		if err == nil {
			other.Close()
		}
		opened <- err
	}()
	for s.Healthy() == nil {
		time.Sleep(10 * time.Millisecond)
		if t.Context().Err() != nil {
			t.Fatal("healthy for ever")
		}
	}
	silent(t, s, "lock.c")
	err = kit.Receive(t, opened, "the end of Open")
	wantErr(t, err, kvstore.ErrUnavailable, kvstore.ErrNoStream, context.DeadlineExceeded)
	if !strings.Contains(err.Error(), "no leader") {
		t.Fatalf("error is %v", err)
	}

	check(t, kit.JetStream(t, nc).DeleteStream(t.Context(), "KV_natslock"))
	open(t, nc, kvstore.Config{Replicas: 3})
	err = s.Verify(t.Context())
	for ; errors.Is(err, kvstore.ErrUnavailable); err = s.Verify(t.Context()) {
	}
	wantErr(t, err, kvstore.ErrRemade)
	create(t, s, "lock.a", "")
	check(t, s.Healthy())
}
