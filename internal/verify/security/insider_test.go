package security_test

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/semaphore"
)

// last returns the last record in the bucket under key, or nil if there is none.
func (a *account) last(key string) *jetstream.RawStreamMsg {
	a.t.Helper()
	if a.eye == nil {
		a.eye = a.stream()
	}
	m, err := a.eye.GetLastMsgForSubject(a.t.Context(), "$KV.natslock."+key)
	if err != nil {
		require.ErrorIs(a.t, err, jetstream.ErrMsgNotFound)
		return nil
	}
	return m
}

// send publishes as the person, with a reply subject and headers.
func (p *person) send(t *testing.T, subject, reply string, headers ...string) {
	t.Helper()
	m := &nats.Msg{Subject: subject, Reply: reply, Header: nats.Header{}, Data: nil}
	for i := 0; i < len(headers); i += 2 {
		m.Header.Set(headers[i], headers[i+1])
	}
	require.NoError(t, p.nc.PublishMsg(m))
	require.NoError(t, p.nc.Flush())
}

// TestInsiderReplySubject shows that the server checks the subject that a user publishes
// to, but not the subject on which the user wants the reply. A user can therefore aim a
// reply at another client's record, and the reply can even be a tombstone. Nothing in the
// account prevents that.
func TestInsiderReplySubject(t *testing.T) {
	t.Parallel()
	a := open(t)
	a.as("admin")
	insider := a.connect("orders")

	t.Run("an answer", func(t *testing.T) {
		victim, next := a.as(all), a.as(all)
		l := kit.Must(t, victim.Lock, "users.1")
		insider.send(t, "$JS.API.STREAM.INFO.KV_natslock", "$KV.natslock.lock.users.1")
		kit.Receive(t, l.Context().Done(), "the end of the lock")
		require.ErrorIs(t, l.Err(), natslock.ErrLost)
		info, err := admin.New(next.Client).Inspect(t.Context(), admin.KindMutex, "users.1")
		require.NoError(t, err)
		require.True(t, info.Holder.Unreadable)
		_, err = bounded(t, next.Lock, "users.1", natslock.MaxWait(time.Second))
		require.ErrorIs(t, err, natslock.ErrTimeout, "no client gets in by it")
		require.NoError(t, admin.New(a.as("operator").Client).Break(t.Context(), admin.BreakRequest{Kind: admin.KindMutex, Name: "users.1", ID: info.Holder.ID, Reason: "forged", Immediately: true}))
		kit.Unlock(t, kit.Must(t, next.Lock, "users.1"))
	})
	t.Run("a tombstone", func(t *testing.T) {
		victim, next := a.as(all, natslock.WithTuning(natslock.Tuning{WatchAfter: -1})), a.as(all)
		l := kit.Must(t, victim.Lock, "users.2")
		ended := func(key string) {
			kit.Eventually(t, "a tombstone under "+key, func() bool {
				m := a.last("lock." + key)
				return m != nil && m.Header.Get("KV-Operation") == "DEL"
			})
		}
		insider.send(t, "$KV.natslock.lock.orders.own", "", "KV-Operation", "DEL")
		ended("orders.own") // otherwise the reply below is that there is nothing
		insider.send(t, "$JS.API.DIRECT.GET.KV_natslock.$KV.natslock.lock.orders.own", "$KV.natslock.lock.users.2")
		ended("users.2")
		other := kit.Must(t, next.Lock, "users.2")
		require.NoError(t, l.Err(), "two clients believe to hold it until the first one renews")
		require.Greater(t, other.Token(), l.Token(), "a resource that checks tokens is safe")
		require.Error(t, l.Extend(t.Context(), 0))
		require.ErrorIs(t, l.Err(), natslock.ErrLost)
		require.NoError(t, other.Err())
		_ = other.Unlock(context.Background())
	})
}

