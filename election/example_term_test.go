package election_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/natslock/locks/election"
	"github.com/natslock/locks/internal/verify/example"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
)

// Run the leader's work with the term's context. Its cause is the same as a lock's.
func ExampleTerm_Context() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()
	term, err := election.New(locks, "scheduler").Campaign(ctx)
	if err != nil {
		log.Fatal(err)
	}

	work := term.Context()
	fmt.Println(work.Err())
	_ = term.Resign(ctx)
	fmt.Println(errors.Is(context.Cause(work), natslock.ErrReleased))
	// Output:
	// <nil>
	// true
}

// Tokens rise with every term, so a resource that rejects lower tokens is safe from the leader of
// an earlier term.
func ExampleTerm_Token() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()
	e := election.New(locks, "scheduler")
	var newest uint64
	for range 3 {
		term, err := e.Campaign(ctx)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(term.Token() > newest)
		newest = term.Token()
		_ = term.Resign(ctx)
	}
	// Output:
	// true
	// true
	// true
}

// If a step takes longer than the rest of the term, do not start it.
func ExampleTerm_Remaining() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()
	term, err := election.New(locks, "scheduler", election.TTL(time.Minute)).Campaign(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(term.Remaining() > 30*time.Second)
	_ = term.Resign(ctx)
	fmt.Println(term.Remaining())
	// Output:
	// true
	// 0s
}

// Err is useful in a loop that does not select on a context.
func ExampleTerm_Err() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()
	term, err := election.New(locks, "scheduler").Campaign(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(term.Err())
	_ = term.Resign(ctx)
	fmt.Println(errors.Is(term.Err(), natslock.ErrReleased))
	// Output:
	// <nil>
	// true
}

// Observe yields a vacancy as a Leader too.
func ExampleLeader_Vacant() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()
	for l, err := range election.New(locks, "scheduler").Observe(ctx) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("nobody leads:", l.Vacant())
		break
	}
	// Output: nobody leads: true
}

// If a leader crashes, the next one takes over within the TTL plus half a second.
func ExampleTTL() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()
	term, err := election.New(locks, "scheduler", election.TTL(2*time.Second)).Campaign(ctx)
	if err != nil {
		log.Fatal(err)
	}
	info, err := admin.New(locks).Inspect(ctx, admin.KindMutex, "scheduler") // an election is a mutex
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(info.Holder.TTL)
	_ = term.Resign(ctx)
	// Output: 2s
}
