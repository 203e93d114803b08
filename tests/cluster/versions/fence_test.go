package versions_test

import (
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/fence"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/tier"
)

// TestFenceOldServerRefused checks that package fence refuses old servers. Releases 2.11.0 to
// 2.11.6 ignore the condition of a fenced write if its headers come in a different order.
func TestFenceOldServerRefused(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	js := kit.JetStream(t, connect(t, run(t, old, "", "")))
	s, err := js.CreateStream(kit.Bounded(t), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}})
	require.NoError(t, err)
	_, err = fence.Open(kit.Bounded(t), js, "ORDERS", "orders.fence", 10)
	require.ErrorIs(t, err, fence.ErrUnfit)
	require.ErrorContains(t, err, "nats-server is version 2.11.4; 2.12 or later is required")
	info, err := s.Info(kit.Bounded(t))
	require.NoError(t, err)
	require.Zero(t, info.State.LastSeq)
}
