//go:build unix

package main_test

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/election"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/rwlock"
	"github.com/natslock/locks/semaphore"
	"github.com/natslock/locks/testutil"
)

// observed runs a server with two observers whose permissions come from "lockctl perms": "all", and
// "some", who may read the locks under orders. Root holds locks of each kind, three of them with a
// queue. After that nothing is written except the renewals of places in the queues.
func observed(t *testing.T) (s *testutil.Server, root *guest, first *natslock.Lock) {
	t.Helper()
	s = testutil.RunServer(t, testutil.WithConfigText(userList(map[string]string{
		"all":  block(t, "--role", "observer", "--inbox-prefix", "_INBOX_all"),
		"some": block(t, "orders.>", "--own-only", "--role", "observer", "--inbox-prefix", "_INBOX_some"),
	})))
	code, _, errs := run(t, s, "--user", "root", "--password", "p", "init", "-f", "--history", "7d")
	require.Zero(t, code, errs)
	js := jetStream(t, s, asRoot...)
	kit.Eventually(t, "a history that copies", func() bool { return historyInfo(t, js).Sources[0].Active >= 0 })
	root = enter(t, s, "root")
	a, b := root.client(t, natslock.WithTuning(natslock.Tuning{WatchAfter: -1})), root.client(t, natslock.WithTuning(natslock.Tuning{WatchAfter: -1}))
	take(t, a, "users.1", natslock.TTL(time.Hour))
	first = take(t, a, "orders.1", natslock.TTL(time.Hour))
	_, err := rwlock.New(a).RLock(t.Context(), "orders.2", natslock.TTL(time.Hour), natslock.Detached())
	require.NoError(t, err)
	_, err = rwlock.New(a).Lock(t.Context(), "orders.4", natslock.TTL(time.Hour), natslock.Detached())
	require.NoError(t, err)
	_, err = semaphore.New(a, 1).Acquire(t.Context(), "orders.3", natslock.TTL(time.Hour), natslock.Detached())
	require.NoError(t, err)
	for name, c := range map[string]struct {
		kind    admin.Kind
		acquire func(context.Context, string, ...natslock.LockOption) (*natslock.Lock, error)
	}{
		"orders.1": {admin.KindMutex, b.Lock},
		"orders.4": {admin.KindRW, rwlock.New(b).Lock},
		"orders.3": {admin.KindSemaphore, semaphore.New(b, 1).Acquire},
	} {
		wait(t, a, c.kind, name, func(ctx context.Context, name string, _ ...natslock.LockOption) (*natslock.Lock, error) {
			return c.acquire(ctx, name, natslock.TTL(time.Hour), natslock.Detached())
		})
	}
	return s, root, first
}

// requests records what is published in the account. The returned function reports whether a
// connection with the inbox prefix has sent a request whose subject matches the pattern.
func requests(t *testing.T, root *guest) (sent func(inbox, pattern string) bool) {
	t.Helper()
	seen := make(chan *nats.Msg, 1<<16)
	_, err := root.ChanSubscribe(">", seen)
	require.NoError(t, err)
	require.NoError(t, root.Flush())
	var all []*nats.Msg
	return func(inbox, pattern string) bool {
		require.NoError(t, root.Flush())
		for len(seen) > 0 {
			all = append(all, <-seen)
		}
		for _, m := range all {
			if strings.HasPrefix(m.Reply, inbox+".") && server.SubjectsCollide(pattern, m.Subject) {
				return true
			}
		}
		return false
	}
}

// as returns args preceded by the flags that log in as user.
func as(user string, args ...string) []string {
	return append([]string{"--user", user, "--password", "p", "--inbox-prefix", "_INBOX_" + user}, args...)
}

