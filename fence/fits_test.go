package fence_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/fence"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/proxy"
	"github.com/natslock/locks/testutil"
)

// TestUnfit checks that Open refuses every stream that would lose, refuse or rename the fence's
// message, and writes nothing to it.
func TestUnfit(t *testing.T) {
	js := kit.JetStream(t, testutil.RunServer(t).Connect())
	_, err := js.CreateStream(kit.Bounded(t), jetstream.StreamConfig{Name: "ORIGIN", Subjects: []string{"origin"}})
	require.NoError(t, err)
	for name, c := range map[string]jetstream.StreamConfig{
		"max_age":          {MaxAge: time.Hour},
		"max_age_and_ttl":  {MaxAge: time.Hour, AllowMsgTTL: true},
		"max_msgs":         {MaxMsgs: 1000},
		"max_bytes":        {MaxBytes: 1 << 20},
		"per_subject":      {Discard: jetstream.DiscardNew, DiscardNewPerSubject: true, MaxMsgsPerSubject: 10},
		"interest":         {Retention: jetstream.InterestPolicy},
		"work_queue":       {Retention: jetstream.WorkQueuePolicy},
		"transform":        {SubjectTransform: &jetstream.SubjectTransformConfig{Source: "orders.fence", Destination: "orders.other"}},
		"mirror":           {Mirror: &jetstream.StreamSource{Name: "ORIGIN"}},
		"sources":          {Sources: []*jetstream.StreamSource{{Name: "ORIGIN"}}},
		"no_ack":           {NoAck: true},
		"async":            {PersistMode: jetstream.AsyncPersistMode},
		"counter":          {AllowMsgCounter: true},
		"subject":          {Subjects: []string{"orders.fences", "orders", "orders.fence.>", "orders.x.*"}},
		"subject_of_lanes": {Subjects: []string{"orders.*"}},
	} {
		t.Run(name, func(t *testing.T) {
			// The server removes a stream's files only after acknowledging the deletion, so re-creating
			// the stream right away can fail. Each case therefore uses its own name.
			c.Name = stream + "-" + name
			if c.Subjects == nil && c.Mirror == nil {
				c.Subjects = []string{"orders.>"}
			}
			s, err := js.CreateStream(kit.Bounded(t), c)
			require.NoError(t, err)
			defer func() { require.NoError(t, js.DeleteStream(kit.Bounded(t), c.Name)) }()
			_, err = fence.Open(kit.Bounded(t), js, c.Name, subject, 10, fence.WithLanes(2))
			require.ErrorIs(t, err, fence.ErrUnfit)
			info, err := s.Info(kit.Bounded(t))
			require.NoError(t, err)
			require.Zero(t, info.State.LastSeq)
		})
	}
	_, err = fence.Open(kit.Bounded(t), js, stream, subject, 10)
	require.ErrorIs(t, err, fence.ErrUnfit)
	require.ErrorContains(t, err, "no such stream")
}

func TestSealed(t *testing.T) {
	js := kit.JetStream(t, testutil.RunServer(t).Connect())
	s := orders(t, js, nil)
	f := open(t, js, 10)
	c := s.CachedInfo().Config
	c.Sealed, c.DenyDelete, c.DenyPurge = true, true, true
	_, err := js.UpdateStream(kit.Bounded(t), c)
	require.NoError(t, err)
	_, err = fence.Open(kit.Bounded(t), js, stream, subject, 11)
	require.ErrorIs(t, err, fence.ErrUnfit)
	_, err = f.Publish(kit.Bounded(t), data, nil)
	_, refused := asAPI(err)
	require.True(t, refused, "%v", err)
	require.NoError(t, f.Err())
}