// TestTenants checks that no user can reach another account's names through its imports,
// with or without a reply subject.
func TestTenants(t *testing.T) {
	t.Parallel()
	a := openTenants(t)
	a.as("owner")
	orders, users, other := a.tenant("orders"), a.tenant("users"), a.tenant("users")
	queued(t, kit.Must(t, users.Lock, "users.1"), other, other.Lock)
	queued(t, kit.Must(t, users.rw.Lock, "users.2"), other, other.rw.RLock)
	permits := semaphore.New(orders.Client, 2)
	var all sync.WaitGroup
	for _, c := range []struct {
		take kit.Taking
		name string
	}{
		{orders.TryLock, "users.1"}, {orders.Lock, "users.1"}, {orders.rw.TryLock, "users.2"}, {orders.rw.Lock, "users.2"},
		{orders.rw.TryRLock, "users.2"}, {orders.rw.RLock, "users.2"}, {permits.TryAcquire, "users.3"}, {permits.Acquire, "users.3"},
	} {
		all.Go(func() { forbidden(t, c.take, c.name) })
	}
	all.Wait()

	l := kit.Must(t, users.Lock, "users.1")
	own := kit.Must(t, orders.Lock, "orders.1")
	orders.send(t, "locks.API.$KV.natslock.lock.orders.own", "", "KV-Operation", "DEL")
	for _, at := range []string{
		"$KV.natslock.lock.users.1", "locks.API.$KV.natslock.lock.users.1",
		"$KV.natslock.lock.orders.1", "locks.API.$KV.natslock.lock.orders.1",
	} {
		answers, err := orders.nc.SubscribeSync(at)
		require.NoError(t, err)
		for _, asked := range []string{
			"locks.API.STREAM.INFO.KV_natslock",
			"locks.API.DIRECT.GET.KV_natslock.$KV.natslock.lock.orders.own",
			"locks.API.$KV.natslock.lock.orders.own",
		} {
			orders.send(t, asked, at)
			_, err := answers.NextMsg(kit.Patience)
			require.NoError(t, err, "the answer stays in the account")
		}
		orders.send(t, "$KV.natslock.lock.users.1", "")
	}
	for _, l := range []*natslock.Lock{l, own} {
		require.NoError(t, l.Extend(t.Context(), 0))
		require.NoError(t, l.Err())
		kit.Unlock(t, l)
	}
}

// TestInsiderOwnNames shows that a user who may write a record can write anything there,
// again and again. An operator sees the record and can end it, but the user can write
// another one.
func TestInsiderOwnNames(t *testing.T) {
	t.Parallel()
	a := open(t)
	a.as("admin")
	insider, user, op := a.connect("orders"), a.as("orders"), a.as("operator")
	insider.send(t, "$KV.natslock.lock.orders.1", "") // no owner, no TTL
	_, err := bounded(t, user.Lock, "orders.1", natslock.MaxWait(time.Second))
	require.ErrorIs(t, err, natslock.ErrTimeout)
	info, err := admin.New(op.Client).Inspect(t.Context(), admin.KindMutex, "orders.1")
	require.NoError(t, err)
	require.True(t, info.Holder.Unreadable)
	require.NoError(t, admin.New(op.Client).Break(t.Context(), admin.BreakRequest{Kind: admin.KindMutex, Name: "orders.1", ID: info.Holder.ID, Reason: "rubbish", Immediately: true}))
	l := kit.Must(t, user.Lock, "orders.1")
	// Nothing forces the user to write conditionally, but the holder learns of the write.
	insider.send(t, "$KV.natslock.lock.orders.1", "")
	kit.Receive(t, l.Context().Done(), "the end of the lock")
	require.ErrorIs(t, l.Err(), natslock.ErrLost)
}

// TestInsiderNameOfAPrefix checks that the users of "orders.>" can neither hold the lock
// "orders" nor stand in its way. The records of that lock's waiters and readers are one
// token below "orders.", whereas those users write theirs two tokens below.
func TestInsiderNameOfAPrefix(t *testing.T) {
	t.Parallel()
	a := open(t)
	a.as("admin")
	insider, owner := a.connect("orders"), a.as(all)
	for _, key := range []string{"lock.orders", "rw.orders", "read.orders.x", "wait.orders.x", "rwait.orders.x", "sem.orders.0", "swait.orders.x"} {
		require.True(t, insider.deniedPublish(t, nats.NewMsg("$KV.natslock."+key)), key)
	}
	kit.Unlock(t, kit.Must(t, owner.rw.Lock, "orders"))
}

// TestInsiderUnrestricted shows which changes the bucket's settings refuse to all users,
// and which remain possible.
func TestInsiderUnrestricted(t *testing.T) {
	t.Parallel()
	a := open(t)
	a.as("admin")
	u, insider := a.as(all), a.as(all)
	l := kit.Must(t, u.Lock, "l", natslock.TTL(2*time.Second))
	s := a.stream()
	require.Error(t, s.Purge(t.Context()))
	require.Error(t, s.DeleteMsg(t.Context(), record.TokenRevision(l.Token())))
	js, err := jetstream.New(insider.nc)
	require.NoError(t, err)
	for _, change := range []func(*jetstream.StreamConfig){
		func(c *jetstream.StreamConfig) { c.DenyPurge = false },
		func(c *jetstream.StreamConfig) { c.DenyDelete = false },
		func(c *jetstream.StreamConfig) { c.AllowRollup = true }, // then one message could purge
		func(c *jetstream.StreamConfig) { c.AllowMsgTTL = false },
	} {
		cfg := s.CachedInfo().Config
		change(&cfg)
		_, err = js.UpdateStream(t.Context(), cfg)
		require.Error(t, err)
	}
	require.NoError(t, l.Extend(t.Context(), 0))

	cfg := s.CachedInfo().Config
	cfg.MaxMsgsPerSubject = 5
	_, err = js.UpdateStream(t.Context(), cfg)
	require.NoError(t, err)
	_, err = a.try("orders")
	require.ErrorIs(t, err, kvstore.ErrBucketConfig)

	token := l.Token()
	require.NoError(t, js.DeleteStream(t.Context(), "KV_natslock"))
	err = l.Extend(t.Context(), 0) // with a re-created bucket or with none
	require.Error(t, err)
	next := kit.Must(t, a.as(all).Lock, "l")
	require.Greater(t, next.Token(), token, "fencing outlives the bucket")
	kit.Unlock(t, next)
}

