package security_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	lockadmin "github.com/natslock/locks/natslock/admin"
)

// queued takes a held lock whose holder releases it once a client waits.
func queued(t *testing.T, held *natslock.Lock, waiter *person, take kit.Taking) time.Duration {
	t.Helper()
	type result struct {
		l   *natslock.Lock
		err error
		at  time.Time
	}
	got := make(chan result, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), kit.Patience)
		defer cancel()
		l, err := take(ctx, held.Name(), natslock.Detached())
		got <- result{l, err, time.Now()}
	}()
	kit.Eventually(t, "it waits", func() bool { return waiter.Stats().Waiting == 1 })
	released := time.Now()
	kit.Unlock(t, held)
	r := <-got
	require.NoError(t, r.err)
	kit.Unlock(t, r.l)
	return r.at.Sub(released)
}

// TestRoleUser checks that the service can do everything with its own names, using nothing
// but its own permissions.
func TestRoleUser(t *testing.T) {
	t.Parallel()
	a := open(t)
	a.as("admin")
	u, other := a.as("orders"), a.as("orders")
	queued(t, kit.Must(t, other.Lock, "orders.1"), u, u.Lock)
	queued(t, kit.Must(t, other.rw.Lock, "orders.2"), u, u.rw.Lock)
	queued(t, kit.Must(t, other.rw.Lock, "orders.3"), u, u.rw.RLock)
	queued(t, kit.Must(t, other.acquire, "orders.5"), u, u.acquire)
	l := kit.Must(t, other.Lock, "orders.1")
	_, err := bounded(t, u.TryLock, "orders.1")
	require.ErrorIs(t, err, natslock.ErrLocked)
	info, err := lockadmin.New(u.Client).Inspect(t.Context(), lockadmin.KindMutex, "orders.1")
	require.NoError(t, err)
	require.Equal(t, l.Token(), info.Holder.Token)
	require.NoError(t, lockadmin.New(u.Client).Break(t.Context(), lockadmin.BreakRequest{Kind: lockadmin.KindMutex, Name: "orders.1", ID: l.ID(), Reason: "within its names"}))
	kit.Receive(t, l.Context().Done(), "the end of the lock")
	require.ErrorIs(t, l.Unlock(t.Context()), natslock.ErrBroken)
	// Others have written since, and the leader's own read would show any key.
	kit.Unlock(t, kit.Must(t, other.Lock, "orders.9"))
	gate := kit.Must(t, other.rw.Lock, "orders.4")
	kit.Unlock(t, kit.Must(t, other.Lock, "orders.9"))
	info, err = lockadmin.New(u.Client).Inspect(t.Context(), lockadmin.KindRW, "orders.4")
	require.NoError(t, err)
	require.Equal(t, gate.Token(), info.Holder.Token)
	kit.Unlock(t, gate)
	permit := kit.Must(t, other.acquire, "orders.5")
	info, err = lockadmin.New(u.Client).Inspect(t.Context(), lockadmin.KindSemaphore, "orders.5")
	require.NoError(t, err)
	require.Len(t, info.Permits, 1)
	gone := lockadmin.BreakRequest{Kind: lockadmin.KindSemaphore, Name: "orders.5", ID: "another"}
	require.ErrorIs(t, lockadmin.New(u.Client).Break(t.Context(), gone), natslock.ErrReleased)
	require.NoError(t, lockadmin.New(u.Client).Break(t.Context(), lockadmin.BreakRequest{Kind: lockadmin.KindSemaphore, Name: "orders.5", ID: permit.ID()}))
	kit.Receive(t, permit.Context().Done(), "the end of the lock")
	require.ErrorIs(t, permit.Unlock(t.Context()), natslock.ErrBroken)
	r := kit.Must(t, other.rw.RLock, "orders.2")
	info, err = lockadmin.New(u.Client).Inspect(t.Context(), lockadmin.KindRW, "orders.2")
	require.NoError(t, err)
	require.Len(t, info.Readers, 1)
	kit.Unlock(t, r)
	for _, p := range []*person{u, other} {
		// These reads would show any key, and the service carries on without them.
		for _, what := range p.complaints() {
			require.Regexp(t, `Publish to "\$JS.API.(DIRECT.GET|STREAM.MSG.GET).KV_natslock"`, what)
		}
	}
	for line := range strings.Lines(u.log.String() + other.log.String()) {
		if strings.Contains(line, "WARN") {
			require.Contains(t, line, "broken by an operator", "nothing but the breaks is warned of")
		}
	}
}

