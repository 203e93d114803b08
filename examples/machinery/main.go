// Command machinery shows how to do with natslock what the locks of machinery, a task
// queue, do for its workers. In machinery, a worker locks the name of a periodic task
// until an absolute time, and does not unlock it.
//
//   - Locking once is TryLock. Until sets when the lock ends: the client never renews the
//     lock, and the server frees it shortly after that time.
//   - Locking with retries is Lock with MaxWait. The worker queues for as long as the
//     retries would take, and the server notifies it, so no worker polls.
//   - A task that always uses the same name, locked until its next tick, misses every
//     second tick. Once uses a separate name for each period, and runs the task once under
//     each name.
//   - For tests, package locktest has an in-memory lock, and package testutil runs a real
//     server.
//
// It needs a server:
//
//	lockctl server &
//	go run ./examples/machinery
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/natslock/locks/natslock"
)

// lock mirrors the two methods of machinery's Lock interface.
type lock struct {
	*natslock.Client
	retries  int
	interval time.Duration
}

// once locks key until the given time, or returns an error without waiting.
func (l lock) once(ctx context.Context, key string, until time.Time) (*natslock.Lock, error) {
	return l.TryLock(ctx, key, natslock.Until(until))
}

// withRetries waits for the lock for as long as the retries would take.
func (l lock) withRetries(ctx context.Context, key string, until time.Time) (*natslock.Lock, error) {
	return l.Lock(ctx, key, natslock.Until(until), natslock.MaxWait(time.Duration(l.retries)*l.interval))
}

func main() {
	server := flag.String("server", cmp.Or(os.Getenv("NATS_URL"), nats.DefaultURL), "NATS `URL`")
	flag.Parse()
	if err := run(context.Background(), *server); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, server string) error {
	var workers [3]lock
	for i := range workers {
		nc, err := nats.Connect(server, nats.Name("machinery"), nats.MaxReconnects(-1), nats.IgnoreAuthErrorAbort())
		if err != nil {
			return err
		}
		defer nc.Close()
		locks, err := natslock.New(ctx, nc, natslock.WithOwner(fmt.Sprint("worker-", i)))
		if err != nil {
			return err
		}
		defer locks.Close(ctx)
		workers[i] = lock{locks, 3, 100 * time.Millisecond}
	}

	key := natslock.Join("machinery", fmt.Sprint(os.Getpid()))
	end := time.Now().Add(3 * time.Second)
	first, err := workers[0].once(ctx, key, end)
	if err != nil {
		return err
	}
	_, err = workers[1].once(ctx, key, end)
	fmt.Println("locked already:", errors.Is(err, natslock.ErrLocked))
	_, err = workers[1].withRetries(ctx, key, end)
	fmt.Println("locked after 3 retries:", errors.Is(err, natslock.ErrTimeout))
	workers[1].retries = 100
	second, err := workers[1].withRetries(ctx, key, time.Now().Add(time.Hour))
	if err != nil {
		return err
	}
	fmt.Println("freed in time:", time.Now().After(end), errors.Is(first.Err(), natslock.ErrEnded), second.Err() == nil, second.Unlock(ctx))
	return periodic(ctx, workers[:], time.Second)
}

// periodic runs a task once per period, for three periods, while all workers keep trying.
func periodic(ctx context.Context, workers []lock, period time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, 3*period)
	defer cancel()
	var wg sync.WaitGroup
	for i, w := range workers {
		wg.Go(func() {
			for ctx.Err() == nil {
				begin := time.Now().Truncate(period).Format(time.TimeOnly)
				err := w.Once(ctx, natslock.Join("machinery.report", begin), 2*period, func(context.Context, *natslock.Lock) error {
					fmt.Println("report of", begin, "by worker", i)
					return nil
				})
				if err != nil && !errors.Is(err, natslock.ErrLocked) && ctx.Err() == nil {
					fmt.Println(err) // the worker tries again
				}
				time.Sleep(period / 10)
			}
		})
	}
	wg.Wait()
	return nil
}
