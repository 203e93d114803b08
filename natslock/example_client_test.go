package natslock_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/natslock/locks/internal/verify/example"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
)

// SetMeta shows others how far the work has come.
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

func ExampleClient_Stats() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()
	for range 3 {
		if err := locks.Do(ctx, "orders.42", func(context.Context, *natslock.Lock) error { return nil }); err != nil {
			log.Fatal(err)
		}
	}
	s := locks.Stats()
	fmt.Println(s.Granted, "granted,", s.Released, "released,", s.Lost, "lost,", s.Held, "held now")
	// Output: 3 granted, 3 released, 0 lost, 0 held now
}

// Healthy does no I/O, so a probe may call it as often as it likes.
func ExampleClient_Healthy() {
	nc, stop := example.Connect()
	defer stop()
	ctx := context.Background()
	locks, err := natslock.New(ctx, nc)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close(ctx)
	fmt.Println(locks.Healthy())
	nc.Close()
	fmt.Println(errors.Is(locks.Healthy(), natslock.ErrUnavailable))
	// Output:
	// <nil>
	// true
}

// Close waits for the holders to unlock. When its context ends, it ends the contexts of
// the locks that are left, and leaves their records to their TTL.
func ExampleClient_Close() {
	locks, done := example.Client()
	defer done()
	l, err := locks.Lock(context.Background(), "orders.42")
	if err != nil {
		log.Fatal(err)
	}

	ctx, cancel := context.WithCancel(context.Background()) // or a timeout
	cancel()
	err = locks.Close(ctx)
	fmt.Println(errors.Is(err, context.Canceled))
	fmt.Println(errors.Is(context.Cause(l.Context()), natslock.ErrClosed))
	// Output:
	// true
	// true
}

// Parts of a name may hold any bytes. Their dots do not make tokens of their own.
func ExampleJoin() {
	fmt.Println(natslock.Join("orders", "42"))
	fmt.Println(natslock.Join("tenant", "a.b", "x y"))
	// Output:
	// orders.42
	// tenant.a=2Eb.x y
}