// TestPermsOfObserver checks that every read-only command works with exactly the permissions
// printed for an observer, and that each of their subjects is needed.
func TestPermsOfObserver(t *testing.T) {
	t.Parallel()
	s, root, _ := observed(t)
	sent := requests(t, root)
	for _, c := range []struct {
		user  string
		args  []string
		shows string
	}{
		{"all", []string{"ls"}, "users.1"},
		{"all", []string{"info", "users.1"}, "held"},
		{"all", []string{"check", "--held", "1h", "--queue", "1"}, ""},
		{"all", []string{"history", ">"}, "users.1"},
		{"some", []string{"ls", "orders.>"}, "orders.3"},
		{"some", []string{"info", "orders.1"}, "held"},
		{"some", []string{"info", "orders.2"}, "reader"},
		{"some", []string{"check", "orders.>", "--held", "1h", "--queue", "1"}, ""},
	} {
		code, out, errs := run(t, s, as(c.user, c.args...)...)
		require.Zero(t, code, "%s %q: %s", c.user, c.args, errs)
		require.Empty(t, errs, "%s %q", c.user, c.args)
		require.Contains(t, out, c.shows, "%s %q", c.user, c.args)
	}
	for user, name := range map[string]string{"all": "users.2", "some": "orders.5"} {
		pattern := strings.Split(name, ".")[0] + ".>"
		watching := start(t, s, as(user, "watch", pattern, "--json")...)
		said(t, watching, "watching "+pattern)
		top := display(t, s, nil, as(user, "top", pattern)...)
		top.shows("connected", strings.Replace(pattern, ">", "1", 1))
		g := enter(t, s, user, nats.CustomInboxPrefix("_INBOX_"+user))
		c := g.client(t)
		leader, end := iter.Pull2(election.New(c, name).Observe(timeout(t)))
		defer end()
		first, err, _ := leader()
		require.NoError(t, err)
		require.True(t, first.Vacant())
		l := take(t, root.client(t), name, natslock.TTL(time.Hour))
		require.Equal(t, "granted", eventsOf(t, watching, 1)[0].Event)
		top.shows(name)
		next, err, _ := leader()
		require.NoError(t, err)
		require.Equal(t, l.Token(), next.Token)
		require.NoError(t, l.Unlock(t.Context()))
		top.hides(name)
		require.NotContains(t, strings.ToLower(watching.err.String()), "permission", user)

		n := 0
		for _, err := range admin.New(c).List(t.Context(), "orders.>") {
			require.NoError(t, err)
			n++
		}
		require.Equal(t, 4, n)
		if user == "all" {
			g.wantUnrefused(t)
		} else { // this user reads the records one by one instead
			g.wantUnrefused(t, readQueue, readLeader)
		}
	}
	for inbox, args := range map[string][]string{"_INBOX_all": {">"}, "_INBOX_some": {"orders.>", "--own-only"}} {
		var set struct{ Publish []struct{ Subject string } }
		require.NoError(t, json.Unmarshal([]byte(block(t, append(args, "--role", "observer", "--json")...)), &set))
		for _, p := range set.Publish {
			if p.Subject == readLeader || inbox == "_INBOX_all" && strings.Contains(p.Subject, "$KV.") {
				continue // needed only if a replica lags, or with more than 1024 records
			}
			require.True(t, sent(inbox, p.Subject), "%s: %s is allowed and not needed", inbox, p.Subject)
		}
	}
}

// records returns the revision of each record and tombstone. For a place in a queue it returns the
// status and the ID instead, because the waiter renews its place.
func records(t *testing.T, js jetstream.JetStream) map[string]any {
	t.Helper()
	stream, err := js.Stream(t.Context(), "KV_natslock")
	require.NoError(t, err)
	info, err := stream.Info(t.Context(), jetstream.WithSubjectFilter(">"))
	require.NoError(t, err)
	all := map[string]any{}
	for subject := range info.State.Subjects {
		last, err := stream.GetLastMsgForSubject(t.Context(), subject)
		require.NoError(t, err)
		all[subject] = last.Sequence
		if strings.Contains(subject, "wait.") {
			place, err := record.Decode(last.Data)
			require.NoError(t, err)
			all[subject] = fmt.Sprint(place.Status, " ", place.ID)
		}
	}
	return all
}