// TestFits checks that a bucket with a history of one, and a stream that refuses new messages when
// it is full, both keep the fence's message.
func TestFits(t *testing.T) {
	js := kit.JetStream(t, testutil.RunServer(t).Connect())
	orders(t, js, func(c *jetstream.StreamConfig) {
		c.MaxMsgsPerSubject, c.Discard, c.MaxMsgs = 1, jetstream.DiscardNew, 4
	})
	f := open(t, js, 10)
	for range 5 {
		publish(t, f, "x")
	}
	older, err := f.Publish(kit.Bounded(t), "orders.1", nil)
	require.NoError(t, err)
	_, err = f.Publish(kit.Bounded(t), "orders.2", nil)
	require.NoError(t, err)
	// The stream is now full. The next holder cannot open a fence, and nothing is stored without one.
	_, err = f.Publish(kit.Bounded(t), "orders.3", nil)
	_, refused := asAPI(err)
	require.True(t, refused, "%v", err)
	require.NotErrorIs(t, err, fence.ErrUnknown)
	require.NoError(t, f.Err())
	s, err := js.Stream(kit.Bounded(t), stream)
	require.NoError(t, err)
	require.NoError(t, s.DeleteMsg(kit.Bounded(t), older.Sequence))
	open(t, js, 11)
	stale(t, f, fence.ErrSuperseded)
}

// TestRenamed checks that Open notices if an account maps the fence's subject to another one.
// Otherwise the server would compare the sequence of a subject that never changes.
func TestRenamed(t *testing.T) {
	srv := testutil.RunServer(t, testutil.WithConfig(func(o *server.Options) {
		a := server.NewAccount("A")
		o.Accounts = []*server.Account{a}
		o.Users = []*server.User{{Username: "a", Password: "a", Account: a}}
	}))
	account, err := srv.Server().LookupAccount("A")
	require.NoError(t, err)
	require.NoError(t, account.EnableJetStream(nil, nil))
	js := kit.JetStream(t, srv.Connect(nats.UserInfo("a", "a")))
	orders(t, js, nil)
	f := open(t, js, 10)
	require.NoError(t, account.AddMapping(subject, "orders.elsewhere"))

	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err = fence.Open(ctx, js, stream, subject, 11)
	require.Error(t, err, "the message did not move the fence")
	publish(t, f, "goes on")

	s, err := js.Stream(kit.Bounded(t), stream)
	require.NoError(t, err)
	require.NoError(t, s.Purge(kit.Bounded(t)))
	ctx, cancel = context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_, err = fence.Open(ctx, js, stream, subject, 11)
	require.ErrorIs(t, err, fence.ErrUnfit)
	stale(t, f, fence.ErrLost)
}

// TestLost checks that however an open fence's message is removed, the server refuses all further
// writes through that fence.
func TestLost(t *testing.T) {
	for name, remove := range map[string]func(t *testing.T, js jetstream.JetStream, s jetstream.Stream){
		"purge of the subject": func(t *testing.T, _ jetstream.JetStream, s jetstream.Stream) {
			require.NoError(t, s.Purge(kit.Bounded(t), jetstream.WithPurgeSubject(subject)))
		},
		"purge of the stream": func(t *testing.T, _ jetstream.JetStream, s jetstream.Stream) {
			require.NoError(t, s.Purge(kit.Bounded(t)))
		},
		"deletion of the message": func(t *testing.T, _ jetstream.JetStream, s jetstream.Stream) {
			m, err := s.GetLastMsgForSubject(kit.Bounded(t), subject)
			require.NoError(t, err)
			require.NoError(t, s.DeleteMsg(kit.Bounded(t), m.Sequence))
		},
		"limit set later": func(t *testing.T, js jetstream.JetStream, s jetstream.Stream) {
			c := s.CachedInfo().Config
			c.MaxMsgs = 1
			_, err := js.UpdateStream(kit.Bounded(t), c)
			require.NoError(t, err)
			_, err = js.Publish(kit.Bounded(t), data, nil)
			require.NoError(t, err)
			c.MaxMsgs = -1
			_, err = js.UpdateStream(kit.Bounded(t), c)
			require.NoError(t, err)
		},
		"stream made again, with sequences above": func(t *testing.T, js jetstream.JetStream, _ jetstream.Stream) {
			require.NoError(t, js.DeleteStream(kit.Bounded(t), stream))
			orders(t, js, func(c *jetstream.StreamConfig) { c.FirstSeq = 1000 })
		},
		"roll-up of the stream": func(t *testing.T, js jetstream.JetStream, s jetstream.Stream) {
			_, err := js.PublishMsg(kit.Bounded(t), &nats.Msg{Subject: data, Header: nats.Header{jetstream.MsgRollup: {"all"}}})
			require.NoError(t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			js := kit.JetStream(t, testutil.RunServer(t).Connect())
			s := orders(t, js, func(c *jetstream.StreamConfig) { c.AllowRollup = true })
			f := open(t, js, 10)
			remove(t, js, s)
			stale(t, f, fence.ErrLost)
			again := open(t, js, 10)
			publish(t, again, "the lock is still held")
			fence.Forget(f)
			stale(t, f, fence.ErrSuperseded)
		})
	}
}

