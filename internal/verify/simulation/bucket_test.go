package simulation_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/history"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

// bucket contains the locks of a simulation, on a server or in memory.
type bucket interface {
	// line returns the connection of another client.
	line() line
	// tap makes a recorder record all changes from now on.
	tap(rec *history.Recorder)
	// records lists the existing records.
	records() []kvstore.Record
	// remove writes a tombstone as the nats command does and returns its revision.
	remove(key string) (uint64, error)
	// left lists the records that remain in the end.
	left() []string
	// close ends whatever the simulation has used apart from the clients.
	close()
}

// line is a client's connection, which can be disturbed.
type line interface {
	Cut()
	Heal()
	Blackhole(on bool)

	client(ctx context.Context, opts ...natslock.Option) (*natslock.Client, error)
	// left returns what closed clients have left behind, if anything.
	left() string
}

// simulateIn runs fn in a bubble, with a bucket of its own.
func simulateIn(t *testing.T, memory bool, fn func(t *testing.T, b bucket)) {
	t.Helper()
	if memory {
		kit.InMemory(t, func(t *testing.T, m *kvstore.Memory) { fn(t, &inMemory{t: t, m: m, store: m.Open()}) })
		return
	}
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) { fn(t, &onServer{t: t, s: s}) })
}

// onServer is a bucket on a real server.
type onServer struct {
	t     *testing.T
	s     *testutil.Server
	raw   *nats.Conn
	store *kvstore.Store
}

type serverLine struct {
	*testutil.Link
	nc   *nats.Conn
	subs int // on the connection, before the first lock
}

func (b *onServer) line() line {
	l := &serverLine{}
	l.nc, l.Link = b.s.ConnectLink(nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond))
	return l
}

func (l *serverLine) client(ctx context.Context, opts ...natslock.Option) (*natslock.Client, error) {
	c, err := natslock.New(ctx, l.nc, opts...)
	if l.subs == 0 {
		l.subs = l.nc.NumSubscriptions()
	}
	return c, err
}

func (l *serverLine) left() string {
	if n := l.nc.NumSubscriptions(); n > l.subs {
		return fmt.Sprintf("%d subscriptions", n-l.subs)
	}
	return ""
}

func (b *onServer) tap(rec *history.Recorder) {
	b.raw = b.s.Connect(nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond))
	rec.Tap(b.t, b.raw)
	b.store = kit.OpenStore(b.t, b.raw)
}

func (b *onServer) records() []kvstore.Record {
	l, err := b.store.List(context.Background(), ">", 0)
	if err != nil {
		return nil // the server is down
	}
	return l.Records
}

func (b *onServer) remove(key string) (uint64, error) {
	msg := nats.NewMsg("$KV.natslock." + key)
	msg.Header.Set("KV-Operation", "DEL")
	js, err := b.raw.JetStream()
	if err != nil {
		return 0, err
	}
	ack, err := js.PublishMsg(msg)
	if err != nil {
		return 0, err
	}
	return ack.Sequence, nil
}

func (b *onServer) left() []string { return kit.KeysLeft(b.t, b.raw) }
func (b *onServer) close()         { b.store.Close() }

// crash restarts the server, which has then forgotten the TTLs of all records that it has
// stored. The tap is connected before the clients are, so it records all of their
// changes.
func (b *onServer) crash(clients []*client) {
	for _, c := range clients {
		c.cuts <- struct{}{}
		c.link.Cut()
	}
	kit.RestartWithoutTTLs(b.t, b.s)
	for !b.raw.IsConnected() || b.raw.Flush() != nil {
		time.Sleep(10 * time.Millisecond)
	}
	for _, c := range clients {
		c.link.Heal()
		<-c.cuts
	}
}

// remake deletes the bucket and re-creates it.
func (b *onServer) remake(rec *history.Recorder) {
	assert.NoError(b.t, rec.Remade(func() (uint64, error) { return kit.RemakeBucket(b.t, b.raw, 0), nil }))
}

// inMemory is a bucket in the memory of the test.
type inMemory struct {
	t     *testing.T
	m     *kvstore.Memory
	store kvstore.KV
	lines []*kit.Line
}

type memoryLine struct{ *kit.Line }

func (b *inMemory) line() line {
	l := kit.NewLine(b.m)
	b.lines = append(b.lines, l)
	return memoryLine{l}
}

func (l memoryLine) client(_ context.Context, opts ...natslock.Option) (*natslock.Client, error) {
	return l.NewClient(opts...)
}

func (l memoryLine) left() string {
	if n := l.Close(); n > 0 {
		return fmt.Sprintf("%d open stores", n)
	}
	return ""
}

func (b *inMemory) tap(rec *history.Recorder) { rec.TapMemory(b.t, b.m) }

func (b *inMemory) records() []kvstore.Record {
	l, err := b.store.List(context.Background(), ">", 0)
	require.NoError(b.t, err)
	return l.Records
}

func (b *inMemory) remove(key string) (uint64, error) {
	for {
		r, err := b.store.Get(context.Background(), key, 0)
		if err != nil && !errors.Is(err, kvstore.ErrNotFound) {
			return 0, err
		}
		answers := make(chan kvstore.Answer, 1)
		if _, err := b.store.Send(kvstore.Write{Key: key, Expect: r.Revision, Delete: true}, func(a kvstore.Answer) { answers <- a }); err != nil {
			return 0, err
		}
		if a := <-answers; !errors.Is(a.Err, kvstore.ErrConflict) {
			return a.Revision, a.Err
		}
	}
}

func (b *inMemory) left() (keys []string) {
	l, err := b.m.Open().List(context.Background(), ">", 0) // the other store is closed
	require.NoError(b.t, err)
	for _, r := range l.Records {
		keys = append(keys, r.Key)
	}
	return keys
}

func (b *inMemory) close() { b.store.Close() }
