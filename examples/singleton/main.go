// Command singleton is a worker of which one is at work at a time, however many run. It
// numbers the orders of a stream, and the server refuses what a stale worker writes.
//
// Stop a worker that is at work, as if its machine were suspended. Its lease ends, and the
// next worker goes on. When the first one wakes up, it does not know yet that its lock is
// lost, and its next write bounces:
//
//	nats-server -js &
//	go build -o /tmp/singleton ./examples/singleton
//	/tmp/singleton -times 1000 & sleep 1; kill -STOP $!
//	/tmp/singleton -times 5; kill -CONT $!; wait
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/fence"
	"github.com/natslock/locks/natslock"
)

func main() {
	server := flag.String("server", cmp.Or(os.Getenv("NATS_URL"), nats.DefaultURL), "NATS `URL`")
	times := flag.Int("times", 3, "how many orders to number")
	flag.Parse()
	log.SetFlags(log.Lmicroseconds)
	if err := run(context.Background(), *server, *times); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, server string, times int) error {
	nc, err := nats.Connect(server)
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
	l, err := locks.Lock(ctx, "numbers", natslock.MaxWait(time.Minute))
	if err != nil {
		return err
	}
	defer l.Unlock(ctx)
	return work(ctx, js, stream, l, times)
}

// work numbers orders. It stands for code that does not notice that its lock is lost: it
// does not use the context of the lock.
func work(ctx context.Context, js jetstream.JetStream, stream jetstream.Stream, l *natslock.Lock, times int) error {
	f, err := fence.Open(ctx, js, "NUMBERS", "numbers.fence", l.Token())
	if err != nil {
		return err
	}
	// First the fence, then the state: no older worker can change it now.
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
	for range times {
		_, err := f.Publish(ctx, "numbers.orders", fmt.Appendf(nil, "order %d", next))
		if errors.Is(err, fence.ErrSuperseded) {
			log.Printf("pid %d: order %d bounced: %v", os.Getpid(), next, err)
			return nil // the next worker has the lock
		}
		if err != nil {
			return err
		}
		log.Printf("pid %d: wrote order %d, token %d", os.Getpid(), next, l.Token())
		next++
		time.Sleep(50 * time.Millisecond) // the work
	}
	return nil
}
