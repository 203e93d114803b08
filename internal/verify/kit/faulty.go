package kit

import (
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

// FaultyBucket is a bucket, in memory or on a server, whose clients have fault injectors. It lets
// the same scenario run against both: in memory, where all faults together take a second or so, and
// on a server in the proof tier.
type FaultyBucket struct {
	memory *kvstore.Memory
	server *testutil.Server // nil for a bucket in memory
}

// WithMemoryBucket calls fn with a bucket in memory, in fake time.
func WithMemoryBucket(t *testing.T, fn func(t *testing.T, b FaultyBucket)) {
	t.Helper()
	InMemory(t, func(t *testing.T, m *kvstore.Memory) { fn(t, FaultyBucket{memory: m}) })
}

// WithServerBucket calls fn with a bucket on a server, in fake time.
func WithServerBucket(t *testing.T, fn func(t *testing.T, b FaultyBucket)) {
	t.Helper()
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) { fn(t, FaultyBucket{server: s}) })
}

// Client creates a client of the bucket. See [Faulty].
func (b FaultyBucket) Client(t testing.TB, seed uint64, opts ...natslock.Option) (*natslock.Client, *faults.Store) {
	t.Helper()
	if b.server != nil {
		return Faulty(t, b.server.Connect(), seed, opts...)
	}
	return FaultyInMemory(t, b.memory, seed, opts...)
}

// KeysLeft returns the keys of the records in the bucket.
func (b FaultyBucket) KeysLeft(t testing.TB) []string {
	t.Helper()
	if b.server != nil {
		return KeysLeft(t, b.server.Connect())
	}
	return KeysLeftInMemory(t, b.memory)
}

// Tap lets a recorder follow the changes to the bucket.
func (b FaultyBucket) Tap(t testing.TB, recorder interface {
	Tap(t testing.TB, nc *nats.Conn)
	TapMemory(t testing.TB, m *kvstore.Memory)
}) {
	t.Helper()
	if b.server != nil {
		recorder.Tap(t, b.server.Connect())
		return
	}
	recorder.TapMemory(t, b.memory)
}
