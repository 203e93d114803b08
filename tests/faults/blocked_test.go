package faults_test

import (
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
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

// TestLeaseBlockedWrite checks that the context of a lock ends in time even though a blocked
// network write holds up everything that uses the connection. It uses TCP because the clock of a
// bubble stops while a goroutine waits for a mutex.
func TestLeaseBlockedWrite(t *testing.T) {
	tier.Proof(t)
	s := testutil.RunServer(t)
	holder := kit.Join(t, s)
	l := kit.Must(t, holder.Lock, "l", natslock.TTL(time.Second))
	slow := kit.Must(t, holder.Lock, "slow", natslock.TTL(2*time.Second))
	holder.Link.BlockWrites(true)
	defer holder.Link.BlockWrites(false) // must run before the client is closed
	until := kit.ValidUntil(l)
	kit.Receive(t, l.Context().Done(), "the end")
	require.WithinDuration(t, until, time.Now(), 700*time.Millisecond)
	kit.WantLost(t, l, natslock.ErrLost)
	require.WithinDuration(t, until, time.Now(), 900*time.Millisecond, "nor is Unlock of a lost lock delayed")
	kit.WantHeld(t, slow)
	kit.Receive(t, slow.Context().Done(), "the end")
	kit.WantLost(t, slow, natslock.ErrLost)
}

// TestLeaseReleaseTimeoutBlockedWrite checks that a blocked network write does not delay a release
// beyond its timeout.
func TestLeaseReleaseTimeoutBlockedWrite(t *testing.T) {
	t.Parallel()
	s := testutil.RunServer(t)
	c := kit.Join(t, s, natslock.WithTuning(natslock.Tuning{ReleaseTimeout: 500 * time.Millisecond}))
	l := kit.Must(t, c.Lock, "l", natslock.TTL(30*time.Second))
	block(t, c)
	done := make(chan error, 1)
	go func() { done <- l.Unlock(context.Background()) }()
	err := kit.ReceiveIn(t, 10*time.Second, done, "Unlock")
	require.ErrorIs(t, err, natslock.ErrUnavailable)
	require.NotErrorIs(t, err, natslock.ErrLost)
	require.ErrorIs(t, l.Err(), natslock.ErrReleased)
	c.Link.BlockWrites(false)
	kit.Must(t, kit.Join(t, s).Lock, "l") // shows that the lock was deleted in the background
}

// TestBrokenReleaseBlockedWrite checks that a blocked network write does not delay Unlock of a
// broken lock either. The holder has to delete a broken record, too.
func TestBrokenReleaseBlockedWrite(t *testing.T) {
	tier.Proof(t)
	s := testutil.RunServer(t)
	c := kit.Join(t, s, natslock.WithTuning(natslock.Tuning{ReleaseTimeout: 500 * time.Millisecond}), natslock.WithTuning(natslock.Tuning{WatchAfter: 1}))
	l := kit.Must(t, c.Lock, "l", natslock.TTL(30*time.Second))
	require.NoError(t, admin.New(kit.Join(t, s).Client).Break(t.Context(), admin.BreakRequest{Kind: admin.KindMutex, Name: "l", ID: l.ID(), Reason: "a test"}))
	<-l.Context().Done()
	block(t, c)
	done := make(chan error, 2)
	go func() { done <- l.Unlock(context.Background()) }()
	require.ErrorIs(t, kit.ReceiveIn(t, 10*time.Second, done, "Unlock"), natslock.ErrBroken)
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	go func() { done <- c.Close(ctx) }()
	require.NoError(t, kit.ReceiveIn(t, 10*time.Second, done, "Close"))
	c.Link.BlockWrites(false)
	kit.Must(t, kit.Join(t, s).Lock, "l") // without the deletion in the background it would take 30 s
}

// block makes the connection's writes block and waits until one of them is stuck.
func block(t *testing.T, c *kit.Member) {
	t.Helper()
	t.Cleanup(func() { c.Link.BlockWrites(false) })
	c.Link.BlockWrites(true)
	require.NoError(t, c.NC.Publish("x", nil))
	kit.Eventually(t, "the connection is stuck", func() bool {
		free := make(chan struct{})
		go func() { c.NC.Status(); close(free) }()
		select {
		case <-free:
			return false
		case <-time.After(100 * time.Millisecond):
			return true
		}
	})
}

// silentDialer connects to a server or, once silent is set, to a listener that accepts connections
// but never sends anything.
type silentDialer struct {
	silent atomic.Pointer[net.TCPAddr]
	asked  chan struct{}
}

func (d *silentDialer) Dial(network, address string) (net.Conn, error) {
	if to := d.silent.Load(); to != nil {
		nc, err := net.Dial("tcp", to.String())
		select {
		case d.asked <- struct{}{}:
		default:
		}
		return nc, err
	}
	return net.Dial(network, address)
}

// TestSilentServer checks that no call waits for the mutex that nats.go holds while it waits for a
// server that accepts connections but never sends anything.
func TestSilentServer(t *testing.T) {
	t.Parallel()
	s := testutil.RunServer(t)
	listener, err := net.ListenTCP("tcp", nil)
	require.NoError(t, err)
	defer listener.Close()
	d := &silentDialer{asked: make(chan struct{}, 1)}
	nc := s.Connect(nats.SetCustomDialer(d), nats.Timeout(time.Minute), nats.MaxReconnects(-1))
	c := kit.NewClient(t, nc, natslock.WithTuning(natslock.Tuning{ReleaseTimeout: time.Second}))
	fresh := kit.NewClient(t, nc) // it has not sent anything yet
	held, idle := kit.Must(t, c.Lock, "held", natslock.TTL(time.Hour)), kit.Must(t, c.Lock, "idle", natslock.TTL(time.Hour))
	theirs := kit.Must(t, kit.Join(t, s).Lock, "theirs", natslock.TTL(time.Hour))
	within := func(what string, ctx context.Context, fn func(ctx context.Context) error) error {
		t.Helper()
		done := make(chan error, 1)
		go func() { done <- fn(ctx) }()
		return kit.ReceiveIn(t, 15*time.Second, done, what)
	}
	soon := func() context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		t.Cleanup(cancel)
		return ctx
	}
	// A waiter that has already queued must end with its context, too.
	waiting, giveUp := context.WithCancel(t.Context())
	gaveUp := make(chan error, 1)
	go func() { _, err := c.Lock(waiting, theirs.Name()); gaveUp <- err }()
	kit.Eventually(t, "it waits", func() bool { return c.Stats().Waiting == 1 })

	d.silent.Store(listener.Addr().(*net.TCPAddr))
	s.Stop()
	<-d.asked
	time.Sleep(20 * time.Millisecond)
	free := make(chan struct{})
	go func() { nc.Status(); close(free) }()
	select {
	case <-free:
		t.Fatal("the mutex of nats.go is free: the test shows nothing")
	case <-time.After(50 * time.Millisecond):
	}

	for name, c := range map[string]*natslock.Client{"used": c, "fresh": fresh} {
		require.ErrorIs(t, within(name+": Lock", soon(), func(ctx context.Context) error { _, err := c.Lock(ctx, "l"); return err }), context.DeadlineExceeded)
		require.ErrorIs(t, within(name+": TryLock", soon(), func(ctx context.Context) error { _, err := c.TryLock(ctx, "l"); return err }), natslock.ErrUnavailable)
		require.ErrorIs(t, within(name+": Inspect", soon(), func(ctx context.Context) error { _, err := admin.New(c).Inspect(ctx, admin.KindMutex, "l"); return err }), natslock.ErrUnavailable)
		require.ErrorIs(t, within(name+": Break", soon(), func(ctx context.Context) error {
			return admin.New(c).Break(ctx, admin.BreakRequest{Name: "l", ID: "x"})
		}), natslock.ErrUnavailable)
	}
	require.ErrorIs(t, within("Healthy", soon(), func(context.Context) error { return c.Healthy() }), natslock.ErrUnavailable)
	giveUp()
	require.ErrorIs(t, kit.ReceiveIn(t, 15*time.Second, gaveUp, "the waiter"), context.Canceled)
	require.ErrorIs(t, within("Extend", soon(), func(ctx context.Context) error { return held.Extend(ctx, 0) }), context.DeadlineExceeded)
	require.ErrorIs(t, within("Unlock", soon(), held.Unlock), context.DeadlineExceeded)
	require.ErrorIs(t, within("New", soon(), func(ctx context.Context) error { _, err := natslock.New(ctx, nc); return err }), context.DeadlineExceeded)
	require.ErrorIs(t, within("Close", soon(), c.Close), context.DeadlineExceeded)
	require.ErrorIs(t, idle.Err(), natslock.ErrClosed)
	require.NoError(t, within("Close of the fresh one", soon(), fresh.Close))
	require.NoError(t, listener.Close()) // ends the silent connection
}

