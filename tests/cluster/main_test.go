package cluster_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/rwlock"
)

const (
	roleVar  = "NATSLOCK_TIERS_ROLE"
	orderVar = "NATSLOCK_TIERS_ORDER"
)

func TestMain(m *testing.M) {
	roles := map[string]func(order []byte) error{"candidate": beCandidate, "contender": beContender, "courier": beCourier, "holder": beHolder, "server": beServer}
	if role := roles[os.Getenv(roleVar)]; role != nil {
		if err := role([]byte(os.Getenv(orderVar))); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	kit.Main(m)
}

// which is a lock and the way to hold it.
type which struct {
	Name string
	Kind admin.Kind
	Mode admin.Mode
}

func (w which) take(ctx context.Context, c *natslock.Client, opts ...natslock.LockOption) (*natslock.Lock, error) {
	take, rw := c.Lock, rwlock.New(c)
	switch {
	case w.Mode == admin.Shared:
		take = rw.RLock
	case w.Kind == admin.KindRW:
		take = rw.Lock
	}
	return take(ctx, w.Name, append([]natslock.LockOption{natslock.Detached()}, opts...)...)
}

func (w which) String() string {
	switch {
	case w.Kind == admin.KindMutex:
		return "mutex " + w.Name
	case w.Mode == admin.Shared:
		return "read " + w.Name
	}
	return "write " + w.Name
}

// key returns a pattern for the key of a holder that has the lock this way.
func (w which) key() string {
	switch {
	case w.Kind == admin.KindMutex:
		return "lock." + w.Name
	case w.Mode == admin.Shared:
		return "read." + w.Name + ".*"
	}
	return "rw." + w.Name
}

// oneOfEach contains every way to hold a lock, each under its own name.
var oneOfEach = []which{
	{Name: "m", Kind: admin.KindMutex},
	{Name: "w", Kind: admin.KindRW},
	{Name: "r", Kind: admin.KindRW, Mode: admin.Shared},
}

// against returns how another client asks for the lock that w holds: as a writer if there are
// readers.
func (w which) against() which {
	w.Mode = admin.Exclusive
	return w
}

func mustTake(t testing.TB, c *natslock.Client, w which, opts ...natslock.LockOption) *natslock.Lock {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), kit.Patience)
	defer cancel()
	l, err := w.take(ctx, c, opts...)
	require.NoError(t, err, "%v", w)
	kit.Keep(t, l)
	return l
}

func begin(t testing.TB, c *natslock.Client, w which) *kit.Waiting {
	return kit.Begin(t, func(ctx context.Context) (*natslock.Lock, error) { return w.take(ctx, c) })
}

// await queues for a lock and returns once it has a place.
func await(t testing.TB, c *natslock.Client, w which) *kit.Waiting {
	t.Helper()
	before := c.Stats().Waiting
	got := begin(t, c, w)
	kit.Eventually(t, w.String()+" waits", func() bool {
		if got.Over() || c.Stats().Waiting > before {
			return true
		}
		if w.Kind == admin.KindMutex || w.Mode == admin.Shared {
			return false
		}
		// A writer behind readers has only its gate.
		info, err := admin.New(c).Inspect(context.Background(), admin.KindRW, w.Name)
		return err == nil && info.Holder != nil && len(info.Readers) > 0
	})
	return got
}

// stored returns the record under the only key that matches the pattern.
func stored(t testing.TB, store *kvstore.Store, pattern string) kvstore.Record {
	t.Helper()
	l, err := store.List(context.Background(), pattern, 0)
	require.NoError(t, err)
	require.Len(t, l.Records, 1, pattern)
	return l.Records[0]
}

// wire keeps the records written under the locks' own keys, as received in the server's
// notifications.
type wire struct {
	mu      sync.Mutex
	records map[string][]kvstore.Record
}

func tap(t testing.TB, store *kvstore.Store) *wire {
	t.Helper()
	w := &wire{records: map[string][]kvstore.Record{}}
	watch, err := store.Watch(">", func(ev kvstore.Event) {
		if ev.Kind == kvstore.Put {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.records[ev.Record.Key] = append(w.records[ev.Record.Key], ev.Record)
		}
	})
	require.NoError(t, err)
	t.Cleanup(watch.Stop)
	_, err = store.State(context.Background(), "") // the reply proves the subscription
	require.NoError(t, err)
	return w
}

// lastBefore returns the last record under key with a revision below the given one.
func (w *wire) lastBefore(key string, revision uint64) (last kvstore.Record) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.records[key] {
		if r.Revision < revision && r.Revision > last.Revision {
			last = r
		}
	}
	return last
}

// from counts the records under keys with this prefix that the named owner wrote.
func (w *wire) from(owner, key string) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for k, records := range w.records {
		for _, r := range records {
			var body struct {
				Owner string `msgpack:"o"`
			}
			if strings.HasPrefix(k, key) && msgpack.Unmarshal(r.Value, &body) == nil && body.Owner == owner {
				n++
			}
		}
	}
	return n
}

// resource is what the locks protect. It remembers the highest token seen and refuses lower ones,
// in a single conditional write.
type resource struct{ kv jetstream.KeyValue }

var errStale = errors.New("the resource has seen a greater token")

func makeResource(t testing.TB, nc *nats.Conn) resource {
	t.Helper()
	kv, err := kit.JetStream(t, nc).CreateKeyValue(context.Background(), jetstream.KeyValueConfig{Bucket: "work"})
	require.NoError(t, err)
	return resource{kv}
}

// write returns the revision written, or errStale. It returns another error if another process was
// writing or the server was unavailable.
func (r resource) write(ctx context.Context, key string, token uint64) (uint64, error) {
	e, err := r.kv.Get(ctx, key)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return r.kv.Create(ctx, key, fmt.Append(nil, token))
	}
	if err != nil {
		return 0, err
	}
	var seen uint64
	if err := json.Unmarshal(e.Value(), &seen); err != nil {
		return 0, err
	}
	if token < seen {
		return 0, errStale
	}
	return r.kv.Update(ctx, key, fmt.Append(nil, token), e.Revision())
}
