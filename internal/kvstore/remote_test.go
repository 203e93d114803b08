package kvstore_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/proxy"
	"github.com/natslock/locks/testutil"
)

// exercise uses everything that a path to a bucket must carry.
func exercise(t *testing.T, s kvstore.KV, name string) {
	t.Helper()
	ctx := t.Context()
	lock, one, two := "lock."+name, "read."+name+".1", "read."+name+".2"
	w, events := watch(t, s, lock)
	defer w.Stop()
	rev := create(t, s, lock, "1")
	wantEvent(t, events, kvstore.Put, lock, rev)
	wantErr(t, send(t, s, kvstore.Write{Key: lock, TTL: ttl}).Err, kvstore.ErrExists)

	// A wrongly named guard would be accepted silently.
	check(t, send(t, s, kvstore.Write{Key: one, TTL: ttl, Guard: lock, Expect: rev}).Err)
	wantErr(t, send(t, s, kvstore.Write{Key: two, TTL: ttl, Guard: lock, Expect: rev - 1}).Err, kvstore.ErrConflict)
	wantErr(t, send(t, s, kvstore.Write{Key: two, TTL: ttl, Guard: lock}).Err, kvstore.ErrConflict)
	last := create(t, s, two, "")

	r, err := s.Get(ctx, lock, last)
	check(t, err)
	equal(t, "value", string(r.Value), "1")
	equal(t, "TTL", r.TTL, ttl)
	_, err = s.Get(ctx, "lock.none", last)
	wantErr(t, err, kvstore.ErrNotFound)
	for _, min := range []uint64{0, last} {
		check(t, kit.Quickly(t, fast, "List", func() error {
			equal(t, "list", keysOf(t, s, "*."+name+".>", min), one+" "+two+" ")
			return nil
		}))
	}
	st, err := s.State(ctx, "read."+name+".*")
	check(t, err)
	equal(t, "keys", fmt.Sprint(st.Keys), "["+one+" "+two+"]")
	check(t, s.Verify(ctx))

	for _, r := range []kvstore.Write{{Key: lock, Expect: rev}, {Key: one, Expect: rev + 1}, {Key: two, Expect: last}} {
		r.Delete = true
		check(t, send(t, s, r).Err)
	}
	wantEvent(t, events, kvstore.Deleted, lock, last+1)
}

// The client is connected to a leaf node without JetStream, and the bucket is in the hub's domain.
func TestThroughDomain(t *testing.T) {
	port := kit.FreePort(t)
	hub := testutil.RunServer(t, testutil.WithConfig(func(o *server.Options) {
		o.JetStreamDomain = "hub"
		o.LeafNode.Host, o.LeafNode.Port = "127.0.0.1", port
	}))
	leaf := testutil.RunServer(t, testutil.WithoutJetStream(), testutil.WithConfig(func(o *server.Options) {
		u, err := url.Parse(fmt.Sprintf("nats-leaf://127.0.0.1:%d", port))
		check(t, err)
		o.LeafNode.Remotes = []*server.RemoteLeafOpts{{URLs: []*url.URL{u}}}
		o.LeafNode.ReconnectInterval = 50 * time.Millisecond
	}))
	nc := leaf.Connect()
	connected(t, nc, hub.Connect())

	_, err := kvstore.Open(t.Context(), kit.JetStream(t, nc), kvstore.Config{})
	wantErr(t, err, kvstore.ErrUnavailable, nats.ErrNoResponders)
	js, err := jetstream.NewWithDomain(nc, "hub")
	check(t, err)
	s := openJS(t, js, kvstore.Config{})
	exercise(t, s, "a")
	// The same bucket is visible from the hub itself, with and without the domain.
	near := open(t, hub.Connect(), kvstore.Config{NoCreate: true})
	equal(t, "made at", near.Created(), s.Created())
	exercise(t, near, "b")
	js, err = jetstream.NewWithDomain(hub.Connect(), "hub")
	check(t, err)
	exercise(t, openJS(t, js, kvstore.Config{NoCreate: true}), "c")
}

