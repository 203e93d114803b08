package fence_test

import (
	"context"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/fence"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/testutil"
)

func TestCheck(t *testing.T) {
	require.NoError(t, fence.Check(0, 1))
	require.NoError(t, fence.Check(7, 7))
	require.NoError(t, fence.Check(7, 8))
	require.ErrorIs(t, fence.Check(7, 6), fence.ErrSuperseded)
	require.ErrorIs(t, fence.Check(0, 0), fence.ErrInvalid)
}

// TestOpen checks that a greater token supersedes a smaller one, but not vice versa.
func TestOpen(t *testing.T) {
	js := kit.JetStream(t, testutil.RunServer(t).Connect())
	s := orders(t, js, nil)
	older := open(t, js, 10)
	publish(t, older, "a")
	younger := open(t, js, 20)
	stale(t, older, fence.ErrSuperseded)
	_, err := fence.Open(kit.Bounded(t), js, stream, subject, 19)
	require.ErrorIs(t, err, fence.ErrSuperseded)
	require.ErrorContains(t, err, "token 20")
	require.NoError(t, younger.Err())
	publish(t, younger, "b")
	require.Equal(t, []string{"a", "b"}, stored(t, s, data))
}

// TestSameToken checks that the same token can open the fence again, for example after a crash, and
// that this supersedes the earlier fence.
func TestSameToken(t *testing.T) {
	js := kit.JetStream(t, testutil.RunServer(t).Connect())
	s := orders(t, js, nil)
	for _, lanes := range []int{1, 3} {
		crashed := open(t, js, 10, fence.WithLanes(lanes))
		publish(t, crashed, "a")
		again := open(t, js, 10)
		publish(t, again, "b")
		stale(t, crashed, fence.ErrSuperseded)
		require.ErrorContains(t, crashed.Err(), "the same token")
	}
	require.Equal(t, []string{"a", "b", "a", "b"}, stored(t, s, data))
}

// TestLanes checks that a holder advances all the lanes of earlier holders, even if it has fewer
// itself, and even if a holder in between crashed during its Open.
func TestLanes(t *testing.T) {
	js := kit.JetStream(t, testutil.RunServer(t).Connect())
	s := orders(t, js, nil)
	older := open(t, js, 10, fence.WithLanes(8))
	// Another holder gets only as far as the first step of its Open.
	_, err := js.Publish(kit.Bounded(t), subject, mark(15, 8))
	require.NoError(t, err)
	open(t, js, 20, fence.WithLanes(2))
	for range 8 {
		_, err := older.Publish(kit.Bounded(t), data, []byte("stale"))
		require.ErrorIs(t, err, fence.ErrSuperseded)
	}
	for i := 1; i < 8; i++ {
		require.Equal(t, uint64(20), markOf(t, s, subject+"."+string(rune('0'+i))).Token)
	}
	require.Equal(t, 8, markOf(t, s, subject).Lanes)
	require.Empty(t, stored(t, s, data))
}

// TestLanesRecorded checks that Open records the number of lanes before it writes the first of
// them, because a holder that crashes in between may still have writes in flight to its lanes.
func TestLanesRecorded(t *testing.T) {
	js := kit.JetStream(t, testutil.RunServer(t).Connect())
	s := orders(t, js, nil)
	_, err := js.Publish(kit.Bounded(t), subject, mark(15, 4))
	require.NoError(t, err)
	open(t, js, 20, fence.WithLanes(2))
	require.Equal(t, uint64(20), markOf(t, s, subject+".3").Token)
	require.Equal(t, 4, markOf(t, s, subject).Lanes)
}

