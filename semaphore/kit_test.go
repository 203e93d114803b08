package semaphore_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/semaphore"
	"github.com/natslock/locks/testutil"
)

func TestMain(m *testing.M) {
	kit.Quiet()
	testutil.LeakCheck(m)
}

// patience bounds every wait for an event: far more than it can take, so that a test which
// fails says so instead of hanging.
const patience = 60 * time.Second

// peer is a client with the faults of its store.
type peer struct {
	*natslock.Client
	nc     *nats.Conn
	link   *testutil.Link
	f      *faults.Store
	queued chan admin.Event
}

// join makes a peer on a connection of its own.
func join(t testing.TB, s *testutil.Server, opts ...natslock.Option) *peer {
	t.Helper()
	p := &peer{queued: make(chan admin.Event, 1000)}
	p.nc, p.link = s.ConnectLink(nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond))
	p.Client, p.f = kit.Faulty(t, p.nc, 1, append([]natslock.Option{admin.WithObserver(p.observe)}, opts...)...)
	return p
}

func (p *peer) observe(_ context.Context, ev admin.Event) {
	if ev.Type == admin.EventQueued {
		select {
		case p.queued <- ev:
		default:
		}
	}
}

// must takes a permit.
func must(t testing.TB, s *semaphore.Semaphore, opts ...natslock.LockOption) *natslock.Lock {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	l, err := s.Acquire(ctx, append([]natslock.LockOption{natslock.Detached()}, opts...)...)
	require.NoError(t, err)
	kit.Keep(t, l)
	return l
}

func unlock(t testing.TB, locks ...*natslock.Lock) {
	t.Helper()
	for _, l := range locks {
		require.NoError(t, l.Unlock(context.Background()))
	}
}

// slot is the number of a permit.
func slot(t testing.TB, l *natslock.Lock) int {
	t.Helper()
	n, ok := semaphore.Slot(l)
	require.True(t, ok)
	return n
}

// waiting is an Acquire under way.
type waiting struct {
	done   chan struct{}
	cancel context.CancelFunc
	lock   *natslock.Lock
	err    error
}

// await begins an Acquire and returns when it is queued.
func (p *peer) await(t testing.TB, s *semaphore.Semaphore, opts ...natslock.LockOption) *waiting {
	t.Helper()
	w := begin(t, s, opts...)
	receive(t, p.queued, "a place in the queue")
	return w
}

func begin(t testing.TB, s *semaphore.Semaphore, opts ...natslock.LockOption) *waiting {
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	w := &waiting{done: make(chan struct{}), cancel: cancel}
	kit.Keep(t, w)
	go func() {
		defer close(w.done)
		w.lock, w.err = s.Acquire(ctx, opts...)
	}()
	return w
}

// granted returns the lock when it has been granted.
func (w *waiting) granted(t testing.TB) *natslock.Lock {
	t.Helper()
	receive(t, w.done, "a grant")
	require.NoError(t, w.err)
	return w.lock
}

func (w *waiting) over() bool {
	select {
	case <-w.done:
		return true
	default:
		return false
	}
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
