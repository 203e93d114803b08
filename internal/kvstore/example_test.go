package kvstore_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/example"
)

func ExampleServerFits() {
	fmt.Println(kvstore.ServerFits("2.12.1"), kvstore.ServerFits("2.11.9"))
	// Output: true false
}

// A refusal distinguishes a full bucket, which somebody has to enlarge, from a server that
// cannot be reached.
func ExampleRefused() {
	ctx := context.Background()
	nc, stop := example.Connect()
	defer stop()
	js, err := jetstream.New(nc)
	if err != nil {
		log.Fatal(err)
	}
	store, err := kvstore.Open(ctx, js, kvstore.Config{MaxBytes: 100})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	_, err = store.Create(ctx, "a", make([]byte, 200), time.Minute)
	fmt.Println(errors.Is(err, kvstore.ErrUnavailable), kvstore.Refused(err))
	_, err = store.Update(ctx, "a", nil, time.Minute, 7)
	fmt.Println(errors.Is(err, kvstore.ErrConflict), kvstore.Refused(err))
	// Output:
	// true true
	// true false
}

// A write on a closed connection was certainly not sent, whereas the server has answered the
// other one.
func ExampleNotSent() {
	ctx := context.Background()
	nc, stop := example.Connect()
	defer stop()
	js, err := jetstream.New(nc)
	if err != nil {
		log.Fatal(err)
	}
	store, err := kvstore.Open(ctx, js, kvstore.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	_, err = store.Update(ctx, "a", nil, time.Minute, 7)
	fmt.Println(errors.Is(err, kvstore.ErrConflict), kvstore.NotSent(err))
	nc.Close()
	_, err = store.Update(ctx, "a", nil, time.Minute, 7)
	fmt.Println(errors.Is(err, kvstore.ErrUnavailable), kvstore.NotSent(err))
	// Output:
	// true false
	// true true
}
