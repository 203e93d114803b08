// Command singleton is a worker of which only one instance is active at a time, no matter
// how many run. An election chooses the active worker. It numbers the orders in a stream,
// and the server refuses writes from a stale worker.
//
// Stop the active worker, as if its machine were suspended. Its term ends, and the next
// worker takes over. When the first worker wakes up, it does not yet know that its term is
// over, and the server refuses its next write:
//
//	lockctl server &
//	go build -o /tmp/singleton ./examples/singleton
//	/tmp/singleton & first=$!; sleep 1; kill -STOP $first
//	/tmp/singleton & next=$!; sleep 5; kill -CONT $first; sleep 1; kill $first $next
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/election"
	"github.com/natslock/locks/fence"
	"github.com/natslock/locks/natslock"
)

func main() {
	server := flag.String("server", cmp.Or(os.Getenv("NATS_URL"), nats.DefaultURL), "NATS `URL`")
	flag.Parse()
	log.SetFlags(log.Lmicroseconds)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *server); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, server string) error {
	nc, err := nats.Connect(server, nats.Name("singleton"), nats.MaxReconnects(-1), nats.IgnoreAuthErrorAbort())
	if err != nil {
		return err
	}
	defer nc.Close()
	locks, err := natslock.New(ctx, nc, natslock.WithTTL(2*time.Second))
	if err != nil {
		return err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	stream, err := js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{Name: "NUMBERS", Subjects: []string{"numbers.>"}})
	if err != nil {
		return err
	}
	// Run campaigns, calls the function, and campaigns again when it returns. To simulate
	// code that does not notice the end of its term, work gets the program's context
	// instead of the term's.
	err = election.New(locks, "numbers").Run(ctx, func(_ context.Context, t *election.Term) error {
		err := work(ctx, js, stream, t.Token())
		if err != nil {
			log.Printf("pid %d: %v", os.Getpid(), err)
		}
		return err
	})
	if ctx.Err() == nil {
		return err // another campaign would fail in the same way
	}
	return locks.Close(context.Background())
}

// work numbers orders until ctx ends or a newer worker takes over.
func work(ctx context.Context, js jetstream.JetStream, stream jetstream.Stream, token uint64) error {
	f, err := fence.Open(ctx, js, "NUMBERS", "numbers.fence", token)
	if err != nil {
		return err
	}
	// Read the state only after opening the fence, when no older worker can change it.
	next := 1
	last, err := stream.GetLastMsgForSubject(ctx, "numbers.orders")
	switch {
	case err == nil:
		if _, err := fmt.Sscanf(string(last.Data), "order %d", &next); err != nil {
			return err
		}
		next++
	case !errors.Is(err, jetstream.ErrMsgNotFound):
		return err
	}
	for ; ; next++ {
		_, err := f.Publish(ctx, "numbers.orders", fmt.Appendf(nil, "order %d", next))
		if err != nil {
			return fmt.Errorf("order %d: %w", next, err)
		}
		log.Printf("pid %d: wrote order %d, token %d", os.Getpid(), next, token)
		select {
		case <-time.After(50 * time.Millisecond): // the work
		case <-ctx.Done():
			return nil
		}
	}
}
