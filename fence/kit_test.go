package fence_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/fence"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

func TestMain(m *testing.M) {
	kit.MoreAtOnce()
	kit.LeakCheck(m)
}

const (
	stream  = "ORDERS"
	subject = "orders.fence"
	data    = "orders.data"
)

// orders creates the stream, adjusted by set if set is not nil.
func orders(t testing.TB, js jetstream.JetStream, set func(*jetstream.StreamConfig)) jetstream.Stream {
	t.Helper()
	c := jetstream.StreamConfig{Name: stream, Subjects: []string{"orders.>"}, AllowAtomicPublish: true, AllowDirect: true, Storage: jetstream.MemoryStorage}
	if set != nil {
		set(&c)
	}
	s, err := js.CreateStream(kit.Bounded(t), c)
	require.NoError(t, err)
	return s
}

// open opens the fence, or fails the test.
func open(t testing.TB, js jetstream.JetStream, token uint64, opts ...fence.Option) *fence.Fence {
	t.Helper()
	f, err := fence.Open(kit.Bounded(t), js, stream, subject, token, opts...)
	require.NoError(t, err)
	return f
}

// publish publishes through f, or fails the test.
func publish(t testing.TB, f *fence.Fence, text string) *jetstream.PubAck {
	t.Helper()
	ack, err := f.Publish(kit.Bounded(t), data, []byte(text))
	require.NoError(t, err)
	return ack
}

// stale checks that the server refuses every kind of write through f.
func stale(t testing.TB, f *fence.Fence, want error) {
	t.Helper()
	_, err := f.Publish(kit.Bounded(t), data, []byte("stale"))
	require.ErrorIs(t, err, want)
	require.ErrorIs(t, f.Err(), want)
	_, err = f.PublishBatch(kit.Bounded(t), &nats.Msg{Subject: data, Data: []byte("stale")})
	require.ErrorIs(t, err, want)
}

// stored returns the payloads of the stream's messages that match filter, in stream order.
func stored(t testing.TB, s jetstream.Stream, filter string) (texts []string) {
	t.Helper()
	for _, m := range logOf(t, s, filter) {
		texts = append(texts, string(m.Data()))
	}
	return texts
}

// logOf returns the stream's messages that match filter, in stream order. It starts over if a
// server in a cluster has removed its consumer. It also starts over if the consumer has fewer
// messages than the leader, because a consumer reads its own server's replica.
func logOf(t testing.TB, s jetstream.Stream, filter string) []jetstream.Msg {
	t.Helper()
	ctx := kit.Bounded(t)
	for {
		all, err := readLog(ctx, s, filter)
		if err == nil {
			return all
		}
		require.NoError(t, ctx.Err(), "%v", err)
		t.Logf("the log is read again: %v", err)
	}
}

func readLog(ctx context.Context, s jetstream.Stream, filter string) (all []jetstream.Msg, err error) {
	leader, err := s.Info(ctx, jetstream.WithSubjectFilter(filter))
	if err != nil {
		return nil, err
	}
	want := 0
	for _, n := range leader.State.Subjects {
		want += int(n)
	}
	c, err := s.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{FilterSubjects: []string{filter}})
	if err != nil {
		return nil, err
	}
	info, err := c.Info(ctx)
	if err != nil {
		return nil, err
	}
	if info.NumPending < uint64(want) {
		return nil, fmt.Errorf("the consumer has %d messages, the leader %d", info.NumPending, want)
	}
	for left := int(info.NumPending); left > 0; {
		batch, err := c.Fetch(min(left, 1000), jetstream.FetchMaxWait(kit.Patience/4))
		if err != nil {
			return nil, err
		}
		before := left
		for m := range batch.Messages() {
			all = append(all, m)
			left--
		}
		if batch.Error() != nil || left == before {
			return nil, fmt.Errorf("%d messages are missing: %w", left, batch.Error())
		}
	}
	return all, nil
}

// mark returns a fence's message as it is stored in the stream.
func mark(token uint64, lanes int) []byte {
	return fmt.Appendf(nil, `{"fence":1,"token":%d,"lanes":%d,"write":"test"}`, token, lanes)
}

// markOf reads the fence's message from a subject.
func markOf(t testing.TB, s jetstream.Stream, subject string) (m struct {
	Token uint64
	Lanes int
}) {
	t.Helper()
	raw, err := s.GetLastMsgForSubject(kit.Bounded(t), subject)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(raw.Data, &m))
	return m
}

func asAPI(err error) (*jetstream.APIError, bool) { return errors.AsType[*jetstream.APIError](err) }

// hooked replaces every publish of a single message with a call to publish.
type hooked struct {
	jetstream.JetStream
	publish func(m *nats.Msg, send func() (*jetstream.PubAck, error)) (*jetstream.PubAck, error)
}

func (h *hooked) PublishMsg(ctx context.Context, m *nats.Msg, _ ...jetstream.PublishOpt) (*jetstream.PubAck, error) {
	return h.publish(m, func() (*jetstream.PubAck, error) { return h.JetStream.PublishMsg(ctx, m) })
}

// once calls fn just before the nth publish to a subject, counting from 1.
func once(js jetstream.JetStream, to string, n int, fn func()) jetstream.JetStream {
	return &hooked{js, func(m *nats.Msg, send func() (*jetstream.PubAck, error)) (*jetstream.PubAck, error) {
		if m.Subject == to {
			if n--; n == 0 {
				fn()
			}
		}
		return send()
	}}
}

// lockOf acquires a lock on its own connection and never releases it.
func lockOf(t testing.TB, srv *testutil.Server) (*natslock.Lock, *testutil.Link) {
	t.Helper()
	nc, link := srv.ConnectLink()
	c, err := natslock.New(t.Context(), nc)
	require.NoError(t, err)
	l, err := c.Lock(t.Context(), "orders", natslock.Detached())
	require.NoError(t, err)
	t.Cleanup(func() {
		link.Heal()
		ended, end := context.WithCancel(context.WithoutCancel(t.Context()))
		end() // Close would wait for the lock to be unlocked
		_ = c.Close(ended)
		runtime.KeepAlive(l)
	})
	return l, link
}
