// Command cron runs a job at most once per period, however many processes run this
// program. The process that is first in a period does the job.
//
// The lock of a period stays until that period is over. So a process whose clock is late,
// or that starts now, finds it taken and does nothing. When the process that does the job
// dies, the job does not run again in this period.
//
//	nats-server -js &
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
	server := flag.String("server", cmp.Or(os.Getenv("NATS_URL"), nats.DefaultURL), "NATS `URL`")
	period := flag.Duration("period", 10*time.Second, "how often")
	times := flag.Int("times", 0, "end after so many periods; 0: never")
	flag.Parse()
	log.SetFlags(log.Lmicroseconds)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *server, *period, *times); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, server string, period time.Duration, times int) error {
	nc, err := nats.Connect(server, nats.MaxReconnects(-1))
	if err != nil {
		return err
	}
	defer nc.Close()
	locks, err := natslock.New(ctx, nc)
	if err != nil {
		return err
	}
	defer locks.Close(context.Background()) // before nc.Close
	for n := 0; times == 0 || n < times; n++ {
		begin := time.Now().Truncate(period).Add(period)
		select {
		case <-time.After(time.Until(begin)):
		case <-ctx.Done():
			return nil
		}
		ran, err := locks.OncePer(ctx, "cron.report", period, report)
		switch {
		case err != nil:
			log.Print(err) // the next period is another one
		case !ran:
			log.Printf("pid %d: left to others", os.Getpid())
		}
	}
	return nil
}

// report is the job. It has to stop when ctx ends, and to pass the token to the
// resource that it writes to.
func report(ctx context.Context, begin time.Time, l *natslock.Lock) error {
	log.Printf("pid %d: runs the job, token %d, for the period from %v", os.Getpid(), l.Token(), begin.Format(time.RFC3339))
	return ctx.Err()
}
