package history

import (
	"context"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/kit"
)

// Replica is a replica of a bucket that stops following when a test tells it to. It is
// implemented as a separate bucket that also receives its clients' writes.
type Replica struct {
	t     testing.TB
	store *kvstore.Store

	mu     sync.Mutex
	behind bool
	last   uint64 // the revision that it contains, once it is behind
}

// NewReplica creates a replica of the bucket that nc reaches, which must not have any records
// yet.
func NewReplica(t testing.TB, nc *nats.Conn) *Replica {
	t.Helper()
	kit.OpenStore(t, nc) // the bucket has to exist
	js := kit.JetStream(t, nc)
	bucket, err := js.Stream(t.Context(), "KV_"+kvstore.DefaultBucket)
	require.NoError(t, err)
	cfg := kvstore.Config{Bucket: "replica"}
	stream, err := cfg.StreamConfig()
	require.NoError(t, err)
	stream.FirstSeq = bucket.CachedInfo().Config.FirstSeq
	_, err = js.CreateStream(t.Context(), stream)
	require.NoError(t, err)
	store, err := kvstore.Open(t.Context(), js, cfg)
	require.NoError(t, err)
	t.Cleanup(store.Close)
	return &Replica{t: t, store: store}
}

// Over returns a store for a client whose reads the replica answers. Writes and requests to the
// leader go to kv, which must be the bucket.
func (r *Replica) Over(kv kvstore.KV) kvstore.KV { return &replicated{kv, r} }

// Lag stops the replica from following. From then on, it answers only the reads that its state
// can answer.
func (r *Replica) Lag() {
	r.t.Helper()
	st, err := r.store.State(r.t.Context(), "")
	require.NoError(r.t, err)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.behind, r.last = true, st.LastRevision
}

// answers reports whether the replica answers a read that requires revision min.
func (r *Replica) answers(min uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.behind && min <= r.last
}

type replicated struct {
	kvstore.KV
	r *Replica
}

func (*replicated) Alone() bool { return false }

func (s *replicated) Send(w kvstore.Write, done func(kvstore.Answer)) (forget func(), err error) {
	s.r.mu.Lock()
	behind := s.r.behind
	s.r.mu.Unlock()
	if !behind {
		if _, err := s.r.store.Send(w, func(kvstore.Answer) {}); err != nil {
			return nil, err
		}
	}
	return s.KV.Send(w, done)
}

func (s *replicated) Get(ctx context.Context, key string, min uint64) (kvstore.Record, error) {
	if s.r.answers(min) {
		rec, err := s.r.store.Get(ctx, key, 0)
		if err == nil && rec.Revision >= min || min == 0 {
			return rec, err
		}
		// Only the leader can say that there is no newer record.
	}
	return s.KV.Get(ctx, key, min)
}

func (s *replicated) List(ctx context.Context, pattern string, min uint64, opts ...kvstore.ListOption) (kvstore.Listing, error) {
	if s.r.answers(min) {
		return s.r.store.List(ctx, pattern, 0, opts...)
	}
	return s.KV.List(ctx, pattern, min, opts...)
}
