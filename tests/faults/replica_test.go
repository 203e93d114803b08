package faults_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/election"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/proxy"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/rwlock"
	"github.com/natslock/locks/semaphore"
	"github.com/natslock/locks/testutil"
)

// The requests that a replica answers while it is catching up.
const (
	caughtUp int32 = iota // none: another server answers
	infos                 // stream infos
	readsToo              // stream infos and reads of keys
)

// replicaOf shows a client the bucket of srv as one of three replicas. A replica that is catching
// up answers the requests that catchUp selects. It has no records, although its last revision is
// the latest. It does not lead, but names leader.
func replicaOf(t *testing.T, srv *testutil.Server, leader string, catchUp *atomic.Int32) jetstream.JetStream {
	t.Helper()
	return proxy.JetStream(t, srv, func(nc *nats.Conn, m *nats.Msg) bool {
		switch {
		case strings.Contains(m.Subject, ".STREAM.INFO."):
			return proxy.Rewrite(t, nc, m, func(info map[string]any) { asReplica(info, leader, catchUp.Load() != caughtUp) })
		case strings.Contains(m.Subject, ".DIRECT.GET.") && catchUp.Load() == readsToo:
			return proxy.Status(t, nc, m, "404")
		}
		return false
	})
}

// asReplica turns a stream info into one from one of three replicas.
func asReplica(info map[string]any, leader string, catchesUp bool) {
	cluster := map[string]any{"name": "C", "leader": "n1", "leader_since": time.Now().UTC(), "replicas": []map[string]any{{"name": "n2"}, {"name": "n3"}}}
	if catchesUp {
		cluster["leader"] = leader
		delete(cluster, "leader_since")
		if state, ok := info["state"].(map[string]any); ok {
			delete(state, "subjects")
			info["total"] = 0
		}
	}
	info["cluster"] = cluster
}

// TestReplicaThatCatchesUp asks a replica that is catching up about locks that are held. No reply
// may deny them, whether or not the replica names a leader, because real servers do both.
func TestReplicaThatCatchesUp(t *testing.T) {
	for name, leader := range map[string]string{"leaderless": "", "elected meanwhile": "n1"} {
		t.Run(name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, srv *testutil.Server) {
				ctx := t.Context()
				owner := kit.NewClient(t, srv.Connect())
				reader, err := rwlock.New(owner).RLock(ctx, "rw")
				require.NoError(t, err)
				kit.Keep(t, reader)
				permit, err := semaphore.New(owner, 2).Acquire(ctx, "permits")
				require.NoError(t, err)
				kit.Keep(t, permit)
				handed, err := kit.Must(t, owner.Lock, "handed").Handoff(ctx)
				require.NoError(t, err)
				requests := []admin.BreakRequest{
					{Kind: admin.KindMutex, Name: "mutex", ID: kit.Must(t, owner.Lock, "mutex").ID(), Reason: "test"},
					{Kind: admin.KindRW, Name: "rw", ID: reader.ID(), Reason: "test"},
					{Kind: admin.KindSemaphore, Name: "permits", ID: permit.ID(), Reason: "test"},
				}
				var catchesUp atomic.Int32
				js := replicaOf(t, srv, leader, &catchesUp)
				c := kit.NewClient(t, js.Conn(), natslock.WithJetStream(js))

				catchesUp.Store(readsToo)
				for _, r := range requests {
					err := admin.New(c).Break(ctx, r)
					require.ErrorIs(t, err, natslock.ErrUnavailable, "break a %v", r.Kind)
					require.NotErrorIs(t, err, natslock.ErrReleased, "break a %v", r.Kind)
					_, err = admin.New(c).Inspect(ctx, r.Kind, r.Name)
					require.ErrorIs(t, err, natslock.ErrUnavailable, "inspect a %v", r.Kind)
				}
				_, err = election.New(c, "mutex").Leader(ctx)
				require.ErrorIs(t, err, natslock.ErrUnavailable)
				require.NotErrorIs(t, err, election.ErrNoLeader)
				_, err = c.Adopt(ctx, handed)
				require.ErrorIs(t, err, natslock.ErrUnavailable)
				require.NotErrorIs(t, err, natslock.ErrNotHandedOver)

				catchesUp.Store(infos)
				_, err = election.New(c, "mutex").Leader(ctx)
				require.ErrorIs(t, err, natslock.ErrUnavailable, "what was read may be of long ago")
				require.NoError(t, admin.New(c).Break(ctx, requests[0]), "a read shows the record")

				catchesUp.Store(caughtUp)
				for _, r := range requests[1:] {
					require.NoError(t, admin.New(c).Break(ctx, r), "break a %v", r.Kind)
				}
				adopted, err := c.Adopt(ctx, handed)
				require.NoError(t, err)
				kit.Unlock(t, adopted)
			})
		})
	}
}

// unnamed omits the records of readers and slots from every list whose keys the leader did not
// name, like a replica that is catching up while another one leads.
type unnamed struct{ kvstore.KV }

func (unnamed) Alone() bool { return false }

func (u unnamed) List(ctx context.Context, pattern string, min uint64, opts ...kvstore.ListOption) (kvstore.Listing, error) {
	l, err := u.KV.List(ctx, pattern, min, opts...)
	if len(opts) == 0 {
		l.Records = nil
	}
	return l, err
}

// TestViewsAreNamed checks that the views rely on the leader if a replica that is catching up lacks
// a reader's record.
func TestViewsAreNamed(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		ctx := t.Context()
		reader, err := rwlock.New(kit.NewClient(t, s.Connect())).RLock(ctx, "x")
		require.NoError(t, err)
		kit.Keep(t, reader)
		c := kit.NewClient(t, s.Connect(), faults.WrapStore(func(kv kvstore.KV) kvstore.KV { return unnamed{kv} }))
		info, err := admin.New(c).Inspect(ctx, admin.KindRW, "x")
		require.NoError(t, err)
		require.Len(t, info.Readers, 1)
		listed := 0
		for info, err := range admin.New(c).List(ctx, ">") {
			require.NoError(t, err)
			listed += len(info.Readers)
		}
		require.Equal(t, 1, listed)
		require.NoError(t, admin.New(c).Break(ctx, admin.BreakRequest{Kind: admin.KindRW, Name: "x", ID: reader.ID(), Reason: "test"}))
	})
}
