package natslock_test

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go"

	"github.com/natslock/locks/kvstore"
	"github.com/natslock/locks/natslock"
)

// On a cluster the bucket should have three replicas. The configuration counts
// when the bucket is made; an existing one is never changed.
func ExampleWithBucketConfig() {
	onCluster := func(ctx context.Context, nc *nats.Conn) error {
		locks, err := natslock.New(ctx, nc, natslock.WithBucketConfig(kvstore.Config{Replicas: 3}))
		if err != nil {
			return err
		}
		return locks.Close(ctx)
	}
	fmt.Println(onCluster != nil)
	// Output: true
}
