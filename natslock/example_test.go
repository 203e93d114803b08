package natslock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/natslock/locks/internal/verify/example"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
)

// Do runs a function under a lock. Its context ends when the lock is lost, so
// that the work stops before the next holder begins.
func ExampleClient_Do() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()

	err := locks.Do(ctx, "reports.daily", func(ctx context.Context, l *natslock.Lock) error {
		fmt.Println("nobody else makes", l.Name())
		return ctx.Err()
	})
	if errors.Is(err, natslock.ErrLost) {
		fmt.Println("somebody else may have made it too:", err)
	}
	fmt.Println(err)
	// Output:
	// nobody else makes reports.daily
	// <nil>
}

func ExampleClient_Lock() {
	ctx := context.Background()
	locks, done := example.Client(natslock.WithTTL(10 * time.Second))
	defer done()

	l, err := locks.Lock(ctx, "orders.42", natslock.MaxWait(time.Minute))
	if err != nil {
		log.Fatal(err) // matches natslock.ErrTimeout after a minute
	}
	fmt.Println(l.Err(), l.Remaining() > 8*time.Second)
	if err := l.Unlock(ctx); err != nil {
		log.Print(err) // matches natslock.ErrLost if it had been lost
	}
	fmt.Println(errors.Is(l.Err(), natslock.ErrReleased))
	// Output:
	// <nil> true
	// true
}

// TryLock does not wait. Its error says who holds the lock.
func ExampleClient_TryLock() {
	ctx := context.Background()
	locks, done := example.Client(natslock.WithOwner("web-1"))
	defer done()

	l, err := locks.TryLock(ctx, "cleanup")
	fmt.Println("first:", err)
	_, err = locks.TryLock(ctx, "cleanup")
	if locked, ok := errors.AsType[*natslock.LockedError](err); ok {
		fmt.Println("second: held by", locked.Holder.Owner, "myself:", locked.Own)
	}
	_ = l.Unlock(ctx)
	// Output:
	// first: <nil>
	// second: held by web-1 myself: true
}

// ledger is a resource that refuses the holder of an older lock than the newest that has
// written.
type ledger struct {
	newest uint64
	lines  []string
}

func (r *ledger) write(token uint64, line string) error {
	if token < r.newest {
		return errors.New("refused: the lock has passed on")
	}
	r.newest = token
	r.lines = append(r.lines, line)
	return nil
}

// A process can be paused for longer than its lease lasts, and go on before it learns that.
// The resource recognizes it by the token of its lock.
func Example_fencing() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()
	var resource ledger

	slow, err := locks.Lock(ctx, "ledger")
	if err != nil {
		log.Fatal(err)
	}
	// An operator takes it for dead.
	if err := admin.New(locks).Break(ctx, admin.BreakRequest{Kind: admin.KindMutex, Name: "ledger", ID: slow.ID(), Reason: "it hangs", Immediately: true}); err != nil {
		log.Fatal(err)
	}
	next, err := locks.Lock(ctx, "ledger")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("next:", resource.write(next.Token(), "from the next"))
	fmt.Println("slow:", resource.write(slow.Token(), "from the slow one"))
	fmt.Println("lost:", errors.Is(slow.Unlock(ctx), natslock.ErrLost))
	_ = next.Unlock(ctx)
	// Output:
	// next: <nil>
	// slow: refused: the lock has passed on
	// lost: true
}
