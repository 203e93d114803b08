// Command grove shows how to do with natslock what the lock of Grove KV does on a key store.
// In Grove KV, a lock is an object made from a store, a key and a TTL. The store keeps the
// lock under a documented key, and only its owner can extend or release it.
//
//   - A lock is not renewed in the background, because NoRenew leaves that to Extend.
//   - Acquire is TryLock. AcquireWithRetry is Lock with MaxWait, and its context can end the
//     wait too. The caller waits in a queue instead of polling, so the interval times the
//     number of tries becomes the maximum wait.
//   - Each acquire has a unique id. The server checks the owner's record on each write, so an
//     owner whose lease has ended cannot extend or release anything.
//   - The bucket takes the place of a prefix for all locks: see WithBucket. The lock named n
//     has the key lock.n, and its queue has keys below wait.n. Join builds a name from parts
//     with any bytes.
//
// It needs a server:
//
//	lockctl server &
//	go run ./examples/grove
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
	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/natslock"
)

// lock is a lock on a key in a store, held or not.
type lock struct {
	store *natslock.Client
	key   string
	ttl   time.Duration
	*natslock.Lock
}

func newLock(store *natslock.Client, key string, ttl time.Duration) *lock {
	return &lock{store, key, ttl, &natslock.Lock{}}
}

// acquire takes the lock if it is free.
func (l *lock) acquire(ctx context.Context) error {
	return l.set(l.store.TryLock(ctx, l.key, natslock.TTL(l.ttl), natslock.NoRenew()))
}

// acquireWithRetry waits for the lock until ctx ends, or for as long as the tries would take.
func (l *lock) acquireWithRetry(ctx context.Context, interval time.Duration, tries int) error {
	wait := natslock.MaxWait(interval * time.Duration(tries))
	return l.set(l.store.Lock(ctx, l.key, natslock.TTL(l.ttl), natslock.NoRenew(), wait))
}

func (l *lock) set(held *natslock.Lock, err error) error {
	if err == nil {
		l.Lock = held
	}
	return err
}

func main() {
	server := flag.String("server", cmp.Or(os.Getenv("NATS_URL"), nats.DefaultURL), "NATS `URL`")
	flag.Parse()
	if err := run(context.Background(), *server); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, server string) error {
	nc, err := nats.Connect(server, nats.Name("grove"), nats.MaxReconnects(-1), nats.IgnoreAuthErrorAbort())
	if err != nil {
		return err
	}
	defer nc.Close()
	store, err := natslock.New(ctx, nc, natslock.WithBucket("grove"))
	if err != nil {
		return err
	}
	key := natslock.Join("cache", fmt.Sprint(os.Getpid()))
	first, second := newLock(store, key, 3*time.Second), newLock(store, key, time.Minute)
	fmt.Println("released before being held:", first.Unlock(ctx))

	if err := first.acquire(ctx); err != nil {
		return err
	}
	fmt.Println("extended by the owner:", first.Extend(ctx, 4*time.Second))
	fmt.Println("acquired twice:", errors.Is(second.acquire(ctx), natslock.ErrLocked))
	err = second.acquireWithRetry(ctx, 10*time.Millisecond, 5)
	fmt.Println("acquired with 5 tries:", errors.Is(err, natslock.ErrTimeout))
	fmt.Println("acquired with more:", second.acquireWithRetry(ctx, 10*time.Millisecond, 3000))

	fmt.Println("extended by the first:", errors.Is(first.Extend(ctx, 0), natslock.ErrLost))
	fmt.Println("released by the first:", errors.Is(first.Unlock(ctx), natslock.ErrLost))
	fmt.Println("held by the second:", second.Err() == nil, first.ID() != second.ID())

	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	bucket, err := js.KeyValue(ctx, "grove")
	if err != nil {
		return err
	}
	_, err = bucket.Get(ctx, "lock."+key)
	fmt.Println("its key exists:", err)
	fmt.Println("released by the owner:", second.Unlock(ctx))
	_, err = bucket.Get(ctx, "lock."+key)
	fmt.Println("its key was deleted:", errors.Is(err, jetstream.ErrKeyNotFound))
	return store.Close(ctx)
}
