package rwlock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/natslock/locks/internal/verify/example"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/rwlock"
)

// Readers share the lock, but a writer holds it exclusively. The read lock lingers, so until
// someone wants to write, this client's next read costs no message.
func ExampleNew() {
	ctx := context.Background()
	locks, done := example.Client() // natslock.New
	defer done()
	rw := rwlock.New(locks)

	err := rw.RDo(ctx, "index", func(ctx context.Context, l *natslock.Lock) error {
		fmt.Println("reading:", l.Name())
		return nil
	}, natslock.Linger(10*time.Second))
	if err != nil {
		log.Fatal(err)
	}
	err = rw.Do(ctx, "index", func(ctx context.Context, l *natslock.Lock) error {
		fmt.Println("writing:", l.Name())
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// reading: index
	// writing: index
}

// A writer's token is higher than that of every reader it waited for.
func ExampleRWLock_Lock() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()
	rw := rwlock.New(locks)

	reader, err := rw.RLock(ctx, "index")
	if err != nil {
		log.Fatal(err)
	}
	_ = reader.Unlock(ctx)
	writer, err := rw.Lock(ctx, "index")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(writer.Token() > reader.Token())
	_ = writer.Unlock(ctx)
	// Output: true
}

func ExampleRWLock_RLock() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()
	rw := rwlock.New(locks)

	first, err := rw.RLock(ctx, "index")
	if err != nil {
		log.Fatal(err)
	}
	second, err := rw.RLock(ctx, "index")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(first.Err(), second.Err())
	_ = first.Unlock(ctx)
	_ = second.Unlock(ctx)
	// Output: <nil> <nil>
}

// TryLock does not wait for readers.
func ExampleRWLock_TryLock() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()
	rw := rwlock.New(locks)

	reader, err := rw.RLock(ctx, "index")
	if err != nil {
		log.Fatal(err)
	}
	_, err = rw.TryLock(ctx, "index")
	fmt.Println(errors.Is(err, natslock.ErrLocked))
	_ = reader.Unlock(ctx)
	// Output: true
}

// TryRLock does not wait for a writer.
func ExampleRWLock_TryRLock() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()
	rw := rwlock.New(locks)

	writer, err := rw.Lock(ctx, "index")
	if err != nil {
		log.Fatal(err)
	}
	_, err = rw.TryRLock(ctx, "index")
	fmt.Println(errors.Is(err, natslock.ErrLocked))
	_ = writer.Unlock(ctx)
	// Output: true
}

func ExampleRWLock_Do() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()

	err := rwlock.New(locks).Do(ctx, "index", func(ctx context.Context, l *natslock.Lock) error {
		fmt.Println("alone")
		return ctx.Err()
	})
	fmt.Println(err)
	// Output:
	// alone
	// <nil>
}

func ExampleRWLock_RDo() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()

	err := rwlock.New(locks).RDo(ctx, "index", func(ctx context.Context, l *natslock.Lock) error {
		fmt.Println("with other readers")
		return ctx.Err()
	})
	fmt.Println(err)
	// Output:
	// with other readers
	// <nil>
}

// TryDo gives up if readers hold the lock.
func ExampleRWLock_TryDo() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()
	rw := rwlock.New(locks)

	err := rw.RDo(ctx, "index", func(ctx context.Context, l *natslock.Lock) error {
		return rw.TryDo(ctx, "index", func(context.Context, *natslock.Lock) error {
			fmt.Println("this does not run")
			return nil
		})
	})
	fmt.Println(errors.Is(err, natslock.ErrLocked))
	// Output: true
}

// Code that accepts a natslock.Locker reads with the RLocker and writes with the RWLock itself.
func ExampleRWLock_RLocker() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()
	rw := rwlock.New(locks)

	for _, side := range []natslock.Locker{rw.RLocker(), rw} {
		l, err := side.Lock(ctx, "index")
		fmt.Println(l.Err(), err)
		_ = l.Unlock(ctx)
	}
	// Output:
	// <nil> <nil>
	// <nil> <nil>
}

// TryRDo runs alongside other readers, but gives up if a writer holds the lock.
func ExampleRWLock_TryRDo() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()
	rw := rwlock.New(locks)

	err := rw.RDo(ctx, "index", func(ctx context.Context, l *natslock.Lock) error {
		return rw.TryRDo(ctx, "index", func(context.Context, *natslock.Lock) error {
			fmt.Println("beside the other reader")
			return nil
		})
	})
	fmt.Println(err)
	// Output:
	// beside the other reader
	// <nil>
}
