//go:build unix

package main_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

// remembered runs a server whose bucket has a working history.
func remembered(t *testing.T) *testutil.Server {
	t.Helper()
	s := serve(t)
	remember(t, s)
	return s
}

// remember creates a history and waits until it copies from the bucket. The server starts doing so
// only a moment later.
func remember(t *testing.T, s *testutil.Server, flags ...string) {
	t.Helper()
	code, _, errs := run(t, s, append(flags, "init", "-f", "--history", "7d")...)
	require.Zero(t, code, errs)
	sourcing(t, s)
}

// sourcing waits until the history copies from the bucket.
func sourcing(t *testing.T, s *testutil.Server) {
	t.Helper()
	js := jetStream(t, s)
	kit.Eventually(t, "a history that copies", func() bool { return historyInfo(t, js).Sources[0].Active >= 0 })
}

func historyInfo(t *testing.T, js jetstream.JetStream) *jetstream.StreamInfo {
	t.Helper()
	stream, err := js.Stream(t.Context(), "HISTORY_natslock")
	require.NoError(t, err)
	return stream.CachedInfo()
}

// copied waits until the history has copied the bucket's last write. A record replaced before it
// was copied is missing from the history.
func copied(t *testing.T, s *testutil.Server) {
	t.Helper()
	js := jetStream(t, s)
	kit.Eventually(t, "a copy of the last write", func() bool {
		stream, err := js.Stream(t.Context(), "HISTORY_natslock")
		require.NoError(t, err)
		last, err := stream.GetMsg(t.Context(), stream.CachedInfo().State.LastSeq)
		return err == nil && strings.Fields(last.Header.Get("Nats-Stream-Source"))[1] == uintString(bucketInfo(t, js).State.LastSeq)
	})
}

// granted acquires a lock and waits until the history has its grant. The lease is not renewed:
// "lockctl run" renews immediately, which on a busy machine can replace the grant before the server
// has copied it.
func granted(t *testing.T, s *testutil.Server, name string, opts ...natslock.LockOption) *natslock.Lock {
	t.Helper()
	opts = append([]natslock.LockOption{natslock.TTL(10 * time.Minute), natslock.NoRenew()}, opts...)
	l := take(t, client(t, s), name, opts...)
	copied(t, s)
	return l
}

// remembers returns the events and gaps of a history. It omits the gaps that name a lock, because
// the other gaps include them.
func remembers(t *testing.T, s *testutil.Server, args ...string) []event {
	t.Helper()
	code, out, errs := run(t, s, append([]string{"history", "--json"}, args...)...)
	require.Zero(t, code, errs)
	var all []event
	for line := range strings.Lines(out) {
		var p event
		require.NoError(t, json.Unmarshal([]byte(line), &p), line)
		if p.Event != "gap" || p.Name == "" {
			all = append(all, p)
		}
	}
	return all
}

// kinds returns the kind of each event, and for a gap the number of missing writes.
func kinds(all []event) []string {
	var out []string
	for _, p := range all {
		text := p.Event
		if p.Missed != nil {
			text += fmt.Sprint(" ", *p.Missed)
		}
		out = append(out, text)
	}
	return out
}

// idle waits until the bucket is empty. Whatever the history lacks by then is lost.
func idle(t *testing.T, s *testutil.Server) {
	t.Helper()
	js := jetStream(t, s)
	kit.Eventually(t, "an empty bucket", func() bool { return bucketInfo(t, js).State.Msgs == 0 })
}

// TestHistoryOnCluster checks that on a cluster the history has three replicas too.
func TestHistoryOnCluster(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	s := testutil.RunCluster(t, 3).Servers()[0]
	withBucket(t, s)
	remember(t, s)
	require.NoError(t, granted(t, s, "x").Unlock(t.Context()))
	idle(t, s)
	require.Equal(t, []string{"gap", "granted", "released"}, kinds(remembers(t, s, "x")))
	require.Equal(t, 3, historyInfo(t, jetStream(t, s)).Config.Replicas)
}

