// Command exports runs exports, at most two at a time across all processes.
//
//	lockctl server &
//	for i in 1 2 3; do go run ./examples/exports & done; wait
package main

import (
	"cmp"
	"context"
	"errors"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/semaphore"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	nc, err := nats.Connect(cmp.Or(os.Getenv("NATS_URL"), nats.DefaultURL), nats.Name("exports"), nats.MaxReconnects(-1), nats.IgnoreAuthErrorAbort())
	if err != nil {
		log.Fatal(err)
	}
	defer nc.Close()
	locks, err := natslock.New(ctx, nc)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close(context.Background())
	permits := semaphore.New(locks, 2)
	for n := 1; ctx.Err() == nil; n++ {
		// SIGTERM ends the wait for a permit, but not an export that already has one.
		err := permits.Do(ctx, "exports", func(ctx context.Context, l *natslock.Lock) error { return export(ctx, l, n) }, natslock.Detached())
		if err != nil && !errors.Is(err, context.Canceled) {
			log.Print(err)
		}
	}
}

func export(ctx context.Context, l *natslock.Lock, n int) error {
	slot, _ := semaphore.Slot(l)
	log.Printf("starting export %d with permit %d", n, slot)
	select {
	case <-time.After(500 * time.Millisecond):
		log.Printf("finished export %d with permit %d", n, slot)
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