// TestRoleUserNeedsAll takes the service's permissions away one at a time.
func TestRoleUserNeedsAll(t *testing.T) {
	t.Parallel()
	a := open(t)
	a.as("admin")
	full := a.as("orders")
	held := kit.Must(t, full.Lock, "orders.held")
	writing := kit.Must(t, full.rw.Lock, "orders.writing")
	taken := kit.Must(t, full.acquire, "orders.taken")
	expect := map[string]func(user string){
		"$KV.natslock.lock.orders.>": func(user string) {
			u := a.as(user)
			forbidden(t, u.Lock, "orders.free")
			kit.Unlock(t, kit.Must(t, u.rw.Lock, "orders.free_rw"))
		},
		"$KV.natslock.wait.orders.*.>": func(user string) {
			u := a.as(user)
			forbidden(t, u.Lock, "orders.held")
			kit.Unlock(t, kit.Must(t, u.Lock, "orders.free"))
		},
		"$KV.natslock.rw.orders.>": func(user string) {
			u := a.as(user)
			forbidden(t, u.rw.Lock, "orders.free_rw")
			kit.Unlock(t, kit.Must(t, u.rw.RLock, "orders.free_rw"))
		},
		"$KV.natslock.read.orders.*.>": func(user string) {
			u := a.as(user)
			forbidden(t, u.rw.RLock, "orders.free_rw")
			kit.Unlock(t, kit.Must(t, u.rw.Lock, "orders.free_rw"))
		},
		"$KV.natslock.rwait.orders.*.>": func(user string) {
			u := a.as(user)
			forbidden(t, u.rw.RLock, "orders.writing")
			forbidden(t, u.rw.Lock, "orders.writing")
			kit.Unlock(t, kit.Must(t, u.rw.Lock, "orders.free_rw"))
		},
		"$KV.natslock.sem.orders.*.>": func(user string) {
			u := a.as(user)
			forbidden(t, u.acquire, "orders.free_sem")
			kit.Unlock(t, kit.Must(t, u.Lock, "orders.free"))
		},
		"$KV.natslock.swait.orders.*.>": func(user string) {
			u := a.as(user)
			forbidden(t, u.acquire, "orders.taken")
			kit.Unlock(t, kit.Must(t, u.acquire, "orders.free_sem"))
		},
		"$JS.API.STREAM.INFO.KV_natslock": func(user string) {
			_, err := a.try(user)
			require.ErrorIs(t, err, natslock.ErrPermission)
		},
		"$JS.API.DIRECT.GET.KV_natslock.$KV.natslock.*.orders.>": func(user string) {
			u := a.as(user)
			forbidden(t, u.Lock, "orders.held")
			forbidden(t, u.TryLock, "orders.held")
			kit.Unlock(t, kit.Must(t, u.Lock, "orders.untouched"))
		},
		"natslock.natslock.*.*.orders.>": func(user string) { // slower, which it reports
			u := a.as(user)
			queued(t, kit.Must(t, full.Lock, "orders.deaf"), u, u.Lock)
			l := kit.Must(t, u.Lock, "orders.deaf", natslock.TTL(time.Second))
			kit.Eventually(t, "it says that it is deaf", func() bool {
				return strings.Contains(u.log.String(), "no notification of a change has ever arrived")
			})
			kit.Unlock(t, l)
		},
		"_INBOX_orders.>": func(user string) {
			_, err := a.try(user)
			require.ErrorIs(t, err, natslock.ErrPermission)
		},
	}
	oneByOne(t, "orders", expect)
	kit.Unlock(t, held)
	kit.Unlock(t, writing)
	kit.Unlock(t, taken)
}

