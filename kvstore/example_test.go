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
	l, err := s.List(ctx, "a.*", 0)
	if err != nil {
		log.Fatal(err)
	}
	for _, r := range l.Records {
		fmt.Println(r.Key)
	}
	// Output:
	// a.1
	// a.2
}

// A watch that tracks records reports their ends too.
func ExampleStore_Watch() {
	ctx := context.Background()
	s, done := opened()
	defer done()

	events := make(chan kvstore.Event, 10)
	w, err := s.Watch(">", func(ev kvstore.Event) { events <- ev }) // must not block
	if err != nil {
		log.Fatal(err)
	}
	defer w.Stop()
	w.Track(kvstore.Record{})
	if _, err := s.Create(ctx, "k", nil, time.Second); err != nil {
		log.Fatal(err)
	}
	for _, want := range []kvstore.EventKind{kvstore.Put, kvstore.Expired} {
		ev := <-events
		fmt.Println(ev.Record.Key, ev.Kind == want)
	}
	// Output:
	// k true
	// k true
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

// The stream of a bucket, for tools that create streams themselves.
func ExampleConfig_StreamConfig() {
	stream, err := kvstore.Config{Bucket: "locks", Replicas: 3}.StreamConfig()
	fmt.Println(stream.Name, stream.Replicas, stream.AllowMsgTTL, err)
	// Output: KV_locks 3 true <nil>
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

func ExampleConfig_Repaired() {
	var cfg kvstore.Config
	stream, err := cfg.StreamConfig()
	if err != nil {
		log.Fatal(err)
	}
	stream.MaxMsgsPerSubject = 5
	repaired, err := cfg.Repaired(stream) // to be passed to UpdateStream
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
