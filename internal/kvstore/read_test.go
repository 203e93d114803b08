package kvstore_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/testutil"
)

// Every way of reading gives the same answers.
func TestGet(t *testing.T) {
	for name, set := range map[string]func(*jetstream.StreamConfig){
		"direct": func(*jetstream.StreamConfig) {},
		"leader": func(c *jetstream.StreamConfig) { c.AllowDirect = false },
	} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			nc := testutil.RunServer(t).Connect()
			s := openWith(t, nc, set)
			one := create(t, s, "lock.a", "1")
			two := create(t, s, "lock.b", "2")
			gone, err := s.Delete(ctx, "lock.b", two)
			check(t, err)

			for _, min := range []uint64{0, one, gone} { // gone belongs to another key, but is in the state that is read
				r, err := s.Get(ctx, "lock.a", min)
				check(t, err)
				if r.Key != "lock.a" || string(r.Value) != "1" || r.Revision != one || r.TTL != ttl || r.Deleted || r.Time.IsZero() {
					t.Fatalf("record is %+v", r)
				}
				_, err = s.Get(ctx, "lock.none", min)
				wantErr(t, err, kvstore.ErrNotFound)
			}
			r, err := s.Get(ctx, "lock.b", gone)
			check(t, err)
			if !r.Deleted || r.Revision != gone {
				t.Fatalf("tombstone is %+v", r)
			}
			// The server has not reached this revision yet.
			_, err = s.Get(ctx, "lock.a", gone+1)
			wantErr(t, err, kvstore.ErrUnavailable)
			_, err = s.Get(ctx, "lock.none", gone+1)
			wantErr(t, err, kvstore.ErrUnavailable)
		})
	}
}

// Reading the end of a list takes one request, even if the list is too long to be read at
// once.
func TestListFromOfMany(t *testing.T) {
	nc := testutil.RunServer(t).Connect()
	s := openWith(t, nc, func(*jetstream.StreamConfig) {})
	var last uint64
	for i := range 1100 {
		last = create(t, s, fmt.Sprint("wait.a.", i), "")
	}
	in := nc.Stats().InMsgs
	equal(t, "the two youngest", keysOf(t, s, "wait.a.*", last, kvstore.From(last-1)), "wait.a.1098 wait.a.1099 ")
	equal(t, "messages of the answer", nc.Stats().InMsgs-in, 3)
}

func TestList(t *testing.T) {
	for name, set := range map[string]func(*jetstream.StreamConfig){
		"direct": func(*jetstream.StreamConfig) {},
		"leader": func(c *jetstream.StreamConfig) { c.AllowDirect = false },
	} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			nc := testutil.RunServer(t).Connect()
			s := openWith(t, nc, set)
			equal(t, "nothing", keysOf(t, s, ">", 0), "")

			c := create(t, s, "wait.a.c", "")
			create(t, s, "wait.a.b", "")
			a := create(t, s, "wait.a.a", "")
			create(t, s, "wait.b.a", "")
			last, err := s.Delete(ctx, "wait.a.a", a)
			check(t, err)
			for _, min := range []uint64{0, a, last} {
				equal(t, "queue", keysOf(t, s, "wait.a.*", min), "wait.a.c wait.a.b ")
				equal(t, "literal", keysOf(t, s, "wait.a.c", min), "wait.a.c ")
				equal(t, "tombstone only", keysOf(t, s, "wait.a.a", min), "")
				equal(t, "nothing", keysOf(t, s, "lock.>", min), "")
			}
			withDead, err := s.List(ctx, "wait.a.*", last, kvstore.Tombstones())
			check(t, err)
			equal(t, "with the tombstone", len(withDead.Records), 3)
			equal(t, "the tombstone", withDead.Records[2].Key, "wait.a.a")
			equal(t, "deleted", withDead.Records[2].Deleted, true)
			newest, err := s.Update(ctx, "wait.a.c", nil, ttl, c) // now the youngest
			check(t, err)
			equal(t, "everything", keysOf(t, s, ">", last), "wait.a.b wait.b.a wait.a.c ")

			equal(t, "the youngest", keysOf(t, s, "wait.a.*", last, kvstore.From(newest)), "wait.a.c ")
			equal(t, "none so young", keysOf(t, s, "wait.a.*", last, kvstore.From(newest+1)), "")
			for key, want := range map[string]uint64{"wait.b.a": last - 1, "wait.a.a": last, "lock.x": 0} {
				l, err := s.List(ctx, "wait.a.*", last, kvstore.Beside(key))
				check(t, err)
				equal(t, "beside "+key, l.Beside.Revision, want)
				equal(t, "deleted", l.Beside.Deleted, key == "wait.a.a")
				equal(t, "those listed", len(l.Records), 2)
			}
			_, err = s.List(ctx, "wait.a.*", last, kvstore.Beside("lock.*"))
			wantErr(t, err, kvstore.ErrInvalidKey)
			for n := range 4 { // three keys, one of them a tombstone
				l, err := s.List(ctx, "wait.a.*", last, kvstore.AtMost(n))
				check(t, err)
				if atOnce := name == "direct"; atOnce {
					equal(t, "more", l.More, n == 1 || n == 2)
				} else {
					equal(t, "more", l.More, false)
				}
				if !l.More {
					equal(t, "those listed", len(l.Records), 2)
				}
			}
			_, err = s.List(ctx, ">", last+100)
			wantErr(t, err, kvstore.ErrUnavailable)
			_, err = s.List(ctx, "lock.>", last+100)
			wantErr(t, err, kvstore.ErrUnavailable)
		})
	}
}

