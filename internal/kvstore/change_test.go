package kvstore_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/proxy"
	"github.com/natslock/locks/testutil"
)

// change updates the bucket's settings.
func change(t *testing.T, nc *nats.Conn, set func(*jetstream.StreamConfig)) {
	t.Helper()
	js := kit.JetStream(t, nc)
	str, err := js.Stream(t.Context(), "KV_natslock")
	check(t, err)
	sc := str.CachedInfo().Config
	set(&sc)
	_, err = js.UpdateStream(t.Context(), sc)
	check(t, err)
}

// doubts counts how often the store asks for the bucket to be verified.
func doubts(s *kvstore.Store) *atomic.Int32 {
	n := new(atomic.Int32)
	s.OnConnection(func(st kvstore.ConnState) {
		if st == kvstore.Doubtful {
			n.Add(1)
		}
	})
	return n
}

// With direct gets switched off, every read goes to the leader, at the cost of one refusal
// until the bucket is verified. Then they are switched on again.
func TestDirectOff(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, srv *testutil.Server) {
		nc, admin := srv.Connect(), srv.Connect()
		s := open(t, nc, kvstore.Config{})
		doubted := doubts(s)
		rev := create(t, s, "a.1", "")
		create(t, s, "a.2", "")
		reads := func(get, list uint64) {
			t.Helper()
			sent := nc.Stats().OutMsgs
			_, err := s.Get(t.Context(), "a.1", rev)
			check(t, err)
			equal(t, "messages of a read", nc.Stats().OutMsgs-sent, get)
			sent = nc.Stats().OutMsgs
			equal(t, "list", keysOf(t, s, "a.*", 0), "a.1 a.2 ")
			equal(t, "messages of a list", nc.Stats().OutMsgs-sent, list)
		}
		reads(1, 1)
		change(t, admin, func(c *jetstream.StreamConfig) { c.AllowDirect = false })
		// The list takes two refused requests and the stream info. Each key is then refused
		// once and read twice.
		reads(2, 2+1+2+2*2)
		equal(t, "doubts", doubted.Load(), 2) // one for the refusal and one for the stream info
		check(t, s.Verify(t.Context()))
		reads(1, 1+2)
		change(t, admin, func(c *jetstream.StreamConfig) { c.AllowDirect = true })
		reads(1, 1+2)
		equal(t, "doubts", doubted.Load(), 3)
		check(t, s.Verify(t.Context()))
		reads(1, 1)
		equal(t, "doubts", doubted.Load(), 3)
	})
}

// A store learns that its bucket has gained replicas from the next stream info, or from a
// lagging reply, which a bucket without replicas never gives.
func TestReplicasAdded(t *testing.T) {
	for _, how := range []string{"info", "lag"} {
		testutil.Bubble(t, func(t *testing.T, srv *testutil.Server) {
			var lags, grown atomic.Bool
			var before uint64
			js := proxy.JetStream(t, srv, func(nc *nats.Conn, m *nats.Msg) bool {
				switch {
				case grown.Load() && strings.Contains(m.Subject, "STREAM.INFO"):
					return proxy.Rewrite(t, nc, m, func(answer map[string]any) {
						answer["config"].(map[string]any)["num_replicas"] = 3
						answer["cluster"] = map[string]any{"name": "C", "leader": "one", "leader_since": answer["created"]}
					})
				case strings.HasSuffix(m.Subject, "DIRECT.GET.KV_natslock") && lags.Swap(false):
					check(t, nc.PublishMsg(&nats.Msg{Subject: m.Reply, Header: nats.Header{
						"Status": {"204"}, "Nats-Num-Pending": {"0"}, "Nats-UpTo-Sequence": {fmt.Sprint(before)},
					}}))
					return true
				}
				return false
			})
			s := openJS(t, js, kvstore.Config{})
			s.PassMany()
			doubted := doubts(s)
			before = create(t, s, "a.1", "")
			rev := create(t, s, "a.2", "")
			if !s.Alone() {
				t.Fatal("not alone")
			}
			grown.Store(true)
			if how == "info" {
				_, err := s.State(t.Context(), "")
				check(t, err)
			} else {
				lags.Store(true)
				l, err := s.List(t.Context(), "a.*", 0, kvstore.Reached(rev))
				check(t, err)
				equal(t, "records", len(l.Records), 2)
			}
			if s.Alone() {
				t.Fatal("alone with three replicas")
			}
			if doubted.Load() == 0 {
				t.Fatal("nobody is to verify the bucket")
			}
			check(t, s.Verify(t.Context()))
			if s.Alone() {
				t.Fatal("alone with three replicas after a verification")
			}
		})
	}
}

// When the notifications move to another subject, watches follow them and are told to recheck.
func TestRepublishMoved(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, srv *testutil.Server) {
		var log bytes.Buffer
		admin := srv.Connect()
		s := open(t, srv.Connect(), kvstore.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		rev := create(t, s, "lock.a", "")
		_, events := watch(t, s, "lock.a")
		var old *jetstream.RePublish
		for _, step := range []struct {
			id    string // "": none
			moves bool
		}{{"one", true}, {"", false}, {"two", true}, {"", false}} {
			log.Reset()
			change(t, admin, func(c *jetstream.StreamConfig) {
				if old == nil {
					old = c.RePublish
				}
				if c.RePublish = nil; step.id != "" {
					c.RePublish = &jetstream.RePublish{Source: old.Source, Destination: "natslock.natslock." + step.id + ".>"}
				}
			})
			check(t, s.Verify(t.Context()))
			if !strings.Contains(log.String(), "republish") {
				t.Fatalf("no word of it in the log: %s", &log)
			}
			ev := kit.Receive(t, events, "a recheck")
			equal(t, "event", ev.Kind, kvstore.Recheck)
			equal(t, "silent", ev.Silent, step.id == "")
			if step.moves {
				var err error
				rev, err = s.Update(t.Context(), "lock.a", nil, ttl, rev)
				check(t, err)
				wantEvent(t, events, kvstore.Put, "lock.a", rev)
			}
		}
		equal(t, "events", len(events), 0)
	})
}

// A refused write makes the store ask for the bucket to be verified, but only now and then.
func TestRefusalDoubts(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, srv *testutil.Server) {
		s := open(t, srv.Connect(), kvstore.Config{})
		doubted := doubts(s)
		create(t, s, "a.1", "")
		change(t, srv.Connect(), func(c *jetstream.StreamConfig) { c.MaxMsgSize = 10 })
		for range 3 {
			wantErr(t, send(t, s, kvstore.Write{Key: "a.2", Value: make([]byte, 100), TTL: ttl}).Err, kvstore.ErrTooLarge)
		}
		equal(t, "doubts", doubted.Load(), 1)
		check(t, s.Verify(t.Context()))
		if w := strings.Join(s.Warnings(), "\n"); !strings.Contains(w, "max_msg_size") {
			t.Fatalf("no word of max_msg_size: %q", w)
		}
	})
}
