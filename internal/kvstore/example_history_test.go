package kvstore_test

import (
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/internal/kvstore"
)

// A bucket's history is a stream that sources the bucket.
func ExampleHistoryStream() {
	bucket := &jetstream.StreamInfo{ // js.Stream(ctx, "KV_sessions"), and its CachedInfo
		Config: jetstream.StreamConfig{Name: "KV_sessions", Replicas: 3},
		State:  jetstream.StreamState{LastSeq: 41},
	}
	sc := kvstore.HistoryStream(bucket, 7*24*time.Hour, 1<<30)
	fmt.Println(sc.Name, "sources", sc.Sources[0].Name, "from", sc.Sources[0].OptStartSeq)
	fmt.Println(sc.MaxAge, sc.MaxBytes, sc.Replicas)
	// Output:
	// HISTORY_sessions sources KV_sessions from 42
	// 168h0m0s 1073741824 3
}
