// Command cron produces one report per period, no matter how many copies of it run: the first
// process to ask does the work. The period is part of the lock's name, and the lock outlives
// the report, so a process that is late or has just started learns that the report is done. If
// a report fails or its process dies, the next process that asks produces it. On SIGTERM, a
// report in progress is finished.
//
//	for i in 1 2 3; do go run ./examples/cron -period 5s & done; wait
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

	"github.com/natslock/locks/natslock"
)

func main() {
	period := flag.Duration("period", 10*time.Second, "time between runs")
	times := flag.Int("times", -1, "`number` of periods to run; -1 for no limit")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	nc, err := nats.Connect(cmp.Or(os.Getenv("NATS_URL"), nats.DefaultURL), nats.Name("cron"), nats.MaxReconnects(-1), nats.IgnoreAuthErrorAbort())
	if err != nil {
		log.Fatal(err)
	}
	defer nc.Close()
	locks, err := natslock.New(ctx, nc)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close(context.Background()) // before nc.Close
	tick := time.Tick(*period / 5)          // several ticks per period, for retries
	for done := ""; *times != 0; {
		select {
		case <-tick:
		case <-ctx.Done():
			return
		}
		// For a daily report this would be time.Now().In(location).Format(time.DateOnly).
		name := "cron.report." + time.Now().UTC().Truncate(*period).Format("20060102T150405Z")
		if name == done {
			continue
		}
		err := locks.Once(ctx, name, 2**period, report, natslock.Detached())
		switch {
		case err == nil:
		case errors.Is(err, natslock.ErrDone):
			log.Printf("pid %d: left to others", os.Getpid())
		default:
			log.Print(err) // try again at the next tick
			continue
		}
		done = name
		*times--
	}
}

// report is the job. It stops when its lock is lost, and passes the token to whatever it writes
// to.
func report(ctx context.Context, l *natslock.Lock) error {
	log.Printf("pid %d: creating %s, token %d", os.Getpid(), l.Name(), l.Token())
	return ctx.Err()
}
