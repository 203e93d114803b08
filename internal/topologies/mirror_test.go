package topologies_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

// mirror makes the documented mirror of the bucket.
func mirror(t *testing.T, nc *nats.Conn) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(documents, "mirror.json"))
	require.NoError(t, err)
	var cfg jetstream.StreamConfig
	require.NoError(t, json.Unmarshal(text, &cfg))
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	_, err = js.CreateStream(t.Context(), cfg)
	require.NoError(t, err)
}
