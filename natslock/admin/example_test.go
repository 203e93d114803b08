package admin_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/natslock/locks/internal/verify/example"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
)

// The view of a bucket needs a client, and no closing of its own.
func ExampleNew() {
	ctx := context.Background()
	client, done := example.Client()
	defer done()
	locks := admin.New(client)
	info, err := locks.Inspect(ctx, admin.KindMutex, "orders.42")
	fmt.Println(info.Holder == nil, info.Waiting(), err)
	// Output: true 0 <nil>
}

func ExampleAdmin_Inspect() {
	ctx := context.Background()
	locks, done := example.Client(natslock.WithOwner("web-1"))
	defer done()
	l, err := locks.Lock(ctx, "orders.42", natslock.Meta(map[string]string{"request": "r-17"}))
	if err != nil {
		log.Fatal(err)
	}

	info, err := admin.New(locks).Inspect(ctx, admin.KindMutex, "orders.42")
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

func ExampleAdmin_List() {
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

	for info, err := range admin.New(locks).List(ctx, "orders.*") {
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
func ExampleAdmin_RemoveOverdue() {
	locks, done := example.Client()
	defer done()

	removed, left, err := admin.New(locks).RemoveOverdue(context.Background(), ">", 1000)
	fmt.Println(removed, "removed,", left, "left,", err)
	// Output: 0 removed, 0 left, <nil>
}

// List the locks at each mark, and nothing is missed between the list and the events.
func ExampleAdmin_Watch() {
	ctx := context.Background()
	locks, done := example.Client(natslock.WithOwner("web-1"))
	defer done()

	for ev, err := range admin.New(locks).Watch(ctx, "orders.>") {
		if err != nil {
			log.Fatal(err)
		}
		switch ev.Type {
		case admin.EventWatching:
			for info, err := range admin.New(locks).List(ctx, "orders.>") {
				fmt.Println("there already:", info.Name, err)
			}
			err := locks.Do(ctx, "orders.42", func(context.Context, *natslock.Lock) error { return nil })
			if err != nil {
				log.Fatal(err)
			}
		case admin.EventGranted:
			fmt.Println(ev.Holder.Owner, "has got", ev.Name)
		case admin.EventReleased:
			fmt.Println(ev.Holder.Owner, "has released", ev.Name)
			return
		}
	}
	// Output:
	// web-1 has got orders.42
	// web-1 has released orders.42
}

// Break ends the claim that was inspected, and never a later one.
func ExampleAdmin_Break() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()
	l, err := locks.Lock(ctx, "orders.42")
	if err != nil {
		log.Fatal(err)
	}

	info, err := admin.New(locks).Inspect(ctx, admin.KindMutex, "orders.42")
	if err != nil || info.Holder == nil {
		log.Fatal("nobody holds it: ", err)
	}
	request := admin.BreakRequest{Kind: info.Kind, Name: info.Name, ID: info.Holder.ID, Reason: "its host is gone"}
	if err := admin.New(locks).Break(ctx, request); err != nil {
		log.Fatal(err)
	}
	// Nobody gets in before the holder has stopped.
	_, err = locks.TryLock(ctx, "orders.42")
	fmt.Println(errors.Is(err, natslock.ErrLocked))
	fmt.Println(errors.Is(l.Unlock(ctx), natslock.ErrBroken))
	fmt.Println(errors.Is(admin.New(locks).Break(ctx, request), natslock.ErrReleased))
	// Output:
	// true
	// true
	// true
}

// The observer is called for each transition of this client's locks, in order.
func ExampleWithObserver() {
	locks, done := example.Client(admin.WithObserver(func(ctx context.Context, ev admin.Event) {
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
	p, err := admin.Permissions(admin.Access{Pattern: "orders.>", Role: admin.RoleUser})
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