// relay passes bytes between clients and a server, and can stop reading from the clients.
type relay struct {
	url  string
	mu   sync.Mutex
	open chan struct{} // closed while the relay reads from the clients
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

// blockedCalls makes each call of a client on a connection that looks alive but accepts no bytes,
// because the application has filled its socket buffers. Each call must return when its context
// ends. The result maps each call to how long after that it returned.
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
		// The first calls run before anyone knows that the connection is stuck.
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
	kit.Must(t, other.Lock, "l") // shows that the lock was released in the background
	kit.Unlock(t, kit.Must(t, c.Lock, "m"))
	return returned
}

// TestBlockedWrite checks that no call outlasts its context on a connection that accepts no bytes,
// even though nats.go holds its mutex while it writes, for up to a minute.
func TestBlockedWrite(t *testing.T) { blockedCalls(t, 20*time.Second) }

// TestBlockedWriteTimes checks that the calls return soon after their contexts end.
func TestBlockedWriteTimes(t *testing.T) {
	tier.Proof(t)
	for what, late := range blockedCalls(t, 20*time.Second) {
		t.Logf("%s returned %v after its context", what, late)
		require.Less(t, late, 300*time.Millisecond, what)
	}
}

// TestCloseBlockedWrite checks that Close gives up as well.
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
