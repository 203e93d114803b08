package natslock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"os"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/internal/verify/example"
	"github.com/natslock/locks/kvstore"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
)

// Meta shows other clients and operators what the holder does.
func ExampleMeta() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()
	l, err := locks.Lock(ctx, "orders.42", natslock.Meta(map[string]string{"ticket": "OPS-1"}))
	if err != nil {
		log.Fatal(err)
	}

	info, err := admin.New(locks).Inspect(ctx, admin.KindMutex, "orders.42")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(info.Holder.Meta["ticket"])
	_ = l.Unlock(ctx)
	// Output: OPS-1
}

// The client does not renew such a lease. It ends with its TTL, unless Extend prolongs it.
func ExampleNoRenew() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()
	l, err := locks.Lock(ctx, "orders.42", natslock.NoRenew(), natslock.TTL(time.Second))
	if err != nil {
		log.Fatal(err)
	}
	<-l.Context().Done()
	fmt.Println(errors.Is(l.Err(), natslock.ErrLost))
	// Output: true
}

// A TTL of 1.5 s is 2 s: the server counts whole seconds.
func ExampleTTL() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()
	l, err := locks.Lock(ctx, "orders.42", natslock.TTL(1500*time.Millisecond))
	if err != nil {
		log.Fatal(err)
	}
	info, err := admin.New(locks).Inspect(ctx, admin.KindMutex, "orders.42")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(info.Holder.TTL)
	_ = l.Unlock(ctx)
	_, err = locks.Lock(ctx, "orders.42", natslock.TTL(48*time.Hour))
	fmt.Println(errors.Is(err, natslock.ErrInvalid))
	// Output:
	// 2s
	// true
}

// Locks in different buckets are different locks.
func ExampleWithBucket() {
	ctx := context.Background()
	nc, stop := example.Connect()
	defer stop()
	for _, tenant := range []string{"tenant-a", "tenant-b"} {
		locks, err := natslock.New(ctx, nc, natslock.WithBucket(tenant))
		if err != nil {
			log.Fatal(err)
		}
		defer locks.Close(ctx)
		l, err := locks.TryLock(ctx, "orders.42")
		if err != nil {
			log.Fatal(err)
		}
		defer l.Unlock(ctx)
		fmt.Println(tenant, l.Err())
	}
	// Output:
	// tenant-a <nil>
	// tenant-b <nil>
}

// A service without the permission to create streams needs a bucket that exists.
func ExampleWithCreate() {
	nc, stop := example.Connect()
	defer stop()
	_, err := natslock.New(context.Background(), nc, natslock.WithCreate(false))
	fmt.Println("an operator has to create it:", errors.Is(err, kvstore.ErrNotFound))
	// Output: an operator has to create it: true
}

// JetStream may be reached under a prefix or in a domain: see jetstream.NewWithDomain.
func ExampleWithJetStream() {
	ctx := context.Background()
	nc, stop := example.Connect()
	defer stop()
	js, err := jetstream.NewWithAPIPrefix(nc, "$JS.API")
	if err != nil {
		log.Fatal(err)
	}
	locks, err := natslock.New(ctx, nc, natslock.WithJetStream(js))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(locks.Close(ctx))
	// Output: <nil>
}

// The owner is a name for people. It has no effect on the locking.
func ExampleWithOwner() {
	ctx := context.Background()
	locks, done := example.Client(natslock.WithOwner("billing-1"))
	defer done()
	l, err := locks.Lock(ctx, "orders.42")
	if err != nil {
		log.Fatal(err)
	}
	info, err := admin.New(locks).Inspect(ctx, admin.KindMutex, "orders.42")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(info.Holder.Owner)
	_ = l.Unlock(ctx)
	// Output: billing-1
}

// The TTL of a client bounds how long a crashed holder keeps others out.
func ExampleWithTTL() {
	ctx := context.Background()
	locks, done := example.Client(natslock.WithTTL(time.Minute))
	defer done()
	l, err := locks.Lock(ctx, "orders.42")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(l.Remaining() > 50*time.Second)
	_ = l.Unlock(ctx)
	// Output: true
}

// The logger receives warnings, and here that New created the bucket.
func ExampleWithLogger() {
	withoutTime := func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.LevelKey || a.Key == slog.MessageKey {
			return a
		}
		return slog.Attr{}
	}
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: withoutTime}))
	_, done := example.Client(natslock.WithLogger(logger))
	done()
	// Output: level=INFO msg="created lock bucket"
}
