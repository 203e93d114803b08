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

// A process needs one client for each connection.
func ExampleNew() {
	nc, stop := example.Connect() // a service calls nats.Connect
	defer stop()
	ctx := context.Background()
	locks, err := natslock.New(ctx, nc, natslock.WithOwner("billing-1"), natslock.WithTTL(30*time.Second))
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close(ctx)
	fmt.Println(locks.Healthy())
	// Output: <nil>
}

// TryDo leaves the work to the client that is at it already.
func ExampleClient_TryDo() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()

	err := locks.TryDo(ctx, "cleanup", func(ctx context.Context, l *natslock.Lock) error {
		err := locks.TryDo(ctx, "cleanup", func(context.Context, *natslock.Lock) error {
			fmt.Println("this does not run")
			return nil
		})
		fmt.Println("left to others:", errors.Is(err, natslock.ErrLocked))
		return nil
	})
	fmt.Println(err)
	// Output:
	// left to others: true
	// <nil>
}

// MaxWait bounds the wait and not the work, unlike a deadline on the context.
func ExampleMaxWait() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()
	l, err := locks.Lock(ctx, "orders.42")
	if err != nil {
		log.Fatal(err)
	}

	_, err = locks.Lock(ctx, "orders.42", natslock.MaxWait(50*time.Millisecond))
	fmt.Println(errors.Is(err, natslock.ErrTimeout), l.Err())
	_ = l.Unlock(ctx)
	// Output: true <nil>
}

// A deadline on the context given to Lock ends the work, too. Detached keeps it from
// that.
func ExampleDetached() {
	locks, done := example.Client()
	defer done()
	ctx, cancel := context.WithCancel(context.Background())
	child, err := locks.Lock(ctx, "a")
	if err != nil {
		log.Fatal(err)
	}
	detached, err := locks.Lock(ctx, "b", natslock.Detached())
	if err != nil {
		log.Fatal(err)
	}

	cancel()
	fmt.Println(child.Remaining() > 0, child.Err())
	fmt.Println(detached.Remaining() > 0, detached.Err())
	_ = child.Unlock(ctx) // works with a context that has ended
	_ = detached.Unlock(ctx)
	// Output:
	// true context canceled
	// true <nil>
}

// Until takes a lock for the rest of a period. It is never renewed, so that nobody else
// runs the job in this period, even if this process dies.
func ExampleUntil() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()
	end := time.Now().Add(2 * time.Second)

	l, err := locks.TryLock(ctx, "report.hourly", natslock.Until(end))
	if err != nil {
		log.Fatal(err) // errors.Is(err, natslock.ErrLocked): another process runs it
	}
	<-l.Context().Done()
	fmt.Println(errors.Is(l.Err(), natslock.ErrEnded), errors.Is(l.Err(), natslock.ErrLost))
	// Output: true false
}

// A lock that lingers stays with its client after the last Unlock. The next Lock of that
// client costs no message, and another client gets the lock as soon as it asks.
func ExampleLinger() {
	ctx := context.Background()
	nc, stop := example.Connect()
	defer stop()
	locks, err := natslock.New(ctx, nc)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close(ctx)
	other, err := natslock.New(ctx, nc) // another process, most likely
	if err != nil {
		log.Fatal(err)
	}
	defer other.Close(ctx)

	for range 100 {
		err := locks.Do(ctx, "cache.42", func(context.Context, *natslock.Lock) error { return nil }, natslock.Linger(time.Minute))
		if err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println("idle:", locks.Stats().Idle)
	l, err := other.Lock(ctx, "cache.42")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("idle:", locks.Stats().Idle, "and with the other client:", l.Err() == nil)
	_ = l.Unlock(ctx)
	// Output:
	// idle: 1
	// idle: 0 and with the other client: true
}

// MinHold keeps replicas whose clocks differ from running a short job twice: here the second
// one comes 10 ms later, when the job is over.
func ExampleMinHold() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()
	hourly := func() error {
		return locks.TryDo(ctx, "report.hourly", func(context.Context, *natslock.Lock) error {
			fmt.Println("the report is written")
			return nil
		}, natslock.MinHold(time.Minute))
	}

	fmt.Println(hourly())
	time.Sleep(10 * time.Millisecond)
	fmt.Println("left to the other:", errors.Is(hourly(), natslock.ErrLocked))
	info, err := admin.New(locks).Inspect(ctx, admin.KindMutex, "report.hourly")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("not renewed any more:", info.Holder.Fixed)
	// Output:
	// the report is written
	// <nil>
	// left to the other: true
	// not renewed any more: true
}

// Handoff leaves a lock in the bucket for another process, which adopts it with the handle.
// Nobody gets the lock in between.
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
		log.Fatal(err) // not confirmed: the lock is free after its TTL
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

// Adopt takes the lock that a handle names, with its fencing token. That works once.
func ExampleClient_Adopt() {
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

	adopted, err := locks.Adopt(ctx, handle) // another process, most likely
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(adopted.Err(), adopted.Token() == l.Token())
	_, err = locks.Adopt(ctx, handle)
	fmt.Println("again:", errors.Is(err, natslock.ErrNotHandedOver))
	_ = adopted.Unlock(ctx)
	// Output:
	// <nil> true
	// again: true
}

// Contended notifies the holder of a long job that another goroutine or client waits. The
// holder stops after the current part of the job.
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
				return nil // the lock is unlocked, and the next one gets it
			case <-time.After(time.Millisecond): // a part of the job
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

// A lease that is not renewed ends by itself, unless it is extended.
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
		log.Fatal(err) // not confirmed: the validity is as it was
	}
	fmt.Println(l.Remaining() > 50*time.Minute)
	_ = l.Unlock(ctx)
	// Output:
	// false
	// true
}

// The lock's context ends with the lock. Its cause says why.
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

// Unlock reports whether the lock was held to that moment.
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

// Do runs a function under a lock that is held already, and unlocks it.
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

// A resource that refuses tokens lower than the greatest it has seen is safe from
// holders that were paused: see the example of the package.
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

// EarlyWarning is called while there is time left to stop.
func ExampleEarlyWarning() {
	_ = func(ctx context.Context, locks *natslock.Client, batches []func(context.Context) error) error {
		stop := make(chan struct{}, 1)
		warn := natslock.EarlyWarning(3*time.Second, func(*natslock.Lock) { stop <- struct{}{} })
		return locks.Do(ctx, "import", func(ctx context.Context, l *natslock.Lock) error {
			for _, batch := range batches {
				select {
				case <-stop:
					return errors.New("stopped early: the server does not answer")
				default:
				}
				if err := batch(ctx); err != nil {
					return err
				}
			}
			return nil
		}, warn)
	}
}
