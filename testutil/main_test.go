package testutil_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
)

func TestMain(m *testing.M) { kit.LeakCheck(m) }

// bucket creates a KV bucket whose keys can expire.
func bucket(t *testing.T, nc *nats.Conn, replicas int) jetstream.KeyValue {
	t.Helper()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	var kv jetstream.KeyValue
	// Retry, because a meta leader that is about to change does not reply.
	for end := time.Now().Add(time.Minute); ; {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		kv, err = js.CreateOrUpdateKeyValue(ctx, jetstream.KeyValueConfig{
			Bucket:         "b",
			Replicas:       replicas,
			LimitMarkerTTL: time.Second,
		})
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || time.Now().After(end) {
			require.NoError(t, err)
			return kv
		}
	}
}
