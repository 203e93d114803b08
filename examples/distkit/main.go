// Command distkit shows how to do with natslock what the locks of distkit, a Rust toolkit, do on
// Redis. The toolkit has a mutex and a reader-writer lock. Each can be acquired with an unlimited
// wait, with a limited one, or without waiting.
//
//   - The namespace is the first part of the name. The TTL and the owner are client options with
//     defaults. MaxWait is an option of an acquire.
//   - New and the acquires check their arguments before they send anything. Errors match sentinels
//     for a held lock, a timeout, a loss, and an invalid TTL or option. LockedError and TimeoutError
//     carry the holder, and TimeoutError also carries the time waited.
//   - The client renews a lease every third of its TTL, and retries until the validity ends.
//     Remaining and Err read the clock and need no I/O. Unlock reports whether the lock was lost.
//   - Do unlocks when its function returns or panics. A dropped lock is not renewed.
//   - A reader that arrives later never overtakes a waiting writer, and clients are served in the
//     order in which they queue. A one-shot write neither queues nor delays readers. A waiter that
//     gives up deletes its place, and a crashed waiter's place expires with its TTL.
//   - A lock is held only within the validity that the server has confirmed, even if it lingers.
//
// It needs a server:
//
//	lockctl server &
//	go run ./examples/distkit
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/rwlock"
)

func main() {
	server := flag.String("server", cmp.Or(os.Getenv("NATS_URL"), nats.DefaultURL), "NATS `URL`")
	flag.Parse()
	ctx := context.Background()
	nc := must(nats.Connect(*server, nats.Name("distkit"), nats.MaxReconnects(-1), nats.IgnoreAuthErrorAbort()))
	defer nc.Close()
	options := []natslock.Option{natslock.WithTTL(30 * time.Second), natslock.WithOwner("billing-1")}
	locks := must(natslock.New(ctx, nc, options...))
	_, err := natslock.New(ctx, nc, natslock.WithTTL(-time.Second))
	fmt.Println("invalid TTL:", errors.Is(err, natslock.ErrInvalid))
	mutex(ctx, locks, natslock.Join("distkit", fmt.Sprint(os.Getpid()), "invoice"))
	other := must(natslock.New(ctx, nc, options...)) // in practice, another process
	readersAndWriters(ctx, rwlock.New(locks), rwlock.New(other), natslock.Join("distkit", fmt.Sprint(os.Getpid()), "prices"))
	fmt.Println("closed:", locks.Close(ctx), other.Close(ctx))
}

func mutex(ctx context.Context, locks *natslock.Client, name string) {
	guard := must(locks.Lock(ctx, name)) // waits without a limit
	_, err := locks.TryLock(ctx, name)   // does not wait
	if locked, ok := errors.AsType[*natslock.LockedError](err); ok {
		fmt.Println("not acquired; it is held by", locked.Holder.Owner)
	}
	_, err = locks.Lock(ctx, name, natslock.MaxWait(50*time.Millisecond)) // waits for a limited time
	if timeout, ok := errors.AsType[*natslock.TimeoutError](err); ok {
		fmt.Println("timed out after 50 ms:", timeout.Waited >= 50*time.Millisecond)
	}
	fmt.Println("guard:", guard.Err(), guard.Unlock(ctx), guard.Remaining())

	guard = must(locks.TryLock(ctx, name))
	info := must(admin.New(locks).Inspect(ctx, admin.KindMutex, name))
	must(0, admin.New(locks).Break(ctx, admin.BreakRequest{Name: name, ID: info.Holder.ID, Reason: "the next part of the example"}))
	<-guard.Context().Done()
	fmt.Println("guard:", guard.Remaining(), "and no longer the owner:", errors.Is(guard.Unlock(ctx), natslock.ErrLost))
}

func readersAndWriters(ctx context.Context, here, there *rwlock.RWLock, name string) {
	reader := must(here.RLock(ctx, name))
	_, err := there.TryLock(ctx, name)
	fmt.Println("one-shot write alongside a reader is refused:", errors.Is(err, natslock.ErrLocked))
	fmt.Println("one-shot read after that:", must(there.TryRLock(ctx, name)).Unlock(ctx))

	wrote := make(chan *natslock.Lock)
	go func() { wrote <- must(there.Lock(ctx, name)) }()
	<-reader.Contended() // the writer waits
	_, err = here.TryRLock(ctx, name)
	fmt.Println("one-shot read past a waiting writer is refused:", errors.Is(err, natslock.ErrLocked))
	_, err = here.RLock(ctx, name, natslock.MaxWait(50*time.Millisecond))
	fmt.Println("bounded read past the writer times out:", errors.Is(err, natslock.ErrTimeout))
	fmt.Println("the reader unlocks:", reader.Unlock(ctx))
	writer := <-wrote
	fmt.Println("the writer unlocks:", writer.Unlock(ctx))
	later := must(here.RLock(ctx, name))
	fmt.Println("tokens increase:", reader.Token() < writer.Token() && writer.Token() < later.Token(), later.Unlock(ctx))
}

// must ends the program on an error.
func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}
