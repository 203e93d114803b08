// Command quickstart runs one function under a lock. Start several copies at the same time,
// and they take turns in the order in which they queue.
//
//	lockctl server &
//	(for i in 1 2 3; do go run ./examples/quickstart & done; wait)
package main

import (
	"cmp"
	"context"
	"flag"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/natslock/locks/natslock"
)

func main() {
	server := flag.String("server", cmp.Or(os.Getenv("NATS_URL"), nats.DefaultURL), "NATS `URL`")
	flag.Parse()
	log.SetFlags(log.Lmicroseconds)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *server); err != nil && ctx.Err() == nil { // an interrupt is not a failure
		log.Fatal(err)
	}
}

func run(ctx context.Context, server string) error {
	nc, err := nats.Connect(server, nats.Name("reports"), nats.MaxReconnects(-1), nats.IgnoreAuthErrorAbort()) // never give up
	if err != nil {
		return err
	}
	defer nc.Close()
	locks, err := natslock.New(ctx, nc)
	if err != nil {
		return err
	}
	defer locks.Close(context.Background()) // before nc.Close, so that the next process gets the lock immediately
	return locks.Do(ctx, "reports.daily", func(ctx context.Context, l *natslock.Lock) error {
		return makeReport(ctx, l.Token()) // ctx ends with the lock
	}, natslock.MaxWait(time.Minute))
}

// makeReport stands in for the work. It stops when ctx ends.
func makeReport(ctx context.Context, token uint64) error {
	log.Printf("pid %d: starting, token %d", os.Getpid(), token)
	select {
	case <-time.After(100 * time.Millisecond):
		log.Printf("pid %d: done", os.Getpid())
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
