package admin_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/example"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
)

func initHistory(ctx context.Context, nc *nats.Conn) {
	js, err := jetstream.New(nc)
	if err != nil {
		log.Fatal(err)
	}
	bucket, err := js.Stream(ctx, "KV_natslock")
	if err != nil {
		log.Fatal(err)
	}
	if _, err := js.CreateStream(ctx, kvstore.HistoryStream(bucket.CachedInfo(), 7*24*time.Hour, 0)); err != nil {
		log.Fatal(err)
	}
}

// The history of a bucket says what has happened to a lock, and where it has a gap.
func ExampleAdmin_History() {
	ctx := context.Background()
	nc, stop := example.Connect()
	defer stop()
	locks, err := natslock.New(ctx, nc)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close(ctx)
	initHistory(ctx, nc) // an operator does so once, with "lockctl init --history 7d"

	for released := false; !released; { // the server begins to copy a moment later
		l, err := locks.Lock(ctx, "deploy")
		if err != nil {
			log.Fatal(err)
		}
		_ = l.Unlock(ctx)
		for ev, err := range admin.New(locks).History(ctx, "deploy", time.Now().Add(-time.Hour)) {
			if err != nil {
				log.Fatal(err) // errors.Is(err, kvstore.ErrNoHistory): there is none
			}
			if ev.Type == admin.EventReleased {
				fmt.Println(ev.Name, ev.Type)
				released = true
				break
			}
		}
	}
	// Output:
	// deploy released
}
