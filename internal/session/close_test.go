package session_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/keeper"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/session"
	"github.com/natslock/locks/testutil"
)

// A Close that comes between the end of a lease and the write of its tombstone waits for
// that write. Otherwise the lock would be held until its TTL.
func TestCloseWaitsForLeave(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, srv *testutil.Server) {
		b := connect(t, srv)
		s := session.New(b, session.Config{})
		l := s.Hold(claim(t, b, "l"), time.Time{})
		closed := make(chan struct{})
		require.True(t, l.OnEnd(func() {
			go func() { s.Close(t.Context()); close(closed) }()
			synctest.Wait() // Close has got as far as it can
		}))
		l.Leave(record.StatusGone)
		<-closed
		entry, err := connect(t, srv).Read(t.Context(), l.Key, 0)
		require.NoError(t, err)
		require.False(t, entry.Live(), "the record of a lease that was left")
	})
}

// OnEnd refuses a function for a lease that has already ended, because a caller relying on
// it would wait forever.
func TestOnEndOfEndedLease(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, srv *testutil.Server) {
		b := connect(t, srv)
		s := session.New(b, session.Config{})
		l := s.Hold(claim(t, b, "l"), time.Time{})
		calls := 0
		for range 2 {
			require.True(t, l.OnEnd(func() { calls++ }))
		}
		l.Leave(record.StatusGone)
		require.False(t, l.OnEnd(func() { calls += 10 }))
		s.Close(t.Context())
		require.Equal(t, 2, calls)
	})
}

// connect opens the bucket over its own connection.
func connect(t *testing.T, srv *testutil.Server) *bucket.Bucket {
	t.Helper()
	js, err := jetstream.New(srv.Connect())
	require.NoError(t, err)
	kv, err := kvstore.Open(t.Context(), js, kvstore.Config{})
	require.NoError(t, err)
	t.Cleanup(kv.Close)
	return bucket.New(kv, "", nil)
}

// claim claims a free mutex.
func claim(t *testing.T, b *bucket.Bucket, name string) keeper.Granted {
	t.Helper()
	g := keeper.Granted{
		Kind: record.Mutex, Name: name, Key: record.KeysOf(record.Mutex, name).Gate,
		Body: b.Body(record.StatusHeld, nil), Terms: clock.NewTerms(session.DefaultTTL), Sent: b.Instant(),
	}
	g.Body.ID, g.Body.Attempt, g.Body.TTL = "A", 1, int64(g.Terms.TTL/time.Second)
	value, err := g.Body.Encode()
	require.NoError(t, err)
	g.Revision, err = b.Write(t.Context(), kvstore.Write{Key: g.Key, Value: value, TTL: g.Terms.TTL})
	require.NoError(t, err)
	return g
}
