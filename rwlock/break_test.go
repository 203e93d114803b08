package rwlock_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/history"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

// TestBreakByLaggingReplica checks that a break relies on the leader's record of a holder rather
// than a lagging replica's. It breaks a holder that the replica does not know yet. If the replica
// still shows a broken holder that is in fact gone, the break reports that.
func TestBreakByLaggingReplica(t *testing.T) {
	for _, c := range []struct {
		name string
		kind admin.Kind
		take func(*peer) acquireFunc
	}{
		{"holder", admin.KindMutex, func(p *peer) acquireFunc { return p.c.Lock }},
		{"writer", admin.KindRW, func(p *peer) acquireFunc { return p.Lock }},
		{"reader", admin.KindRW, func(p *peer) acquireFunc { return p.RLock }},
	} {
		t.Run(c.name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				newPeer(t, s.Connect(), 0)
				r := history.NewReplica(t, s.Connect())
				a, b := newPeerOver(t, s.Connect(), 1, r.Over), newPeerOver(t, s.Connect(), 2, r.Over)
				old := kit.Must(t, c.take(a), "x")
				r.Lag()
				kit.Unlock(t, old)
				l := kit.Must(t, c.take(a), "x")
				require.ErrorIs(t, admin.New(b.c).Break(t.Context(), admin.BreakRequest{Kind: c.kind, Name: "x", ID: old.ID(), Reason: "test"}), natslock.ErrReleased)
				require.NoError(t, admin.New(b.c).Break(t.Context(), admin.BreakRequest{Kind: c.kind, Name: "x", ID: l.ID(), Reason: "test"}))
				require.NoError(t, end(l, true))
			})
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				newPeer(t, s.Connect(), 0)
				r := history.NewReplica(t, s.Connect())
				a, b := newPeerOver(t, s.Connect(), 1, r.Over), newPeerOver(t, s.Connect(), 2, r.Over)
				l := kit.Must(t, c.take(a), "x")
				require.NoError(t, admin.New(a.c).Break(t.Context(), admin.BreakRequest{Kind: c.kind, Name: "x", ID: l.ID(), Reason: "test"}))
				r.Lag()
				require.NoError(t, admin.New(b.c).Break(t.Context(), admin.BreakRequest{Kind: c.kind, Name: "x", ID: l.ID(), Reason: "test"}), "it is broken")
				require.NoError(t, end(l, true))
				require.ErrorIs(t, admin.New(b.c).Break(t.Context(), admin.BreakRequest{Kind: c.kind, Name: "x", ID: l.ID(), Reason: "test"}), natslock.ErrReleased)
			})
		})
	}
}