// oneByOne runs a role's expectations without each of its permissions in turn, and
// requires one expectation for each.
func oneByOne(t *testing.T, role string, expect map[string]func(user string)) {
	t.Helper()
	for _, p := range permissions(t, role) {
		require.Contains(t, expect, p)
		t.Log("without ", p)
		expect[p](lacking(role, p))
		delete(expect, p)
	}
	require.Empty(t, expect, "expected of permissions that nobody has")
}

// TestRoleObserver checks that an observer sees everything and changes nothing.
func TestRoleObserver(t *testing.T) {
	t.Parallel()
	a := open(t)
	a.as("admin")
	user, o := a.as("orders"), a.as("observer")
	kept := a.history()
	seen := o.watch(t)
	l := kit.Must(t, user.Lock, "orders.1")
	r := kit.Must(t, user.rw.RLock, "orders.2")
	require.Equal(t, 2, o.list(t))
	kit.Eventually(t, "it has seen the grant", func() bool { return seen(lockadmin.EventGranted) })
	kit.Unlock(t, l)
	kit.Unlock(t, r)
	l = kit.Must(t, user.Lock, "orders.1")
	kit.Eventually(t, "a copy of a write", func() bool {
		info, err := kept.Info(t.Context())
		require.NoError(t, err)
		return info.State.Msgs > 0
	})
	require.NoError(t, o.history(t))
	require.Empty(t, o.complaints())
	require.ErrorIs(t, user.history(t), natslock.ErrPermission)
	without := func(user string) { require.ErrorIs(t, a.as(user).history(t), natslock.ErrPermission) }
	oneByOne(t, "observer", map[string]func(string){
		"$JS.API.STREAM.INFO.KV_natslock": func(user string) {
			_, err := a.try(user)
			require.ErrorIs(t, err, natslock.ErrPermission)
		},
		"$JS.API.DIRECT.GET.KV_natslock": func(user string) { // one request per record instead
			o := a.as(user)
			require.Equal(t, 1, o.list(t))
			require.NotEmpty(t, o.complaints())
		},
		"$JS.API.DIRECT.GET.KV_natslock.>": func(user string) {
			_, err := lockadmin.New(a.as(user).Client).Inspect(t.Context(), lockadmin.KindMutex, "orders.1")
			require.ErrorIs(t, err, natslock.ErrPermission)
		},
		"$JS.API.STREAM.INFO.HISTORY_natslock": without,
		"$JS.API.DIRECT.GET.HISTORY_natslock":  without,
		"natslock.natslock.>": func(user string) { // it sees no changes, only the existing records
			o := a.as(user)
			seen := o.watch(t)
			require.NoError(t, o.nc.Flush())
			require.True(t, o.denied(t, `Subscription to "natslock.natslock.`))
			require.Equal(t, 1, o.list(t))
			require.False(t, seen(lockadmin.EventGranted))
		},
		"_INBOX_observer.>": func(user string) {
			_, err := a.try(user)
			require.ErrorIs(t, err, natslock.ErrPermission)
		},
	})
	forbidden(t, o.Lock, "orders.1")
	forbidden(t, o.rw.RLock, "orders.2")
	err := lockadmin.New(o.Client).Break(t.Context(), lockadmin.BreakRequest{Kind: lockadmin.KindMutex, Name: "orders.1", ID: l.ID()})
	require.ErrorIs(t, err, natslock.ErrPermission)
	require.NoError(t, l.Err())
	kit.Unlock(t, l)
}

// history creates the history of the bucket.
func (a *account) history() jetstream.Stream {
	a.t.Helper()
	js, err := jetstream.New(a.connect(all).nc)
	require.NoError(a.t, err)
	bucket, err := js.Stream(a.t.Context(), "KV_natslock")
	require.NoError(a.t, err)
	history, err := js.CreateStream(a.t.Context(), kvstore.HistoryStream(bucket.CachedInfo(), time.Hour, 0))
	require.NoError(a.t, err)
	return history
}