// A nil option is refused.
func TestListNilOption(t *testing.T) {
	s := open(t, testutil.RunServer(t).Connect(), kvstore.Config{})
	_, err := s.List(t.Context(), ">", 0, kvstore.AtMost(1), nil)
	wantErr(t, err, kvstore.ErrInvalidOption)
}

// One read returns at most 1024 records and 8 MiB.
func TestListMany(t *testing.T) {
	for name, c := range map[string]struct{ n, size int }{
		"records": {1100, 10},
		"bytes":   {530, kvstore.MaxRecord},
	} {
		t.Run(name, func(t *testing.T) {
			nc := testutil.RunServer(t).Connect()
			s := open(t, nc, kvstore.Config{})
			answers := make(chan kvstore.Answer, c.n)
			for i := range c.n {
				w := kvstore.Write{Key: fmt.Sprintf("wait.a.%d", c.n-i), Value: make([]byte, c.size), TTL: time.Minute}
				_, err := s.Send(w, func(a kvstore.Answer) { answers <- a })
				check(t, err)
			}
			var last uint64
			for range c.n {
				a := kit.Receive(t, answers, "an answer")
				check(t, a.Err)
				last = max(last, a.Revision)
			}
			l, err := s.List(t.Context(), "wait.>", last)
			check(t, err)
			equal(t, "number of records", len(l.Records), c.n)
			for i, r := range l.Records {
				equal(t, "key", r.Key, fmt.Sprintf("wait.a.%d", c.n-i))
			}
			if l.Revision < last {
				t.Fatalf("list at %d, wanted %d", l.Revision, last)
			}
			st, err := s.State(t.Context(), "wait.>")
			check(t, err)
			equal(t, "number of keys", len(st.Keys), c.n)
			// Reading the beginning or a part of a list does not depend on its length.
			lock := create(t, s, "lock.a", "")
			first := l.Records[0].Revision
			in := nc.Stats().InMsgs
			l, err = s.List(t.Context(), "wait.a.*", lock, kvstore.Beside("lock.a"), kvstore.AtMost(3))
			check(t, err)
			if name == "records" { // it is read separately if one request cannot include it
				equal(t, "the record beside", l.Beside.Revision, lock)
			}
			equal(t, "more", l.More, true)
			equal(t, "those listed", len(l.Records), 3)
			equal(t, "the oldest", l.Records[0].Revision, first)
			l, err = s.List(t.Context(), "wait.a.*", lock, kvstore.From(first+7), kvstore.AtMost(2))
			check(t, err)
			equal(t, "left out", l.Left, c.n-7-2)
			equal(t, "the first of the part", l.Records[0].Revision, first+7)
			l, err = s.List(t.Context(), "wait.a.*", lock, kvstore.From(first+7), kvstore.AtMost(1))
			check(t, err)
			equal(t, "one record", fmt.Sprint(len(l.Records), l.Records[0].Revision-first, l.More), "1 7 true")
			if got := nc.Stats().InMsgs - in; got > 20 {
				t.Fatalf("%d messages", got)
			}
		})
	}
}

