//go:build unix

package cluster_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
)

// serverProcess is a nats-server in a process of its own, on a fixed port.
type serverProcess struct {
	t     *testing.T
	order serverOrder
	p     *process
}

func startServer(t *testing.T) *serverProcess {
	t.Helper()
	s := &serverProcess{t: t, order: serverOrder{Port: kit.FreePort(t), StoreDir: t.TempDir()}}
	s.start()
	return s
}

func (s *serverProcess) start() {
	s.t.Helper()
	s.p = start(s.t, "server", s.order)
	var port int
	s.p.read(&port)
	require.Equal(s.t, s.order.Port, port)
}

// stop shuts the server down as SIGTERM would, and waits until it has exited.
func (s *serverProcess) stop() {
	s.t.Helper()
	require.NoError(s.t, s.p.in.Close())
	s.p.once.Do(func() { require.NoError(s.t, s.p.cmd.Wait()) })
}

// crash kills the server and restarts it on the files that it left.
func (s *serverProcess) crash() {
	s.t.Helper()
	s.p.kill()
	s.start()
}

func (s *serverProcess) connect() *nats.Conn {
	s.t.Helper()
	nc, err := nats.Connect(fmt.Sprintf("nats://127.0.0.1:%d", s.order.Port),
		nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond), nats.ReconnectJitter(0, 0))
	require.NoError(s.t, err)
	s.t.Cleanup(nc.Close)
	return nc
}

// TestServerKilledOnFile repeatedly kills the server's process while clients are at work and
// restarts it on its files. No lease may be lost, no acknowledged record forgotten, and no two
// conflicting holders may overlap.
//
// A killed server does forget deletions whose tombstones have expired. Such a record returns for
// the rest of its TTL, which keeps clients out but lets none in. The working clients use short
// leases so that they do not have to wait for long.
func TestServerKilledOnFile(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	s := startServer(t)
	keeper := kit.NewClient(t, s.connect())
	var kept []*natslock.Lock
	var tokens []uint64
	for _, w := range oneOfEach {
		l := mustTake(t, keeper, w)
		kept, tokens = append(kept, l), append(tokens, l.Token())
	}
	waiter := kit.NewClient(t, s.connect())
	next := await(t, waiter, oneOfEach[0])

	ld := startLoad(t, 4, s.connect, natslock.WithTTL(3*time.Second))
	for range 3 {
		ld.more(20)
		s.crash()
	}
	ld.more(20)
	ld.stop()
	for i, l := range kept {
		require.NoError(t, l.Extend(t.Context(), 0))
		require.Equal(t, tokens[i], l.Token())
		require.Positive(t, l.Remaining())
	}
	require.False(t, next.Over())
	for _, l := range kept {
		require.NoError(t, l.Unlock(t.Context()))
	}
	l := next.Granted(t)
	require.Greater(t, l.Token(), tokens[0])
	require.NoError(t, l.Unlock(t.Context()))
	kit.Eventually(t, "nothing is left", func() bool {
		l, err := kit.OpenStore(t, s.connect()).List(t.Context(), ">", 0)
		return err == nil && len(l.Records) == 0
	})
}

