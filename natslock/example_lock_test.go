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

// Err returns nil while the lock is held, and then the cause of its end.
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
	case errors.Is(err, natslock.ErrLost): // also when an operator broke it
		fmt.Println("lost:", err)
	}
	// Output:
	// <nil>
	// released
}

// Remaining reports whether a step still fits into the validity that the server has confirmed.
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

// The ID finds a holder in logs, in the bucket and in the output of lockctl.
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

// A handle travels as text, in a message or a file.
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

	var received natslock.Handle // in another process, most likely
	if err := received.UnmarshalText(text); err != nil {
		log.Fatal(err)
	}
	fmt.Println(received.Name, received == handle)
	fmt.Println(errors.Is(received.UnmarshalText([]byte("build.7")), natslock.ErrInvalid))
	// Output:
	// build.7 true
	// true
}

// A LockedError says who holds the lock that TryLock did not get.
func ExampleLockedError() {
	ctx := context.Background()
	locks, done := example.Client(natslock.WithOwner("web-1"))
	defer done()
	l, err := locks.Lock(ctx, "orders.42")
	if err != nil {
		log.Fatal(err)
	}

	_, err = locks.TryLock(ctx, "orders.42")
	if locked, ok := errors.AsType[*natslock.LockedError](err); ok && locked.Holder != nil {
		fmt.Println(locked.Name, "is held by", locked.Holder.Owner, "and", locked.Queued, "wait")
	}
	_ = l.Unlock(ctx)
	// Output: orders.42 is held by web-1 and 0 wait
}

// A TimeoutError says how long the client waited, and for which holder.
func ExampleTimeoutError() {
	ctx := context.Background()
	locks, done := example.Client(natslock.WithOwner("web-1"))
	defer done()
	l, err := locks.Lock(ctx, "orders.42")
	if err != nil {
		log.Fatal(err)
	}

	_, err = locks.Lock(ctx, "orders.42", natslock.MaxWait(50*time.Millisecond))
	if timeout, ok := errors.AsType[*natslock.TimeoutError](err); ok {
		fmt.Println(timeout.Name, timeout.Waited >= 50*time.Millisecond, timeout.Timeout())
	}
	_ = l.Unlock(ctx)
	// Output: orders.42 true true
}