func TestPublishMsg(t *testing.T) {
	js := kit.JetStream(t, testutil.RunServer(t).Connect())
	s := orders(t, js, nil)
	f := open(t, js, 10)
	m := &nats.Msg{Subject: data, Data: []byte("x"), Header: nats.Header{"Trace": {"1"}, "Nats-Msg-Id": {"id"}}}
	ack, err := f.PublishMsg(kit.Bounded(t), m)
	require.NoError(t, err)
	require.False(t, ack.Duplicate)
	require.Len(t, m.Header, 2)
	got, err := s.GetMsg(kit.Bounded(t), ack.Sequence)
	require.NoError(t, err)
	require.Equal(t, "1", got.Header.Get("Trace"))
	ack, err = f.PublishMsg(kit.Bounded(t), m)
	require.NoError(t, err)
	require.True(t, ack.Duplicate)

	for name, value := range map[string]string{
		"Nats-Expected-Last-Sequence": "1", "Nats-Expected-Last-Msg-Id": "id", "Nats-Expected-Last-Subject-Sequence": "1",
		"Nats-Expected-Last-Subject-Sequence-Subject": data, "nats-expected-last-sequence": "1",
		"Nats-Rollup": "all", "Nats-Schedule": "@at 2040-01-01T00:00:00Z", "Nats-Batch-Id": "x",
	} {
		_, err := f.PublishMsg(kit.Bounded(t), &nats.Msg{Subject: data, Header: nats.Header{name: {value}}})
		require.ErrorIs(t, err, fence.ErrInvalid, name)
	}
	for _, to := range []string{"", "orders.*", "orders.>", "orders..x", "orders.a b", subject, subject + ".1"} {
		_, err := f.Publish(kit.Bounded(t), to, nil)
		require.ErrorIs(t, err, fence.ErrInvalid, to)
	}
	_, err = f.PublishMsg(kit.Bounded(t), nil)
	require.ErrorIs(t, err, fence.ErrInvalid)
	require.NoError(t, f.Err())
}

// TestOtherStream checks that a message for another stream is refused, even if that stream would
// accept it.
func TestOtherStream(t *testing.T) {
	js := kit.JetStream(t, testutil.RunServer(t).Connect())
	orders(t, js, nil)
	other, err := js.CreateStream(kit.Bounded(t), jetstream.StreamConfig{Name: "OTHER", Subjects: []string{"other.>"}})
	require.NoError(t, err)
	f := open(t, js, 10)
	_, err = f.Publish(kit.Bounded(t), "other.x", nil)
	_, ok := asAPI(err)
	require.True(t, ok, "%v", err)
	require.NotErrorIs(t, err, fence.ErrUnknown)
	_, err = f.Publish(kit.Bounded(t), "nowhere.x", nil)
	require.ErrorIs(t, err, jetstream.ErrNoStreamResponse)
	require.NotErrorIs(t, err, fence.ErrUnknown)
	require.Empty(t, stored(t, other, ">"))
	publish(t, f, "goes on")
}

func TestPublishBatch(t *testing.T) {
	js := kit.JetStream(t, testutil.RunServer(t).Connect())
	s := orders(t, js, nil)
	f := open(t, js, 10)
	a, b := &nats.Msg{Subject: data, Data: []byte("a")}, &nats.Msg{Subject: data, Data: []byte("b")}
	ack, err := f.PublishBatch(kit.Bounded(t), a, b)
	require.NoError(t, err)
	require.Empty(t, a.Header)
	last, err := s.GetLastMsgForSubject(kit.Bounded(t), data)
	require.NoError(t, err)
	require.Equal(t, last.Sequence, ack.Sequence)

	expecting := func(to, sequence string) *nats.Msg {
		return &nats.Msg{Subject: to, Header: nats.Header{jetstream.ExpectedLastSubjSeqHeader: {sequence}}, Data: []byte("c")}
	}
	_, err = f.PublishBatch(kit.Bounded(t), expecting("orders.c", "99"), a)
	require.ErrorIs(t, err, jetstream.ErrKeyExists)
	require.NotErrorIs(t, err, fence.ErrSuperseded)
	_, err = f.PublishBatch(kit.Bounded(t), expecting("orders.c", "0"), a)
	require.NoError(t, err)
	_, err = f.PublishBatch(kit.Bounded(t), expecting("orders.c", "0"))
	require.ErrorIs(t, err, fence.ErrInvalid)
	_, err = f.PublishBatch(kit.Bounded(t))
	require.ErrorIs(t, err, fence.ErrInvalid)
	_, err = f.PublishBatch(kit.Bounded(t), nil, a)
	require.ErrorIs(t, err, fence.ErrInvalid)
	_, err = f.PublishBatch(kit.Bounded(t), make([]*nats.Msg, fence.MaxBatch+1)...)
	require.ErrorIs(t, err, fence.ErrInvalid)
	require.Equal(t, []string{"a", "b", "a"}, stored(t, s, data))

	c := s.CachedInfo().Config
	c.AllowAtomicPublish = false
	_, err = js.UpdateStream(kit.Bounded(t), c)
	require.NoError(t, err)
	_, err = open(t, js, 11).PublishBatch(kit.Bounded(t), a)
	require.ErrorIs(t, err, fence.ErrUnfit)
}

