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

// A process can be paused past the end of its lease and carry on before it finds out. The
// resource recognizes it by its lower token.
func Example_fencing() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()
	var resource ledger

	slow, err := locks.Lock(ctx, "ledger")
	if err != nil {
		log.Fatal(err)
	}
	// An operator believes that the holder is dead.
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

// SetMeta tells others how far the work has progressed.
func ExampleLock_SetMeta() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()
	l, err := locks.Lock(ctx, "import")
	if err != nil {
		log.Fatal(err)
	}
	if err := l.SetMeta(ctx, map[string]string{"rows": "20000"}); err != nil {
		log.Fatal(err) // errors.Is(err, natslock.ErrLost): another client may hold the lock
	}

	info, err := admin.New(locks).Inspect(ctx, admin.KindMutex, "import")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(info.Holder.Meta["rows"], "rows")
	fmt.Println(l.Unlock(ctx))
	fmt.Println(errors.Is(l.SetMeta(ctx, nil), natslock.ErrReleased))
	// Output:
	// 20000 rows
	// <nil>
	// true
}

// Handoff leaves a lock in the bucket for another process to adopt with the handle. No
// one else can get the lock in between.
func ExampleLock_Handoff() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()
	l, err := locks.Lock(ctx, "build.7")
	if err != nil {
		log.Fatal(err)
	}

	handle, err := l.Handoff(ctx)
	if err != nil {
		log.Fatal(err) // not confirmed, so the lock expires with its TTL
	}
	text, err := handle.MarshalText() // for the next stage of the build
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(text) > 0, errors.Is(l.Err(), natslock.ErrHandedOff))
	_, err = locks.TryLock(ctx, "build.7")
	fmt.Println("still locked:", errors.Is(err, natslock.ErrLocked))
	// Output:
	// true true
	// still locked: true
}

// Contended tells the holder of a long job that another goroutine or client is waiting.
// The holder stops after the current part of the job.
func ExampleLock_Contended() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()

	l, err := locks.Lock(ctx, "compaction")
	if err != nil {
		log.Fatal(err)
	}
	next := make(chan error)
	go func() {
		next <- locks.Do(ctx, "compaction", func(context.Context, *natslock.Lock) error { return nil })
	}()
	compact := func(ctx context.Context, l *natslock.Lock) error {
		for {
			select {
			case <-l.Contended():
				fmt.Println("another goroutine waits")
				return nil // Do unlocks, and the next in the queue gets the lock
			case <-time.After(time.Millisecond): // part of the job
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}
	fmt.Println(l.Do(compact), <-next)
	// Output:
	// another goroutine waits
	// <nil> <nil>
}

// A lease that is not renewed expires unless it is extended.
func ExampleLock_Extend() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()

	l, err := locks.Lock(ctx, "migration", natslock.NoRenew(), natslock.TTL(10*time.Second))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(l.Remaining() > 10*time.Second)
	if err := l.Extend(ctx, time.Hour); err != nil {
		log.Fatal(err) // not confirmed, so the validity is unchanged
	}
	fmt.Println(l.Remaining() > 50*time.Minute)
	_ = l.Unlock(ctx)
	// Output:
	// false
	// true
}

// The lock's context ends with the lock, and its cause tells why.
func ExampleLock_Context() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()

	l, err := locks.Lock(ctx, "orders.42")
	if err != nil {
		log.Fatal(err)
	}
	work := l.Context()
	fmt.Println(work.Err())
	_ = l.Unlock(ctx)
	cause := context.Cause(work)
	fmt.Println(errors.Is(cause, natslock.ErrReleased), errors.Is(cause, natslock.ErrLost))
	// Output:
	// <nil>
	// true false
}

// Unlock reports whether the lock was held until the call.
func ExampleLock_Unlock() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()

	l, err := locks.Lock(ctx, "orders.42")
	if err != nil {
		log.Fatal(err)
	}
	switch err := l.Unlock(ctx); {
	case err == nil:
		fmt.Println("alone all the time")
	case errors.Is(err, natslock.ErrLost):
		fmt.Println("others may have got in:", err)
	case errors.Is(err, natslock.ErrClosed):
		fmt.Println("Client.Close gave up waiting, and others may have got in:", err)
	case errors.Is(err, natslock.ErrUnavailable):
		fmt.Println("alone all the time, but the next one may have to wait for the TTL:", err)
	}
	// Output: alone all the time
}

// Do runs a function under a lock that is already held, and then unlocks it.
func ExampleLock_Do() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()

	l, err := locks.TryLock(ctx, "orders.42")
	if err != nil {
		log.Fatal(err)
	}
	err = l.Do(func(ctx context.Context, l *natslock.Lock) error {
		fmt.Println("under", l.Name())
		return ctx.Err()
	})
	fmt.Println(errors.Is(l.Err(), natslock.ErrReleased), err)
	// Output:
	// under orders.42
	// true <nil>
}

// Tokens rise with every grant, so a resource that rejects lower tokens is safe from
// holders that were paused: see the package example.
func ExampleLock_Token() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()

	first, err := locks.Lock(ctx, "orders.42")
	if err != nil {
		log.Fatal(err)
	}
	_ = first.Unlock(ctx)
	second, err := locks.Lock(ctx, "orders.42")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(second.Token() > first.Token())
	_ = second.Unlock(ctx)
	// Output: true
}

