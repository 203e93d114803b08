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

// wrong is a bucket in memory, some calls of which go wrong.
type wrong struct {
	kvstore.KV
	send  func(w kvstore.Write, done func(kvstore.Answer)) (func(), error)
	state error
	led   bool // a leader answers
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

// A probe is a write that the leader must refuse. Where one is accepted, nothing proves a
// subscription or a revision, and conditional writes exclude nobody.
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

// A replica answers while there is no leader. The error names a revision only if one was asked for.
func TestLeaderOfNone(t *testing.T) {
	inMemory(t, func(t *testing.T, kv *wrong, b *Bucket) {
		kv.led = false
		_, err := b.Leader(t.Context(), time.Second)
		require.ErrorIs(t, err, ErrUnavailable)
		require.ErrorContains(t, err, "no leader of the stream has answered for 1s")
		require.ErrorContains(t, b.Reached(t.Context(), 7), "no leader of the stream with revision 7 has answered for")
	})
}

// Only the leader says that a record is overdue. While it gives no answer, none is deleted.
func TestClearUnanswered(t *testing.T) {
	inMemory(t, func(t *testing.T, kv *wrong, b *Bucket) {
		body := b.Body(record.StatusWaiting, nil)
		body.ID, body.TTL = "A", 15
		value, err := body.Encode()
		require.NoError(t, err)
		_, err = b.Write(t.Context(), kvstore.Write{Key: "wait.l.A", Value: value, TTL: time.Hour}) // as on a server that has forgotten the TTL
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

// What an acquire ends with that was refused while the bucket was unfit is known after the
// bucket is fit again, too.
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