func TestKV(t *testing.T) {
	js := kit.JetStream(t, testutil.RunServer(t).Connect())
	ctx := kit.Bounded(t)
	bucket, err := js.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: "b", History: 5})
	require.NoError(t, err)
	f, err := fence.Open(ctx, js, "KV_b", "$KV.b.fence", 10)
	require.NoError(t, err)
	kv, err := f.KV("b")
	require.NoError(t, err)
	_, err = f.KV("c")
	require.ErrorIs(t, err, fence.ErrInvalid)

	revision, err := kv.Put(ctx, "k", []byte("v"))
	require.NoError(t, err)
	e, err := bucket.Get(ctx, "k")
	require.NoError(t, err)
	require.Equal(t, revision, e.Revision())
	require.NoError(t, kv.Delete(ctx, "k"))
	_, err = bucket.Get(ctx, "k")
	require.ErrorIs(t, err, jetstream.ErrKeyNotFound)
	for _, key := range []string{"", "a b", "a..b", "*", ">", "fence", "fence.1"} {
		_, err = kv.Put(ctx, key, nil)
		require.ErrorIs(t, err, fence.ErrInvalid, key)
	}
	_, err = kv.Create(ctx, "k", nil)
	require.ErrorIs(t, err, fence.ErrUnfit, "the bucket takes no batches")

	younger, err := fence.Open(ctx, js, "KV_b", "$KV.b.fence", 20)
	require.NoError(t, err)
	_, err = kv.Put(ctx, "k", []byte("stale"))
	require.ErrorIs(t, err, fence.ErrSuperseded)
	require.ErrorIs(t, kv.Delete(ctx, "k"), fence.ErrSuperseded)
	require.NoError(t, younger.Err())
}

// TestKVExpecting checks that Create and Update are available if the bucket's stream allows
// batches.
func TestKVExpecting(t *testing.T) {
	js := kit.JetStream(t, testutil.RunServer(t).Connect())
	ctx := kit.Bounded(t)
	bucket, err := js.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: "b"})
	require.NoError(t, err)
	s, err := js.Stream(ctx, "KV_b")
	require.NoError(t, err)
	c := s.CachedInfo().Config
	c.AllowAtomicPublish = true
	_, err = js.UpdateStream(ctx, c)
	require.NoError(t, err)
	open := func(token uint64) (*fence.Fence, *fence.KV) {
		f, err := fence.Open(ctx, js, "KV_b", "$KV.b.fence", token, fence.WithLanes(2))
		require.NoError(t, err)
		kv, err := f.KV("b")
		require.NoError(t, err)
		return f, kv
	}
	f, kv := open(10)
	first, err := kv.Create(ctx, "k", []byte("1"))
	require.NoError(t, err)
	_, err = kv.Create(ctx, "k", []byte("2"))
	require.ErrorIs(t, err, jetstream.ErrKeyExists)
	second, err := kv.Update(ctx, "k", []byte("2"), first)
	require.NoError(t, err)
	_, err = kv.Update(ctx, "k", []byte("3"), first)
	require.ErrorIs(t, err, jetstream.ErrKeyExists)
	require.NoError(t, f.Err())
	e, err := bucket.Get(ctx, "k")
	require.NoError(t, err)
	require.Equal(t, second, e.Revision())
	require.Equal(t, "2", string(e.Value()))
	require.NoError(t, kv.Delete(ctx, "k"))
	third, err := kv.Create(ctx, "k", []byte("4"))
	require.NoError(t, err)

	open(20)
	_, err = kv.Update(ctx, "k", []byte("stale"), third)
	require.ErrorIs(t, err, fence.ErrSuperseded)
	require.NotErrorIs(t, err, jetstream.ErrKeyExists)
	_, err = kv.Create(ctx, "new", []byte("stale"))
	require.ErrorIs(t, err, fence.ErrSuperseded)
	e, err = bucket.Get(ctx, "k")
	require.NoError(t, err)
	require.Equal(t, "4", string(e.Value()))
}

