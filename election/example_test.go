package election_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/natslock/locks/election"
	"github.com/natslock/locks/internal/verify/example"
	"github.com/natslock/locks/natslock"
)

// A service works while it leads, and then campaigns again.
func ExampleElection_Run() {
	ctx, stop := context.WithCancel(context.Background())
	locks, done := example.Client()
	defer done()

	schedule := func(ctx context.Context, token uint64) error {
		fmt.Println("leads:", token > 0)
		stop() // a service stops on a signal
		<-ctx.Done()
		return nil
	}
	e := election.New(locks, "scheduler", election.Value([]byte("10.0.0.7:8080")))
	err := e.Run(ctx, func(ctx context.Context, t *election.Term) error {
		return schedule(ctx, t.Token()) // ctx ends when the term does
	})
	fmt.Println("stopped:", errors.Is(err, context.Canceled))
	// Output:
	// leads: true
	// stopped: true
}

// A process leads for a single term.
func ExampleElection_Campaign() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()

	e := election.New(locks, "migration")
	term, err := e.Campaign(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("leads:", term.Context().Err() == nil)
	if err := term.Resign(ctx); err != nil {
		log.Print(err) // errors.Is(err, natslock.ErrLost): another candidate may already have led
	}
	fmt.Println("leads:", term.Context().Err() == nil)
	// Output:
	// leads: true
	// leads: false
}

// Any process can look up the leader and its value.
func ExampleElection_Leader() {
	ctx := context.Background()
	locks, done := example.Client(natslock.WithOwner("web-1"))
	defer done()
	e := election.New(locks, "scheduler", election.Value([]byte("10.0.0.7:8080")))
	_, err := e.Leader(ctx)
	fmt.Println(errors.Is(err, election.ErrNoLeader))

	term, err := e.Campaign(ctx)
	if err != nil {
		log.Fatal(err)
	}
	l, err := e.Leader(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s at %s\n", l.Owner, l.Value)
	_ = term.Resign(ctx)
	// Output:
	// true
	// web-1 at 10.0.0.7:8080
}

// An observer receives the current leader and every change.
func ExampleElection_Observe() {
	ctx, stop := context.WithCancel(context.Background())
	locks, done := example.Client()
	defer done()
	e := election.New(locks, "scheduler", election.Value([]byte("10.0.0.7:8080")))
	term, err := e.Campaign(ctx)
	if err != nil {
		log.Fatal(err)
	}
	show := func(leader string) {
		fmt.Println(leader)
		if leader == "nobody leads" {
			stop()
		}
		_ = term.Resign(ctx)
	}

	for l, err := range e.Observe(ctx) {
		switch {
		case err != nil:
			log.Fatal(err)
		case l.Vacant():
			show("nobody leads")
		default:
			show("the leader is at " + string(l.Value))
		}
	}
	// Output:
	// the leader is at 10.0.0.7:8080
	// nobody leads
}

// IsLeader does no I/O, so it is suitable for hot paths.
func ExampleElection_IsLeader() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()
	e := election.New(locks, "scheduler")
	_, leads := e.IsLeader()
	fmt.Println(leads)

	term, err := e.Campaign(ctx)
	if err != nil {
		log.Fatal(err)
	}
	token, leads := e.IsLeader()
	fmt.Println(leads, token == term.Token())
	_ = term.Resign(ctx)
	// Output:
	// false
	// true true
}

// A leader can replace its value while it leads.
func ExampleTerm_Proclaim() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()
	e := election.New(locks, "scheduler", election.Value([]byte("starting")))
	term, err := e.Campaign(ctx)
	if err != nil {
		log.Fatal(err)
	}
	if err := term.Proclaim(ctx, []byte("10.0.0.7:8080")); err != nil {
		log.Fatal(err) // errors.Is(err, natslock.ErrLost): it no longer leads
	}
	l, err := e.Leader(ctx)
	fmt.Printf("%s %v\n", l.Value, err)
	_ = term.Resign(ctx)
	// Output:
	// 10.0.0.7:8080 <nil>
}

// A leader that resigns hands over immediately. If it campaigns again, it joins the back of the
// queue.
func ExampleTerm_Resign() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()
	first, second := election.New(locks, "scheduler"), election.New(locks, "scheduler")
	term, err := first.Campaign(ctx)
	if err != nil {
		log.Fatal(err)
	}
	elected := make(chan *election.Term)
	go func() {
		t, err := second.Campaign(ctx)
		if err != nil {
			log.Fatal(err)
		}
		elected <- t
	}()

	fmt.Println(term.Resign(ctx))
	next := <-elected
	fmt.Println(next.Token() > term.Token())
	_ = next.Resign(ctx)
	// Output:
	// <nil>
	// true
}

// OnChange makes Run report every leader, even while another process leads.
func ExampleNew() {
	ctx, stop := context.WithCancel(context.Background())
	locks, done := example.Client()
	defer done()

	e := election.New(locks, "scheduler",
		election.Value([]byte("10.0.0.7:8080")),
		election.OnChange(func(l election.Leader) {
			if !l.Vacant() {
				fmt.Printf("the leader is at %s\n", l.Value)
				stop()
			}
		}))
	_ = e.Run(ctx, func(ctx context.Context, _ *election.Term) error {
		<-ctx.Done()
		return nil
	})
	// Output:
	// the leader is at 10.0.0.7:8080
}

// A service that is being stopped finishes its current item before it resigns. If it loses the
// term, the work stops immediately.
func ExampleDetached() {
	ctx, stop := context.WithCancel(context.Background()) // signal.NotifyContext
	locks, done := example.Client()
	defer done()
	items := make(chan string, 2)
	items <- "order 42"
	items <- "order 43"
	process := func(term context.Context, item string) error {
		stop() // in the middle of the item
		fmt.Println("finished:", item, term.Err())
		return term.Err()
	}

	e := election.New(locks, "scheduler", election.Detached())
	err := e.Run(ctx, func(term context.Context, t *election.Term) error {
		for ctx.Err() == nil { // no new item after a SIGTERM
			select {
			case item := <-items:
				if err := process(term, item); err != nil {
					return err
				}
			case <-ctx.Done():
			case <-term.Done(): // lost
				return t.Err()
			}
		}
		return nil // resigns
	})
	fmt.Println("stopped:", errors.Is(err, context.Canceled))
	// Output:
	// finished: order 42 <nil>
	// stopped: true
}