// connected returns once messages pass from one connection to the other.
func connected(t *testing.T, from, to *nats.Conn) {
	t.Helper()
	got := make(chan *nats.Msg, 1000)
	_, err := to.ChanSubscribe("are.you.there", got)
	check(t, err)
	check(t, to.Flush())
	for {
		check(t, from.Publish("are.you.there", nil))
		select {
		case <-got:
			return
		case <-time.After(20 * time.Millisecond):
		case <-t.Context().Done():
			t.Fatal("never connected")
		}
	}
}

// openProxied opens a bucket through a proxy that forwards all requests except those that intercept takes.
func openProxied(t *testing.T, srv *testutil.Server, intercept func(nc *nats.Conn, request *nats.Msg) bool) *kvstore.Store {
	t.Helper()
	return openJS(t, proxy.JetStream(t, srv, intercept), kvstore.Config{})
}

// Servers stay silent while a stream has no leader, so an unanswered request is repeated.
func TestUnansweredRequestIsRepeated(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, srv *testutil.Server) {
		var asked atomic.Int32
		begun := time.Now()
		s := openProxied(t, srv, func(_ *nats.Conn, m *nats.Msg) bool {
			if strings.Contains(m.Subject, "STREAM.INFO") {
				asked.Add(1)
			}
			return asked.Load() <= 2
		})
		if d := time.Since(begun); asked.Load() != 3 || d > 2500*time.Millisecond {
			t.Fatalf("asked %d times in %v", asked.Load(), d)
		}
		exercise(t, s, "a")
	})
}

// Callers that wait for replies look for a refusal together, because each look takes a turn of the sender.
func TestManyWaitForAnswers(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, srv *testutil.Server) {
		silent := false
		s := openProxied(t, srv, func(*nats.Conn, *nats.Msg) bool { return silent })
		silent = true
		const n = 1000
		ctx, cancel := context.WithTimeout(t.Context(), 900*time.Millisecond)
		defer cancel()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		var all sync.WaitGroup
		for range n {
			all.Go(func() {
				if _, err := s.Get(ctx, "a", 0); !errors.Is(err, kvstore.ErrUnavailable) {
					t.Error(err)
				}
			})
		}
		all.Wait()
		runtime.ReadMemStats(&after)
		if each := (after.Mallocs - before.Mallocs) / n; each > 100 {
			t.Errorf("%d allocations for each that waited", each)
		}
	})
}

// A lagging replica does not know the youngest records, so the store reads them from the leader.
func TestLaggingReplica(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, srv *testutil.Server) {
		var lagging atomic.Int32
		s := openProxied(t, srv, func(nc *nats.Conn, m *nats.Msg) bool {
			if lagging.Load() == 0 || !strings.Contains(m.Subject, "DIRECT.GET") {
				return false
			}
			lagging.Add(-1)
			check(t, nc.PublishMsg(&nats.Msg{Subject: m.Reply, Header: nats.Header{"Status": {"404"}}}))
			return true
		})
		rev := create(t, s, "lock.a", "")
		lagging.Store(1)
		_, err := s.Get(t.Context(), "lock.a", 0)
		wantErr(t, err, kvstore.ErrNotFound)
		lagging.Store(1)
		_, err = s.Get(t.Context(), "lock.a", rev)
		check(t, err)
		lagging.Store(2)
		equal(t, "list", keysOf(t, s, "lock.*", rev), "lock.a ")
		lagging.Store(100)
		_, err = s.List(t.Context(), "lock.*", rev)
		wantErr(t, err, kvstore.ErrUnavailable)
	})
}

