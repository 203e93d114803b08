package kit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/natslock/locks/internal/bridge"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/natslock"
)

// Faulty creates a client whose store is behind a fault injector. The client is closed when the
// test ends, without waiting for the release of locks that the test still holds.
func Faulty(t testing.TB, nc *nats.Conn, seed uint64, opts ...natslock.Option) (*natslock.Client, *faults.Store) {
	t.Helper()
	return FaultyOver(t, nc, seed, func(kv kvstore.KV) kvstore.KV { return kv }, opts...)
}

// FaultyOver is [Faulty] with another layer between the fault injector and the store.
func FaultyOver(t testing.TB, nc *nats.Conn, seed uint64, under func(kvstore.KV) kvstore.KV, opts ...natslock.Option) (*natslock.Client, *faults.Store) {
	t.Helper()
	var f *faults.Store
	opts = append(opts, faults.WrapStore(func(kv kvstore.KV) kvstore.KV {
		f = faults.New(under(kv), seed)
		return f
	}))
	return NewClient(t, nc, opts...), f
}

// FaultyInMemory is [Faulty] on an in-memory bucket.
func FaultyInMemory(t testing.TB, m *kvstore.Memory, seed uint64, opts ...natslock.Option) (*natslock.Client, *faults.Store) {
	t.Helper()
	f := faults.New(m.Open(), seed)
	c, err := inside.Open(f, opts)
	require.NoError(t, err)
	t.Cleanup(func() { _ = CloseNow(c) })
	return c, f
}

var inside = bridge.Natslock[*natslock.Client, *natslock.Lock, natslock.Option, natslock.LockOption, *natslock.Holder]()

// ValidUntil returns the end of a lock's validity, even if that time has passed.
func ValidUntil(l *natslock.Lock) time.Time { return time.Now().Add(inside.Left(l)) }

// Drop does what the garbage collector does with an unreachable handle, because the collector
// cannot do so in a bubble.
func Drop(l *natslock.Lock) { inside.Drop(l) }

// Keep keeps a handle reachable until the test ends, because the lock of a dropped handle is
// not renewed. Then it lets go of the handle. The testing package retains Cleanup functions,
// and one that still referred to the handle would keep its client and the whole bubble in
// memory.
func Keep[T any](t testing.TB, handle *T) {
	t.Cleanup(func() {
		runtime.KeepAlive(handle)
		handle = nil
	})
}

// OpenStore opens the bucket separately from the clients, so that a test can act as another
// program.
func OpenStore(t testing.TB, nc *nats.Conn) *kvstore.Store {
	t.Helper()
	store, err := kvstore.Open(context.Background(), JetStream(t, nc), kvstore.Config{NoCreate: true})
	require.NoError(t, err)
	t.Cleanup(store.Close)
	return store
}

// KeysLeft lists the bucket's keys that have a live record.
func KeysLeft(t testing.TB, nc *nats.Conn) []string {
	t.Helper()
	return live(t, OpenStore(t, nc))
}

// KeysLeftInMemory is [KeysLeft] for an in-memory bucket.
func KeysLeftInMemory(t testing.TB, m *kvstore.Memory) []string {
	t.Helper()
	store := m.Open()
	defer store.Close()
	return live(t, store)
}

func live(t testing.TB, store kvstore.KV) (keys []string) {
	t.Helper()
	l, err := store.List(context.Background(), ">", 0)
	require.NoError(t, err)
	for _, r := range l.Records {
		if r.Remaining(time.Now()) != 0 { // otherwise it is overdue, and its server has forgotten it
			keys = append(keys, r.Key)
		}
	}
	return keys
}

// Stage names the purpose of a write in the life of a lock: "lock take", "lock renew", "lock
// delete", "lock break", and so on for keys other than "lock".
func Stage(w kvstore.Write) string {
	var body struct {
		Status  record.Status `msgpack:"s"`
		Renewal uint64        `msgpack:"r"`
	}
	_ = msgpack.Unmarshal(w.Value, &body)
	kind, _, _ := strings.Cut(w.Key, ".")
	switch {
	case w.Expect == kvstore.NoRevision:
		return kind + " probe"
	case w.Delete:
		return kind + " delete"
	case body.Status == record.StatusBroken:
		return kind + " break"
	case body.Renewal > 0:
		return kind + " renew"
	}
	return kind + " take"
}

// At returns a rule for [faults.Store.OnSend] that gives every write of a stage the same fate.
func At(stage string, fate faults.Fate) func(int, kvstore.Write) faults.Fate {
	return Between(stage, 1, math.MaxInt, fate)
}

// Between is [At] limited to the stage's writes from first to last, counted from 1.
func Between(stage string, first, last int, fate faults.Fate) func(int, kvstore.Write) faults.Fate {
	var n atomic.Int64
	return func(_ int, w kvstore.Write) faults.Fate {
		if Stage(w) == stage {
			if n := int(n.Add(1)); first <= n && n <= last {
				return fate
			}
		}
		return faults.Pass
	}
}

// Fates lists the fates that leave a write's outcome open, or reveal it too late.
var Fates = []struct {
	Name string
	Fate faults.Fate
}{
	{"answer lost", faults.LoseAnswer},
	{"dropped", faults.Drop},
	{"not sent", faults.NotSent(fmt.Errorf("%w: test", kvstore.ErrUnavailable))},
	{"in flight", faults.Refuse(kvstore.ErrInFlight)},
	{"applied 700ms later", faults.Delay(700 * time.Millisecond)},
	{"applied 3s later", faults.Delay(3 * time.Second)},
	{"applied 3s later, silently", faults.Delay(3 * time.Second).Silent()},
	{"applied 40s later", faults.Delay(40 * time.Second)},
	{"applied 40s later, silently", faults.Delay(40 * time.Second).Silent()},
	{"answered 700ms later", faults.DelayAnswer(700 * time.Millisecond)},
	{"answered 3s later", faults.DelayAnswer(3 * time.Second)},
	{"answered 40s later", faults.DelayAnswer(40 * time.Second)},
}

// DeleteBucket deletes the bucket.
func DeleteBucket(t testing.TB, nc *nats.Conn) {
	t.Helper()
	require.NoError(t, JetStream(t, nc).DeleteStream(context.Background(), "KV_natslock"))
}

// RemakeBucket deletes the bucket and re-creates it. The new bucket starts at sequence first,
// or where the library would start it if first is 0.
func RemakeBucket(t testing.TB, nc *nats.Conn, first uint64) uint64 {
	t.Helper()
	DeleteBucket(t, nc)
	js := JetStream(t, nc)
	cfg, err := kvstore.Config{}.StreamConfig()
	require.NoError(t, err)
	if first != 0 {
		cfg.FirstSeq = first
	}
	_, err = js.CreateStream(context.Background(), cfg)
	for try := 0; storeNotGone(err) && try < 100; try++ {
		time.Sleep(10 * time.Millisecond)
		_, err = js.CreateStream(context.Background(), cfg)
	}
	require.NoError(t, err)
	return cfg.FirstSeq
}

// storeNotGone reports whether a server could not create a stream because it is still removing
// the files of an earlier stream with the same name.
func storeNotGone(err error) bool {
	refused, ok := errors.AsType[*jetstream.APIError](err)
	return ok && refused.ErrorCode == 10049
}

// WithStatus returns a record's value with a different status, for forging records.
func WithStatus(value []byte, status int) []byte {
	body := map[string]any{}
	if msgpack.Unmarshal(value, &body) != nil {
		return value
	}
	body["s"] = status
	forged, err := msgpack.Marshal(body)
	if err != nil {
		return value
	}
	return forged
}
