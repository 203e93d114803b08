package acquire_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/acquire"
	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/session"
	"github.com/natslock/locks/kvstore"
	"github.com/natslock/locks/testutil"
)

// faulty is the bucket of a server with faults to inject.
func faulty(t *testing.T, s *testutil.Server) *testutil.Faults {
	t.Helper()
	js, err := jetstream.New(s.Connect())
	require.NoError(t, err)
	store, err := kvstore.Open(t.Context(), js, kvstore.Config{})
	require.NoError(t, err)
	return testutil.NewFaults(store, 1)
}

// client is a client of its own with a store.
func client(t *testing.T, kv kvstore.KV) *acquire.Client {
	t.Helper()
	b := bucket.New(kv, "", nil)
	c := acquire.New(b, session.New(b, session.Config{}), acquire.DefaultTurn)
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		c.Close(ctx)
	})
	return c
}

// TestSharedList: of those who share a look at a queue each gets what it has asked
// for, at least.
func TestSharedList(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		f := faulty(t, s)
		e := client(t, f)

		l, err := e.Acquire(t.Context(), acquire.Request{Name: "x"})
		require.NoError(t, err)
		var waiting sync.WaitGroup
		for range 2 {
			waiter := client(t, faulty(t, s))
			waiting.Go(func() {
				l, err := waiter.Acquire(t.Context(), acquire.Request{Name: "x"})
				if assert.NoError(t, err) {
					assert.NoError(t, l.Release())
				}
			})
			synctest.Wait()
		}
		queue, err := e.Queue(t.Context(), "x", 0)
		require.NoError(t, err)
		require.Len(t, queue, 2)

		busy := make(chan struct{})
		lists := 0
		f.FailReads(func(op testutil.ReadOp, _ string) error {
			if lists++; op == testutil.ReadList && lists == 1 {
				<-busy // those who ask meanwhile share the next
			}
			return nil
		})
		var looking sync.WaitGroup
		for _, from := range []uint64{0, 0, queue[1].Revision, 0} {
			looking.Go(func() {
				got, err := e.Queue(t.Context(), "x", from)
				if assert.NoError(t, err) {
					assert.Len(t, got, 2)
				}
			})
			synctest.Wait()
		}
		close(busy)
		looking.Wait()
		require.Equal(t, 2, lists)
		f.FailReads(nil)
		got, err := e.Queue(t.Context(), "x", queue[1].Revision)
		require.NoError(t, err)
		require.Len(t, got, 1, "no more than asked for")
		require.NoError(t, l.Release())
		waiting.Wait()
	})
}
