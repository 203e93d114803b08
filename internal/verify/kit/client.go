package kit

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

// Member is a client on its own connection, with a link that a test can disturb.
type Member struct {
	*natslock.Client
	NC     *nats.Conn
	Link   *testutil.Link
	Events *Observer
}

// Join creates a member. The member is closed when the test ends.
func Join(t testing.TB, s *testutil.Server, opts ...natslock.Option) *Member {
	t.Helper()
	m := &Member{Events: NewObserver()}
	m.NC, m.Link = s.ConnectLink()
	m.Client = NewClient(t, m.NC, append([]natslock.Option{m.Events.Option()}, opts...)...)
	return m
}

// JoinInMemory is [Join] for an in-memory bucket. The member has a line to the bucket instead
// of a connection.
func JoinInMemory(t testing.TB, bucket *kvstore.Memory, opts ...natslock.Option) (*Member, *Line) {
	t.Helper()
	m, line := &Member{Events: NewObserver()}, NewLine(bucket)
	c, err := line.NewClient(append([]natslock.Option{m.Events.Option()}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(func() { CloseNow(c); line.Close() })
	m.Client = c
	return m, line
}

// Crowd returns n members, so that each waits at its own place. Goroutines of a single client
// might share a place.
func Crowd(t testing.TB, s *testutil.Server, n int, opts ...natslock.Option) []*Member {
	t.Helper()
	members := make([]*Member, n)
	for i := range members {
		members[i] = Join(t, s, opts...)
	}
	return members
}

// JoinFaulty is [Join] with a fault injector between the client and its bucket.
func JoinFaulty(t testing.TB, s *testutil.Server, opts ...natslock.Option) (m *Member, f *faults.Store) {
	t.Helper()
	m = &Member{Events: NewObserver()}
	m.NC, m.Link = s.ConnectLink()
	m.Client, f = Faulty(t, m.NC, 1, append([]natslock.Option{m.Events.Option()}, opts...)...)
	return m, f
}

// Waiting is an acquire in progress.
type Waiting = Call[*natslock.Lock]

// Await starts waiting for a lock, and returns once the client has queued.
func (m *Member) Await(t testing.TB, name string, opts ...natslock.LockOption) *Waiting {
	t.Helper()
	mark := m.Events.Len()
	w := m.Begin(t, name, opts...)
	m.Events.WaitFrom(t, mark, admin.EventQueued, name)
	return w
}

// Begin starts waiting for a lock.
func (m *Member) Begin(t testing.TB, name string, opts ...natslock.LockOption) *Waiting {
	return Begin(t, func(ctx context.Context) (*natslock.Lock, error) { return m.Lock(ctx, name, opts...) })
}

// Settle starts waiting for the lock named l, and returns once the client has nothing left to
// do about it.
func (m *Member) Settle(t *testing.T, opts ...natslock.LockOption) *Waiting {
	t.Helper()
	w := m.Begin(t, "l", opts...)
	synctest.Wait()
	return w
}

// As returns options that connect as a user with password p, and that keep nats.go from
// printing the server's refusals.
func As(user string) []nats.Option {
	return []nats.Option{nats.UserInfo(user, "p"), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})}
}

// QuietHolder takes the lock named l and then writes nothing, so that every later write to its
// key comes from another client.
func QuietHolder(t *testing.T, s *testutil.Server) *natslock.Lock {
	t.Helper()
	return Must(t, Join(t, s, natslock.WithTuning(natslock.Tuning{WatchAfter: -1})).Lock, "l", natslock.TTL(time.Hour), natslock.NoRenew())
}

// JoinOver is [JoinFaulty] with the client's store wrapped by over.
func JoinOver(t *testing.T, s *testutil.Server, over func(kvstore.KV) kvstore.KV) (m *Member, f *faults.Store) {
	m = &Member{Events: NewObserver(), NC: s.Connect()}
	m.Client, f = FaultyOver(t, m.NC, 1, over, m.Events.Option())
	return m, f
}

// Reconnect breaks the connection, and returns once the client has reconnected.
func (m *Member) Reconnect(t testing.TB) {
	t.Helper()
	before := m.NC.Stats().Reconnects
	m.Link.Cut()
	m.Link.Heal()
	Eventually(t, "the connection is back", func() bool { return m.NC.Stats().Reconnects > before && m.NC.IsConnected() })
}
