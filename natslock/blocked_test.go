package natslock_test

import (
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

// relay passes bytes between clients and a server, and can stop reading from the clients.
type relay struct {
	url  string
	mu   sync.Mutex
	open chan struct{} // closed while it reads
}

func newRelay(t *testing.T, url string) *relay {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r := &relay{url: "nats://" + ln.Addr().String(), open: make(chan struct{})}
	close(r.open)
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			client, err := ln.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", strings.TrimPrefix(url, "nats://"))
			if err != nil {
				client.Close()
				return
			}
			t.Cleanup(func() { client.Close(); server.Close() })
			go func() { _, _ = io.Copy(client, server); client.Close() }()
			go func() { _, _ = io.Copy(server, &gated{client, r}); server.Close() }()
		}
	}()
	return r
}

type gated struct {
	net.Conn
	r *relay
}

func (g *gated) Read(b []byte) (int, error) {
	g.r.mu.Lock()
	open := g.r.open
	g.r.mu.Unlock()
	<-open
	return g.Conn.Read(b)
}

func (r *relay) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open = make(chan struct{})
}

func (r *relay) start() {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-r.open:
	default:
		close(r.open)
	}
}

// blockedCalls has each call of a client meet a connection that counts as up and takes no
// bytes, since the application has filled its sockets. Each returns by its context. returned
// has how long after that.
func blockedCalls(t *testing.T, within time.Duration) (returned map[string]time.Duration) {
	s := testutil.RunServer(t)
	r := newRelay(t, s.URL())
	t.Cleanup(r.start)
	nc, err := nats.Connect(r.url)
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	c := kit.NewClient(t, nc, natslock.WithTuning(natslock.Tuning{ReleaseTimeout: 20 * time.Second}))
	held, other := kit.Must(t, c.Lock, "l", natslock.TTL(time.Hour)), kit.Join(t, s)
	require.NoError(t, nc.Flush())

	r.stop()
	filled := make(chan struct{})
	go func() {
		defer close(filled)
		for i := 0; i < 500 && nc.Publish("work", make([]byte, 64<<10)) == nil; i++ {
		}
	}()
	kit.Eventually(t, "the connection is stuck", func() bool {
		free := make(chan struct{})
		go func() { nc.Status(); close(free) }()
		select {
		case <-free:
			return false
		case <-time.After(100 * time.Millisecond):
			return true
		}
	})

	returned = make(map[string]time.Duration)
	for _, call := range []struct {
		what string
		fn   func(ctx context.Context) error
	}{
		// The first ones meet the connection as nobody knows yet that it is stuck.
		{"Lock", func(ctx context.Context) error { _, err := c.Lock(ctx, "m"); return err }},
		{"TryLock", func(ctx context.Context) error { _, err := c.TryLock(ctx, "m"); return err }},
		{"Watch", func(ctx context.Context) error {
			for _, err := range admin.New(c).Watch(ctx, ">") {
				return err
			}
			return ctx.Err()
		}},
		{"Inspect", func(ctx context.Context) error { _, err := admin.New(c).Inspect(ctx, admin.KindMutex, "l"); return err }},
		{"Unlock", held.Unlock},
		{"Lock again", func(ctx context.Context) error { _, err := c.Lock(ctx, "m"); return err }},
		{"Healthy", func(context.Context) error { return c.Healthy() }},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		due, _ := ctx.Deadline()
		done := make(chan error, 1)
		go func() { done <- call.fn(ctx) }()
		err := kit.ReceiveIn(t, within, done, call.what)
		returned[call.what] = time.Since(due)
		cancel()
		t.Logf("%s: %v", call.what, err)
		require.Error(t, err, call.what)
		require.NotErrorIs(t, err, natslock.ErrLost, call.what)
	}
	require.ErrorIs(t, held.Err(), natslock.ErrReleased)

	select {
	case <-filled:
		t.Fatal("the connection took what the application has published")
	default:
	}
	r.start()
	kit.ReceiveIn(t, time.Minute, filled, "the application's publishes")
	kit.Must(t, other.Lock, "l") // released in the background
	kit.Unlock(t, kit.Must(t, c.Lock, "m"))
	return returned
}

// No call waits for a connection that takes no bytes longer than its caller's context.
// nats.go holds its mutex while it writes, for a minute.
func TestBlockedWrite(t *testing.T) { blockedCalls(t, 20*time.Second) }

// They return soon after their contexts have ended.
func TestBlockedWriteTimes(t *testing.T) {
	tier.Proof(t)
	for what, late := range blockedCalls(t, 20*time.Second) {
		t.Logf("%s returned %v after its context", what, late)
		require.Less(t, late, 300*time.Millisecond, what)
	}
}

// A Close gives up, too.
func TestCloseBlockedWrite(t *testing.T) {
	s := testutil.RunServer(t)
	c := kit.Join(t, s)
	kit.Must(t, c.Lock, "l")
	block(t, c)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- c.Close(ctx) }()
	require.ErrorIs(t, kit.ReceiveIn(t, 20*time.Second, done, "Close"), context.DeadlineExceeded)
}