// TestForeign checks that a foreign message on the subject, or a key's tombstone, hides the
// greatest token. Every fence is then refused until an operator purges the subject.
func TestForeign(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, kv jetstream.KeyValue){
		"delete": func(t *testing.T, kv jetstream.KeyValue) { require.NoError(t, kv.Delete(kit.Bounded(t), "fence")) },
		"purge":  func(t *testing.T, kv jetstream.KeyValue) { require.NoError(t, kv.Purge(kit.Bounded(t), "fence")) },
		"put": func(t *testing.T, kv jetstream.KeyValue) {
			_, err := kv.Put(kit.Bounded(t), "fence", []byte(`{"token":99}`))
			require.NoError(t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			js := kit.JetStream(t, testutil.RunServer(t).Connect())
			bucket, err := js.CreateKeyValue(kit.Bounded(t), jetstream.KeyValueConfig{Bucket: "b"})
			require.NoError(t, err)
			open := func(token uint64) (*fence.KV, error) {
				f, err := fence.Open(kit.Bounded(t), js, "KV_b", "$KV.b.fence", token)
				if err != nil {
					return nil, err
				}
				return f.KV("b")
			}
			kv, err := open(10)
			require.NoError(t, err)
			spoil(t, bucket)
			_, err = kv.Put(kit.Bounded(t), "k", nil)
			require.ErrorIs(t, err, fence.ErrLost)
			_, err = open(9)
			require.ErrorIs(t, err, fence.ErrUnfit)
			require.ErrorContains(t, err, "purge")
			s, err := js.Stream(kit.Bounded(t), "KV_b")
			require.NoError(t, err)
			require.NoError(t, s.Purge(kit.Bounded(t), jetstream.WithPurgeSubject("$KV.b.fence")))
			_, err = open(11)
			require.NoError(t, err)
		})
	}
}

// TestPurgedLanes checks that an earlier holder's lanes are found even after a purge has removed
// their count.
func TestPurgedLanes(t *testing.T) {
	js := kit.JetStream(t, testutil.RunServer(t).Connect())
	s := orders(t, js, nil)
	older := open(t, js, 10, fence.WithLanes(4))
	require.NoError(t, s.Purge(kit.Bounded(t), jetstream.WithPurgeSubject(subject)))
	open(t, js, 20)
	for range 8 {
		_, err := older.Publish(kit.Bounded(t), data, []byte("stale"))
		require.ErrorIs(t, err, fence.ErrSuperseded)
		fence.Forget(older)
	}
	require.Empty(t, stored(t, s, data))
}

// TestPurgedInOpen purges the subject in the middle of an older holder's Open, which hides its
// lanes from the next holder. The last step of the older Open must then find the next holder.
func TestPurgedInOpen(t *testing.T) {
	js := kit.JetStream(t, testutil.RunServer(t).Connect())
	s := orders(t, js, nil)
	meanwhile := once(js, subject+".1", 1, func() {
		require.NoError(t, s.Purge(kit.Bounded(t), jetstream.WithPurgeSubject(subject)))
		open(t, js, 20)
	})
	_, err := fence.Open(kit.Bounded(t), meanwhile, stream, subject, 10, fence.WithLanes(2))
	require.ErrorIs(t, err, fence.ErrSuperseded)
}

// TestOpenMeanwhile checks that Open does not overwrite a holder that arrived between its read and
// its write.
func TestOpenMeanwhile(t *testing.T) {
	for _, lane := range []string{subject, subject + ".1"} {
		js := kit.JetStream(t, testutil.RunServer(t).Connect())
		s := orders(t, js, nil)
		open(t, js, 5, fence.WithLanes(2))
		var younger *fence.Fence
		meanwhile := once(js, lane, 1, func() { younger = open(t, js, 20, fence.WithLanes(2)) })
		_, err := fence.Open(kit.Bounded(t), meanwhile, stream, subject, 10, fence.WithLanes(2))
		require.ErrorIs(t, err, fence.ErrSuperseded)
		for range 4 {
			publish(t, younger, "x")
		}
		require.Equal(t, uint64(20), markOf(t, s, lane).Token)
	}
}

