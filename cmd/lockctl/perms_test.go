//go:build unix

package main_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/rwlock"
	"github.com/natslock/locks/semaphore"
	"github.com/natslock/locks/testutil"
)

// block returns the output of "lockctl perms".
func block(t *testing.T, args ...string) string {
	t.Helper()
	code, out, errs := run(t, nil, append([]string{"perms"}, args...)...)
	require.Zero(t, code, errs)
	require.Empty(t, errs)
	return out
}

// userList returns a server configuration with an unrestricted user "root" and one user for each
// block of permissions.
func userList(blocks map[string]string) string {
	text := "authorization { users: [\n{ user: root, password: p }\n"
	for user, block := range blocks {
		text += fmt.Sprintf("{ user: %s, password: p\n%s}\n", user, block)
	}
	return text + "] }\n"
}

// guest is a user's connection that records what it was refused.
type guest struct {
	*nats.Conn
	mu      sync.Mutex
	refused []string
}

func enter(t *testing.T, s *testutil.Server, user string, opts ...nats.Option) *guest {
	t.Helper()
	g := &guest{}
	g.Conn = s.Connect(append([]nats.Option{nats.UserInfo(user, "p"), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.refused = append(g.refused, err.Error())
	})}, opts...)...)
	return g
}

// wantUnrefused checks that nothing was refused except the given subjects.
func (g *guest) wantUnrefused(t *testing.T, but ...string) {
	t.Helper()
	require.NoError(t, g.Flush())
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, r := range g.refused {
		require.True(t, slices.ContainsFunc(but, func(b string) bool { return strings.Contains(r, `to "`+b+`"`) }), "refused: %s", r)
	}
}

// wantRefused checks that the server refuses a publish to subject.
func (g *guest) wantRefused(t *testing.T, subject string) {
	t.Helper()
	m := nats.NewMsg(subject)
	m.Reply = g.NewInbox()
	require.NoError(t, g.PublishMsg(m))
	require.NoError(t, g.Flush()) // the refusal arrives before the PONG
	require.ErrorIs(t, g.LastError(), nats.ErrPermissionViolation, subject)
	require.ErrorContains(t, g.LastError(), `Publish to "`+subject+`"`)
}

func (g *guest) wantUnnotified(t *testing.T, subject string) {
	t.Helper()
	sub, err := g.SubscribeSync(subject)
	require.NoError(t, err)
	require.NoError(t, g.Flush())
	require.ErrorContains(t, g.LastError(), `Subscription to "`+subject+`"`)
	_ = sub.Unsubscribe()
}

