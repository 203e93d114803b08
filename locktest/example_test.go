package locktest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/natslock/locks/locktest"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/rwlock"
)

// Report is code that takes locks: it stops when it loses its lock.
func report(ctx context.Context, locks natslock.Locker, work func(ctx context.Context) error) string {
	l, err := locks.TryLock(ctx, "report")
	if errors.Is(err, natslock.ErrLocked) {
		return "another process makes the report"
	}
	if err != nil {
		return "no lock: " + err.Error()
	}
	if err := l.Do(func(ctx context.Context, _ *natslock.Lock) error { return work(ctx) }); errors.Is(err, natslock.ErrLost) {
		return "stopped: the lock is lost"
	}
	return "done"
}

func ExampleNew() {
	locks := locktest.New()
	defer locks.Close()
	fmt.Println(report(context.Background(), locks, func(context.Context) error { return nil }))
	// Output: done
}

func ExampleLocker_Hold() {
	locks := locktest.New()
	defer locks.Close()
	release := locks.Hold("report")
	fmt.Println(report(context.Background(), locks, nil))
	release()
	// Output: another process makes the report
}

func ExampleLocker_Lose() {
	locks := locktest.New()
	defer locks.Close()
	fmt.Println(report(context.Background(), locks, func(ctx context.Context) error {
		locks.Lose("report")
		return ctx.Err()
	}))
	// Output: stopped: the lock is lost
}

func ExampleLocker_Break() {
	locks := locktest.New()
	defer locks.Close()
	err := locks.Do(context.Background(), "report", func(ctx context.Context, l *natslock.Lock) error {
		locks.Break("report", "it hangs")
		return ctx.Err()
	})
	fmt.Println(errors.Is(err, natslock.ErrBroken))
	// Output: true
}

func ExampleLocker_Delay() {
	locks := locktest.New()
	defer locks.Close()
	locks.Delay("report", time.Minute)
	_, err := locks.Lock(context.Background(), "report", natslock.MaxWait(10*time.Millisecond))
	fmt.Println(errors.Is(err, natslock.ErrTimeout))
	// Output: true
}

func ExampleLocker_Fail() {
	locks := locktest.New()
	defer locks.Close()
	locks.Fail(natslock.ErrPermission)
	fmt.Println(report(context.Background(), locks, nil))
	// Output: no lock: acquire lock "report": permission denied
}

func ExampleLocker_Lock() {
	ctx := context.Background()
	locks := locktest.New()
	defer locks.Close()
	l, err := locks.Lock(ctx, "report")
	fmt.Println(l.Name(), err)
	fmt.Println(l.Unlock(ctx))
	// Output:
	// report <nil>
	// <nil>
}

func ExampleLocker_TryLock() {
	ctx := context.Background()
	locks := locktest.New(natslock.WithOwner("web-1"))
	defer locks.Close()
	l, _ := locks.TryLock(ctx, "report")
	_, err := locks.NewClient().TryLock(ctx, "report")
	locked, _ := errors.AsType[*natslock.LockedError](err)
	fmt.Println(locked.Holder.Owner)
	_ = l.Unlock(ctx)
	// Output: web-1
}

func ExampleLocker_Do() {
	locks := locktest.New()
	defer locks.Close()
	fmt.Println(locks.Do(context.Background(), "report", func(ctx context.Context, l *natslock.Lock) error {
		fmt.Println("under", l.Name())
		return nil
	}))
	// Output:
	// under report
	// <nil>
}

// What another client holds is left alone.
func ExampleLocker_TryDo() {
	locks := locktest.New()
	defer locks.Close()
	locks.Hold("report")
	err := locks.TryDo(context.Background(), "report", func(context.Context, *natslock.Lock) error {
		fmt.Println("this does not run")
		return nil
	})
	fmt.Println(errors.Is(err, natslock.ErrLocked))
	// Output: true
}

// Code that takes reader-writer locks needs the client.
func ExampleLocker_Client() {
	ctx := context.Background()
	locks := locktest.New()
	defer locks.Close()
	index := rwlock.New(locks.Client())
	l, err := index.RLock(ctx, "index")
	fmt.Println(l.Name(), err)
	_ = l.Unlock(ctx)
	// Output: index <nil>
}

// Each client stands for a process.
func ExampleLocker_NewClient() {
	ctx := context.Background()
	locks := locktest.New()
	defer locks.Close()
	a, b := locks.NewClient(), locks.NewClient()
	l, _ := a.TryLock(ctx, "report")
	_, err := b.TryLock(ctx, "report")
	fmt.Println(errors.Is(err, natslock.ErrLocked))
	_ = l.Unlock(ctx)
	// Output: true
}

func ExampleLocker_AwaitWaiting() {
	ctx := context.Background()
	locks := locktest.New()
	defer locks.Close()
	release := locks.Hold("report")
	done := make(chan error)
	go func() {
		done <- locks.Do(ctx, "report", func(context.Context, *natslock.Lock) error { return nil })
	}()
	_ = locks.AwaitWaiting(ctx, "report", 1)
	fmt.Println("it waits")
	release()
	fmt.Println(<-done)
	// Output:
	// it waits
	// <nil>
}

// The process of another client dies: its lock stays until its lease ends.
func ExampleLocker_Disconnect() {
	ctx := context.Background()
	locks := locktest.New()
	defer locks.Close()
	other := locks.NewClient()
	_, _ = other.Lock(ctx, "report")
	reconnect := locks.Disconnect(other)
	_, err := locks.TryLock(ctx, "report")
	fmt.Println(errors.Is(err, natslock.ErrLocked))
	_, err = other.TryLock(ctx, "other")
	fmt.Println(errors.Is(err, natslock.ErrUnavailable))
	reconnect()
	_, err = other.TryLock(ctx, "other")
	fmt.Println(err)
	// Output:
	// true
	// true
	// <nil>
}

func ExampleLocker_Waiting() {
	locks := locktest.New()
	defer locks.Close()
	release := locks.Hold("report")
	defer release()
	fmt.Println(locks.Waiting("report"))
	// Output: 0
}

func ExampleLocker_Inspect() {
	locks := locktest.New()
	defer locks.Close()
	release := locks.Hold("report")
	defer release()
	info := locks.Inspect(admin.KindMutex, "report")
	fmt.Println(info.Holder.Owner, len(info.Queue))
	// Output: locktest 0
}

// Close ends the locks that a test has left.
func ExampleLocker_Close() {
	locks := locktest.New()
	l, _ := locks.Lock(context.Background(), "report")
	locks.Close()
	fmt.Println(errors.Is(l.Err(), natslock.ErrClosed))
	// Output: true
}

// Counting is a Locker of a user, around another one.
type counting struct {
	natslock.Locker
	locks int
}

func (c *counting) Lock(ctx context.Context, name string, opts ...natslock.LockOption) (*natslock.Lock, error) {
	c.locks++
	return c.Locker.Lock(ctx, name, opts...)
}

// A Locker of your own keeps the contract.
func ExampleTestLocker() {
	// In a test:
	_ = func(t *testing.T) {
		locktest.TestLocker(t, func(t *testing.T) natslock.Locker {
			locks := locktest.New()
			t.Cleanup(locks.Close)
			return &counting{Locker: locks}
		})
	}
}

func ExampleTestRLocker() {
	// In a test:
	_ = func(t *testing.T) {
		locktest.TestRLocker(t, func(t *testing.T) (reader, writer natslock.Locker) {
			locks := locktest.New()
			t.Cleanup(locks.Close)
			rw := rwlock.New(locks.Client())
			return rw.RLocker(), rw
		})
	}
}