// Nor does a lagging replica know that a deleted record has been written again.
func TestListOldTombstone(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, srv *testutil.Server) {
		var old atomic.Pointer[nats.Msg]
		var withheld atomic.Bool // reading from the leader
		s := openProxied(t, srv, func(nc *nats.Conn, m *nats.Msg) bool {
			stale := old.Load()
			switch {
			case stale != nil && strings.HasSuffix(m.Subject, "$KV.natslock.wait.l.a"):
				check(t, nc.PublishMsg(&nats.Msg{Subject: m.Reply, Header: stale.Header}))
			case withheld.Load() && strings.Contains(m.Subject, "STREAM.MSG.GET"):
				check(t, nc.PublishMsg(&nats.Msg{Subject: m.Reply, Header: nats.Header{"Status": {"503"}}}))
			default:
				return false
			}
			return true
		})
		s.Replicated()
		one := create(t, s, "wait.l.a", "one")
		gone, err := s.Delete(t.Context(), "wait.l.a", one)
		check(t, err)
		tombstone, err := srv.Connect().Request("$JS.API.DIRECT.GET.KV_natslock.$KV.natslock.wait.l.a", nil, time.Second)
		check(t, err)
		create(t, s, "wait.l.b", "")
		last := create(t, s, "wait.l.c", "")
		equal(t, "really deleted", keysOf(t, s, "wait.l.*", last), "wait.l.b wait.l.c ")
		withheld.Store(true)
		equal(t, "without the leader's word", keysOf(t, s, "wait.l.*", last), "wait.l.b wait.l.c ")
		withheld.Store(false)
		a := send(t, s, kvstore.Write{Key: "wait.l.a", Value: []byte("two"), Expect: gone, TTL: ttl})
		check(t, a.Err)
		old.Store(tombstone)
		equal(t, "written again", keysOf(t, s, "wait.l.*", a.Revision), "wait.l.b wait.l.c wait.l.a ")
	})
}

// A lagging replica shows a place that has ended since. The leader's reply prevails, unless it comes from a deposed
// leader that shows an even older state.
func TestListOfOlderState(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, srv *testutil.Server) {
		var replica, deposed atomic.Pointer[[]*nats.Msg]
		s := openProxied(t, srv, func(nc *nats.Conn, m *nats.Msg) bool {
			answers := replica.Load()
			if strings.Contains(m.Subject, "STREAM.MSG.GET") {
				if answers = deposed.Load(); !bytes.Contains(m.Data, []byte("wait.l.a")) {
					return false
				}
			} else if !strings.HasSuffix(m.Subject, "DIRECT.GET.KV_natslock") {
				return false
			}
			if answers == nil {
				return false
			}
			for _, a := range *answers {
				check(t, nc.PublishMsg(&nats.Msg{Subject: m.Reply, Header: a.Header, Data: a.Data}))
			}
			return true
		})
		s.PassMany()
		s.Replicated()
		nc := srv.Connect()
		read := func(key string) *nats.Msg {
			m, err := nc.Request("$JS.API.DIRECT.GET.KV_natslock.$KV.natslock."+key, nil, time.Second)
			check(t, err)
			return m
		}
		one := create(t, s, "wait.l.a", "one")
		older, err := nc.Request("$JS.API.STREAM.MSG.GET.KV_natslock", []byte(`{"last_by_subj":"$KV.natslock.wait.l.a"}`), time.Second)
		check(t, err)
		a := send(t, s, kvstore.Write{Key: "wait.l.a", Value: []byte("renewed"), Expect: one, TTL: ttl})
		check(t, a.Err)
		state := create(t, s, "wait.l.b", "")
		end := &nats.Msg{Header: nats.Header{"Status": {"204"}, "Nats-Num-Pending": {"0"}, "Nats-UpTo-Sequence": {fmt.Sprint(state)}}}
		stale := []*nats.Msg{read("wait.l.a"), read("wait.l.b"), end}
		last, err := s.Delete(t.Context(), "wait.l.a", a.Revision)
		check(t, err)
		replica.Store(&stale)
		equal(t, "of the replica's state", keysOf(t, s, "wait.l.*", state), "wait.l.a wait.l.b ")
		equal(t, "as of the deletion", keysOf(t, s, "wait.l.*", last), "wait.l.b ")

		deposed.Store(&[]*nats.Msg{older})
		l, err := s.List(t.Context(), "wait.l.*", last)
		check(t, err)
		equal(t, "revision of a", l.Records[0].Revision, a.Revision)
	})
}