func TestStaleBatch(t *testing.T) {
	js := kit.JetStream(t, testutil.RunServer(t).Connect())
	s := orders(t, js, nil)
	older := open(t, js, 10)
	open(t, js, 20)
	_, err := older.PublishBatch(kit.Bounded(t), &nats.Msg{Subject: data}, &nats.Msg{Subject: data})
	require.ErrorIs(t, err, fence.ErrSuperseded)
	require.Empty(t, stored(t, s, data))
}

// TestDomain checks a fence behind a JetStream domain, where a bucket's subjects are sent with the
// API prefix but conditions are not.
func TestDomain(t *testing.T) {
	nc := testutil.RunServer(t, testutil.WithConfig(func(o *server.Options) { o.JetStreamDomain = "hub" })).Connect()
	js, err := jetstream.NewWithDomain(nc, "hub")
	require.NoError(t, err)
	bucket, err := js.CreateKeyValue(kit.Bounded(t), jetstream.KeyValueConfig{Bucket: "b"})
	require.NoError(t, err)
	var fences [2]*fence.KV
	for i := range fences {
		f, err := fence.Open(kit.Bounded(t), js, "KV_b", "$KV.b.fence", uint64(i+1), fence.WithLanes(2))
		require.NoError(t, err)
		fences[i], err = f.KV("b")
		require.NoError(t, err)
	}
	revision, err := fences[1].Put(kit.Bounded(t), "k", []byte("v"))
	require.NoError(t, err)
	_, err = fences[0].Put(kit.Bounded(t), "k", []byte("stale"))
	require.ErrorIs(t, err, fence.ErrSuperseded)
	e, err := bucket.Get(kit.Bounded(t), "k")
	require.NoError(t, err)
	require.Equal(t, revision, e.Revision())
}

// TestPermission checks that a user without permission for the fence's subject gets an error that
// names it.
func TestPermission(t *testing.T) {
	srv := testutil.RunServer(t, testutil.WithConfig(func(o *server.Options) {
		o.Users = []*server.User{{Username: "a", Password: "a"}, {Username: "b", Password: "b", Permissions: &server.Permissions{
			Publish: &server.SubjectPermission{Allow: []string{"$JS.API.>", data}},
		}}}
	}))
	orders(t, kit.JetStream(t, srv.Connect(nats.UserInfo("a", "a"))), nil)
	js := kit.JetStream(t, srv.Connect(nats.UserInfo("b", "b"), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})))
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := fence.Open(ctx, js, stream, subject, 1)
	require.ErrorIs(t, err, fence.ErrUnknown)
	require.ErrorIs(t, err, nats.ErrPermissionViolation)
	require.ErrorContains(t, err, subject)
}

// TestServerTooOld checks that Open refuses a server that is too old. Here, a proxy rewrites the
// reply; the proof tier runs against a server that really is too old.
func TestServerTooOld(t *testing.T) {
	srv := testutil.RunServer(t)
	s, err := kit.JetStream(t, srv.Connect()).CreateStream(kit.Bounded(t), jetstream.StreamConfig{Name: stream, Subjects: []string{"orders.>"}})
	require.NoError(t, err)
	js := proxy.JetStream(t, srv, func(nc *nats.Conn, m *nats.Msg) bool {
		return strings.Contains(m.Subject, "STREAM.INFO") && proxy.Rewrite(t, nc, m, func(info map[string]any) {
			info["config"].(map[string]any)["metadata"] = map[string]any{"_nats.ver": "2.11.4"}
		})
	})
	_, err = fence.Open(kit.Bounded(t), js, stream, subject, 10)
	require.ErrorIs(t, err, fence.ErrUnfit)
	require.ErrorContains(t, err, "nats-server is version 2.11.4; 2.12 or later is required")
	info, err := s.Info(kit.Bounded(t))
	require.NoError(t, err)
	require.Zero(t, info.State.LastSeq)
}
