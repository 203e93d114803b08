package security_test

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/rwlock"
	"github.com/natslock/locks/semaphore"
	"github.com/natslock/locks/testutil"
)

func TestMain(m *testing.M) {
	kit.MoreAtOnce()
	kit.Main(m)
}

const (
	document = "../../../docs/permissions.conf"
	tenants  = "../../../docs/tenants.conf"
	password = "change me"
)

// account is a server with the documented users and, for each of their permissions,
// another user who lacks it. One more user may do everything.
type account struct {
	t   *testing.T
	s   *testutil.Server
	eye jetstream.Stream // used by last
}

// lacking returns the name of the user who has all of a role's permissions but one.
func lacking(role, permission string) string { return role + " without " + permission }

// all is the user without restrictions.
const all = "unrestricted"

func open(t *testing.T) *account {
	t.Helper()
	text, err := os.ReadFile(document)
	require.NoError(t, err)
	s := testutil.RunServer(t, testutil.WithConfigText(string(text)), testutil.WithConfig(func(o *server.Options) {
		for _, u := range slices.Clone(o.Users) {
			for _, p := range u.Permissions.Publish.Allow {
				o.Users = append(o.Users, without(u, p))
			}
			for _, p := range u.Permissions.Subscribe.Allow {
				o.Users = append(o.Users, without(u, p))
			}
		}
		o.Users = append(o.Users, &server.User{Username: all, Password: password})
	}))
	return &account{t: t, s: s}
}

// openTenants starts a server with the documented accounts.
func openTenants(t *testing.T) *account {
	t.Helper()
	text, err := os.ReadFile(tenants)
	require.NoError(t, err)
	return &account{t: t, s: testutil.RunServer(t, testutil.WithConfigText(string(text)))}
}

// tenant returns a client in an account that imports its part of the bucket.
func (a *account) tenant(user string) *person {
	a.t.Helper()
	p := a.connect(user)
	js, err := jetstream.NewWithAPIPrefix(p.nc, "locks.API")
	require.NoError(a.t, err)
	require.NoError(a.t, a.use(p, user, natslock.WithJetStream(js)))
	return p
}

func without(u *server.User, permission string) *server.User {
	rest := func(allow []string) *server.SubjectPermission {
		left := &server.SubjectPermission{Allow: slices.DeleteFunc(slices.Clone(allow), func(s string) bool { return s == permission })}
		if len(left.Allow) == 0 {
			left.Deny = []string{">"} // an empty list allows everything
		}
		return left
	}
	return &server.User{Username: lacking(u.Username, permission), Password: u.Password, Permissions: &server.Permissions{
		Publish: rest(u.Permissions.Publish.Allow), Subscribe: rest(u.Permissions.Subscribe.Allow)}}
}

// permissions returns the permissions that the document gives to a role.
func permissions(t *testing.T, role string) []string {
	t.Helper()
	o, err := server.ProcessConfigFile(document)
	require.NoError(t, err)
	for _, u := range o.Users {
		if u.Username == role {
			return append(slices.Clone(u.Permissions.Publish.Allow), u.Permissions.Subscribe.Allow...)
		}
	}
	t.Fatalf("the document has no role %s", role)
	return nil
}

// person is a user with a connection and a client.
type person struct {
	*natslock.Client
	rw  *rwlock.RWLock
	nc  *nats.Conn
	log *kit.Log

	mu      sync.Mutex
	refused []string
}

// connect connects as a user. A user who lacks a permission uses the inboxes of the role.
func (a *account) connect(user string) *person {
	a.t.Helper()
	role, _, _ := strings.Cut(user, " ")
	p := &person{log: &kit.Log{}}
	opts := []nats.Option{nats.UserInfo(user, password), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.refused = append(p.refused, err.Error())
	})}
	if role != all {
		opts = append(opts, nats.CustomInboxPrefix("_INBOX_"+role))
	}
	p.nc = a.s.Connect(opts...)
	return p
}

// try opens the bucket as a user.
func (a *account) try(user string, opts ...natslock.Option) (*person, error) {
	a.t.Helper()
	p := a.connect(user)
	return p, a.use(p, user, opts...)
}

func (a *account) use(p *person, user string, opts ...natslock.Option) error {
	c, err := natslock.New(kit.Bounded(a.t), p.nc, append([]natslock.Option{natslock.WithOwner(user), natslock.WithTuning(natslock.Tuning{WatchAfter: 1}),
		natslock.WithLogger(slog.New(slog.NewTextHandler(p.log, &slog.HandlerOptions{Level: slog.LevelDebug})))}, opts...)...)
	if err != nil {
		return err
	}
	p.Client, p.rw = c, rwlock.New(c)
	a.t.Cleanup(func() { _ = kit.CloseNow(c) })
	return nil
}

func (a *account) as(user string, opts ...natslock.Option) *person {
	a.t.Helper()
	p, err := a.try(user, opts...)
	require.NoError(a.t, err, user)
	return p
}

// stream returns the bucket as seen by the user who may do everything.
func (a *account) stream() jetstream.Stream {
	a.t.Helper()
	js, err := jetstream.New(a.connect(all).nc)
	require.NoError(a.t, err)
	s, err := js.Stream(a.t.Context(), "KV_natslock")
	require.NoError(a.t, err)
	return s
}

// complaints returns the server's refusals on this connection.
func (p *person) complaints() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.refused)
}

// deniedPublish publishes m and reports whether the server refused it.
func (p *person) deniedPublish(t *testing.T, m *nats.Msg) bool {
	t.Helper()
	require.NoError(t, p.nc.PublishMsg(m))
	return p.denied(t, `Publish to "`+m.Subject+`"`)
}

func (p *person) deniedSubscribe(t *testing.T, subject string) bool {
	t.Helper()
	sub, err := p.nc.SubscribeSync(subject)
	require.NoError(t, err)
	defer sub.Unsubscribe()
	return p.denied(t, `Subscription to "`+subject+`"`)
}

// denied reports whether the server has complained, which it does before it answers the
// flush.
func (p *person) denied(t *testing.T, what string) bool {
	t.Helper()
	require.NoError(t, p.nc.Flush())
	err := p.nc.LastError()
	return err != nil && strings.Contains(err.Error(), what)
}

// acquire takes the permit of a semaphore that has only one.
func (p *person) acquire(ctx context.Context, name string, opts ...natslock.LockOption) (*natslock.Lock, error) {
	return semaphore.New(p.Client, 1).Acquire(ctx, name, opts...)
}

func bounded(t *testing.T, take kit.Taking, name string, opts ...natslock.LockOption) (*natslock.Lock, error) {
	t.Helper()
	return take(kit.Bounded(t), name, opts...)
}

// forbidden requires that an acquire is refused for lack of a permission, and without
// delay.
func forbidden(t *testing.T, take kit.Taking, name string) {
	t.Helper()
	_, err := bounded(t, take, name)
	assert.ErrorIs(t, err, natslock.ErrPermission)
	assert.NotErrorIs(t, err, context.DeadlineExceeded)
}