// The same holds for a whole list: a state that does not contain the requested revision, whether or not it names its
// own, is not accepted.
func TestLaggingList(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, srv *testutil.Server) {
		var answer atomic.Pointer[nats.Header] // from a lagging replica, given once
		s := openProxied(t, srv, func(nc *nats.Conn, m *nats.Msg) bool {
			if !strings.HasSuffix(m.Subject, "DIRECT.GET.KV_natslock") {
				return false
			}
			h := answer.Swap(nil)
			if h != nil {
				check(t, nc.PublishMsg(&nats.Msg{Subject: m.Reply, Header: *h}))
			}
			return h != nil
		})
		s.PassMany()
		before := create(t, s, "lock.a", "")
		rev := create(t, s, "lock.b", "")
		for _, stale := range []nats.Header{
			{"Status": {"404"}},
			{"Status": {"204"}, "Nats-Num-Pending": {"0"}, "Nats-UpTo-Sequence": {fmt.Sprint(before)}},
			{"Status": {"204"}, "Nats-Num-Pending": {"0"}}, // an old server does not name its revision
			// Cut off before its first record, although nobody asked for a part.
			{"Status": {"204"}, "Nats-Num-Pending": {"2"}, "Nats-UpTo-Sequence": {fmt.Sprint(rev)}},
		} {
			answer.Store(&stale)
			equal(t, "list", keysOf(t, s, "lock.*", rev), "lock.a lock.b ")
			if answer.Load() != nil {
				t.Fatal("it was never asked")
			}
		}
	})
}

// A leader that is behind does not know the youngest records either.
func TestLaggingLeader(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, srv *testutil.Server) {
		var old []byte
		var leader, replica atomic.Int32
		s := openProxied(t, srv, func(nc *nats.Conn, m *nats.Msg) bool {
			r := &nats.Msg{Subject: m.Reply}
			switch {
			case strings.Contains(m.Subject, "DIRECT.GET") && replica.Add(-1) >= 0:
				r.Header = nats.Header{"Status": {"404"}}
			case strings.Contains(m.Subject, "STREAM.INFO") && leader.Add(-1) >= 0:
				r.Data = old
			default:
				return false
			}
			check(t, nc.PublishMsg(r))
			return true
		})
		m, err := srv.Connect().Request("$JS.API.STREAM.INFO.KV_natslock", nil, time.Second)
		check(t, err)
		old = m.Data
		rev := create(t, s, "lock.a", "")
		replica.Store(1)
		leader.Store(2)
		_, err = s.Get(t.Context(), "lock.a", rev)
		check(t, err)
		replica.Store(1)
		leader.Store(100)
		_, err = s.Get(t.Context(), "lock.a", rev)
		wantErr(t, err, kvstore.ErrUnavailable)
	})
}

// A deposed leader may reply alongside the current one. It proves nothing if it has no record of a key that the current
// leader names.
func TestDeposedLeaderRead(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, srv *testutil.Server) {
		var behind atomic.Int32
		s := openProxied(t, srv, func(nc *nats.Conn, m *nats.Msg) bool {
			r := &nats.Msg{Subject: m.Reply}
			switch {
			case behind.Load() <= 0:
				return false
			case strings.Contains(m.Subject, "DIRECT.GET"):
				r.Header = nats.Header{"Status": {"404"}}
			case strings.Contains(m.Subject, "STREAM.MSG.GET"):
				behind.Add(-1)
				r.Data = []byte(`{"error":{"code":404,"err_code":10037,"description":"no message found"}}`)
			default:
				return false
			}
			check(t, nc.PublishMsg(r))
			return true
		})
		s.Replicated()
		rev := create(t, s, "lock.a", "")
		behind.Store(2)
		r, err := s.Get(t.Context(), "lock.a", rev)
		check(t, err)
		equal(t, "revision", r.Revision, rev)
		behind.Store(100)
		_, err = s.Get(t.Context(), "lock.a", rev)
		wantErr(t, err, kvstore.ErrUnavailable)
		_, err = s.Get(t.Context(), "lock.b", rev)
		wantErr(t, err, kvstore.ErrNotFound)
	})
}

