package rwlock_test

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/natslock/locks/kvstore"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/rwlock"
	"github.com/natslock/locks/testutil"
)

func TestMain(m *testing.M) { testutil.LeakCheck(m) }

// patience bounds every wait for an event outside of bubbles: far more than it
// can take, so that a test which fails says so instead of hanging.
const patience = 60 * time.Second

// peer is a client with its reader-writer locks and the faults of its store.
type peer struct {
	*rwlock.RWLock
	c  *natslock.Client
	nc *nats.Conn
	f  *testutil.Faults
}

func newPeer(t testing.TB, nc *nats.Conn, seed uint64, opts ...natslock.Option) *peer {
	t.Helper()
	return newPeerOver(t, nc, seed, func(kv kvstore.KV) kvstore.KV { return kv }, opts...)
}

// newPeerOver makes a peer with something between the faults and the store.
func newPeerOver(t testing.TB, nc *nats.Conn, seed uint64, under func(kvstore.KV) kvstore.KV, opts ...natslock.Option) *peer {
	t.Helper()
	p := &peer{nc: nc}
	opts = append(opts, natslock.WithStore(func(kv kvstore.KV) kvstore.KV {
		p.f = testutil.NewFaults(under(kv), seed)
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
	wrote  []turn
	fouls  []string
}

// turn is when a writer was seen active.
type turn struct {
	name  string
	token uint64
	at    time.Time
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
		if at := time.Now(); l.State() == natslock.Held {
			u.wrote = append(u.wrote, turn{name, l.Token(), at})
		}
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

// stage names what a write is for in the course of a lock.
func stage(w kvstore.Write) string {
	var body struct {
		Renewal uint64 `msgpack:"r"`
	}
	_ = msgpack.Unmarshal(w.Value, &body)
	kind, _, _ := strings.Cut(w.Key, ".")
	switch {
	case w.Delete:
		return kind + " delete"
	case body.Renewal > 0:
		return kind + " renew"
	}
	return kind + " take"
}

// slow delays the peer's writes of a stage on their way to the server.
func (p *peer) slow(what string, d time.Duration) {
	p.f.OnSend(func(_ int, w kvstore.Write) testutil.Fate {
		if stage(w) == what {
			return testutil.Delay(d)
		}
		return testutil.Pass
	})
}

// receive waits for a value or the closing of ch.
func receive[T any](t testing.TB, ch <-chan T, what string) T {
	t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case v := <-ch:
		return v
	case <-timer.C:
		t.Fatalf("waited %v in vain for %s", patience, what)
		panic("unreachable")
	}
}

// eventually polls for what has no event to wait for.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !cond(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not in %v: %s", patience, what)
		}
	}
}

// wire is the stream as it happened, tapped beside the clients.
type wire struct {
	// lossy: notifications may be missing, as when a leader steps down between
	// storing and telling. Then only what is seen on both sides of a moment
	// counts as having been there at that moment.
	lossy  bool
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

// inOrder returns the events in the order of their revisions: notifications of
// two leaders may overtake each other.
func (w *wire) inOrder() []kvstore.Event {
	w.mu.Lock()
	defer w.mu.Unlock()
	events := slices.Clone(w.events)
	slices.SortStableFunc(events, func(a, b kvstore.Event) int { return cmp.Compare(a.Record.Revision, b.Record.Revision) })
	return events
}

// nameOf is the lock of a reader's key.
func nameOf(key string) string {
	_, rest, _ := strings.Cut(key, ".")
	return rest[:strings.LastIndexByte(rest, '.')]
}

// writersOverReaders returns the turns of writers at which the record of a reader
// was alive by the stream's own word: written, not deleted, its TTL not over.
// Clients and servers share a clock here. Where notifications may be missing, a
// record was alive only up to the last thing heard of it: its tombstone may be what
// nobody was told of.
func (w *wire) writersOverReaders(u *umpire) (fouls []string) {
	byKey := map[string][]kvstore.Event{}
	for _, ev := range w.inOrder() {
		if strings.HasPrefix(ev.Record.Key, "read.") && (ev.Kind == kvstore.Put || ev.Kind == kvstore.Deleted) {
			byKey[ev.Record.Key] = append(byKey[ev.Record.Key], ev)
		}
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	turns := map[string][]turn{}
	for _, turn := range u.wrote {
		turns[turn.name] = append(turns[turn.name], turn)
	}
	for key, events := range byKey {
		for _, turn := range turns[nameOf(key)] {
			var last kvstore.Event
			heardLater := false
			for _, ev := range events {
				if ev.Record.Time.After(turn.at) {
					heardLater = true
				} else {
					last = ev
				}
			}
			if last.Kind == kvstore.Put && (heardLater || !w.lossy) && turn.at.Before(last.Record.Time.Add(last.Record.TTL)) {
				fouls = append(fouls, fmt.Sprintf("writer %d of %s was active over %s, alive at %d", turn.token, turn.name, key, last.Record.Revision))
			}
		}
	}
	return fouls
}

// joinsBehindGate returns the joins of new readers while a gate stood, by the
// order of the stream's own revisions: expiries leave none, so a gate counts as
// standing only until its TTL after its last write is over.
func (w *wire) joinsBehindGate() (fouls []string, joins int) {
	type gate struct {
		kvstore.Record
		id      string
		up      bool
		suspect []string // joins seen since its last write
	}
	gates := map[string]*gate{}
	known := map[string]bool{}
	for _, ev := range w.inOrder() {
		if ev.Kind != kvstore.Put && ev.Kind != kvstore.Deleted {
			continue
		}
		kind, name, _ := strings.Cut(ev.Record.Key, ".")
		switch {
		case kind == "rw":
			var body struct {
				ID string `msgpack:"id"`
			}
			_ = msgpack.Unmarshal(ev.Record.Value, &body)
			if g := gates[name]; g != nil && (!w.lossy || g.id == body.ID) {
				fouls = append(fouls, g.suspect...)
			}
			gates[name] = &gate{Record: ev.Record, id: body.ID, up: ev.Kind == kvstore.Put}
		case kind == "read" && ev.Kind == kvstore.Put && !known[ev.Record.Key]:
			known[ev.Record.Key] = true
			joins++
			if g := gates[nameOf(ev.Record.Key)]; g != nil && g.up && ev.Record.Time.Before(g.Time.Add(g.TTL)) {
				g.suspect = append(g.suspect, fmt.Sprintf("%s joined at %d behind the gate of %d", ev.Record.Key, ev.Record.Revision, g.Revision))
			}
		}
	}
	for _, g := range gates {
		if !w.lossy {
			fouls = append(fouls, g.suspect...)
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
