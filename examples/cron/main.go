// Command cron runs a job at most once per period, in the process that is first, however many
// run this program. The lock of a period stays until it is over: a process that is late, or
// starts now, does nothing. On SIGTERM the job that runs is finished.
//
//	for i in 1 2 3; do go run ./examples/cron -period 5s & done; wait
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
	every := flag.Duration("period", 10*time.Second, "how often")
	times := flag.Int("times", -1, "end after so many periods")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	nc, err := nats.Connect(cmp.Or(os.Getenv("NATS_URL"), nats.DefaultURL), nats.MaxReconnects(-1))
	if err != nil {
		log.Fatal(err)
	}
	defer nc.Close()
	locks, err := natslock.New(ctx, nc)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close(context.Background()) // before nc.Close
	for period := *every; *times != 0; *times-- {
		select {
		case <-time.After(time.Until(time.Now().Truncate(period).Add(period))):
		case <-ctx.Done():
			return
		}
		ran, err := locks.OncePer(ctx, "cron.report", period, report, natslock.Detached())
		if err != nil {
			log.Print(err) // the next period is another one
		} else if !ran {
			log.Printf("pid %d: left to others", os.Getpid())
		}
	}
}

// report is the job. It stops when its lock is lost, and passes the token to what it writes to.
func report(ctx context.Context, begin time.Time, l *natslock.Lock) error {
	log.Printf("pid %d: runs the job, token %d, for the period from %v", os.Getpid(), l.Token(), begin.Format(time.RFC3339))
	return ctx.Err()
}