// ofOldServer gives a reply the API level and version of a 2.11 server. The proof tier has a real one.
func ofOldServer(answer map[string]any) {
	if config, ok := answer["config"].(map[string]any); ok {
		config["metadata"].(map[string]any)["_nats.level"] = "1"
		config["metadata"].(map[string]any)["_nats.ver"] = "2.11.4"
	}
	if api, ok := answer["api"].(map[string]any); ok {
		api["level"] = 1
	}
}

// A bucket is neither created nor opened on a server that is too old.
func TestServerTooOld(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, srv *testutil.Server) {
		old := proxy.JetStream(t, srv, func(nc *nats.Conn, m *nats.Msg) bool {
			info := strings.HasSuffix(m.Subject, "API.INFO") || strings.Contains(m.Subject, "STREAM.INFO")
			return info && proxy.Rewrite(t, nc, m, ofOldServer)
		})
		_, err := kvstore.Open(t.Context(), old, kvstore.Config{})
		wantConfigError(t, err, "nats-server")
		_, err = kit.JetStream(t, srv.Connect()).Stream(t.Context(), "KV_natslock")
		wantErr(t, err, jetstream.ErrStreamNotFound)
		open(t, srv.Connect(), kvstore.Config{})
		_, err = kvstore.Open(t.Context(), old, kvstore.Config{})
		wantConfigError(t, err, "nats-server")
	})
}

// Open waits for a leader of the bucket's stream and reports if there is none.
func TestStreamWithoutLeader(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, srv *testutil.Server) {
		open(t, srv.Connect(), kvstore.Config{})
		var without atomic.Bool
		js := proxy.JetStream(t, srv, func(nc *nats.Conn, m *nats.Msg) bool {
			return without.Load() && strings.Contains(m.Subject, "STREAM.INFO") && proxy.Rewrite(t, nc, m, func(info map[string]any) {
				info["cluster"] = map[string]any{"name": "C", "replicas": []any{map[string]any{}, map[string]any{}}}
			})
		})
		without.Store(true)
		ctx, cancel := context.WithTimeout(t.Context(), 6*time.Second)
		defer cancel()
		_, err := kvstore.Open(ctx, js, kvstore.Config{})
		wantErr(t, err, kvstore.ErrUnavailable, kvstore.ErrNoStream, context.DeadlineExceeded)
		if !strings.Contains(err.Error(), "no leader") {
			t.Fatalf("error is %v", err)
		}
		time.AfterFunc(3*time.Second, func() { without.Store(false) })
		create(t, openJS(t, js, kvstore.Config{}), "lock.a", "")
	})
}

// A mirror keeps a record that the bucket has removed, so its reply is checked with the leader.
func TestMirrorAnswers(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, srv *testutil.Server) {
		s := openProxied(t, srv, func(nc *nats.Conn, m *nats.Msg) bool {
			if !strings.Contains(m.Subject, "DIRECT.GET") {
				return false
			}
			of := func(name, value string) { m.Header.Set("Nats-"+name, value) }
			m.Header = nats.Header{}
			of("Stream", "COPY")
			of("Subject", "$KV.natslock.lock.a")
			of("Sequence", "1")
			of("Time-Stamp", time.Now().UTC().Format(time.RFC3339Nano))
			check(t, nc.PublishMsg(&nats.Msg{Subject: m.Reply, Header: m.Header, Data: []byte("long gone")}))
			return true
		})
		_, err := s.Get(t.Context(), "lock.a", 0)
		wantErr(t, err, kvstore.ErrNotFound)
		rev := create(t, s, "lock.a", "here")
		r, err := s.Get(t.Context(), "lock.a", 0)
		check(t, err)
		equal(t, "revision", r.Revision, rev)
	})
}

