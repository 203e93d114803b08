package kvstore_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/example"
)

// OnConnection reports when the connection is away and when it is back.
func ExampleStore_OnConnection() {
	nc, stop := example.Connect()
	defer stop()
	js, err := jetstream.New(nc)
	if err != nil {
		log.Fatal(err)
	}
	s, err := kvstore.Open(context.Background(), js, kvstore.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Create(context.Background(), "job.42", nil, time.Minute); err != nil {
		log.Fatal(err)
	}

	states := make(chan kvstore.ConnState, 8)
	unregister := s.OnConnection(func(state kvstore.ConnState) { states <- state })
	defer unregister()
	if err := nc.ForceReconnect(); err != nil {
		log.Fatal(err)
	}
	for state := range states {
		if state == kvstore.Connected {
			fmt.Println("connected again")
			break
		}
	}
	// Output: connected again
}

// Now estimates the clock of the servers, by which records end.
func ExampleStore_Now() {
	s, done := opened()
	defer done()
	fmt.Println(time.Until(s.Now()).Abs() < time.Minute)
	// Output: true
}
