// Command partitions is a worker that reads its share of a stream of events in order, and
// writes one result per event. Run as many as you like. An event's key determines which of 8
// partitions it belongs to, and one worker at a time owns each partition:
//
//	lockctl server &
//	go build -o /tmp/partitions ./examples/partitions
//	/tmp/partitions & /tmp/partitions & sleep 2
//	for n in 1 2 3; do for key in ann bob eve; do nats pub events.$key $n; done; done
//	nats sub --stream RESULTS --last-per-subject 'results.*.*'
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/partition"
)

func main() {
	server := flag.String("server", cmp.Or(os.Getenv("NATS_URL"), nats.DefaultURL), "NATS `URL`")
	ttl := flag.Duration("ttl", 15*time.Second, "how long a crashed worker's partitions stay unowned")
	effort := flag.Duration("work", 10*time.Millisecond, "time to work on one event")
	flag.Parse()
	log.SetFlags(log.Lmicroseconds)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *server, *ttl, *effort); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, server string, ttl, effort time.Duration) error {
	nc, err := nats.Connect(server, nats.Name("partitions"), nats.MaxReconnects(-1), nats.IgnoreAuthErrorAbort())
	if err != nil {
		return err
	}
	defer nc.Close() // close the connection last
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	if err := streams(ctx, js); err != nil {
		return err
	}
	locks, err := natslock.New(ctx, nc)
	if err != nil {
		return err
	}
	g := partition.New(locks, "events", partitions, partition.TTL(ttl), partition.OnEvent(func(e partition.Event) {
		log.Printf("pid %d: %s, partition %d, token %d: %v", os.Getpid(), e.Type, e.Partition, e.Token, e.Err)
	}))
	err = g.Run(ctx, func(ctx context.Context, p *partition.Partition) error {
		w, err := open(ctx, js, p)
		if err != nil {
			return err
		}
		go func() {
			select {
			case <-p.Leaving():
			case <-ctx.Done(): // the partition is lost, or this function has returned
			}
			w.events.Stop() // take no more events
		}()
		for {
			event, err := w.events.Next()
			if errors.Is(err, jetstream.ErrMsgIteratorClosed) {
				return context.Cause(ctx) // nil if the worker is to give the partition up
			} else if err != nil {
				return err // an outage: Run calls this function again
			}
			time.Sleep(effort) // the work
			if err := w.write(ctx, event); err != nil {
				return err
			}
		}
	})
	if ctx.Err() == nil {
		return err // another try would fail in the same way
	}
	return locks.Close(context.Background())
}
