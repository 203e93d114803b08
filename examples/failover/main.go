// Command failover elects one leader among the processes that run it. Another process takes
// over immediately when the leader exits cleanly, or at the end of its lease after kill -9
// or kill -STOP.
//
//	lockctl server &
//	for i in 1 2 3; do go run ./examples/failover & done; wait
package main

import (
	"cmp"
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/natslock/locks/election"
	"github.com/natslock/locks/natslock"
)

func main() {
	log.SetPrefix(fmt.Sprintf("pid %d: ", os.Getpid()))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	nc, err := nats.Connect(cmp.Or(os.Getenv("NATS_URL"), nats.DefaultURL), nats.Name("failover"), nats.MaxReconnects(-1), nats.IgnoreAuthErrorAbort())
	if err != nil {
		log.Fatal(err)
	}
	locks, err := natslock.New(ctx, nc, natslock.WithTTL(5*time.Second))
	if err != nil {
		log.Fatal(err)
	}
	log.Print("campaigning")
	if err := election.New(locks, "leader").Run(ctx, lead); ctx.Err() == nil {
		log.Fatal(err) // another campaign would fail in the same way
	}
	log.Print("shutting down")
	if err := locks.Close(context.Background()); err != nil {
		log.Fatal(err)
	}
	nc.Close() // close the connection last
}

// lead does the leader's work until its term ends.
func lead(ctx context.Context, t *election.Term) error {
	log.Printf("leading, token %d", t.Token())
	for {
		select {
		case <-time.After(time.Second):
			log.Print("still leading")
		case <-ctx.Done():
			log.Print("no longer the leader: ", context.Cause(ctx))
			return nil
		}
	}
}