// Err returns nil while the lock is held, and then the reason it ended.
func ExampleLock_Err() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()
	l, err := locks.Lock(ctx, "orders.42")
	if err != nil {
		log.Fatal(err)
	}

	fmt.Println(l.Err())
	_ = l.Unlock(ctx)
	switch err := l.Err(); {
	case errors.Is(err, natslock.ErrReleased):
		fmt.Println("released")
	case errors.Is(err, natslock.ErrLost): // or broken by an operator
		fmt.Println("lost:", err)
	}
	// Output:
	// <nil>
	// released
}

// Remaining tells whether there is still time for another step before the validity ends.
func ExampleLock_Remaining() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()
	l, err := locks.Lock(ctx, "orders.42", natslock.TTL(time.Hour))
	if err != nil {
		log.Fatal(err)
	}

	fmt.Println(l.Remaining() > 50*time.Minute, l.Remaining() < time.Hour)
	_ = l.Unlock(ctx)
	fmt.Println(l.Remaining())
	// Output:
	// true true
	// 0s
}

// The ID identifies a holder in logs, in the bucket and in lockctl's output.
func ExampleLock_ID() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()
	first, err := locks.Lock(ctx, "orders.42")
	if err != nil {
		log.Fatal(err)
	}
	info, err := admin.New(locks).Inspect(ctx, admin.KindMutex, first.Name())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(info.Holder.ID == first.ID())
	_ = first.Unlock(ctx)

	second, err := locks.Lock(ctx, "orders.42")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(second.ID() == first.ID())
	_ = second.Unlock(ctx)
	// Output:
	// true
	// false
}

func ExampleLock_Name() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()
	l, err := locks.Lock(ctx, natslock.Join("orders", "42"))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(l.Name())
	_ = l.Unlock(ctx)
	// Output: orders.42
}

// A handle can be sent as text, in a message or a file.
func ExampleHandle_MarshalText() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()
	l, err := locks.Lock(ctx, "build.7")
	if err != nil {
		log.Fatal(err)
	}
	handle, err := l.Handoff(ctx)
	if err != nil {
		log.Fatal(err)
	}
	text, err := handle.MarshalText()
	if err != nil {
		log.Fatal(err)
	}

	var received natslock.Handle // usually in another process
	if err := received.UnmarshalText(text); err != nil {
		log.Fatal(err)
	}
	fmt.Println(received.Name, received == handle)
	fmt.Println(errors.Is(received.UnmarshalText([]byte("build.7")), natslock.ErrInvalid))
	// Output:
	// build.7 true
	// true
}

// accounts locks two accounts on a server started for the example.
func accounts() (all *natslock.LockSet, done func()) {
	locks, done := example.Client()
	all, err := locks.LockAll(context.Background(), []string{"account.9", "account.4", "account.9"})
	if err != nil {
		log.Fatal(err)
	}
	return all, done
}

// Do runs a function under locks that are already held, and then unlocks them.
func ExampleLockSet_Do() {
	all, done := accounts() // Client.LockAll
	defer done()

	err := all.Do(func(ctx context.Context, l *natslock.LockSet) error {
		fmt.Println("both are held:", l.Err() == nil)
		return ctx.Err()
	})
	fmt.Println(err, errors.Is(all.Err(), natslock.ErrReleased))
	// Output:
	// both are held: true
	// <nil> true
}

// Unlock releases all of the locks together. Its error names any locks that were lost.
func ExampleLockSet_Unlock() {
	all, done := accounts()
	defer done()
	switch err := all.Unlock(context.Background()); {
	case err == nil:
		fmt.Println("alone all the time")
	case errors.Is(err, natslock.ErrLost):
		fmt.Println("others may have got in:", err)
	}
	// Output: alone all the time
}

// The context of a LockSet ends as soon as any of its locks does.
func ExampleLockSet_Context() {
	all, done := accounts()
	defer done()
	work := all.Context()
	fmt.Println(work.Err())
	_ = all.Unlock(context.Background())
	fmt.Println(errors.Is(context.Cause(work), natslock.ErrReleased))
	// Output:
	// <nil>
	// true
}

// Err returns nil while all locks are held, and then the reason the first of them ended.
func ExampleLockSet_Err() {
	all, done := accounts()
	defer done()
	fmt.Println(all.Err())
	_ = all.Unlock(context.Background())
	fmt.Println(errors.Is(all.Err(), natslock.ErrReleased))
	// Output:
	// <nil>
	// true
}

// Names lists each name once, in the order in which every client takes the locks.
func ExampleLockSet_Names() {
	all, done := accounts()
	defer done()
	fmt.Println(all.Names())
	_ = all.Unlock(context.Background())
	// Output: [account.4 account.9]
}

// Each lock has its own fencing token.
func ExampleLockSet_Token() {
	all, done := accounts()
	defer done()
	for _, name := range all.Names() {
		fmt.Println(name, all.Token(name) > 0)
	}
	fmt.Println(all.Token("account.5"))
	_ = all.Unlock(context.Background())
	// Output:
	// account.4 true
	// account.9 true
	// 0
}