// TestPermsObserverIsRefused checks that an observer cannot change anything, and that the commands
// that would do so name the subject that the server has refused.
func TestPermsObserverIsRefused(t *testing.T) {
	t.Parallel()
	s, root, first := observed(t)
	js := jetStream(t, s, asRoot...)
	before := records(t, js)
	for _, user := range []string{"all", "some"} {
		for _, c := range []struct {
			args    []string
			subject string
		}{
			{[]string{"run", "orders.9", "--", "true"}, "$KV.natslock.lock.orders.9"},
			{[]string{"run", "-n", "orders.9", "--", "true"}, "$KV.natslock.lock.orders.9"},
			{[]string{"run", "--read", "orders.9", "--", "true"}, "$KV.natslock.read.orders.9."},
			{[]string{"run", "orders.1", "--", "true"}, "$KV.natslock.lock.orders.1"},
			{[]string{"acquire", "orders.9"}, "$KV.natslock.lock.orders.9"},
			{[]string{"break", "-f", "orders.1"}, "$KV.natslock.lock.orders.1"},
		} {
			code, out, errs := run(t, s, as(user, c.args...)...)
			require.Equal(t, 77, code, "%q: %s", c.args, errs)
			require.Equal(t, c.args[0] == "break", out != "", "break shows the lock: %q: %s", c.args, out)
			require.NotContains(t, out, "broken", "%q", c.args)
			require.Equal(t, 1, strings.Count(errs, "\n"), "%q: %s", c.args, errs)
			require.Regexp(t, `^lockctl: \w+ lock "orders\.\d": .*permissions violation`, strings.ToLower(errs), "%q", c.args)
			require.Contains(t, errs, `Publish to "`+c.subject, "%q", c.args)
		}
		g := enter(t, s, user, nats.CustomInboxPrefix("_INBOX_"+user))
		refused := []string{
			"$KV.natslock.lock.orders.1", "$KV.natslock.rw.orders.2", "$KV.natslock.sem.orders.3.0", "$KV.natslock.read.orders.2.id",
			"$KV.natslock.wait.orders.1.id", "$KV.natslock.rwait.orders.2.id", "$KV.natslock.swait.orders.3.id", "$KV.natslock.probe",
			"$JS.API.STREAM.CREATE.KV_natslock", "$JS.API.STREAM.UPDATE.KV_natslock", "$JS.API.STREAM.DELETE.KV_natslock",
			"$JS.API.STREAM.PURGE.KV_natslock", "$JS.API.STREAM.MSG.DELETE.KV_natslock", "$JS.API.CONSUMER.CREATE.KV_natslock",
			"$JS.API.STREAM.DELETE.HISTORY_natslock", "$JS.API.STREAM.UPDATE.HISTORY_natslock", "$JS.API.STREAM.PURGE.HISTORY_natslock",
			"natslock.natslock.abc.lock.orders.1", "_INBOX_root.1",
		}
		if user == "some" {
			refused = append(refused, readQueue, readLeader, "$JS.API.DIRECT.GET.HISTORY_natslock", "$JS.API.STREAM.INFO.HISTORY_natslock",
				"$JS.API.DIRECT.GET.KV_natslock.$KV.natslock.lock.users.1", "$JS.API.DIRECT.GET.KV_natslock.$KV.natslock.wait.orders.id")
		}
		for _, subject := range refused {
			g.wantRefused(t, subject)
		}
		for _, subject := range []string{">", "$KV.>", "_INBOX.>", "$JS.API.>"} {
			g.wantUnnotified(t, subject)
		}
	}
	code, out, errs := run(t, s, as("some", "history", "orders.1")...)
	require.Equal(t, 77, code, errs)
	require.Empty(t, out)
	require.Contains(t, errs, `see "lockctl perms PATTERN --history"`)

	v := display(t, s, nil, as("all", "top", "orders.1")...)
	v.shows("orders.1", "held 1")
	v.press("b")
	v.shows("Break it?")
	v.press("y")
	v.shows("ermission")

	require.Equal(t, before, records(t, js), "nothing was written")
	require.NoError(t, first.Extend(t.Context(), 0))
	root.wantUnrefused(t)
}
