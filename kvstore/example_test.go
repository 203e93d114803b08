package kvstore_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/internal/verify/example"
	"github.com/natslock/locks/kvstore"
)

// opened opens a bucket on a server that is started for an example.
func opened() (s *kvstore.Store, done func()) {
	nc, stop := example.Connect()
	js, err := jetstream.New(nc)
	if err != nil {
		log.Fatal(err)
	}
	if s, err = kvstore.Open(context.Background(), js, kvstore.Config{}); err != nil {
		log.Fatal(err)
	}
	return s, func() { s.Close(); stop() }
}

// A record is created, replaced at its revision and deleted at the next one.
func ExampleOpen() {
	nc, stop := example.Connect() // a service calls nats.Connect
	defer stop()
	js, err := jetstream.New(nc)
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	s, err := kvstore.Open(ctx, js, kvstore.Config{Bucket: "sessions"})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()

	first, err := s.Create(ctx, "user.1", []byte("here"), time.Minute)
	if err != nil {
		log.Fatal(err)
	}
	second, err := s.Update(ctx, "user.1", []byte("away"), time.Minute, first)
	if err != nil {
		log.Fatal(err)
	}
	_, err = s.Update(ctx, "user.1", []byte("late"), time.Minute, first)
	fmt.Println("outdated:", errors.Is(err, kvstore.ErrConflict))
	r, err := s.Get(ctx, "user.1", second)
	fmt.Println(string(r.Value), r.TTL, err)
	_, err = s.Delete(ctx, "user.1", second)
	fmt.Println(err)
	// Output:
	// outdated: true
	// away 1m0s <nil>
	// <nil>
}

func ExampleStore_Create() {
	ctx := context.Background()
	s, done := opened()
	defer done()

	_, err := s.Create(ctx, "k", []byte("v"), time.Minute)
	fmt.Println(err)
	_, err = s.Create(ctx, "k", []byte("w"), time.Minute)
	fmt.Println(errors.Is(err, kvstore.ErrExists))
	// Output:
	// <nil>
	// true
}

func ExampleStore_Update() {
	ctx := context.Background()
	s, done := opened()
	defer done()

	revision, err := s.Create(ctx, "k", []byte("v"), time.Minute)
	if err != nil {
		log.Fatal(err)
	}
	_, err = s.Update(ctx, "k", []byte("w"), time.Hour, revision+1)
	if conflict, ok := errors.AsType[*kvstore.ConflictError](err); ok {
		fmt.Println("the last revision is that of Create:", conflict.Last == revision)
	}
	// Output: the last revision is that of Create: true
}

func ExampleStore_Delete() {
	ctx := context.Background()
	s, done := opened()
	defer done()

	revision, err := s.Create(ctx, "k", []byte("v"), time.Minute)
	if err != nil {
		log.Fatal(err)
	}
	tombstone, err := s.Delete(ctx, "k", revision)
	fmt.Println(tombstone > revision, err)
	// Output: true <nil>
}

// Get with a revision reads a state that contains it, whichever replica answers.
func ExampleStore_Get() {
	ctx := context.Background()
	s, done := opened()
	defer done()

	revision, err := s.Create(ctx, "k", []byte("v"), time.Minute)
	if err != nil {
		log.Fatal(err)
	}
	r, err := s.Get(ctx, "k", revision)
	fmt.Println(string(r.Value), r.Revision == revision, err)
	_, err = s.Get(ctx, "other", revision)
	fmt.Println(errors.Is(err, kvstore.ErrNotFound))
	// Output:
	// v true <nil>
	// true
}

func ExampleStore_List() {
	ctx := context.Background()
	s, done := opened()
	defer done()

	for _, key := range []string{"a.1", "a.2", "b.1"} {
		if _, err := s.Create(ctx, key, nil, time.Minute); err != nil {
			log.Fatal(err)
		}
	}
	records, err := s.List(ctx, "a.*", 0)
	if err != nil {
		log.Fatal(err)
	}
	for _, r := range records {
		fmt.Println(r.Key)
	}
	// Output:
	// a.1
	// a.2
}

// A watch reports the ends of records too.
func ExampleStore_Watch() {
	ctx := context.Background()
	s, done := opened()
	defer done()

	events := make(chan kvstore.Event, 10)
	stop, err := s.Watch(">", func(ev kvstore.Event) { events <- ev }) // must not block
	if err != nil {
		log.Fatal(err)
	}
	defer stop()
	if _, err := s.Create(ctx, "k", nil, time.Second); err != nil {
		log.Fatal(err)
	}
	put, end := <-events, <-events
	fmt.Println(put.Record.Key, put.Kind == kvstore.Put)
	fmt.Println(end.Record.Key, end.Kind == kvstore.Expired)
	// Output:
	// k true
	// k true
}

// The stream of a bucket, for tools that create streams themselves.
func ExampleConfig_StreamConfig() {
	stream, err := kvstore.Config{Bucket: "locks", Replicas: 3}.StreamConfig()
	fmt.Println(stream.Name, stream.Replicas, stream.AllowMsgTTL, err)
	// Output: KV_locks 3 true <nil>
}

// Close ends the store and leaves the connection open.
func ExampleStore_Close() {
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
	s.Close()
	_, err = s.Create(context.Background(), "job.42", nil, time.Minute)
	fmt.Println(errors.Is(err, kvstore.ErrClosed), nc.IsConnected())
	// Output: true true
}
