// Command cron runs a job at most once per period, however many processes run this
// program. The process that takes the lock of the period first does the job.
//
// The lock ends with the period, and no process unlocks it before. So a process whose
// clock is late, or that starts now, finds the lock taken and does nothing. When the
// process that does the job dies, the job does not run again in this period.
//
//	nats-server -js &
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
	"strconv"
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
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
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
	for n := 0; times == 0 || n < times; n++ {
		begin := time.Now().Truncate(period).Add(period)
		select {
		case <-time.After(time.Until(begin)):
		case <-ctx.Done():
			return nil
		}
		if err := once(ctx, locks, begin, begin.Add(period)); err != nil {
			log.Print(err) // the next period is another one
		}
	}
	return nil
}

// once runs the job of the period if no other process does. The period is part of the
// lock's name, so a lock that outlives its period a little delays nobody.
func once(ctx context.Context, locks *natslock.Client, begin, end time.Time) error {
	name := natslock.Join("cron", "report", strconv.FormatInt(begin.Unix(), 10))
	l, err := locks.TryLock(ctx, name, natslock.Until(end))
	if held, ok := errors.AsType[*natslock.LockedError](err); ok {
		log.Printf("pid %d: left to others: %v", os.Getpid(), held)
		return nil
	}
	if err != nil {
		return err
	}
	// Not unlocked, on purpose. Its context ends with the period.
	return report(l.Context(), l)
}

// report is the job. It has to stop when ctx ends, and to pass the token to the
// resource that it writes to.
func report(ctx context.Context, l *natslock.Lock) error {
	log.Printf("pid %d: runs the job, token %d, has %v for it", os.Getpid(), l.Token(), l.Remaining().Round(time.Millisecond))
	return ctx.Err()
}
