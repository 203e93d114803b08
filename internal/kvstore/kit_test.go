package kvstore_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/kit"
)

// TestMain fails if the store or its connections leak a goroutine. It ignores those of
// nats-server, some of which outlive their server. The one that sets up a source does so
// by half a minute.
func TestMain(m *testing.M) {
	code := m.Run()
	if err := goleak.Find(); err != nil && kit.Goroutines("locks/internal/kvstore.")+kit.Goroutines("nats.go.") > 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

const (
	ttl = 10 * time.Second
	// fast bounds what must not wait for a timeout, even on a busy machine.
	fast = time.Second
)

// open opens a bucket and closes the store when the test ends.
func open(t testing.TB, nc *nats.Conn, cfg kvstore.Config) *kvstore.Store {
	t.Helper()
	return openJS(t, kit.JetStream(t, nc), cfg)
}

func openJS(t testing.TB, js jetstream.JetStream, cfg kvstore.Config) *kvstore.Store {
	t.Helper()
	s, err := kvstore.Open(t.Context(), js, cfg)
	check(t, err)
	t.Cleanup(s.Close)
	return s
}

// openWith creates the bucket with its configuration changed by set, and opens it.
func openWith(t testing.TB, nc *nats.Conn, set func(*jetstream.StreamConfig)) *kvstore.Store {
	t.Helper()
	makeStream(t, nc, set)
	return open(t, nc, kvstore.Config{NoCreate: true})
}

func makeStream(t testing.TB, nc *nats.Conn, set func(*jetstream.StreamConfig)) jetstream.Stream {
	t.Helper()
	sc, err := kvstore.Config{}.StreamConfig()
	check(t, err)
	set(&sc)
	str, err := kit.JetStream(t, nc).CreateStream(t.Context(), sc)
	check(t, err)
	return str
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantErr(t testing.TB, err error, targets ...error) {
	t.Helper()
	for _, target := range targets {
		if !errors.Is(err, target) {
			t.Fatalf("error is %v, should match %v", err, target)
		}
	}
}

func equal[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Fatalf("%s: got %v, want %v", what, got, want)
	}
}

// create writes a record that lives for ten seconds.
func create(t testing.TB, s kvstore.KV, key, value string) uint64 {
	t.Helper()
	a := send(t, s, kvstore.Write{Key: key, Value: []byte(value), TTL: ttl})
	check(t, a.Err)
	return a.Revision
}

// send sends w and waits for the reply.
func send(t testing.TB, s kvstore.KV, w kvstore.Write) kvstore.Answer {
	t.Helper()
	ch := make(chan kvstore.Answer, 1)
	_, err := s.Send(w, func(a kvstore.Answer) { ch <- a })
	check(t, err)
	return kit.Receive(t, ch, "an answer")
}

// awaitClose returns once a Close of s has begun.
func awaitClose(s kvstore.KV) {
	for {
		if _, err := s.Send(kvstore.Write{Key: "x", Expect: kvstore.NoRevision, TTL: ttl}, func(kvstore.Answer) {}); errors.Is(err, kvstore.ErrClosed) {
			return
		}
		runtime.Gosched()
	}
}

// watch starts a watch and collects its events.
func watch(t testing.TB, s kvstore.KV, pattern string) (kvstore.Watch, <-chan kvstore.Event) {
	t.Helper()
	events := make(chan kvstore.Event, 100)
	w, err := s.Watch(pattern, func(e kvstore.Event) { events <- e })
	check(t, err)
	t.Cleanup(w.Stop)
	return w, events
}

// wantEvent receives an event and checks its kind, key and revision.
func wantEvent(t testing.TB, events <-chan kvstore.Event, kind kvstore.EventKind, key string, revision uint64) kvstore.Event {
	t.Helper()
	e := kit.Receive(t, events, "an event")
	if e.Kind != kind || e.Record.Key != key || e.Record.Revision != revision {
		t.Fatalf("got event %v of %q at %d, want %v of %q at %d", e.Kind, e.Record.Key, e.Record.Revision, kind, key, revision)
	}
	return e
}

// keysOf lists the keys that match pattern as one string, in order of revision.
func keysOf(t testing.TB, s kvstore.KV, pattern string, min uint64, opts ...kvstore.ListOption) string {
	t.Helper()
	l, err := s.List(t.Context(), pattern, min, opts...)
	check(t, err)
	if l.Revision < min {
		t.Fatalf("list at %d, wanted %d", l.Revision, min)
	}
	var keys string
	for _, r := range l.Records {
		keys += r.Key + " "
	}
	return keys
}

// afterSending runs fn in the background and returns the channel of its result as soon as
// something has been sent over nc.
func afterSending(nc *nats.Conn, fn func() error) <-chan error {
	before := nc.Stats().OutMsgs
	done := make(chan error, 1)
	go func() { done <- fn() }()
	for nc.Stats().OutMsgs == before {
		runtime.Gosched()
	}
	return done
}

func background() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), 20*time.Second)
}
