package topologies_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/rwlock"
)

// place is where clients run: the server they connect to and how they reach the bucket from there.
type place struct {
	name    string
	connect func(opts ...nats.Option) *nats.Conn
	js      func(nc *nats.Conn) (jetstream.JetStream, error) // nil for the connection's own
}

func inDomain(domain string) func(*nats.Conn) (jetstream.JetStream, error) {
	return func(nc *nats.Conn) (jetstream.JetStream, error) { return jetstream.NewWithDomain(nc, domain) }
}

// options returns the options that reach the bucket from the place.
func (p place) options(t *testing.T, nc *nats.Conn) []natslock.Option {
	t.Helper()
	if p.js == nil {
		return nil
	}
	js, err := p.js(nc)
	require.NoError(t, err)
	return []natslock.Option{natslock.WithJetStream(js)}
}

// user is a client at a place.
type user struct {
	*natslock.Client
	rw  *rwlock.RWLock
	nc  *nats.Conn
	io  *traffic
	rec *kit.Observer
	log *kit.Log
}

// at creates a client at a place and closes it when the test ends.
func at(t *testing.T, p place, opts ...natslock.Option) *user {
	t.Helper()
	u := &user{nc: p.connect(), rec: kit.NewObserver(), log: &kit.Log{}}
	all := append(p.options(t, u.nc),
		natslock.WithOwner(p.name), natslock.WithTuning(natslock.Tuning{WatchAfter: 1}), u.rec.Option(),
		u.log.Option(),
		faults.WrapStore(func(kv kvstore.KV) kvstore.KV {
			u.io = &traffic{KV: kv}
			return u.io
		}))
	u.Client = kit.NewClient(t, u.nc, append(all, opts...)...)
	u.rw = rwlock.New(u.Client)
	return u
}

// traffic counts the notifications that a client receives and records its reads.
type traffic struct {
	kvstore.KV
	mu    sync.Mutex
	got   map[kvstore.EventKind]int
	reads map[string][]reading // by the name of the lock
}

type reading struct {
	key string
	at  time.Time
}

// split returns the kind and the lock's name from a key. The tests choose names without dots.
func split(key string) (kind, name string) {
	parts := strings.SplitN(key+".", ".", 3)
	return parts[0], parts[1]
}

func (e *traffic) Watch(pattern string, deliver func(kvstore.Event)) (kvstore.Watch, error) {
	return e.KV.Watch(pattern, func(ev kvstore.Event) {
		e.mu.Lock()
		if e.got == nil {
			e.got = map[kvstore.EventKind]int{}
		}
		e.got[ev.Kind]++
		e.mu.Unlock()
		deliver(ev)
	})
}

func (e *traffic) Get(ctx context.Context, key string, min uint64) (kvstore.Record, error) {
	r, err := e.KV.Get(ctx, key, min)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.reads == nil {
		e.reads = map[string][]reading{}
	}
	_, name := split(key)
	e.reads[name] = append(e.reads[name], reading{key, time.Now()})
	return r, err
}

// notices returns how many notifications of changes have arrived.
func (e *traffic) notices() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.got[kvstore.Put] + e.got[kvstore.Deleted]
}

// patient waits until a waiter that watches keys of a kind has made its early timed reads. The next
// read is then 2.5 s away.
func (e *traffic) patient(t *testing.T, kind, name string) {
	t.Helper()
	kit.Eventually(t, "the waiter for "+name+" has settled", func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		// Three reads, because a waiter behind another one alternates between two records.
		asked := e.reads[name]
		if len(asked) < 3 {
			return false
		}
		asked = asked[len(asked)-3:]
		for _, r := range asked {
			if k, _ := split(r.key); k != kind {
				return false
			}
		}
		return asked[2].at.Sub(asked[1].at) > 450*time.Millisecond
	})
}

// await starts to take the lock and returns once it is queued.
func (u *user) await(t *testing.T, take kit.Taking, name string) *kit.Waiting {
	t.Helper()
	a := kit.Begin(t, func(ctx context.Context) (*natslock.Lock, error) { return take(ctx, name, natslock.Detached()) })
	u.rec.Wait(t, admin.EventQueued, name)
	return a
}

// listening waits until the client has received a notification. The renewal with which it begins to
// watch a lock causes one at the latest. The reply to that renewal proves the subscription, except
// behind a gateway, where the two travel on different connections.
func (u *user) listening(t *testing.T, n network) {
	t.Helper()
	if !n.silent {
		kit.Eventually(t, "it is notified", func() bool { return u.io.notices() > 0 })
	}
}
