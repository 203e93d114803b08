package fence_test

import (
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/fence"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/testutil"
)

// TestNilAndTooLong checks that no exported function panics on a nil argument or sends a value that
// is too long.
func TestNilAndTooLong(t *testing.T) {
	nc := testutil.RunServer(t).Connect()
	js := kit.JetStream(t, nc)
	_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "KV_b", Subjects: []string{"$KV.b.>"}, AllowAtomicPublish: true})
	require.NoError(t, err)
	f, err := fence.Open(t.Context(), js, "KV_b", "$KV.b.fence", 1)
	require.NoError(t, err)
	kv, err := f.KV("b")
	require.NoError(t, err)
	(&kit.Surface{
		Funcs:  map[string]any{"Open": fence.Open, "WithLanes": fence.WithLanes, "Check": fence.Check},
		Types:  map[string]func(*testing.T) any{"Fence": func(*testing.T) any { return f }, "KV": func(*testing.T) any { return kv }},
		Args:   []any{js, uint64(1), &nats.Msg{Subject: "$KV.b.a"}},
		Sent:   func() int { return int(nc.Stats().OutMsgs) },
		Is:     fence.ErrInvalid,
		Except: map[string]string{},
	}).RefusesNilAndTooLong(t)
}