// TestHistoryGap checks that a history reports how many writes it lacks.
func TestHistoryGap(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	s := remembered(t)
	js := jetStream(t, s)
	cfg := historyInfo(t, js).Config
	cycle := func() {
		t.Helper()
		require.NoError(t, granted(t, s, "x").Unlock(t.Context()))
		idle(t, s)
	}
	cycle()
	require.Equal(t, []string{"gap", "granted", "released"}, kinds(remembers(t, s, "x")))

	without := cfg
	without.Sources = nil
	_, err := js.UpdateStream(t.Context(), without)
	require.NoError(t, err)
	before := bucketInfo(t, js).State.LastSeq
	for range 3 {
		code, _, errs := run(t, s, "run", "x", "--", "true")
		require.Zero(t, code, errs)
	}
	idle(t, s)
	missed := bucketInfo(t, js).State.LastSeq - before
	require.GreaterOrEqual(t, missed, uint64(6))
	gap := fmt.Sprint("gap ", missed)
	require.Equal(t, []string{"gap", "granted", "released", gap}, kinds(remembers(t, s, "x")), "it is behind")
	_, err = js.UpdateStream(t.Context(), cfg)
	require.NoError(t, err)
	sourcing(t, s)
	cycle()
	all := remembers(t, s, "x")
	require.Equal(t, []string{"gap", "granted", "released", gap, "granted", "released"}, kinds(all))
	require.Equal(t, all[2].Time, all[3].Time)
	require.Equal(t, all[4].Time, all[3].Until)
	_, out, _ := run(t, s, "history", "-v", "x")
	require.Regexp(t, `  gap       \d+ writes to the bucket missing until .*, for these locks or others\n`, out)
	_, out, _ = run(t, s, "history", "x")
	require.NotContains(t, out, "  gap  ")
	require.Regexp(t, `\n\d+ writes to the bucket missing in 1 gap from .* to .*, for other locks or events that left no trace here; -v shows where\n$`, out)

	// The records are too old.
	cfg.MaxMsgs = 1
	_, err = js.UpdateStream(t.Context(), cfg)
	require.NoError(t, err)
	all = remembers(t, s, "x")
	require.Equal(t, []string{"gap", "released"}, kinds(all))
	require.Equal(t, all[1].Time, all[0].Until, "nothing before it is kept")
	require.Equal(t, []string{"gap"}, kinds(remembers(t, s, "y")))
}

// TestHistoryRemade checks that a history continues after its bucket was re-created, and reports
// that.
func TestHistoryRemade(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	s := remembered(t)
	granted(t, s, "x")
	require.Equal(t, []string{"gap", "granted"}, kinds(remembers(t, s, "x")))
	js := jetStream(t, s)
	require.NoError(t, js.DeleteStream(t.Context(), "KV_natslock"))
	withBucket(t, s)
	l := granted(t, s, "x") // the server takes seconds to notice that the bucket is a new one
	require.NoError(t, l.Unlock(t.Context()))
	all := remembers(t, s, "x")
	// The holder in the deleted bucket did not expire.
	require.Equal(t, []string{"gap", "granted", "gap", "granted", "released"}, kinds(all))
	require.True(t, all[2].Remade)
}

// TestHistoryThroughPrefix checks that history works through an API import, which passes only one
// response per request.
func TestHistoryThroughPrefix(t *testing.T) {
	t.Parallel()
	s := testutil.RunServer(t, testutil.WithConfig(func(o *server.Options) { o.JetStreamDomain = "hub" }))
	withBucket(t, s)
	remember(t, s)
	require.NoError(t, granted(t, s, "x").Unlock(t.Context()))
	for _, flag := range []string{"--js-api-prefix=$JS.hub.API", "--js-domain=hub"} {
		require.Equal(t, []string{"gap", "granted", "released"}, kinds(remembers(t, s, "x", flag)), flag)
	}
}

