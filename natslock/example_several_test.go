package natslock_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/natslock/locks/internal/verify/example"
	"github.com/natslock/locks/natslock"
)

// accounts locks two accounts on a server that is started for an example.
func accounts() (all *natslock.LockSet, done func()) {
	locks, done := example.Client()
	all, err := locks.LockAll(context.Background(), []string{"account.9", "account.4", "account.9"})
	if err != nil {
		log.Fatal(err)
	}
	return all, done
}

// Do runs a function under locks that are held already, and unlocks them.
func ExampleLockSet_Do() {
	all, done := accounts() // Client.LockAll
	defer done()

	err := all.Do(func(ctx context.Context, l *natslock.LockSet) error {
		fmt.Println("both are held:", l.Err() == nil)
		return ctx.Err()
	})
	fmt.Println(err, errors.Is(all.Err(), natslock.ErrReleased))
	// Output:
	// both are held: true
	// <nil> true
}

// Unlock releases all locks at once. Its errors name the locks that were lost.
func ExampleLockSet_Unlock() {
	all, done := accounts()
	defer done()
	switch err := all.Unlock(context.Background()); {
	case err == nil:
		fmt.Println("alone all the time")
	case errors.Is(err, natslock.ErrLost):
		fmt.Println("others may have got in:", err)
	}
	// Output: alone all the time
}

// The context of several locks ends with the first of them.
func ExampleLockSet_Context() {
	all, done := accounts()
	defer done()
	work := all.Context()
	fmt.Println(work.Err())
	_ = all.Unlock(context.Background())
	fmt.Println(errors.Is(context.Cause(work), natslock.ErrReleased))
	// Output:
	// <nil>
	// true
}

// Err returns nil while all locks are held, and then the cause of the first end.
func ExampleLockSet_Err() {
	all, done := accounts()
	defer done()
	fmt.Println(all.Err())
	_ = all.Unlock(context.Background())
	fmt.Println(errors.Is(all.Err(), natslock.ErrReleased))
	// Output:
	// <nil>
	// true
}

// Each name comes once, in the order in which every client takes them.
func ExampleLockSet_Names() {
	all, done := accounts()
	defer done()
	fmt.Println(all.Names())
	_ = all.Unlock(context.Background())
	// Output: [account.4 account.9]
}

// Each lock has a fencing token of its own.
func ExampleLockSet_Token() {
	all, done := accounts()
	defer done()
	for _, name := range all.Names() {
		fmt.Println(name, all.Token(name) > 0)
	}
	fmt.Println(all.Token("account.5"))
	_ = all.Unlock(context.Background())
	// Output:
	// account.4 true
	// account.9 true
	// 0
}
