package natslock_test

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go"

	"github.com/natslock/locks/internal/verify/example"
	"github.com/natslock/locks/kvstore"
	"github.com/natslock/locks/natslock"
)

// The configuration counts when the bucket is made; an existing one is never changed.
func ExampleWithBucketConfig() {
	onCluster := func(ctx context.Context, nc *nats.Conn) error {
		locks, err := natslock.New(ctx, nc, natslock.WithBucketConfig(kvstore.Config{Replicas: 3, MaxBytes: 64 << 20}))
		if err != nil {
			return err
		}
		return locks.Close(ctx)
	}
	fmt.Println(onCluster != nil)
	// Output: true
}

// Three servers of a cluster keep the bucket, which is the default there. So New fails where there are
// fewer servers, instead of making a bucket that one failure ends.
func ExampleWithReplicas() {
	onCluster := func(ctx context.Context, nc *nats.Conn) error {
		locks, err := natslock.New(ctx, nc, natslock.WithReplicas(3))
		if err != nil {
			return err
		}
		return locks.Close(ctx)
	}
	nc, stop := example.Connect()
	defer stop()
	fmt.Println(onCluster(context.Background(), nc) != nil)
	// Output: true
}

// Goroutines of all clients get in exactly as they came, and a break is noticed at once.
func ExampleWithTuning() {
	ctx := context.Background()
	locks, done := example.Client(natslock.WithTuning(natslock.Tuning{Turn: -1, WatchAfter: 1}))
	defer done()
	fmt.Println(locks.Do(ctx, "orders.42", func(ctx context.Context, l *natslock.Lock) error { return ctx.Err() }))
	// Output: <nil>
}
