package rwlock_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/proof"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

// What a lagging replica shows of a holder is not what a break returns: the holder is
// broken although the replica does not know it, and gone although it is still shown as
// broken.
func TestBreakByLaggingReplica(t *testing.T) {
	for _, c := range []struct {
		name string
		kind natslock.Kind
		take func(*peer) acquireFunc
	}{
		{"holder", natslock.KindMutex, func(p *peer) acquireFunc { return p.c.Lock }},
		{"writer", natslock.KindRW, func(p *peer) acquireFunc { return p.Lock }},
		{"reader", natslock.KindRW, func(p *peer) acquireFunc { return p.RLock }},
	} {
		t.Run(c.name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				newPeer(t, s.Connect(), 0)
				r := proof.NewReplica(t, s.Connect())
				a, b := newPeerOver(t, s.Connect(), 1, r.Over), newPeerOver(t, s.Connect(), 2, r.Over)
				old := take(t, c.take(a), "x")
				r.Lag()
				unlock(t, old)
				l := take(t, c.take(a), "x")
				require.ErrorIs(t, b.c.Break(t.Context(), c.kind, "x", old.Token(), "test"), natslock.ErrReleased)
				require.NoError(t, b.c.Break(t.Context(), c.kind, "x", l.Token(), "test"))
				require.NoError(t, end(l, true))
			})
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				newPeer(t, s.Connect(), 0)
				r := proof.NewReplica(t, s.Connect())
				a, b := newPeerOver(t, s.Connect(), 1, r.Over), newPeerOver(t, s.Connect(), 2, r.Over)
				l := take(t, c.take(a), "x")
				require.NoError(t, a.c.Break(t.Context(), c.kind, "x", l.Token(), "test"))
				r.Lag()
				require.NoError(t, b.c.Break(t.Context(), c.kind, "x", l.Token(), "test"), "it is broken")
				require.NoError(t, end(l, true))
				require.ErrorIs(t, b.c.Break(t.Context(), c.kind, "x", l.Token(), "test"), natslock.ErrReleased)
			})
		})
	}
}

// A token above the bucket's newest revision is nobody's where one server answers.
// Where there are replicas, the one that answers may lag behind the token's grant.
func TestBreakTokenNotReached(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a := newPeer(t, s.Connect(), 1)
		l := take(t, a.c.Lock, "x")
		err := a.c.Break(t.Context(), natslock.KindMutex, "x", l.Token()+1000, "test")
		require.ErrorIs(t, err, natslock.ErrReleased)
		r := proof.NewReplica(t, s.Connect())
		b := newPeerOver(t, s.Connect(), 2, r.Over)
		err = b.c.Break(t.Context(), natslock.KindMutex, "x", l.Token()+1000, "test")
		require.ErrorIs(t, err, natslock.ErrUnavailable)
		require.NotErrorIs(t, err, natslock.ErrReleased)
		require.NoError(t, end(l, false))
	})
}
