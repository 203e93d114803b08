// Command gocell shows how to do with natslock what package distlock does in the GoCell
// framework. In GoCell, a service knows only a backend-neutral interface, and an adapter
// knows the backend.
//
//   - The interface below has one method, and so does the adapter. An acquire returns a
//     child of the caller's context, with its values and deadline, that ends with the lock.
//   - The cause of that context tells apart a release, a loss, the end of the parent, and
//     the close of the client.
//   - One goroutine renews all locks of a client. It starts with the first lock, and ends a
//     second after the last one.
//   - A renewal without a reply is repeated until the validity ends, with no limit on
//     attempts. A reply that shows another owner ends the lock immediately.
//   - The client renews after a third of the TTL, and the validity ends a tenth of the TTL
//     early to allow for clock drift. No option changes that.
//   - Release returns once the server has confirmed it, even if its context has ended. A
//     second call returns the result of the first.
//   - Use Stats for health checks. Close returns when the client has drained.
//   - To test a service without a server, use package locktest, whose in-memory locks a
//     test can hold, lose and break. Package testutil runs a real server.
//
// It needs a server:
//
//	lockctl server &
//	go run ./examples/gocell
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"runtime"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
)

const ttl = 10 * time.Second

type traceKey struct{}

// locker is all that the service knows about locks.
type locker interface {
	acquire(ctx context.Context, key string, ttl time.Duration) (*lease, error)
}

// lease is a context that ends with the lock, and a function that releases the lock.
type lease struct {
	context.Context
	release func() error
}

// adapter turns a client into a locker.
type adapter struct{ *natslock.Client }

func (a adapter) acquire(ctx context.Context, key string, ttl time.Duration) (*lease, error) {
	l, err := a.Lock(ctx, key, natslock.TTL(ttl))
	if err != nil {
		return nil, err
	}
	return &lease{l.Context(), func() error { return l.Unlock(ctx) }}, nil
}

func main() {
	server := flag.String("server", cmp.Or(os.Getenv("NATS_URL"), nats.DefaultURL), "NATS `URL`")
	flag.Parse()
	ctx := context.Background()
	nc := must(nats.Connect(*server, nats.Name("gocell"), nats.MaxReconnects(-1), nats.IgnoreAuthErrorAbort()))
	defer nc.Close()
	client := must(natslock.New(ctx, nc))
	var locks locker = adapter{client}
	before := runtime.NumGoroutine()

	released := must(locks.acquire(ctx, "gocell.orders", ttl))
	fmt.Println("held:", ending(released))
	fmt.Println("released twice:", released.release(), released.release(), "and", ending(released))

	request, leave := context.WithCancelCause(context.WithValue(ctx, traceKey{}, "t-17"))
	child := must(locks.acquire(request, "gocell.orders", ttl))
	leave(errors.New("the user left"))
	fmt.Println("request", child.Value(traceKey{}), "is over:", ending(child))
	fmt.Println("released with a context that has ended:", child.release())

	lost := must(locks.acquire(ctx, "gocell.stock", ttl))
	info := must(admin.New(client).Inspect(ctx, admin.KindMutex, "gocell.stock"))
	err := admin.New(client).Break(ctx, admin.BreakRequest{Name: info.Name, ID: info.Holder.ID, Reason: "its cell is stuck"})
	<-lost.Done()
	fmt.Println("broken:", err, "and", ending(lost))

	all := make([]*lease, 100)
	for i := range all {
		all[i] = must(locks.acquire(ctx, fmt.Sprint("gocell.cell-", i), ttl))
	}
	fmt.Println("locks:", client.Stats().Held, "goroutines:", runtime.NumGoroutine()-before)
	drained := make(chan error)
	go func() { drained <- client.Close(ctx) }()
	for _, l := range all {
		must(l, l.release())
	}
	fmt.Println("drained:", <-drained)

	second := must(natslock.New(ctx, nc))
	late := must(adapter{second}.acquire(ctx, "gocell.late", 5*time.Second))
	now, cancel := context.WithCancel(ctx)
	cancel()
	fmt.Println("not drained:", errors.Is(second.Close(now), context.Canceled), "and", ending(late))
}

// ending describes why the lock behind a context ended.
func ending(held context.Context) string {
	switch cause := context.Cause(held); {
	case cause == nil:
		return "held"
	case errors.Is(cause, natslock.ErrReleased):
		return "released"
	case errors.Is(cause, natslock.ErrLost):
		return "lost"
	case errors.Is(cause, natslock.ErrClosed):
		return "shut down"
	default:
		return "the parent ended: " + cause.Error()
	}
}

// must ends the program on an error.
func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}