func (g *guest) client(t *testing.T, opts ...natslock.Option) *natslock.Client {
	t.Helper()
	c, err := natslock.New(timeout(t), g.Conn, append([]natslock.Option{natslock.WithTuning(natslock.Tuning{WatchAfter: 1})}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(func() {
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		_ = c.Close(ended)
	})
	return c
}

// awaited is a pending acquire.
type awaited struct {
	lock *natslock.Lock
	err  error
	done chan struct{}
}

// wait starts an acquire and returns once watcher sees it queued, or sees it wait locally behind
// watcher's own lock.
func wait(t *testing.T, watcher *natslock.Client, kind admin.Kind, name string, acquire func(context.Context, string, ...natslock.LockOption) (*natslock.Lock, error)) *awaited {
	t.Helper()
	w := &awaited{done: make(chan struct{})}
	ctx := timeout(t)
	queued := func() int {
		info, err := admin.New(watcher).Inspect(ctx, kind, name)
		require.NoError(t, err)
		return len(info.Queue) + watcher.Stats().Waiting
	}
	before := queued() // otherwise a client that has just released the lock could take it again meanwhile
	go func() {
		defer close(w.done)
		w.lock, w.err = acquire(ctx, name)
	}()
	kit.Eventually(t, "a waiter for "+name, func() bool {
		return queued() > before
	})
	return w
}

func (w *awaited) granted(t *testing.T) *natslock.Lock {
	t.Helper()
	<-w.done
	require.NoError(t, w.err)
	return w.lock
}

// useLocks exercises everything that a user can do with the locks of a name. Both clients are under
// test.
func useLocks(t *testing.T, a, b *natslock.Client, name string) {
	t.Helper()
	ctx := timeout(t)
	unlock := func(l *natslock.Lock) { t.Helper(); require.NoError(t, l.Unlock(ctx)) }

	l, err := a.Lock(ctx, name) // uncontended
	require.NoError(t, err)
	require.NoError(t, l.Extend(ctx, 0))
	_, err = b.TryLock(ctx, name)
	require.ErrorIs(t, err, natslock.ErrLocked)
	w := wait(t, a, admin.KindMutex, name, b.Lock) // contended
	w2 := wait(t, a, admin.KindMutex, name, a.Lock)
	unlock(l)
	unlock(w.granted(t))
	l = w2.granted(t)
	w = wait(t, a, admin.KindMutex, name, b.Lock) // broken
	require.NoError(t, admin.New(b).Break(ctx, admin.BreakRequest{Kind: admin.KindMutex, Name: name, ID: l.ID(), Reason: "test"}))
	<-l.Context().Done()
	require.ErrorIs(t, l.Err(), natslock.ErrBroken)
	require.ErrorIs(t, l.Unlock(ctx), natslock.ErrLost)
	unlock(w.granted(t))

	rwName := name + "-rw"
	ra, rb := rwlock.New(a), rwlock.New(b)
	r1, err := ra.RLock(ctx, rwName)
	require.NoError(t, err)
	r2, err := rb.RLock(ctx, rwName)
	require.NoError(t, err)
	require.NoError(t, r1.Extend(ctx, 0))
	_, err = ra.TryLock(ctx, rwName)
	require.ErrorIs(t, err, natslock.ErrLocked)
	writer := &awaited{done: make(chan struct{})} // waits for two readers to leave
	go func() {
		defer close(writer.done)
		writer.lock, writer.err = ra.Lock(ctx, rwName)
	}()
	kit.Eventually(t, "the writer's gate", func() bool {
		info, err := admin.New(b).Inspect(ctx, admin.KindRW, rwName)
		require.NoError(t, err)
		return info.Holder != nil && len(info.Readers) == 2
	})
	reader := wait(t, b, admin.KindRW, rwName, rb.RLock)
	require.NoError(t, admin.New(a).Break(ctx, admin.BreakRequest{Kind: admin.KindRW, Name: rwName, ID: r2.ID(), Reason: "test"}))
	<-r2.Context().Done()
	require.ErrorIs(t, r2.Unlock(ctx), natslock.ErrLost)
	unlock(r1)
	unlock(writer.granted(t))
	unlock(reader.granted(t))

	permits := name + "-sem"
	sa, sb := semaphore.New(a, 2), semaphore.New(b, 2)
	p1, err := sa.Acquire(ctx, permits)
	require.NoError(t, err)
	p2, err := sb.TryAcquire(ctx, permits)
	require.NoError(t, err)
	w = wait(t, b, admin.KindSemaphore, permits, sa.Acquire)
	require.NoError(t, admin.New(a).Break(ctx, admin.BreakRequest{Kind: admin.KindSemaphore, Name: permits, ID: p2.ID(), Reason: "test"}))
	<-p2.Context().Done()
	require.ErrorIs(t, p2.Unlock(ctx), natslock.ErrLost)
	unlock(w.granted(t))
	unlock(p1)
}

const (
	readQueue  = "$JS.API.DIRECT.GET.KV_natslock"
	readLeader = "$JS.API.STREAM.MSG.GET.KV_natslock"
)

// TestPermsOfUser checks that the library works with exactly the printed permissions: it uses every
// subject in them and is refused nothing.
func TestPermsOfUser(t *testing.T) {
	t.Parallel()
	s := testutil.RunServer(t, testutil.WithConfigText(userList(map[string]string{
		"plain": block(t, "orders.>"),
		"quiet": block(t, "orders.>", "--own-only", "--inbox-prefix", "_INBOX_quiet"),
		"exact": block(t, "deploy"),
		"stars": block(t, "*.x.*"),
	})))
	root := enter(t, s, "root")
	root.client(t) // creates the bucket
	published := tap(t, root)

	for _, c := range []struct {
		user, name string
		opts       []nats.Option
		withheld   []string
	}{
		{"plain", "orders.42", nil, nil},
		{"plain", "orders.a b.*", nil, nil},
		{"quiet", "orders.42", []nats.Option{nats.CustomInboxPrefix("_INBOX_quiet")}, []string{readQueue, readLeader}},
		{"stars", "a.x.b", nil, nil},
	} {
		one, two := enter(t, s, c.user, c.opts...), enter(t, s, c.user, c.opts...)
		a, b := one.client(t), two.client(t)
		// This would be slow if long queues were read key by key or notifications were lost.
		begun := time.Now()
		useLocks(t, a, b, c.name)
		within(t, 10*time.Second, time.Since(begun))
		one.wantUnrefused(t, c.withheld...)
		two.wantUnrefused(t, c.withheld...)
		for _, err := range admin.New(a).List(t.Context(), "orders.>") {
			require.NoError(t, err)
		}
		_, err := a.TryLock(t.Context(), "elsewhere")
		require.ErrorIs(t, err, natslock.ErrPermission)
	}
	exact := enter(t, s, "exact").client(t)
	l, err := exact.Lock(t.Context(), "deploy")
	require.NoError(t, err)
	require.NoError(t, l.Unlock(t.Context()))
	for _, name := range []string{"deploy.x", "deploy2", "orders.42"} {
		_, err := exact.TryLock(t.Context(), name)
		require.ErrorIs(t, err, natslock.ErrPermission, name)
	}

	var set struct{ Publish []struct{ Subject string } }
	require.NoError(t, json.Unmarshal([]byte(block(t, "orders.>", "--json")), &set))
	require.Len(t, set.Publish, 17)
	for _, p := range set.Publish {
		if p.Subject != readLeader { // needed only if a replica lags
			require.True(t, published(p.Subject), "%s is allowed and not needed", p.Subject)
		}
	}
}

// tap records what is published in the account. The returned function reports whether a pattern
// matches any of the subjects.
func tap(t *testing.T, root *guest) (published func(pattern string) bool) {
	seen := make(chan *nats.Msg, 1<<16)
	_, err := root.ChanSubscribe(">", seen)
	require.NoError(t, err)
	require.NoError(t, root.Flush())
	var subjects []string
	return func(pattern string) bool {
		require.NoError(t, root.Flush())
		for len(seen) > 0 {
			subjects = append(subjects, (<-seen).Subject)
		}
		return slices.ContainsFunc(subjects, func(s string) bool { return server.SubjectsCollide(pattern, s) })
	}
}

// TestPermsRefuse checks that the server refuses what the printed permissions leave out: other
// names, the bucket's settings and forged notifications.
func TestPermsRefuse(t *testing.T) {
	t.Parallel()
	s := testutil.RunServer(t, testutil.WithConfigText(userList(map[string]string{
		"user":     block(t, "orders.>", "--inbox-prefix", "_INBOX_user"),
		"operator": block(t, "orders.>", "--role", "operator"),
	})))
	root := enter(t, s, "root")
	rootClient := root.client(t, natslock.WithTuning(natslock.Tuning{WatchAfter: -1})) // does not write by itself
	js, err := jetstream.New(root.Conn)
	require.NoError(t, err)
	var held []*natslock.Lock
	for _, name := range []string{"users.1", "orders", "order", "orders2.1"} {
		l, err := rootClient.TryLock(t.Context(), name)
		require.NoError(t, err)
		held = append(held, l)
	}
	before, err := js.Stream(t.Context(), "KV_natslock")
	require.NoError(t, err)

	foreign := []string{
		"$KV.natslock.lock.users.1", "$KV.natslock.lock.orders", "$KV.natslock.lock.order", "$KV.natslock.lock.orders2.1", "$KV.natslock.rw.users.1",
		"$KV.natslock.read.users.1.id", "$KV.natslock.wait.users.1.id",
		// The queue and the readers of the lock "orders", which orders.> does not match.
		"$KV.natslock.wait.orders.id", "$KV.natslock.rwait.orders.id", "$KV.natslock.read.orders.id",
		"$KV.natslock.swait.orders.id", "$KV.natslock.sem.orders.0",
		"$KV.natslock.other.orders.1", "$KV.natslock.probe", "$KV.other.lock.orders.1",
		"$JS.API.STREAM.CREATE.KV_natslock", "$JS.API.STREAM.UPDATE.KV_natslock", "$JS.API.STREAM.DELETE.KV_natslock",
		"$JS.API.STREAM.PURGE.KV_natslock", "$JS.API.STREAM.MSG.DELETE.KV_natslock", "$JS.API.STREAM.SNAPSHOT.KV_natslock",
		"$JS.API.CONSUMER.CREATE.KV_natslock", "$JS.API.STREAM.LEADER.STEPDOWN.KV_natslock", "$JS.API.STREAM.CREATE.mirror",
		"$JS.API.DIRECT.GET.KV_natslock.$KV.natslock.lock.users.1", "$JS.API.DIRECT.GET.KV_natslock.$KV.natslock.wait.orders.id",
		"natslock.natslock.abc.lock.orders.1", // a forged notification
	}
	for _, user := range []string{"user", "operator"} {
		g := enter(t, s, user)
		for _, subject := range foreign {
			g.wantRefused(t, subject)
		}
		for _, subject := range []string{">", "$KV.>", "natslock.>", "natslock.natslock.*.lock.users.1", "natslock.natslock.*.wait.orders.*", "$JS.API.>", "_INBOX2.>"} {
			g.wantUnnotified(t, subject)
		}
	}
	enter(t, s, "user").wantUnnotified(t, "_INBOX.x.*") // replies to other clients
	after, err := js.Stream(t.Context(), "KV_natslock")
	require.NoError(t, err)
	require.Equal(t, before.CachedInfo().State.LastSeq, after.CachedInfo().State.LastSeq, "nothing was written")
	for _, l := range held {
		require.NoError(t, l.Extend(t.Context(), 0))
	}

	// An operator can inspect and break locks, but not queue for them.
	holder := root.client(t)
	l, err := holder.TryLock(t.Context(), "orders.1")
	require.NoError(t, err)
	r, err := rwlock.New(holder).RLock(t.Context(), "orders.2")
	require.NoError(t, err)
	waiting := wait(t, holder, admin.KindMutex, "orders.1", root.client(t).Lock)
	g := enter(t, s, "operator")
	c := g.client(t)
	broken := make(chan struct{})
	watching := make(chan struct{})
	ctx, stop := context.WithCancel(timeout(t))
	defer stop()
	go func() {
		var once sync.Once
		for ev, err := range admin.New(c).Watch(ctx, "orders.>") {
			once.Do(func() { close(watching) })
			if err == nil && ev.Type == admin.EventBroken && ev.Name == "orders.1" {
				close(broken)
				return
			}
		}
	}()
	kit.Eventually(t, "the operator's watch", func() bool {
		require.NoError(t, l.Extend(ctx, 0))
		select {
		case <-watching:
			return true
		default:
			return false
		}
	})
	var names []string
	for info, err := range admin.New(c).List(ctx, "orders.>") {
		require.NoError(t, err)
		names = append(names, fmt.Sprint(info.Kind, info.Name, len(info.Queue), len(info.Readers)))
	}
	require.Equal(t, []string{"mutexorders.11 0", "rworders.20 1"}, names)
	require.NoError(t, admin.New(c).Break(ctx, admin.BreakRequest{Kind: admin.KindMutex, Name: "orders.1", ID: l.ID()}))
	require.NoError(t, admin.New(c).Break(ctx, admin.BreakRequest{Kind: admin.KindRW, Name: "orders.2", ID: r.ID()}))
	<-broken
	<-l.Context().Done()
	require.ErrorIs(t, l.Unlock(ctx), natslock.ErrLost)
	g.wantUnrefused(t)
	waiting.granted(t)
	_, err = c.Lock(ctx, "orders.1")
	require.ErrorIs(t, err, natslock.ErrPermission)
}

// TestPermsOfAdmin checks that an administrator of some locks can create, repair and delete this
// bucket but no other stream.
func TestPermsOfAdmin(t *testing.T) {
	t.Parallel()
	s := testutil.RunServer(t, testutil.WithConfigText(userList(map[string]string{"admin": block(t, "orders.>", "--role", "admin")})))
	g := enter(t, s, "admin")
	a, b := g.client(t), g.client(t)
	useLocks(t, a, b, "orders.1")
	js, err := jetstream.New(g.Conn)
	require.NoError(t, err)
	str, err := js.Stream(t.Context(), "KV_natslock")
	require.NoError(t, err)
	cfg := str.CachedInfo().Config
	cfg.AllowRollup, cfg.Description = false, "repaired"
	_, err = js.UpdateStream(t.Context(), cfg)
	require.NoError(t, err)
	_, err = js.AccountInfo(t.Context())
	require.NoError(t, err)
	for info := range js.ListStreams(t.Context()).Info() {
		require.Equal(t, "KV_natslock", info.Config.Name)
	}
	require.NoError(t, js.DeleteStream(t.Context(), "KV_natslock"))
	g.wantUnrefused(t)
	for _, subject := range []string{"$JS.API.STREAM.CREATE.other", "$JS.API.STREAM.DELETE.other", "$JS.API.CONSUMER.CREATE.KV_natslock", "$KV.natslock.lock.users.1"} {
		g.wantRefused(t, subject)
	}
}

// TestPermsThroughDomain checks the permissions for access through a domain, whose subjects differ,
// from the leaf node's server and from a server of the domain itself.
func TestPermsThroughDomain(t *testing.T) {
	t.Parallel()
	port := kit.FreePort(t)
	hub := testutil.RunServer(t, testutil.WithConfigText(userList(map[string]string{"user": block(t, "orders.>")})),
		testutil.WithConfig(func(o *server.Options) {
			o.JetStreamDomain = "hub"
			o.LeafNode.Host, o.LeafNode.Port = "127.0.0.1", port
		}))
	leaf := testutil.RunServer(t, testutil.WithoutJetStream(),
		testutil.WithConfigText(userList(map[string]string{"user": block(t, "orders.>", "--js-domain", "hub")})),
		testutil.WithConfig(func(o *server.Options) {
			u := &url.URL{Scheme: "nats-leaf", User: url.UserPassword("root", "p"), Host: fmt.Sprintf("127.0.0.1:%d", port)}
			o.LeafNode.Remotes = []*server.RemoteLeafOpts{{URLs: []*url.URL{u}}}
			o.LeafNode.ReconnectInterval = 50 * time.Millisecond
		}))
	domain := func(g *guest) natslock.Option {
		js, err := jetstream.NewWithDomain(g.Conn, "hub")
		require.NoError(t, err)
		return natslock.WithJetStream(js)
	}
	root := enter(t, leaf, "root")
	kit.Eventually(t, "the leaf node's connection", func() bool {
		_, err := natslock.New(timeout(t), root.Conn, domain(root))
		require.True(t, err == nil || errors.Is(err, natslock.ErrUnavailable), "%v", err)
		return err == nil
	})
	for _, s := range []*testutil.Server{leaf, hub} {
		one, two := enter(t, s, "user"), enter(t, s, "user")
		useLocks(t, one.client(t, domain(one)), two.client(t, domain(two)), "orders.1")
		one.wantUnrefused(t)
		two.wantUnrefused(t)
		_, err := one.client(t, domain(one)).TryLock(t.Context(), "users.1")
		require.ErrorIs(t, err, natslock.ErrPermission)
	}
}