// TestPermsOfHistory checks that the printed permissions suffice for the history and that each of
// them is needed.
func TestPermsOfHistory(t *testing.T) {
	t.Parallel()
	s := testutil.RunServer(t, testutil.WithConfigText(userList(map[string]string{
		"user":  block(t, "orders.>", "--history"),
		"other": block(t, "orders.>"),
		"admin": block(t, "orders.>", "--history", "--role", "admin"),
	})))
	published := tap(t, enter(t, s, "root"))
	as := func(user string, args ...string) (int, string, string) {
		t.Helper()
		return run(t, s, append([]string{"--user", user, "--password", "p"}, args...)...)
	}
	code, _, errs := as("admin", "init", "-f", "--history", "7d")
	require.Zero(t, code, errs)
	code, _, errs = as("admin", "init", "-f", "--history", "8d")
	require.Zero(t, code, errs)
	js := jetStream(t, s, asRoot...)
	kit.Eventually(t, "a copy of a write", func() bool {
		code, _, errs = as("user", "run", "orders.1", "--", "true")
		require.Zero(t, code, errs)
		return historyInfo(t, js).State.LastSeq > 0
	})
	code, out, errs := as("user", "history", "orders.1")
	require.Zero(t, code, errs)
	require.Contains(t, out, "released")
	require.Empty(t, errs)
	code, out, errs = as("other", "history", "orders.1")
	require.Equal(t, 77, code, errs)
	require.Empty(t, out)
	require.Contains(t, errs, `see "lockctl perms PATTERN --history"`)
	require.Equal(t, 1, strings.Count(errs, "lockctl: "), errs)

	admin := enter(t, s, "admin")
	other, err := jetstream.New(admin.Conn)
	require.NoError(t, err)
	require.NoError(t, other.DeleteStream(t.Context(), "HISTORY_natslock"))
	admin.wantUnrefused(t)
	var set struct{ Publish []struct{ Subject string } }
	require.NoError(t, json.Unmarshal([]byte(block(t, "orders.>", "--history", "--role", "admin", "--json")), &set))
	of := 0
	for _, p := range set.Publish {
		if strings.HasSuffix(p.Subject, ".HISTORY_natslock") {
			of++
			require.True(t, published(p.Subject), "%s is allowed and not needed", p.Subject)
		}
	}
	require.Equal(t, 5, of)
	for _, subject := range []string{"$JS.API.STREAM.UPDATE.HISTORY_natslock", "$JS.API.STREAM.DELETE.HISTORY_natslock", "$JS.API.STREAM.PURGE.HISTORY_natslock"} {
		enter(t, s, "user").wantRefused(t, subject)
	}
}

var historyEvents = flag.Int("history-events", 20_000, "events of TestHistoryLarge; from 100000 on they have to be printed within a second, which needs a quiet machine")

// TestHistoryLarge checks that a long history is read completely and in order, and that reading the
// history of another lock does not have to wait for it.
func TestHistoryLarge(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	s := remembered(t)
	granted(t, s, "y")
	n := *historyEvents / 2
	js, err := jetstream.New(s.Connect(), jetstream.WithPublishAsyncMaxPending(n))
	require.NoError(t, err)
	write := func(h nats.Header, body record.Body) {
		t.Helper()
		before := historyInfo(t, js).State.LastSeq
		for i := range n {
			body.ID = fmt.Sprintf("id%d", i)
			data, err := body.Encode()
			require.NoError(t, err)
			_, err = js.PublishMsgAsync(&nats.Msg{Subject: "$KV.natslock.read.x." + body.ID, Header: h, Data: data})
			require.NoError(t, err)
		}
		<-js.PublishAsyncComplete()
		kit.Eventually(t, "the copies", func() bool { return historyInfo(t, js).State.LastSeq >= before+uint64(n) })
	}
	write(nats.Header{"Nats-TTL": {"3600s"}}, record.Body{Status: record.StatusHeld, TTL: 3600, Attempt: 1, Mode: uint8(record.Shared),
		Owner: "web-1", Host: "web-1.example.org", PID: 4711, Since: time.Now().UnixMilli()})
	write(nats.Header{"Nats-TTL": {"3600s"}, "KV-Operation": {"DEL"}}, record.Body{Status: record.StatusGone, Token: 1})

	begun := time.Now()
	p := start(t, s, "history", "x")
	require.Zero(t, p.wait(), p.err)
	took := time.Since(begun)
	lines := strings.Split(strings.TrimSuffix(p.out.String(), "\n"), "\n")
	require.Equal(t, 1+2*n, len(lines))
	for i, line := range lines[1:] {
		require.Contains(t, line, map[bool]string{true: "  granted ", false: "  released "}[i < n])
		require.Contains(t, line, "web-1", "its holder is known")
	}
	begun = time.Now()
	of := kinds(remembers(t, s, "y"))
	other := time.Since(begun)
	require.Equal(t, []string{"gap", "granted"}, of)
	state := historyInfo(t, js).State
	t.Logf("another lock in %v", other)
	t.Logf("%d events in %v, %v of the processor; %d bytes each", 2*n, took, p.cmd.ProcessState.UserTime()+p.cmd.ProcessState.SystemTime(), state.Bytes/state.Msgs)
	if 2*n >= 100_000 {
		require.Less(t, took, time.Second)
		require.Less(t, other, time.Second)
	}
}