// TestBatchesTurnedOff covers another process whose CreateOrUpdateKeyValue turns off allow_atomic
// under an open fence. The error says so, and the fence works again once the setting is back on.
func TestBatchesTurnedOff(t *testing.T) {
	js := kit.JetStream(t, testutil.RunServer(t).Connect())
	ctx := kit.Bounded(t)
	require.NoError(t, newBucket(ctx, js, "b"))
	f, err := fence.Open(ctx, js, "KV_b", "$KV.b.fence", 10)
	require.NoError(t, err)
	kv, err := f.KV("b")
	require.NoError(t, err)
	_, err = js.CreateOrUpdateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: "b"})
	require.NoError(t, err)
	s, err := js.Stream(ctx, "KV_b")
	require.NoError(t, err)
	require.False(t, s.CachedInfo().Config.AllowAtomicPublish)

	_, err = kv.Create(ctx, "k", nil)
	require.ErrorIs(t, err, fence.ErrUnfit)
	require.ErrorContains(t, err, "set allow_atomic again, and open the bucket with js.KeyValue")
	_, refused := asAPI(err)
	require.True(t, refused, "%v", err)
	_, err = f.PublishBatch(ctx, &nats.Msg{Subject: "$KV.b.k"})
	require.ErrorIs(t, err, fence.ErrUnfit)
	require.NoError(t, f.Err())

	c := s.CachedInfo().Config
	c.AllowAtomicPublish = true
	_, err = js.UpdateStream(ctx, c)
	require.NoError(t, err)
	_, err = kv.Create(ctx, "k", nil)
	require.NoError(t, err)
}

func TestArguments(t *testing.T) {
	js := kit.JetStream(t, testutil.RunServer(t).Connect())
	s := orders(t, js, nil)
	for _, bad := range []struct {
		stream, subject string
		token           uint64
		opts            []fence.Option
	}{
		{"", subject, 1, nil}, {"a.b", subject, 1, nil}, {stream, "", 1, nil}, {stream, "orders.*", 1, nil}, {stream, "orders.>", 1, nil},
		{stream, "orders..x", 1, nil}, {stream, "a b", 1, nil}, {stream, subject, 0, nil}, {stream, subject, 1, []fence.Option{nil}},
		{stream, subject, 1, []fence.Option{fence.WithLanes(0)}}, {stream, subject, 1, []fence.Option{fence.WithLanes(fence.MaxLanes + 1)}},
	} {
		_, err := fence.Open(kit.Bounded(t), js, bad.stream, bad.subject, bad.token, bad.opts...)
		require.ErrorIs(t, err, fence.ErrInvalid, "%+v", bad)
	}
	_, err := fence.Open(kit.Bounded(t), nil, stream, subject, 1)
	require.ErrorIs(t, err, fence.ErrInvalid)
	ended, end := context.WithCancel(t.Context())
	end()
	_, err = fence.Open(ended, js, stream, subject, 1)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, fence.ErrUnknown)
	require.Empty(t, stored(t, s, ">"))
	f := open(t, js, 1)
	_, err = f.Publish(ended, data, nil)
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, fence.ErrUnknown, "nothing was sent")
	require.Empty(t, stored(t, s, data))
}