// A stream info names a limited number of keys at a time. All pages together are the state, as of the first page.
func TestStateInPages(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, srv *testutil.Server) {
		const page = 2
		var asked atomic.Int32
		s := openProxied(t, srv, func(nc *nats.Conn, m *nats.Msg) bool {
			var req struct {
				Filter string `json:"subjects_filter"`
				Offset int    `json:"offset"`
			}
			if !strings.Contains(m.Subject, "STREAM.INFO") || json.Unmarshal(m.Data, &req) != nil || req.Filter == "" {
				return false
			}
			whole, err := json.Marshal(map[string]string{"subjects_filter": req.Filter})
			check(t, err)
			m.Data = whole
			return proxy.Rewrite(t, nc, m, func(info map[string]any) {
				state := info["state"].(map[string]any)
				all := state["subjects"].(map[string]any)
				names := slices.Sorted(maps.Keys(all))
				for i, n := range names {
					if i < req.Offset || i >= req.Offset+page {
						delete(all, n)
					}
				}
				n := asked.Add(1)
				state["last_seq"] = 1000 + n
				if n > 3 { // three servers, and another term from the second page on
					term := time.Unix(int64(n/5), 0).UTC()
					info["cluster"] = map[string]any{"name": "C", "leader": "a", "leader_since": term, "replicas": []any{map[string]any{}, map[string]any{}}}
				}
				info["total"], info["offset"], info["limit"] = len(names), req.Offset, page
			})
		})
		var want []string
		for i := range 5 {
			want = append(want, fmt.Sprintf("read.a.%d", i))
			create(t, s, want[i], "")
		}
		st, err := s.State(t.Context(), "read.a.*")
		check(t, err)
		equal(t, "keys", fmt.Sprint(st.Keys), fmt.Sprint(want))
		equal(t, "last revision", st.LastRevision, 1001)
		equal(t, "pages", asked.Load(), 3)
		equal(t, "complete", st.Complete, true)
		st, err = s.State(t.Context(), "read.a.*")
		check(t, err)
		equal(t, "complete", st.Complete, false)
	})
}

// The bucket belongs to another account, which exports it.
func TestThroughImport(t *testing.T) {
	srv := testutil.RunServer(t, testutil.WithConfigText(`
		accounts {
			OWNER {
				jetstream: enabled
				users: [{user: owner, password: x}]
				exports: [
					{service: "$JS.API.STREAM.>"}
					{service: "$JS.API.DIRECT.>"}
					{service: "$KV.natslock.>"}
					{stream: "natslock.>"}
				]
			}
			GUEST {
				users: [{user: guest, password: x}]
				imports: [
					{service: {account: OWNER, subject: "$JS.API.STREAM.>"}, to: "owner.API.STREAM.>"}
					{service: {account: OWNER, subject: "$JS.API.DIRECT.>"}, to: "owner.API.DIRECT.>"}
					{service: {account: OWNER, subject: "$KV.natslock.>"}, to: "owner.API.$KV.natslock.>"}
					{stream: {account: OWNER, subject: "natslock.>"}}
				]
			}
		}`))
	js, err := jetstream.NewWithAPIPrefix(srv.Connect(nats.UserInfo("guest", "x")), "owner.API")
	check(t, err)
	guest := openJS(t, js, kvstore.Config{})
	exercise(t, guest, "a")
	owner := open(t, srv.Connect(nats.UserInfo("owner", "x")), kvstore.Config{NoCreate: true})
	equal(t, "made at", owner.Created(), guest.Created())
}
