package bucket

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
)

// wrong is an in-memory bucket in which some calls go wrong.
type wrong struct {
	kvstore.KV
	send  func(w kvstore.Write, done func(kvstore.Answer)) (func(), error)
	state error
	led   bool // whether a leader answers
}

func (w *wrong) Send(write kvstore.Write, done func(kvstore.Answer)) (func(), error) {
	if w.send != nil {
		return w.send(write, done)
	}
	return w.KV.Send(write, done)
}

func (w *wrong) State(ctx context.Context, pattern string) (kvstore.State, error) {
	if w.state != nil {
		return kvstore.State{}, w.state
	}
	st, err := w.KV.State(ctx, pattern)
	st.Complete = st.Complete && w.led
	return st, err
}

func inMemory(t *testing.T, fn func(t *testing.T, kv *wrong, b *Bucket)) {
	synctest.Test(t, func(t *testing.T) {
		kv := &wrong{KV: kvstore.NewMemory(kvstore.DefaultBucket).Open(), led: true}
		b := New(kv, "", nil)
		fn(t, kv, b)
		kv.Close()
	})
}

// The leader must refuse a probe. If it accepts one, probes prove neither subscriptions nor
// revisions, and conditional writes exclude nobody.
func TestProbeAccepted(t *testing.T) {
	inMemory(t, func(t *testing.T, kv *wrong, b *Bucket) {
		_, err := b.Probe(t.Context(), "lock.l")
		require.NoError(t, err)
		kv.send = func(_ kvstore.Write, done func(kvstore.Answer)) (func(), error) {
			go done(kvstore.Answer{Revision: 7})
			return func() {}, nil
		}
		_, err = b.Probe(t.Context(), "lock.l")
		require.ErrorIs(t, err, kvstore.ErrBucketConfig)
		require.ErrorContains(t, err, "lock.l")
	})
}

// Replicas answer although the stream has no leader. The error names a revision only if one was
// requested.
func TestLeaderOfNone(t *testing.T) {
	inMemory(t, func(t *testing.T, kv *wrong, b *Bucket) {
		kv.led = false
		_, err := b.Leader(t.Context(), time.Second)
		require.ErrorIs(t, err, ErrUnavailable)
		require.ErrorContains(t, err, "no leader of the stream has answered for 1s")
		require.ErrorContains(t, b.Reached(t.Context(), 7), "no leader of the stream with revision 7 has answered for")
	})
}

// Only the leader can tell that a record is overdue, so nothing is deleted while it does not
// answer.
func TestClearUnanswered(t *testing.T) {
	inMemory(t, func(t *testing.T, kv *wrong, b *Bucket) {
		body := b.Body(record.StatusWaiting, nil)
		body.ID, body.TTL = "A", 15
		value, err := body.Encode()
		require.NoError(t, err)
		_, err = b.Write(t.Context(), kvstore.Write{Key: "wait.l.A", Value: value, TTL: time.Hour}) // as if the server had forgotten the TTL
		require.NoError(t, err)
		listed, err := b.KV.List(t.Context(), "wait.l.*", 0)
		require.NoError(t, err)
		listed.Records[0].TTL = 15 * time.Second
		queue := record.Queue(listed.Records)
		time.Sleep(time.Minute)

		kv.state = fmt.Errorf("%w: test", kvstore.ErrUnavailable)
		rest, err := b.Clear(t.Context(), queue)
		require.ErrorIs(t, err, ErrUnavailable)
		require.Equal(t, queue, rest)
		now, err := b.Read(t.Context(), "wait.l.A", 0)
		require.NoError(t, err)
		require.True(t, now.Live())

		kv.state = nil
		rest, err = b.Clear(t.Context(), queue)
		require.NoError(t, err)
		require.Empty(t, rest)
		now, err = b.Read(t.Context(), "wait.l.A", 0)
		require.NoError(t, err)
		require.False(t, now.Live())
	})
}

// Only a bucket on a server has a history.
func TestHistoryOfNone(t *testing.T) {
	inMemory(t, func(t *testing.T, _ *wrong, b *Bucket) {
		_, err := b.History(t.Context())
		require.ErrorIs(t, err, kvstore.ErrNoHistory)
	})
}

// Refused keeps the error even after the bucket is fit again, for acquires that were refused in the
// meantime.
func TestRefusedIsRemembered(t *testing.T) {
	inMemory(t, func(t *testing.T, _ *wrong, b *Bucket) {
		require.NoError(t, b.Refused())
		under := b.Granting()
		b.Refuse(kvstore.ErrBucketConfig)
		require.ErrorIs(t, context.Cause(under), kvstore.ErrBucketConfig)
		require.ErrorIs(t, context.Cause(b.Granting()), kvstore.ErrBucketConfig)
		b.Grant()
		require.NoError(t, context.Cause(b.Granting()))
		require.ErrorIs(t, b.Refused(), kvstore.ErrBucketConfig)
	})
}