func TestState(t *testing.T) {
	ctx := t.Context()
	srv := testutil.RunServer(t)
	nc := srv.Connect()
	s := open(t, nc, kvstore.Config{})
	one := create(t, s, "read.a.1", "")
	gone, err := s.Delete(ctx, "read.a.1", one)
	check(t, err)
	two := create(t, s, "read.a.0", "")
	create(t, s, "read.b.1", "")
	st, err := s.State(ctx, "read.a.*")
	check(t, err)
	equal(t, "keys, tombstones included", strings.Join(st.Keys, " "), "read.a.0 read.a.1")
	equal(t, "last revision", st.LastRevision, two+1)
	equal(t, "replicas", st.Replicas, 1)
	equal(t, "complete", st.Complete, true)
	equal(t, "made at", st.Created, s.Created())
	if st.Time.Before(st.Created) || gone >= two {
		t.Fatalf("state is %+v", st)
	}
	st, err = s.State(ctx, "")
	check(t, err)
	equal(t, "keys of no pattern", len(st.Keys), 0)
}

// perPrefix configures the permissions that the documentation gives for one prefix of names.
const perPrefix = `
	authorization { users = [
		{user: admin, password: x}
		{user: orders, password: x, permissions: {
			publish: {allow: [
				"$KV.natslock.*.orders.>"
				"$JS.API.STREAM.INFO.KV_natslock"
				"$JS.API.DIRECT.GET.KV_natslock.>"
			]}
			subscribe: {allow: ["natslock.natslock.*.*.orders.>", "_INBOX.>"]}
		}}
		{user: noinfo, password: x, permissions: {publish: {deny: ["$JS.API.STREAM.INFO.>"]}}}
		{user: nocreate, password: x, permissions: {publish: {deny: ["$JS.API.STREAM.CREATE.>"]}}}
		{user: nowrite, password: x, permissions: {publish: {deny: ["$KV.>"]}}}
		{user: noread, password: x, permissions: {publish: {deny: ["$JS.API.DIRECT.GET.>", "$JS.API.STREAM.MSG.GET.>"]}}}
		{user: noinbox, password: x, permissions: {subscribe: {deny: ["_INBOX.>"]}}}
		{user: nowatch, password: x, permissions: {subscribe: {deny: ["natslock.>"]}}}
	] }`

func TestPermissionsPerPrefix(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, srv *testutil.Server) {
		ctx := t.Context()
		admin := open(t, srv.Connect(nats.UserInfo("admin", "x")), kvstore.Config{})
		nc := srv.Connect(nats.UserInfo("orders", "x"))
		s := open(t, nc, kvstore.Config{NoCreate: true})

		_, events := watch(t, s, "lock.orders.1")
		rev := create(t, s, "lock.orders.1", "")
		wantEvent(t, events, kvstore.Put, "lock.orders.1", rev)
		var want string
		for i := range 50 {
			key := fmt.Sprintf("wait.orders.1.%d", i)
			rev = create(t, s, key, "")
			want += key + " "
		}
		list := func() error {
			equal(t, "queue", keysOf(t, s, "wait.orders.1.*", rev), want)
			return nil
		}
		check(t, kit.Quickly(t, fast, "List", list))
		before := nc.Stats().OutMsgs
		check(t, list())
		equal(t, "requests of the second list", nc.Stats().OutMsgs-before, 1+50)
		_, err := s.Get(ctx, "wait.orders.1.49", rev)
		check(t, err)
		// The user may not ask the leader for a record, but the leader's stream info lists the
		// keys.
		check(t, kit.Quickly(t, fast, "Get", func() error {
			_, err := s.Get(ctx, "wait.orders.2.1", rev)
			wantErr(t, err, kvstore.ErrNotFound)
			return nil
		}))

		rev = create(t, admin, "lock.other", "")
		wantErr(t, kit.Quickly(t, fast, "Create", func() error {
			_, err := s.Create(ctx, "lock.other", nil, ttl)
			return err
		}), kvstore.ErrPermission, nats.ErrPermissionViolation)
		wantErr(t, s.Denied("lock.other"), kvstore.ErrPermission)
		check(t, s.Denied("lock.orders.1"))
		_, err = s.Get(ctx, "lock.other", rev) // reads can be granted per prefix too, but are not here
		check(t, err)
	}, testutil.WithConfigText(perPrefix))
}

