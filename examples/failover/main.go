// Command failover elects one leader among the processes that run it. Start some of
// them, kill the leader, and another one takes over. It does so at once when the leader
// ends properly, and at the end of the leader's lease after kill -9 or kill -STOP.
//
//	nats-server -js &
//	for i in 1 2 3; do go run ./examples/failover & done; wait
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

	"github.com/natslock/locks/election"
	"github.com/natslock/locks/natslock"
)

func main() {
	server := flag.String("server", cmp.Or(os.Getenv("NATS_URL"), nats.DefaultURL), "NATS `URL`")
	ttl := flag.Duration("ttl", 5*time.Second, "how long a dead leader is waited for")
	flag.Parse()
	log.SetFlags(log.Lmicroseconds)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *server, *ttl); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, server string, ttl time.Duration) error {
	nc, err := nats.Connect(server, nats.MaxReconnects(-1))
	if err != nil {
		return err
	}
	defer nc.Close()
	locks, err := natslock.New(ctx, nc, natslock.WithTTL(ttl))
	if err != nil {
		return err
	}
	log.Printf("pid %d: campaigns", os.Getpid())
	err = election.New(locks, "leader").Run(ctx, lead)
	if ctx.Err() == nil {
		return err // another campaign would fail in the same way
	}
	log.Printf("pid %d: says good-bye", os.Getpid())
	return locks.Close(context.Background())
}

// lead is what only the leader does, until its term ends.
func lead(ctx context.Context, t *election.Term) error {
	pid, begun := os.Getpid(), time.Now()
	log.Printf("pid %d: is the leader, token %d", pid, t.Token())
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			log.Printf("pid %d: leads, for %v now", pid, time.Since(begun).Round(time.Millisecond))
		case <-ctx.Done():
			log.Printf("pid %d: no longer the leader: %v", pid, context.Cause(ctx))
			return nil
		}
	}
}