// TestServerKilledInMemory kills the server of a bucket that was configured to be kept in memory,
// so that the bucket is lost. The holders' contexts must end as soon as they reconnect, long before
// their leases do. The waiters fail because no server answers for the bucket. Later grants must
// have higher tokens.
func TestServerKilledInMemory(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	s := startServer(t)
	opts := []natslock.Option{natslock.WithBucketConfig(kvstore.Config{Storage: jetstream.MemoryStorage}), natslock.WithTTL(10 * time.Minute)}
	holder, waiter := kit.NewClient(t, s.connect(), opts...), kit.NewClient(t, s.connect(), opts...)
	var held []*natslock.Lock
	for _, w := range oneOfEach {
		held = append(held, mustTake(t, holder, w))
	}
	var waits []*kit.Waiting
	for _, w := range oneOfEach {
		waits = append(waits, await(t, waiter, w.against()))
	}
	s.crash()
	for _, l := range held {
		kit.Receive(t, l.Context().Done(), "the end of a lock")
		require.ErrorIs(t, context.Cause(l.Context()), natslock.ErrLost)
		require.ErrorContains(t, context.Cause(l.Context()), "bucket")
		require.ErrorIs(t, l.Err(), natslock.ErrLost)
		require.ErrorIs(t, l.Unlock(t.Context()), natslock.ErrLost)
	}
	require.ErrorIs(t, holder.Healthy(), kvstore.ErrNotFound)
	for i, w := range waits {
		err := w.Failed(t)
		require.ErrorIs(t, err, natslock.ErrUnavailable, "%v", oneOfEach[i])
		require.ErrorContains(t, err, "bucket")
	}
	fresh := kit.NewClient(t, s.connect(), opts...)
	for i, w := range oneOfEach {
		l := mustTake(t, fresh, w)
		require.Greater(t, l.Token(), held[i].Token())
		require.NoError(t, l.Unlock(t.Context()))
		l = mustTake(t, holder, w)
		require.Greater(t, l.Token(), held[i].Token(), "the old client goes on as well")
		require.NoError(t, l.Unlock(t.Context()))
	}
}

// TestDeletedComesBack kills a server on its files after locks have been released and their
// tombstones have expired. The server (2.15.2) then restores the records for the rest of their
// TTLs. They keep others out for that time or until an operator removes them, but nobody holds
// these locks.
func TestDeletedComesBack(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	const ttl = 4 * time.Second
	s := startServer(t)
	a, b := kit.NewClient(t, s.connect(), natslock.WithTTL(ttl)), kit.NewClient(t, s.connect(), natslock.WithTTL(ttl))
	store := kit.OpenStore(t, s.connect())
	long := which{Name: "long", Kind: admin.KindMutex}
	older := mustTake(t, a, which{Name: "older", Kind: admin.KindMutex}, natslock.TTL(time.Hour), natslock.NoRenew())
	released := map[string]*natslock.Lock{}
	for _, w := range oneOfEach {
		released[w.Name] = mustTake(t, a, w)
	}
	released["long"] = mustTake(t, a, long, natslock.TTL(time.Hour))
	for _, l := range released {
		require.NoError(t, l.Unlock(t.Context()))
	}
	at := time.Now()
	kit.Eventually(t, "the tombstones are gone", func() bool {
		state, err := store.State(t.Context(), ">")
		return err == nil && len(state.Keys) == 1
	})
	s.crash()
	var back []kvstore.Record
	kit.Eventually(t, "the server answers", func() bool {
		l, err := store.List(t.Context(), ">", 0)
		back = l.Records
		return err == nil
	})
	if len(back) == 1 {
		t.Skip("this nats-server remembers deletions when it is killed")
	}
	t.Logf("%d of %d records came back", len(back)-1, len(released))
	require.Equal(t, 1, a.Stats().Held)
	kit.Eventually(t, "the client is connected again", func() bool { return b.Healthy() == nil })
	_, err := b.TryLock(t.Context(), "long")
	var locked *natslock.LockedError
	require.ErrorAs(t, err, &locked)
	require.Equal(t, released["long"].Token(), locked.Holder.Token)
	require.NoError(t, admin.New(b).Break(t.Context(), admin.BreakRequest{Kind: admin.KindMutex, Name: "long", ID: locked.Holder.ID, Reason: "released long ago", Immediately: true}))
	for _, w := range append(oneOfEach[:3:3], long) {
		l := mustTake(t, b, w.against())
		require.Less(t, time.Since(at), ttl+5*time.Second, "%v", w)
		require.Greater(t, l.Token(), released[w.Name].Token())
		require.ErrorIs(t, released[w.Name].Err(), natslock.ErrReleased)
		require.NoError(t, l.Unlock(t.Context()))
	}
	require.NoError(t, older.Extend(t.Context(), 0))
}