// If only the leader could answer and this user cannot ask it, that is not reported as a
// denied permission: a replica may catch up, and an administrator may switch direct gets back
// on.
func TestLeaderWithheld(t *testing.T) {
	for what, refused := range map[string]bool{"refused": true, "not imported": false} {
		testutil.Bubble(t, func(t *testing.T, srv *testutil.Server) {
			var lags, off atomic.Bool
			s := openProxied(t, srv, func(nc *nats.Conn, m *nats.Msg) bool {
				r := status(m, "STREAM.MSG.GET", "503")
				switch {
				case off.Load():
					r = cmp.Or(r, status(m, "DIRECT.GET", "503"))
				case lags.Load():
					r = cmp.Or(r, status(m, "DIRECT.GET", "404"))
				}
				if r != nil {
					r.Subject = m.Reply
					check(t, nc.PublishMsg(r))
				}
				return r != nil
			})
			if refused {
				s.RefuseLeader()
			}
			s.Replicated()
			rev := create(t, s, "lock.a", "")
			for _, b := range []*atomic.Bool{&lags, &off} {
				b.Store(true)
				_, err := s.Get(t.Context(), "lock.a", rev)
				wantErr(t, err, kvstore.ErrUnavailable)
				if errors.Is(err, kvstore.ErrPermission) || b == &lags && !errors.Is(err, kvstore.ErrWithheld) {
					t.Errorf("%s: %v", what, err)
				}
				_, err = s.List(t.Context(), "lock.*", rev)
				wantErr(t, err, kvstore.ErrUnavailable)
				if errors.Is(err, kvstore.ErrPermission) {
					t.Errorf("%s: %v", what, err)
				}
				b.Store(false)
				_, err = s.Get(t.Context(), "lock.a", rev)
				check(t, err)
			}
		})
	}
}

func TestPermissionDenied(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, srv *testutil.Server) {
		ctx := t.Context()
		user := func(name string) *nats.Conn { return srv.Connect(nats.UserInfo(name, "x")) }
		wantDenied := func(what string, fn func() error) {
			t.Helper()
			wantErr(t, kit.Quickly(t, fast, what, fn), kvstore.ErrPermission)
		}
		openAs := func(name string) func() error {
			js := kit.JetStream(t, user(name))
			return func() error { _, err := kvstore.Open(ctx, js, kvstore.Config{}); return err }
		}
		wantDenied("create the bucket", openAs("nocreate"))
		admin := open(t, user("admin"), kvstore.Config{})
		rev := create(t, admin, "lock.a", "")
		wantDenied("open without info", openAs("noinfo"))
		wantDenied("open without inbox", openAs("noinbox"))
		check(t, openAs("nocreate")())

		s := open(t, user("nowrite"), kvstore.Config{})
		wantDenied("Create", func() error { _, err := s.Create(ctx, "lock.b", nil, ttl); return err })
		wantDenied("Update", func() error { _, err := s.Update(ctx, "lock.a", nil, ttl, rev); return err })
		wantDenied("Delete", func() error { _, err := s.Delete(ctx, "lock.a", rev); return err })
		_, err := s.Get(ctx, "lock.a", rev)
		check(t, err)

		s = open(t, user("noread"), kvstore.Config{})
		wantDenied("Get", func() error { _, err := s.Get(ctx, "lock.a", 0); return err })
		wantDenied("List", func() error { _, err := s.List(ctx, "lock.*", rev); return err })

		// A watch that is not allowed receives nothing, but the store works all the same.
		s = open(t, user("nowatch"), kvstore.Config{})
		_, _ = watch(t, s, "lock.a")
		_, err = s.Update(ctx, "lock.a", nil, ttl, rev)
		check(t, err)
	}, testutil.WithConfigText(perPrefix))
}

