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

// Once runs a job once under its name, in the replica that is first. The others call it too,
// and are told that the job is done.
func ExampleClient_Once() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()

	for range 3 { // replicas, most likely
		err := locks.Once(ctx, "reports.2026-11", 31*24*time.Hour, func(ctx context.Context, l *natslock.Lock) error {
			fmt.Println("the report of November", ctx.Err())
			return nil
		})
		fmt.Println(errors.Is(err, natslock.ErrDone))
	}
	// Output:
	// the report of November <nil>
	// false
	// true
	// true
}

// A daily job from 02:00 on in Berlin, in whichever replica asks first. Each replica has this loop. A
// SIGTERM ends ctx and, because of Detached, not the job.
func ExampleClient_Once_daily() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	locks, done := example.Client()
	defer done()
	zone, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		log.Fatal(err)
	}
	report := func(ctx context.Context, l *natslock.Lock) error {
		fmt.Println("the report of", l.Name(), "with token", l.Token())
		return ctx.Err()
	}
	tick := time.Tick(5 * time.Minute)
	for ctx.Err() == nil {
		if now := time.Now().In(zone); now.Hour() >= 2 {
			err := locks.Once(ctx, "report."+now.Format(time.DateOnly), 48*time.Hour, report, natslock.Detached())
			if err != nil && !errors.Is(err, natslock.ErrLocked) {
				log.Print(err) // the next tick tries again
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
