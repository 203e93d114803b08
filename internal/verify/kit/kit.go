// Package kit has test helpers that several packages share.
package kit

import (
	"bytes"
	"context"
	"log/slog"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/natslock"
)

// Patience limits each wait for an event. It is far longer than any event takes, and makes a
// failing test report what it was waiting for instead of hanging.
const Patience = time.Minute

// Receive waits for a value from ch, or for ch to be closed.
func Receive[T any](t testing.TB, ch <-chan T, what string) T {
	t.Helper()
	return ReceiveIn(t, Patience, ch, what)
}

// ReceiveIn is [Receive] with a different limit.
func ReceiveIn[T any](t testing.TB, d time.Duration, ch <-chan T, what string) T {
	t.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case v := <-ch:
		return v
	case <-timer.C:
		t.Fatalf("waited %v in vain for %s", d, what)
		panic("unreachable")
	}
}

// Eventually polls for a condition that has no event to wait for.
func Eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(Patience); !cond(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not in %v: %s", Patience, what)
		}
	}
}

// Quickly runs fn, and fails the test if fn takes longer than limit, as it would if it waited
// for a timeout.
func Quickly(t testing.TB, limit time.Duration, what string, fn func() error) error {
	t.Helper()
	begun := time.Now()
	err := fn()
	if d := time.Since(begun); d > limit {
		t.Fatalf("%s took %v, more than %v: %v", what, d, limit, err)
	}
	return err
}

// Call is a call in progress on its own goroutine.
type Call[T any] struct {
	Done   chan struct{} // closed once the call has returned
	Cancel context.CancelCauseFunc

	// The fields below are set once the call has returned.
	Value T
	Err   error
	At    time.Time
}

// Begin starts a call whose context outlives the test.
func Begin[T any](t testing.TB, fn func(ctx context.Context) (T, error)) *Call[T] {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(t.Context()))
	c := &Call[T]{Done: make(chan struct{}), Cancel: cancel}
	Keep(t, c)
	go func() {
		defer close(c.Done)
		c.Value, c.Err = fn(ctx)
		c.At = time.Now()
	}()
	return c
}

// Granted waits for the value of a call that must succeed.
func (c *Call[T]) Granted(t testing.TB) T {
	t.Helper()
	Receive(t, c.Done, "a grant")
	require.NoError(t, c.Err)
	return c.Value
}

// Failed waits for the error from a call that must fail.
func (c *Call[T]) Failed(t testing.TB) error {
	t.Helper()
	Receive(t, c.Done, "the failure of a call")
	require.Error(t, c.Err)
	return c.Err
}

// Over reports whether the call has returned.
func (c *Call[T]) Over() bool {
	select {
	case <-c.Done:
		return true
	default:
		return false
	}
}

// Bounded returns a context for calls that must not take long.
func Bounded(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	t.Cleanup(cancel)
	return ctx
}

// NewClient creates a client that is closed when the test ends, without waiting for the release
// of locks that the test still holds.
func NewClient(t testing.TB, nc *nats.Conn, opts ...natslock.Option) *natslock.Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	c, err := natslock.New(ctx, nc, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = CloseNow(c) })
	return c
}

// CloseNow closes a client without waiting for its holders.
func CloseNow(c *natslock.Client) error {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return c.Close(ctx)
}

// Taking is a way to take a lock by its name.
type Taking = func(ctx context.Context, name string, opts ...natslock.LockOption) (*natslock.Lock, error)

// Must takes a lock that outlives its context, and keeps its handle until the test ends.
func Must(t testing.TB, take Taking, name string, opts ...natslock.LockOption) *natslock.Lock {
	t.Helper()
	l, err := take(Bounded(t), name, append([]natslock.LockOption{natslock.Detached()}, opts...)...)
	require.NoError(t, err)
	Keep(t, l)
	return l
}

// Unlock releases locks.
func Unlock(t testing.TB, locks ...*natslock.Lock) {
	t.Helper()
	for _, l := range locks {
		require.NoError(t, l.Unlock(context.Background()))
	}
}

// JetStream returns a connection's JetStream context.
func JetStream(t testing.TB, nc *nats.Conn) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	return js
}

// Log collects text, and can be read while it is being written to.
type Log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Option makes a client log to l.
func (l *Log) Option() natslock.Option {
	return natslock.WithLogger(slog.New(slog.NewTextHandler(l, nil)))
}

// Reset discards what has been written.
func (l *Log) Reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Reset()
}

var (
	takenMu sync.Mutex
	taken   = map[int]bool{}
)

// FreePort returns a port on which no program listens, and never returns the same port twice.
// The port is below the range that the operating system uses for outgoing connections, so no
// such connection can happen to occupy it while a server restarts.
func FreePort(t testing.TB) int {
	t.Helper()
	takenMu.Lock()
	defer takenMu.Unlock()
	for range 100 {
		port := 15000 + rand.IntN(17000)
		if taken[port] {
			continue
		}
		if l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			taken[port] = true
			require.NoError(t, l.Close())
			return port
		}
	}
	t.Fatal("no free port")
	return 0
}