// A user who may write one key can put anything into its headers. No header makes another
// record unreadable or passes this record off as another.
func TestForgedHeaders(t *testing.T) {
	for name, headers := range map[string]string{
		"status":    "Status: 404\r\n",
		"silence":   "Status: 503\r\n",
		"end":       "Status: 204\r\nNats-UpTo-Sequence: 9\r\nNats-Num-Pending: 0\r\n",
		"position":  "Nats-Sequence: 1\r\nNats-Subject: $KV.natslock.lock.b\r\nNats-Time-Stamp: 2001-01-01T00:00:00Z\r\n",
		"garbage":   "no header at all\r\n",
		"duplicate": "Nats-TTL: 10s\r\nNats-TTL: 20s\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			srv := testutil.RunServer(t)
			s := open(t, srv.Connect(), kvstore.Config{})
			b := create(t, s, "lock.b", "")
			publishRaw(t, srv.URL(), "$KV.natslock.lock.a", headers)
			for _, min := range []uint64{0, b + 1} {
				r, err := s.Get(ctx, "lock.a", min)
				check(t, err)
				if r.Key != "lock.a" || r.Revision != b+1 || r.Deleted || r.Time.Year() < 2020 {
					t.Fatalf("record is %+v", r)
				}
				equal(t, "list", keysOf(t, s, "lock.*", min), "lock.b lock.a ")
			}
		})
	}
}

// publishRaw publishes an empty message with a header block that nats.go would not send, and
// returns once the server has stored it.
func publishRaw(t *testing.T, url, subject, headers string) {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "nats://"))
	check(t, err)
	defer conn.Close()
	block := "NATS/1.0\r\n" + headers + "\r\n"
	_, err = fmt.Fprintf(conn, "CONNECT {\"headers\":true,\"verbose\":false}\r\nSUB ack 1\r\nHPUB %s ack %d %d\r\n%s\r\n", subject, len(block), len(block), block)
	check(t, err)
	buf := make([]byte, 4096)
	var got strings.Builder
	for !strings.Contains(got.String(), `"seq":`) {
		n, err := conn.Read(buf)
		check(t, err)
		got.Write(buf[:n])
		if strings.Contains(got.String(), "-ERR") || strings.Contains(got.String(), `"error"`) {
			t.Fatalf("server said %q", got.String())
		}
	}
}

func TestReadTimeout(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, srv *testutil.Server) {
		nc, link := srv.ConnectLink()
		s := open(t, nc, kvstore.Config{})
		create(t, s, "lock.a", "")
		link.Blackhole(true)
		why := errors.New("because")
		for what, fn := range map[string]func(context.Context) error{
			"Get":    func(ctx context.Context) error { _, err := s.Get(ctx, "lock.a", 1); return err },
			"List":   func(ctx context.Context) error { _, err := s.List(ctx, "lock.*", 1); return err },
			"State":  func(ctx context.Context) error { _, err := s.State(ctx, ""); return err },
			"Update": func(ctx context.Context) error { _, err := s.Update(ctx, "lock.a", nil, ttl, 1); return err },
			"Verify": s.Verify,
		} {
			ctx, cancel := context.WithCancelCause(t.Context())
			ended := afterSending(nc, func() error { return fn(ctx) })
			cancel(why)
			wantErr(t, kit.Quickly(t, fast, what, func() error { return <-ended }), context.Canceled, why)
		}
	})
}
