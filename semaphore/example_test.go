package semaphore_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/natslock/locks/internal/verify/example"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/semaphore"
)

// At most two exports run at a time, across all processes.
func ExampleNew() {
	ctx := context.Background()
	locks, done := example.Client() // natslock.New
	defer done()
	exports := semaphore.New(locks, 2)

	err := exports.Do(ctx, "exports", func(ctx context.Context, l *natslock.Lock) error {
		fmt.Println("exporting with a permit of", l.Name())
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output: exporting with a permit of exports
}

// Each goroutine holds its own permit.
func ExampleSemaphore_Acquire() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()
	exports := semaphore.New(locks, 2)

	first, err := exports.Acquire(ctx, "exports")
	if err != nil {
		log.Fatal(err)
	}
	second, err := exports.Acquire(ctx, "exports")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(first.Err(), second.Err())
	_ = first.Unlock(ctx)
	_ = second.Unlock(ctx)
	// Output: <nil> <nil>
}

// TryAcquire does not wait for a permit.
func ExampleSemaphore_TryAcquire() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()
	exports := semaphore.New(locks, 1)

	permit, err := exports.TryAcquire(ctx, "exports")
	if err != nil {
		log.Fatal(err)
	}
	_, err = exports.TryAcquire(ctx, "exports")
	fmt.Println(errors.Is(err, natslock.ErrLocked))
	_ = permit.Unlock(ctx)
	// Output: true
}

func ExampleSemaphore_Do() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()

	err := semaphore.New(locks, 5).Do(ctx, "exports", func(ctx context.Context, l *natslock.Lock) error {
		fmt.Println("one of five")
		return ctx.Err()
	})
	fmt.Println(err)
	// Output:
	// one of five
	// <nil>
}

// TryDo gives up if all permits are taken.
func ExampleSemaphore_TryDo() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()
	exports := semaphore.New(locks, 1)

	err := exports.Do(ctx, "exports", func(ctx context.Context, l *natslock.Lock) error {
		return exports.TryDo(ctx, "exports", func(context.Context, *natslock.Lock) error {
			fmt.Println("this does not run")
			return nil
		})
	})
	fmt.Println(errors.Is(err, natslock.ErrLocked))
	// Output: true
}

// If there are as many resources as permits, a slot can select one of them.
func ExampleSlot() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()
	printers := []string{"laser", "ink", "plotter"}

	err := semaphore.New(locks, len(printers)).Do(ctx, "printers", func(ctx context.Context, l *natslock.Lock) error {
		n, _ := semaphore.Slot(l)
		fmt.Println("alone at the", printers[n])
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output: alone at the plotter
}
