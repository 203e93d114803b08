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

// A guard makes a write conditional on another key: here on that there is no record
// under "closed".
func ExampleStore_CreateGuarded() {
	ctx := context.Background()
	s, done := opened()
	defer done()

	_, err := s.CreateGuarded(ctx, "guest.1", nil, time.Minute, "closed", 0)
	fmt.Println(err)
	if _, err := s.Create(ctx, "closed", nil, time.Minute); err != nil {
		log.Fatal(err)
	}
	_, err = s.CreateGuarded(ctx, "guest.2", nil, time.Minute, "closed", 0)
	fmt.Println(errors.Is(err, kvstore.ErrConflict))
	// Output:
	// <nil>
	// true
}

// Send does not wait for the answer.
func ExampleStore_Send() {
	s, done := opened()
	defer done()

	answers := make(chan kvstore.Answer, 1)
	forget, err := s.Send(kvstore.Write{Key: "k", Value: []byte("v"), TTL: time.Minute}, func(a kvstore.Answer) { answers <- a })
	if err != nil {
		log.Fatal(err) // nothing was sent
	}
	select {
	case a := <-answers:
		fmt.Println(a.Revision > 0, a.Err)
	case <-time.After(10 * time.Second):
		forget() // the outcome is unknown
	}
	// Output: true <nil>
}

// State reads the keys from the stream's leader, tombstones included.
func ExampleStore_State() {
	ctx := context.Background()
	s, done := opened()
	defer done()

	revision, err := s.Create(ctx, "a.1", nil, time.Minute)
	if err != nil {
		log.Fatal(err)
	}
	st, err := s.State(ctx, "a.*")
	fmt.Println(st.Keys, st.LastRevision >= revision, st.Replicas, err)
	// Output: [a.1] true 1 <nil>
}

// Verify finds that another user has deleted the bucket.
func ExampleStore_Verify() {
	ctx := context.Background()
	nc, stop := example.Connect()
	defer stop()
	js, err := jetstream.New(nc)
	if err != nil {
		log.Fatal(err)
	}
	s, err := kvstore.Open(ctx, js, kvstore.Config{Bucket: "sessions"})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()

	fmt.Println(s.Verify(ctx))
	if err := js.DeleteKeyValue(ctx, "sessions"); err != nil {
		log.Fatal(err)
	}
	fmt.Println("deleted:", errors.Is(s.Verify(ctx), kvstore.ErrNotFound))
	// Output:
	// <nil>
	// deleted: true
}

// Healthy asks no server: it knows the answers to the last writes.
func ExampleStore_Healthy() {
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

	fmt.Println(s.Healthy())
	nc.Close()
	fmt.Println("connection closed:", errors.Is(s.Healthy(), kvstore.ErrUnavailable))
	// Output:
	// <nil>
	// connection closed: true
}

// Examine finds a setting that makes a bucket unsafe, and Repaired repairs it.
func ExampleExamine() {
	var cfg kvstore.Config
	stream, err := cfg.StreamConfig()
	if err != nil {
		log.Fatal(err)
	}
	stream.MaxMsgsPerSubject = 5
	findings, err := kvstore.Examine(cfg, &jetstream.StreamInfo{Config: stream})
	if err != nil {
		log.Fatal(err)
	}
	for _, f := range findings {
		if f.Level == kvstore.Unfit && f.Update {
			fmt.Println(f.Setting, "is", f.Value, "and must be", f.Want)
		}
	}
	// Output: max_msgs_per_subject is 5 and must be 1
}

func ExampleRepaired() {
	var cfg kvstore.Config
	stream, err := cfg.StreamConfig()
	if err != nil {
		log.Fatal(err)
	}
	stream.MaxMsgsPerSubject = 5
	repaired, err := kvstore.Repaired(cfg, stream) // to be passed to UpdateStream
	fmt.Println(repaired.MaxMsgsPerSubject, err)
	// Output: 1 <nil>
}

func ExampleServerFits() {
	fmt.Println(kvstore.ServerFits("2.12.1"), kvstore.ServerFits("2.11.9"))
	// Output: true false
}

// Two stores of a bucket in memory see one another's records.
func ExampleNewMemory() {
	bucket := kvstore.NewMemory("natslock")
	s, other := bucket.Open(), bucket.Open()
	defer s.Close()
	defer other.Close()

	stored := make(chan kvstore.Answer)
	_, err := s.Send(kvstore.Write{Key: "jobs.42", Value: []byte("web-1"), TTL: time.Minute}, func(a kvstore.Answer) { stored <- a })
	fmt.Println(err, (<-stored).Err)
	r, err := other.Get(context.Background(), "jobs.42", 0)
	fmt.Printf("%s %v\n", r.Value, err)
	// Output:
	// <nil> <nil>
	// web-1 <nil>
}

// A refusal tells a full bucket, which somebody has to enlarge, from a server that is away.
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

// Room says whether a bucket on several servers leaves enough for renewals.
func ExampleRoom() {
	err := kvstore.Room(&jetstream.StreamInfo{
		Config: jetstream.StreamConfig{Name: "KV_natslock", Replicas: 3, MaxBytes: 1 << 20},
		State:  jetstream.StreamState{Bytes: 900_000, Msgs: 2800},
	})
	fmt.Println(errors.Is(err, kvstore.ErrFull))
	// Output: true
}

// A write on a closed connection was certainly not sent. The server has answered the other one.
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
