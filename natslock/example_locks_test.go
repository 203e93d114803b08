package natslock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/natslock/locks/internal/verify/example"
	"github.com/natslock/locks/natslock"
)

// LockAll takes several locks in one order for all clients, so two transfers between the
// same accounts do not wait for each other.
func ExampleClient_LockAll() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()

	all, err := locks.LockAll(ctx, []string{"account.9", "account.4"})
	if err != nil {
		log.Fatal(err)
	}
	err = all.Do(func(ctx context.Context, l *natslock.LockSet) error {
		fmt.Println(l.Names(), ctx.Err())
		return nil
	})
	fmt.Println(errors.Is(all.Err(), natslock.ErrReleased), err)
	// Output:
	// [account.4 account.9] <nil>
	// true <nil>
}

// OncePer runs a job once in each period, in the replica that is first. The others call it
// too, and do nothing.
func ExampleClient_OncePer() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()

	for range 3 { // replicas, most likely
		ran, err := locks.OncePer(ctx, "reports.daily", 24*time.Hour, func(ctx context.Context, begin time.Time, l *natslock.Lock) error {
			fmt.Println("a report from", begin.Format(time.TimeOnly), begin.Location(), ctx.Err())
			return nil
		})
		fmt.Println(ran, err)
	}
	// Output:
	// a report from 00:00:00 UTC <nil>
	// true <nil>
	// false <nil>
	// false <nil>
}

// A daily job that begins at 03:00 UTC, in whichever replica asks first. Each replica has this
// loop. A SIGTERM ends ctx and, because of Detached, not the job.
func ExampleClient_OncePer_daily() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	locks, done := example.Client()
	defer done()
	report := func(ctx context.Context, begin time.Time, l *natslock.Lock) error {
		fmt.Println("the report of", begin.Format(time.DateOnly), "with token", l.Token())
		return ctx.Err()
	}
	tick := time.Tick(5 * time.Minute)
	for ctx.Err() == nil {
		// A call in the last second of a day counts for the next day.
		if now := time.Now().UTC(); now.Hour() >= 3 && now.Add(time.Minute).Day() == now.Day() {
			ran, err := locks.OncePer(ctx, "report", 24*time.Hour, report, natslock.Detached())
			if err != nil {
				log.Printf("the report has run: %t: %v", ran, err) // if not, the next tick tries again
			}
		}
		select {
		case <-tick:
		case <-ctx.Done():
		}
	}
}

// TryLockAll takes all locks or none.
func ExampleClient_TryLockAll() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()
	busy, err := locks.Lock(ctx, "account.9")
	if err != nil {
		log.Fatal(err)
	}

	_, err = locks.TryLockAll(ctx, []string{"account.4", "account.9"})
	if locked, ok := errors.AsType[*natslock.LockedError](err); ok {
		fmt.Println("held:", locked.Name)
	}
	_ = busy.Unlock(ctx)
	all, err := locks.TryLockAll(ctx, []string{"account.4", "account.9"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(all.Token("account.9") > 0)
	fmt.Println(all.Unlock(ctx))
	// Output:
	// held: account.9
	// true
	// <nil>
}