// history reads the history.
func (p *person) history(t *testing.T) error {
	t.Helper()
	for _, err := range lockadmin.New(p.Client).History(t.Context(), ">", time.Time{}) {
		if err != nil {
			return err
		}
	}
	return nil
}

// list returns the number of locks that are listed.
func (p *person) list(t *testing.T) (n int) {
	t.Helper()
	for info, err := range lockadmin.New(p.Client).List(t.Context(), ">") {
		require.NoError(t, err)
		require.True(t, info.Holder != nil || len(info.Readers) > 0)
		n++
	}
	return n
}

// watch returns once the subscription is in place. The returned function reports whether
// an event has been seen since.
func (p *person) watch(t *testing.T) (seen func(lockadmin.EventType) bool) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	events := make(chan lockadmin.EventType, 100)
	done := make(chan struct{})
	before := p.nc.NumSubscriptions()
	go func() {
		defer close(done)
		for ev, err := range lockadmin.New(p.Client).Watch(ctx, ">") {
			if err == nil {
				events <- ev.Type
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	kit.Eventually(t, "it watches", func() bool { return p.nc.NumSubscriptions() >= before+5 })
	require.NoError(t, p.nc.Flush())
	have := map[lockadmin.EventType]bool{}
	return func(typ lockadmin.EventType) bool {
		for len(events) > 0 {
			have[<-events] = true
		}
		return have[typ]
	}
}

// TestRoleOperator checks that an operator can end holders, writers and readers, and do
// nothing else.
func TestRoleOperator(t *testing.T) {
	t.Parallel()
	a := open(t)
	a.as("admin")
	user, op := a.as("orders"), a.as("operator")
	takes := map[string]struct {
		kind lockadmin.Kind
		take kit.Taking
	}{
		"$KV.natslock.lock.>": {lockadmin.KindMutex, user.Lock},
		"$KV.natslock.rw.>":   {lockadmin.KindRW, user.rw.Lock},
		"$KV.natslock.read.>": {lockadmin.KindRW, user.rw.RLock},
		"$KV.natslock.sem.>":  {lockadmin.KindSemaphore, user.acquire},
	}
	names := map[lockadmin.Kind]string{lockadmin.KindMutex: "orders.1", lockadmin.KindRW: "orders.2", lockadmin.KindSemaphore: "orders.3"}
	breaking := func(by *person, permission string) (*natslock.Lock, error) {
		x := takes[permission]
		l := kit.Must(t, x.take, names[x.kind])
		return l, lockadmin.New(by.Client).Break(t.Context(), lockadmin.BreakRequest{Kind: x.kind, Name: names[x.kind], ID: l.ID(), Reason: "a test"})
	}
	expect := map[string]func(string){
		"$JS.API.STREAM.INFO.KV_natslock": func(user string) {
			_, err := a.try(user)
			require.ErrorIs(t, err, natslock.ErrPermission)
		},
		"$JS.API.DIRECT.GET.KV_natslock": func(user string) { // one request per record instead
			l := kit.Must(t, takes["$KV.natslock.lock.>"].take, "orders.1")
			require.Equal(t, 1, a.as(user).list(t))
			kit.Unlock(t, l)
		},
		"$JS.API.DIRECT.GET.KV_natslock.>": func(user string) {
			l, err := breaking(a.as(user), "$KV.natslock.lock.>")
			require.ErrorIs(t, err, natslock.ErrPermission)
			kit.Unlock(t, l)
		},
		"natslock.natslock.>": func(user string) { // it sees no changes
			o := a.as(user)
			o.watch(t)
			require.True(t, o.denied(t, `Subscription to "natslock.natslock.`))
		},
		"_INBOX_operator.>": func(user string) {
			_, err := a.try(user)
			require.ErrorIs(t, err, natslock.ErrPermission)
		},
	}
	for permission := range takes {
		l, err := breaking(op, permission)
		require.NoError(t, err)
		kit.Receive(t, l.Context().Done(), "the end of the lock")
		require.ErrorIs(t, l.Unlock(t.Context()), natslock.ErrBroken)
		expect[permission] = func(user string) {
			l, err := breaking(a.as(user), permission)
			require.ErrorIs(t, err, natslock.ErrPermission)
			require.NoError(t, l.Err())
			kit.Unlock(t, l)
		}
	}
	require.Empty(t, op.complaints())
	oneByOne(t, "operator", expect)

	// A break is a write, so an operator can take a free lock, but it cannot queue.
	kit.Unlock(t, kit.Must(t, op.TryLock, "free"))
	l := kit.Must(t, user.Lock, "orders.1")
	forbidden(t, op.Lock, "orders.1")
	kit.Unlock(t, l)
}

// TestRoleAdmin checks that the admin role can create the bucket, and what it needs for
// that.
func TestRoleAdmin(t *testing.T) {
	t.Parallel()
	for _, p := range permissions(t, "admin") {
		t.Run(p, func(t *testing.T) {
			a := open(t)
			_, err := a.try("orders")
			require.ErrorIs(t, err, natslock.ErrPermission, "no other role makes it")
			_, err = a.try("orders", natslock.WithCreate(false))
			require.ErrorIs(t, err, kvstore.ErrNotFound)
			admin, err := a.try(lacking("admin", p))
			if p == "$SYS.REQ.USER.INFO" {
				require.NoError(t, err)
				require.Contains(t, admin.log.String(), `created lock bucket" bucket=natslock account=""`)
				return
			}
			if p == "$JS.API.INFO" { // the reply to the creation names the server's version too
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, natslock.ErrPermission)
			admin = a.as("admin")
			require.Contains(t, admin.log.String(), "account=$G")
			require.Empty(t, admin.complaints())
			forbidden(t, admin.Lock, "l")
		})
	}
}

// TestRolesAreRefusedTheRest checks that the server refuses everything that is not in a
// role's list and that the bucket stays as it was.
func TestRolesAreRefusedTheRest(t *testing.T) {
	t.Parallel()
	a := open(t)
	a.as("admin")
	owner := a.as(all)
	for _, name := range []string{"users.1", "orders"} {
		kit.Must(t, owner.Lock, name)
		kit.Must(t, owner.rw.Lock, "rw."+name)
	}
	dest := a.stream().CachedInfo().Config.RePublish.Destination
	notices := strings.TrimSuffix(dest, ">")
	publishes := map[string]string{ // by subject, the roles that are allowed to all the same
		"$JS.API.STREAM.DELETE.KV_natslock":                         "",
		"$JS.API.STREAM.PURGE.KV_natslock":                          "",
		"$JS.API.STREAM.UPDATE.KV_natslock":                         "",
		"$JS.API.STREAM.MSG.DELETE.KV_natslock":                     "",
		"$JS.API.STREAM.MSG.GET.KV_natslock":                        "",
		"$JS.API.STREAM.SNAPSHOT.KV_natslock":                       "",
		"$JS.API.STREAM.RESTORE.KV_natslock":                        "",
		"$JS.API.STREAM.CREATE.KV_natslock":                         "admin",
		"$JS.API.STREAM.CREATE.KV_other":                            "",
		"$JS.API.INFO":                                              "admin",
		"$JS.API.STREAM.NAMES":                                      "",
		"$JS.API.STREAM.PEER.REMOVE.KV_natslock":                    "",
		"$JS.API.STREAM.LEADER.STEPDOWN.KV_natslock":                "",
		"$JS.API.CONSUMER.CREATE.KV_natslock.c":                     "",
		"$JS.API.DIRECT.GET.KV_natslock":                            "observer operator",
		"$JS.API.DIRECT.GET.HISTORY_natslock":                       "observer",
		"$JS.API.STREAM.INFO.HISTORY_natslock":                      "observer",
		"$JS.API.STREAM.UPDATE.HISTORY_natslock":                    "",
		"$JS.API.STREAM.DELETE.HISTORY_natslock":                    "",
		"$JS.API.DIRECT.GET.KV_natslock.$KV.natslock.lock.users.1":  "observer operator",
		"$JS.API.DIRECT.GET.KV_natslock.$KV.natslock.lock.orders":   "observer operator",
		"$JS.API.DIRECT.GET.KV_natslock.$KV.natslock.lock.orders.1": "orders observer operator",
		"$KV.natslock.lock.users.1":                                 "operator",
		"$KV.natslock.lock.orders":                                  "operator",
		"$KV.natslock.wait.users.1.x":                               "",
		"$KV.natslock.rw.users.1":                                   "operator",
		"$KV.natslock.rwait.users.1.x":                              "",
		"$KV.natslock.read.users.1.x":                               "operator",
		"$KV.natslock.sem.users.1.0":                                "operator",
		"$KV.natslock.swait.users.1.x":                              "",
		"$KV.natslock.probe":                                        "",
		notices + "lock.orders.1":                                   "", // nobody forges a notification
		"_INBOX_orders.x.1":                                         "", // nor a reply
		"_INBOX.x.1":                                                "",
	}
	subscriptions := map[string]string{
		">":                      "",
		"$KV.>":                  "",
		"$KV.natslock.>":         "",
		"$JS.API.>":              "",
		"_INBOX.>":               "",
		"_INBOX_orders.>":        "orders",
		"_INBOX_operator.>":      "operator",
		"*.>":                    "",
		dest:                     "observer operator",
		notices + "lock.>":       "observer operator",
		notices + "*.users.>":    "observer operator",
		notices + "*.orders.>":   "orders observer operator",
		notices + "lock.orders":  "observer operator",
		notices + "*.orders.1.>": "orders observer operator",
	}
	before, err := a.stream().Info(t.Context())
	require.NoError(t, err)
	for _, role := range []string{"orders", "observer", "operator", "admin"} {
		p := a.connect(role)
		may := func(who string) bool { return strings.Contains(" "+who+" ", " "+role+" ") }
		for subject, who := range publishes {
			if !may(who) {
				require.True(t, p.deniedPublish(t, &nats.Msg{Subject: subject, Data: []byte("{}")}), "%s publishes to %s", role, subject)
			}
		}
		for subject, who := range subscriptions {
			require.Equal(t, !may(who), p.deniedSubscribe(t, subject), "%s subscribes to %s", role, subject)
		}
	}
	after, err := a.stream().Info(t.Context())
	require.NoError(t, err)
	require.Equal(t, before.Config, after.Config)
	require.Equal(t, before.State.NumSubjects, after.State.NumSubjects)

	u := a.as("orders")
	for _, name := range []string{"users.1", "orders", "other"} {
		forbidden(t, u.Lock, name)
		forbidden(t, u.TryLock, name)
		forbidden(t, u.rw.Lock, "rw."+name)
		forbidden(t, u.rw.TryRLock, "free.rw."+name)
		_, err := lockadmin.New(u.Client).Inspect(t.Context(), lockadmin.KindMutex, name)
		require.ErrorIs(t, err, natslock.ErrPermission)
		require.ErrorIs(t, lockadmin.New(u.Client).Break(t.Context(), lockadmin.BreakRequest{Kind: lockadmin.KindMutex, Name: name, ID: "A"}), natslock.ErrPermission)
	}
}

// TestDocumentHasThem checks that SECURITY.md shows the service's permissions as they are
// tested here.
func TestDocumentHasThem(t *testing.T) {
	t.Parallel()
	document, err := os.ReadFile("../../../SECURITY.md")
	require.NoError(t, err)
	for _, p := range permissions(t, "orders") {
		require.Contains(t, string(document), `"`+p+`"`)
	}
}
