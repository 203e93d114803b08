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

func TestMain(m *testing.M) { kit.Main(m) }

// peer is a client whose store can inject faults.
type peer struct {
	*natslock.Client
	nc     *nats.Conn
	link   *testutil.Link
	f      *faults.Store
	queued chan admin.Event
}

// join creates a peer on its own connection.
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

// must acquires a permit, or fails the test.
func must(t testing.TB, s *semaphore.Semaphore, name string, opts ...natslock.LockOption) *natslock.Lock {
	t.Helper()
	l, err := s.Acquire(kit.Bounded(t), name, append([]natslock.LockOption{natslock.Detached()}, opts...)...)
	require.NoError(t, err)
	kit.Keep(t, l)
	return l
}

// slot returns the slot number of a permit.
func slot(t testing.TB, l *natslock.Lock) int {
	t.Helper()
	n, ok := semaphore.Slot(l)
	require.True(t, ok)
	return n
}

// await starts an Acquire and returns once it is queued.
func (p *peer) await(t testing.TB, s *semaphore.Semaphore, name string, opts ...natslock.LockOption) *kit.Waiting {
	t.Helper()
	w := begin(t, s, name, opts...)
	kit.Receive(t, p.queued, "a place in the queue")
	return w
}

func begin(t testing.TB, s *semaphore.Semaphore, name string, opts ...natslock.LockOption) *kit.Waiting {
	return kit.Begin(t, func(ctx context.Context) (*natslock.Lock, error) { return s.Acquire(ctx, name, opts...) })
}
