package rwlock_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/kvstore"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/rwlock"
	"github.com/natslock/locks/testutil"
)

func TestMain(m *testing.M) { testutil.LeakCheck(m) }

// peer is a client with its reader-writer locks and the faults of its store.
type peer struct {
	*rwlock.RWLock
	c *natslock.Client
	f *testutil.Faults
}

func newPeer(t testing.TB, nc *nats.Conn, seed uint64, opts ...natslock.Option) *peer {
	t.Helper()
	p := &peer{}
	opts = append(opts, natslock.WithStore(func(kv kvstore.KV) kvstore.KV {
		p.f = testutil.NewFaults(kv, seed)
		return p.f
	}))
	var err error
	p.c, err = natslock.New(t.Context(), nc, opts...)
	require.NoError(t, err)
	p.RWLock = rwlock.New(p.c)
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = p.c.Close(ctx) // what a test leaves held is its own affair
	})
	return p
}

// umpire watches the grants of many clients: no writer beside anybody inside
// validity, and tokens that rise from conflicting holder to conflicting holder.
type umpire struct {
	mu     sync.Mutex
	in     map[string]map[*natslock.Lock]bool // true: writes
	writer map[string]uint64                  // highest writer's token
	all    map[string]uint64                  // highest token
	reads  int
	writes int
	most   int // readers at once
	fouls  []string
}

func newUmpire() *umpire {
	return &umpire{in: map[string]map[*natslock.Lock]bool{}, writer: map[string]uint64{}, all: map[string]uint64{}}
}

func (u *umpire) granted(l *natslock.Lock, writes bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	name := l.Name()
	if u.in[name] == nil {
		u.in[name] = map[*natslock.Lock]bool{}
	}
	readers := 0
	for other, otherWrites := range u.in[name] {
		switch {
		case other.State() != natslock.Held:
			delete(u.in[name], other)
		case (writes || otherWrites) && l.State() == natslock.Held:
			u.fouls = append(u.fouls, fmt.Sprintf("%s: token %d (writes %v) beside %d (writes %v)", name, l.Token(), writes, other.Token(), otherWrites))
		case !otherWrites:
			readers++
		}
	}
	if writes {
		u.writes++
		if l.Token() <= u.all[name] {
			u.fouls = append(u.fouls, fmt.Sprintf("%s: writer's token %d after %d", name, l.Token(), u.all[name]))
		}
		u.writer[name] = max(u.writer[name], l.Token())
	} else {
		u.reads++
		u.most = max(u.most, readers+1)
		if l.Token() <= u.writer[name] {
			u.fouls = append(u.fouls, fmt.Sprintf("%s: reader's token %d after the writer's %d", name, l.Token(), u.writer[name]))
		}
	}
	u.all[name] = max(u.all[name], l.Token())
	u.in[name][l] = writes
}

func (u *umpire) check(t testing.TB) {
	t.Helper()
	u.mu.Lock()
	defer u.mu.Unlock()
	require.Empty(t, u.fouls)
}

// openStore opens the bucket beside the clients.
func openStore(t testing.TB, nc *nats.Conn) *kvstore.Store {
	t.Helper()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	store, err := kvstore.Open(context.Background(), js, kvstore.Config{NoCreate: true})
	require.NoError(t, err)
	t.Cleanup(store.Close)
	return store
}

func keysLeft(t testing.TB, nc *nats.Conn) []string {
	t.Helper()
	l, err := openStore(t, nc).List(context.Background(), ">", 0)
	require.NoError(t, err)
	var keys []string
	for _, r := range l.Records {
		keys = append(keys, r.Key)
	}
	return keys
}

// wire is the stream as it happened, tapped beside the clients.
type wire struct {
	mu     sync.Mutex
	events []kvstore.Event
}

func tap(t testing.TB, nc *nats.Conn) *wire {
	t.Helper()
	w := &wire{}
	store := openStore(t, nc)
	watch, err := store.Watch(">", func(ev kvstore.Event) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.events = append(w.events, ev)
	})
	require.NoError(t, err)
	t.Cleanup(watch.Stop)
	_, err = store.State(context.Background(), "") // its answer proves the subscription
	require.NoError(t, err)
	return w
}

// joinsBehindGate returns the joins of new readers while a gate stood, by the
// order of the stream's own revisions: expiries leave none, so a gate counts as
// standing only until its TTL after its last write is over.
func (w *wire) joinsBehindGate() (fouls []string, joins int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	type gate struct {
		up bool
		kvstore.Record
	}
	gates := map[string]gate{}
	known := map[string]bool{}
	for _, ev := range w.events {
		kind, rest, _ := strings.Cut(ev.Record.Key, ".")
		switch {
		case kind == "rw" && ev.Kind == kvstore.Put:
			gates[rest] = gate{true, ev.Record}
		case kind == "rw" && ev.Kind == kvstore.Deleted:
			gates[rest] = gate{}
		case kind == "read" && ev.Kind == kvstore.Put && !known[ev.Record.Key]:
			known[ev.Record.Key] = true
			joins++
			name := rest[:strings.LastIndexByte(rest, '.')]
			if g := gates[name]; g.up && ev.Record.Time.Before(g.Time.Add(g.TTL)) {
				fouls = append(fouls, fmt.Sprintf("%s joined at %d behind the gate of %d", ev.Record.Key, ev.Record.Revision, g.Revision))
			}
		}
	}
	return fouls, joins
}

// spoiler changes what the leader says of its state.
type spoiler struct {
	kvstore.KV
	state func(kvstore.State) kvstore.State
}

func (s *spoiler) State(ctx context.Context, pattern string) (kvstore.State, error) {
	st, err := s.KV.State(ctx, pattern)
	if err == nil && strings.HasPrefix(pattern, "read.") {
		st = s.state(st)
	}
	return st, err
}

func rwOf(c *natslock.Client) *rwlock.RWLock { return rwlock.New(c) }
