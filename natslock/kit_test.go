package natslock_test

import (
	"context"
	"errors"
	"slices"
	"strings"
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
	"github.com/natslock/locks/testutil"
)

func TestMain(m *testing.M) {
	kit.Quiet()
	kit.Patience = 30 * time.Second
	kit.LeakCheck(m)
}

const (
	subjects   = "$KV.natslock."
	streamName = "KV_natslock"
)

// member is a client on a connection of its own, with a link to disturb.
type member struct {
	*natslock.Client
	nc   *nats.Conn
	link *testutil.Link
	rec  *kit.Observer
}

func join(t testing.TB, s *testutil.Server, opts ...natslock.Option) *member {
	t.Helper()
	m := &member{rec: kit.NewObserver()}
	m.nc, m.link = s.ConnectLink()
	m.Client = kit.NewClient(t, m.nc, append([]natslock.Option{m.rec.Option()}, opts...)...)
	return m
}

// joinInMemory is [join] to a bucket in memory: instead of a connection the member has a
// line to it.
func joinInMemory(t testing.TB, bucket *kvstore.Memory, opts ...natslock.Option) (*member, *kit.Line) {
	t.Helper()
	m, line := &member{rec: kit.NewObserver()}, kit.NewLine(bucket)
	c, err := line.NewClient(append([]natslock.Option{m.rec.Option()}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(func() { kit.CloseNow(c); line.Close() })
	m.Client = c
	return m, line
}

// crowd is n clients, to wait at a place each: the goroutines of one client may share one.
func crowd(t testing.TB, s *testutil.Server, n int, opts ...natslock.Option) []*member {
	t.Helper()
	members := make([]*member, n)
	for i := range members {
		members[i] = join(t, s, opts...)
	}
	return members
}

// joinFaulty is join with faults between the client and its bucket.
func joinFaulty(t testing.TB, s *testutil.Server, opts ...natslock.Option) (m *member, f *faults.Store) {
	t.Helper()
	m = &member{rec: kit.NewObserver()}
	m.nc, m.link = s.ConnectLink()
	m.Client, f = kit.Faulty(t, m.nc, 1, append([]natslock.Option{m.rec.Option()}, opts...)...)
	return m, f
}

func mustLock(t testing.TB, c *natslock.Client, name string, opts ...natslock.LockOption) *natslock.Lock {
	t.Helper()
	return kit.Must(t, c.Lock, name, opts...)
}

// waiting is a Lock under way.
type waiting = kit.Call[*natslock.Lock]

// await begins to wait for a lock and returns when it is queued.
func (m *member) await(t testing.TB, name string, opts ...natslock.LockOption) *waiting {
	t.Helper()
	mark := m.rec.Len()
	w := m.begin(t, name, opts...)
	m.rec.WaitFrom(t, mark, admin.EventQueued, name)
	return w
}

func (m *member) begin(t testing.TB, name string, opts ...natslock.LockOption) *waiting {
	return kit.Begin(t, func(ctx context.Context) (*natslock.Lock, error) { return m.Lock(ctx, name, opts...) })
}

// tap counts what is published to the bucket's subjects, refused or not.
type tap struct {
	nc  *nats.Conn
	sub *nats.Subscription
}

func newTap(t testing.TB, nc *nats.Conn, key string) *tap {
	t.Helper()
	return tapOf(t, nc, subjects+key)
}

func tapOf(t testing.TB, nc *nats.Conn, subject string) *tap {
	t.Helper()
	sub, err := nc.SubscribeSync(subject)
	require.NoError(t, err)
	require.NoError(t, sub.SetPendingLimits(-1, -1))
	require.NoError(t, nc.Flush())
	return &tap{nc: nc, sub: sub}
}

// take returns what was published since the last call by the connections,
// whose publishes so far are waited for.
func (p *tap) take(t testing.TB, by ...*nats.Conn) []*nats.Msg {
	t.Helper()
	for _, nc := range by {
		require.NoError(t, nc.Flush()) // the server has handled what it sent
	}
	require.NoError(t, p.nc.Flush()) // and what it has passed on is here
	n, _, err := p.sub.Pending()
	require.NoError(t, err)
	msgs := make([]*nats.Msg, n)
	for i := range msgs {
		msgs[i], err = p.sub.NextMsg(time.Second)
		require.NoError(t, err)
	}
	return msgs
}

// raw is the bucket as anybody can reach it, beside the library.
type raw struct {
	t  testing.TB
	nc *nats.Conn
	js jetstream.JetStream
}

func newRaw(t testing.TB, nc *nats.Conn) *raw {
	t.Helper()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	return &raw{t: t, nc: nc, js: js}
}

func (r *raw) stream() jetstream.Stream {
	r.t.Helper()
	s, err := r.js.Stream(context.Background(), streamName)
	require.NoError(r.t, err)
	return s
}

// put writes value under key, unconditionally.
func (r *raw) put(key string, value []byte, ttl time.Duration, hdr ...string) uint64 {
	r.t.Helper()
	m := nats.NewMsg(subjects + key)
	m.Data = value
	for i := 0; i < len(hdr); i += 2 {
		m.Header.Set(hdr[i], hdr[i+1])
	}
	var opts []jetstream.PublishOpt
	if ttl > 0 {
		opts = append(opts, jetstream.WithMsgTTL(ttl))
	}
	ack, err := r.js.PublishMsg(context.Background(), m, opts...)
	require.NoError(r.t, err)
	return ack.Sequence
}

// remove writes a tombstone as the nats command does.
func (r *raw) remove(key string) uint64 {
	r.t.Helper()
	return r.put(key, nil, 0, "KV-Operation", "DEL")
}

// get returns the record under key, nil when there is none.
func (r *raw) get(key string) *jetstream.RawStreamMsg {
	r.t.Helper()
	m, err := r.stream().GetLastMsgForSubject(context.Background(), subjects+key)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil
	}
	require.NoError(r.t, err)
	return m
}

// live returns the keys under pattern that hold a record and no tombstone.
func (r *raw) live(pattern string) []string {
	r.t.Helper()
	info, err := r.stream().Info(context.Background(), jetstream.WithSubjectFilter(subjects+pattern))
	require.NoError(r.t, err)
	var keys []string
	for subject := range info.State.Subjects {
		key := strings.TrimPrefix(subject, subjects)
		if m := r.get(key); m != nil && m.Header.Get("KV-Operation") == "" {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

func inspect(t testing.TB, c *natslock.Client, name string) admin.Info {
	t.Helper()
	info, err := admin.New(c).Inspect(context.Background(), admin.KindMutex, name)
	require.NoError(t, err)
	return info
}
