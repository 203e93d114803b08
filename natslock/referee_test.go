package natslock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/natslock/locks/kvstore"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

// referee watches the grants of many clients and says when two of them believe
// to hold one lock, or when a token does not rise.
type referee struct {
	mu     sync.Mutex
	held   map[string]map[*natslock.Lock]struct{}
	token  map[string]uint64
	grants int
	fouls  []string
}

func newReferee() *referee {
	return &referee{held: map[string]map[*natslock.Lock]struct{}{}, token: map[string]uint64{}}
}

// granted must be called right after an acquire returned l. A lock that is
// released or lost says so by itself: State looks at the clock.
func (r *referee) granted(l *natslock.Lock) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.grants++
	name := l.Name()
	if r.held[name] == nil {
		r.held[name] = map[*natslock.Lock]struct{}{}
	}
	for other := range r.held[name] {
		switch {
		case other.State() != natslock.Held:
			delete(r.held[name], other)
		case l.State() == natslock.Held:
			r.fouls = append(r.fouls, fmt.Sprintf("%s: tokens %d and %d both inside their validity", name, other.Token(), l.Token()))
		}
	}
	if l.Token() <= r.token[name] {
		r.fouls = append(r.fouls, fmt.Sprintf("%s: token %d after %d", name, l.Token(), r.token[name]))
	}
	r.token[name] = max(r.token[name], l.Token())
	r.held[name][l] = struct{}{}
}

func (r *referee) check(t testing.TB) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	require.Empty(t, r.fouls, "mutual exclusion")
}

// faulty makes a client whose store is behind a fault injector.
func faulty(t testing.TB, nc *nats.Conn, seed uint64, opts ...natslock.Option) (*natslock.Client, *testutil.Faults) {
	t.Helper()
	var f *testutil.Faults
	opts = append(opts, natslock.WithStore(func(kv kvstore.KV) kvstore.KV {
		f = testutil.NewFaults(kv, seed)
		return f
	}))
	c, err := natslock.New(t.Context(), nc, opts...)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = c.Close(ctx) // what a test leaves held is its own affair
	})
	return c, f
}

// stage names what a write is for in the course of a lock.
func stage(w kvstore.Write) string {
	var body struct {
		Status  int    `msgpack:"s"`
		Renewal uint64 `msgpack:"r"`
	}
	_ = msgpack.Unmarshal(w.Value, &body)
	kind, _, _ := strings.Cut(w.Key, ".")
	switch {
	case w.Delete:
		return kind + " delete"
	case body.Status == 3:
		return kind + " break"
	case body.Renewal > 0:
		return kind + " renew"
	}
	return kind + " take"
}

// keysLeft lists the keys of the bucket that have a live record.
func keysLeft(t testing.TB, nc *nats.Conn) []string {
	t.Helper()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	store, err := kvstore.Open(context.Background(), js, kvstore.Config{NoCreate: true})
	require.NoError(t, err)
	defer store.Close()
	l, err := store.List(context.Background(), ">", 0)
	require.NoError(t, err)
	var keys []string
	for _, r := range l.Records {
		keys = append(keys, r.Key)
	}
	return keys
}

// rawStore opens the bucket beside the clients, to do what others might.
func rawStore(t testing.TB, nc *nats.Conn) *kvstore.Store {
	t.Helper()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	store, err := kvstore.Open(context.Background(), js, kvstore.Config{NoCreate: true})
	require.NoError(t, err)
	t.Cleanup(store.Close)
	return store
}

// remake deletes the bucket and makes it again with sequences that start at
// first.
func remake(t testing.TB, nc *nats.Conn, first uint64) {
	t.Helper()
	deleteBucket(t, nc)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	cfg, err := kvstore.Config{}.StreamConfig()
	require.NoError(t, err)
	cfg.FirstSeq = first
	_, err = js.CreateStream(context.Background(), cfg)
	require.NoError(t, err)
}

func isAny(err error, targets ...error) bool {
	return slices.ContainsFunc(targets, func(t error) bool { return errors.Is(err, t) })
}

func deleteBucket(t testing.TB, nc *nats.Conn) {
	t.Helper()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	require.NoError(t, js.DeleteStream(context.Background(), "KV_natslock"))
}
