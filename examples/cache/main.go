// Command cache reads a file that other processes rewrite. Any number of processes can read
// it at the same time, but none can while another one rewrites it.
//
//	lockctl server &
//	for i in 1 2 3; do go run ./examples/cache -file /tmp/index & done; wait
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
	"github.com/natslock/locks/rwlock"
)

func main() {
	file := flag.String("file", "index", "`path` of the cache")
	age := flag.Duration("age", 2*time.Second, "maximum age before it is rewritten")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	nc, err := nats.Connect(cmp.Or(os.Getenv("NATS_URL"), nats.DefaultURL), nats.Name("cache"), nats.MaxReconnects(-1), nats.IgnoreAuthErrorAbort())
	if err != nil {
		log.Fatal(err)
	}
	defer nc.Close()
	locks, err := natslock.New(ctx, nc)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close(context.Background())
	c := cache{rwlock.New(locks), *file, *age}
	for tick := time.NewTicker(100 * time.Millisecond); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if err := c.use(ctx); err != nil {
				log.Print(err) // an outage or a shutdown; try again at the next tick
			}
		}
	}
}