// TestInsiderForgesAnswers checks that replies to requests that have not been made yet are
// ignored, even if a user guesses the numbers of future requests.
func TestInsiderForgesAnswers(t *testing.T) {
	t.Parallel()
	a := open(t)
	a.as("admin")
	insider := a.connect(all)
	seen, err := insider.nc.SubscribeSync("_INBOX_orders.>")
	require.NoError(t, err)
	require.NoError(t, insider.nc.Flush())
	answered := func() map[string]bool { // since the last call
		require.NoError(t, insider.nc.Flush())
		inboxes := map[string]bool{}
		for n, _, _ := seen.Pending(); n > 0; n-- {
			m, err := seen.NextMsg(kit.Patience)
			require.NoError(t, err)
			inboxes[m.Subject[:strings.LastIndexByte(m.Subject, '.')+1]] = true
		}
		return inboxes
	}
	holder := a.as("orders")
	l := kit.Must(t, holder.Lock, "orders.1")
	require.NoError(t, holder.nc.Flush())
	holders := answered()
	victim := a.as("orders")
	_, err = bounded(t, victim.TryLock, "orders.1")
	require.ErrorIs(t, err, natslock.ErrLocked)
	require.NoError(t, victim.nc.Flush())
	inboxes := answered()
	maps.DeleteFunc(inboxes, func(inbox string, _ bool) bool { return holders[inbox] }) // it may be renewing, which is a request that was made
	require.NotEmpty(t, inboxes, "an unrestricted user sees every answer")
	for inbox := range inboxes {
		for n := range 2000 {
			require.NoError(t, insider.nc.Publish(inbox+strconv.FormatInt(int64(n), 36), []byte(`{"stream":"KV_natslock","seq":9007199254740991}`)))
		}
	}
	require.NoError(t, insider.nc.Flush())
	// All of them arrived before a reply that comes from the server. On a busy machine they
	// are still waiting in the victim's subscription and meet the requests of this loop.
	require.Eventually(t, func() bool {
		_, err := admin.New(victim.Client).Inspect(t.Context(), admin.KindMutex, "orders.1")
		return err == nil
	}, kit.Patience, time.Millisecond)
	_, err = bounded(t, victim.TryLock, "orders.1")
	require.ErrorIs(t, err, natslock.ErrLocked)
	require.NoError(t, l.Extend(t.Context(), 0))
	kit.Unlock(t, l)
}

// TestSecretsAreNotLogged checks that neither the contents of records nor a user's password
// appears in a log or an error.
func TestSecretsAreNotLogged(t *testing.T) {
	t.Parallel()
	a := open(t)
	a.as("admin")
	const secret = "s3cr3t"
	u := a.as(lacking("orders", "natslock.natslock.*.*.orders.>"), natslock.WithTTL(time.Second)) // causes a warning
	meta := natslock.Meta(map[string]string{"key": secret})
	l := kit.Must(t, u.Lock, "orders.1", meta)
	kit.Eventually(t, "it has warned", func() bool { return strings.Contains(u.log.String(), "WARN") })
	forbidden(t, u.Lock, "users.1")
	_, locked := bounded(t, u.TryLock, "orders.1", meta)
	require.ErrorIs(t, locked, natslock.ErrLocked)
	_, timeout := bounded(t, a.as("orders").Lock, "orders.1", meta, natslock.MaxWait(100*time.Millisecond))
	require.ErrorIs(t, timeout, natslock.ErrTimeout)
	a.s.Stop()
	kit.Receive(t, l.Context().Done(), "the end of the lock") // lost, which is logged
	require.ErrorIs(t, l.Err(), natslock.ErrLost)
	_, down := bounded(t, u.TryLock, "orders.1", meta)
	require.ErrorIs(t, down, natslock.ErrUnavailable)
	all := u.log.String() + fmt.Sprintf("%v %v %v %v", locked, timeout, down, l.Err())
	require.NotContains(t, all, secret)
	require.NotContains(t, all, password)
}
