package natslock_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/natslock/locks/internal/verify/example"
	"github.com/natslock/locks/natslock"
)

func ExampleClient_Inspect() {
	ctx := context.Background()
	locks, done := example.Client(natslock.WithOwner("web-1"))
	defer done()
	l, err := locks.Lock(ctx, "orders.42", natslock.Meta(map[string]string{"request": "r-17"}))
	if err != nil {
		log.Fatal(err)
	}

	info, err := locks.Inspect(ctx, natslock.KindMutex, "orders.42")
	if err != nil {
		log.Fatal(err)
	}
	if h := info.Holder; h != nil {
		fmt.Println(h.Owner, h.Meta["request"], h.Token == l.Token(), h.ID == l.ID())
	}
	fmt.Println(len(info.Queue), "waiting")
	_ = l.Unlock(ctx)
	// Output:
	// web-1 r-17 true true
	// 0 waiting
}

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

	info, err := locks.Inspect(ctx, natslock.KindMutex, "import")
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

func ExampleClient_List() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()
	for _, name := range []string{"orders.1", "orders.2", "users.1"} {
		l, err := locks.Lock(ctx, name)
		if err != nil {
			log.Fatal(err)
		}
		defer l.Unlock(ctx)
	}

	for info, err := range locks.List(ctx, "orders.*") {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(info.Kind, info.Name)
	}
	// Output:
	// mutex orders.1
	// mutex orders.2
}

// Removes what a server has left behind that forgot TTLs over a restart.
func ExampleClient_RemoveOverdue() {
	locks, done := example.Client()
	defer done()

	removed, left, err := locks.RemoveOverdue(context.Background(), ">", 1000)
	fmt.Println(removed, "removed,", left, "left,", err)
	// Output: 0 removed, 0 left, <nil>
}

// List the locks at each mark, and nothing is missed between the list and the events.
func ExampleClient_Watch() {
	ctx := context.Background()
	locks, done := example.Client(natslock.WithOwner("web-1"))
	defer done()

	for ev, err := range locks.Watch(ctx, "orders.>") {
		if err != nil {
			log.Fatal(err)
		}
		switch ev.Type {
		case natslock.EventWatching:
			for info, err := range locks.List(ctx, "orders.>") {
				fmt.Println("there already:", info.Name, err)
			}
			err := locks.Do(ctx, "orders.42", func(context.Context, *natslock.Lock) error { return nil })
			if err != nil {
				log.Fatal(err)
			}
		case natslock.EventGranted:
			fmt.Println(ev.Holder.Owner, "has got", ev.Name)
		case natslock.EventReleased:
			fmt.Println(ev.Holder.Owner, "has released", ev.Name)
			return
		}
	}
	// Output:
	// web-1 has got orders.42
	// web-1 has released orders.42
}

// Break ends the claim that was inspected, and never a later one.
func ExampleClient_Break() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()
	l, err := locks.Lock(ctx, "orders.42")
	if err != nil {
		log.Fatal(err)
	}

	info, err := locks.Inspect(ctx, natslock.KindMutex, "orders.42")
	if err != nil || info.Holder == nil {
		log.Fatal("nobody holds it: ", err)
	}
	request := natslock.BreakRequest{Kind: info.Kind, Name: info.Name, ID: info.Holder.ID, Reason: "its host is gone"}
	if err := locks.Break(ctx, request); err != nil {
		log.Fatal(err)
	}
	// Nobody gets in before the holder has stopped.
	_, err = locks.TryLock(ctx, "orders.42")
	fmt.Println(errors.Is(err, natslock.ErrLocked))
	fmt.Println(errors.Is(l.Unlock(ctx), natslock.ErrBroken))
	fmt.Println(errors.Is(locks.Break(ctx, request), natslock.ErrReleased))
	// Output:
	// true
	// true
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

// A renewal that is late endangers no lock yet: two more fit into the TTL.
func ExampleClient_RenewalLag() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()
	err := locks.Do(ctx, "orders.42", func(context.Context, *natslock.Lock) error {
		fmt.Println("late by", locks.RenewalLag())
		return nil
	})
	fmt.Println(err)
	// Output:
	// late by 0s
	// <nil>
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

// The observer is called for each transition of this client's locks, in order.
func ExampleWithObserver() {
	locks, done := example.Client(natslock.WithObserver(func(ctx context.Context, ev natslock.Event) {
		fmt.Println(ev.Type, ev.Name)
	}))
	err := locks.Do(context.Background(), "orders.42", func(context.Context, *natslock.Lock) error { return nil })
	done() // waits for the observer
	fmt.Println(err)
	// Output:
	// granted orders.42
	// released orders.42
	// <nil>
}

// The subjects that a service may need for the locks under orders, and no others.
func ExamplePermissions() {
	p, err := natslock.Permissions(natslock.Access{Pattern: "orders.>", Role: natslock.RoleUser})
	if err != nil {
		log.Fatal(err)
	}
	for _, perm := range p.Subscribe {
		fmt.Println(perm.Subject)
	}
	// String has them as a block for the configuration of a server.
	fmt.Println(len(p.String()) > 0)
	// Output:
	// natslock.natslock.*.lock.orders.>
	// natslock.natslock.*.rw.orders.>
	// natslock.natslock.*.sem.orders.*.>
	// natslock.natslock.*.read.orders.*.>
	// natslock.natslock.*.wait.orders.*.>
	// natslock.natslock.*.rwait.orders.*.>
	// natslock.natslock.*.swait.orders.*.>
	// _INBOX.>
	// true
}
