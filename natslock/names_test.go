package natslock_test

import (
	"context"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

// oddNames are names of distinct locks, each of which differs from another only in what a careless
// encoding would lose.
var oddNames = []string{
	"a", "A", "a.b", "a.b.c", "a..b", "a.b.", ".a.b", ".", "..", "...", "a/b", "a-b", "a_b", "a b", "a  b", " a", "a ", " ",
	"*", ">", "a.*", "a.>", "*.a", "a*", "a>", "**", "\x00", "a\x00", "\x00a", "\x00*", "\x00>", "a.\x00*", "\n", "\r\n", "\t",
	"=", "==", "=2E", "=00", "=2a", "=2A", "a=2Eb", "a=2eb", "=3D", "%2E", "\\", "\"", "'", "$", "$KV.natslock.lock.a", "_INBOX.x",
	"\u00e9", "e\u0301", "\xe9", "\xff\xfe", "🔒", "🔓", "日本語", "\u202e", "lock:deploy", "lock.deploy", "lock=deploy",
	"issue_cert_*.example.com", "issue_cert_=2A.example.com", "issue_cert_x.example.com", "-", "_", "/", "//", "0", "00",
	strings.Repeat("x", 512), strings.Repeat("x", 511) + "y", strings.Repeat("x.", 255) + "xx",
}

func TestNamesAreKeptApart(t *testing.T) {
	s := testutil.RunServer(t)
	c, other := kit.Join(t, s), kit.Join(t, s)
	held := map[string]*natslock.Lock{}
	for _, name := range oddNames {
		require.NotContains(t, held, name, "the table")
		l, err := c.TryLock(t.Context(), name)
		require.NoErrorf(t, err, "%q is a lock of its own", name)
		require.Equal(t, name, l.Name())
		held[name] = l
	}
	var listed []string
	for info, err := range admin.New(other.Client).List(t.Context(), ">") {
		require.NoError(t, err)
		require.NotNil(t, info.Holder)
		require.Equal(t, held[info.Name].Token(), info.Holder.Token)
		listed = append(listed, info.Name)
	}
	require.Equal(t, slices.Sorted(maps.Keys(held)), listed)
	for name, l := range held {
		info := kit.Inspect(t, other.Client, name)
		require.Equal(t, name, info.Name)
		require.Equal(t, l.ID(), info.Holder.ID)
		_, err := other.TryLock(t.Context(), name)
		require.ErrorIs(t, err, natslock.ErrLocked)
	}
	// Waiting and handing over work for every name.
	for name, l := range held {
		w := other.Await(t, name)
		kit.Unlock(t, l)
		kit.Unlock(t, w.Granted(t))
	}
	for info, err := range admin.New(other.Client).List(t.Context(), ">") {
		require.NoError(t, err)
		t.Errorf("%q is left", info.Name)
	}
}

func TestNamesRefused(t *testing.T) {
	s := testutil.RunServer(t)
	c := kit.Join(t, s)
	before := c.NC.Stats().OutMsgs
	for _, name := range []string{"", strings.Repeat("x", 513), strings.Repeat("x", 2000), strings.Repeat("é", 100), strings.Repeat(" ", 200)} {
		_, err := c.Lock(t.Context(), name)
		require.ErrorIs(t, err, natslock.ErrInvalid)
		require.Less(t, len(err.Error()), 200)
		_, err = c.TryLock(t.Context(), name)
		require.ErrorIs(t, err, natslock.ErrInvalid)
		require.ErrorIs(t, c.Do(t.Context(), name, func(context.Context, *natslock.Lock) error { return nil }), natslock.ErrInvalid)
		_, err = admin.New(c.Client).Inspect(t.Context(), admin.KindMutex, name)
		require.ErrorIs(t, err, natslock.ErrInvalid)
		require.ErrorIs(t, admin.New(c.Client).Break(t.Context(), admin.BreakRequest{Kind: admin.KindMutex, Name: name, ID: "A"}), natslock.ErrInvalid)
		for _, err := range admin.New(c.Client).List(t.Context(), name) {
			require.ErrorIs(t, err, natslock.ErrInvalid)
		}
		for _, err := range admin.New(c.Client).Watch(t.Context(), name) {
			require.ErrorIs(t, err, natslock.ErrInvalid)
		}
	}
	require.Equal(t, before, c.NC.Stats().OutMsgs, "nothing is sent")
}

func TestNamesTTLRefused(t *testing.T) {
	s := testutil.RunServer(t)
	c := kit.Join(t, s)
	before := c.NC.Stats().OutMsgs
	for _, ttl := range []time.Duration{0, -1, -time.Hour, 1, time.Second - 1, 24*time.Hour + 1, 25 * time.Hour} {
		_, err := c.Lock(t.Context(), "l", natslock.TTL(ttl))
		require.ErrorIs(t, err, natslock.ErrInvalid)
		_, err = c.TryLock(t.Context(), "l", natslock.TTL(ttl))
		require.ErrorIs(t, err, natslock.ErrInvalid)
		_, err = natslock.New(t.Context(), c.NC, natslock.WithTTL(ttl))
		require.ErrorIs(t, err, natslock.ErrInvalid)
	}
	_, err := c.Lock(t.Context(), "l", natslock.TTL(367*24*time.Hour), natslock.NoRenew())
	require.ErrorIs(t, err, natslock.ErrInvalid)
	for name, opt := range map[string]natslock.Option{
		"release timeout": natslock.WithTuning(natslock.Tuning{ReleaseTimeout: -1}), "release timeout for ever": natslock.WithTuning(natslock.Tuning{ReleaseTimeout: math.MaxInt64}),
		"turn": natslock.WithTuning(natslock.Tuning{Turn: 2 * time.Second}), "no replicas": natslock.WithReplicas(0), "even more replicas": natslock.WithReplicas(7), "two replicas": natslock.WithReplicas(2), "four replicas": natslock.WithReplicas(4),
		"replicas": natslock.WithBucketConfig(kvstore.Config{Replicas: -1}), "many replicas": natslock.WithReplicas(7),
		"bytes": natslock.WithBucketConfig(kvstore.Config{MaxBytes: -2}), "storage": natslock.WithBucketConfig(kvstore.Config{Storage: 7}),
		"bucket": natslock.WithBucket(""), "owner": natslock.WithOwner(strings.Repeat("x", 2000)),
		"logger": natslock.WithLogger(nil), "observer": admin.WithObserver(nil), "js": natslock.WithJetStream(nil), "store": faults.WrapStore(nil),
	} {
		_, err := natslock.New(t.Context(), c.NC, opt)
		require.ErrorIs(t, err, natslock.ErrInvalid, name)
	}
	_, err = natslock.New(t.Context(), nil)
	require.ErrorIs(t, err, natslock.ErrInvalid)
	_, err = c.Lock(t.Context(), "l", natslock.Meta(map[string]string{"k": strings.Repeat("x", 17<<10)}))
	require.ErrorIs(t, err, natslock.ErrInvalid)
	require.ErrorContains(t, err, "metadata")
	require.Equal(t, before, c.NC.Stats().OutMsgs, "nothing is sent")

	for _, ttl := range []time.Duration{time.Second, time.Second + 1, 24 * time.Hour} {
		l, err := c.TryLock(t.Context(), fmt.Sprint(ttl), natslock.TTL(ttl))
		require.NoError(t, err)
		kit.Unlock(t, l)
	}
}

// TestOddValues checks that nonsensical values are either refused or treated as the nearest
// sensible one.
func TestOddValues(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s, natslock.WithTuning(natslock.Tuning{WatchAfter: math.MaxInt64}), natslock.WithTuning(natslock.Tuning{ReleaseTimeout: time.Hour}))
		tap := kit.NewTap(t, s.Connect(), ">")
		warned := 0
		warn := func(*natslock.Lock) { warned++ }
		for _, opts := range [][]natslock.LockOption{
			{natslock.TTL(3 * time.Second), natslock.EarlyWarning(3*time.Second, warn)},
			{natslock.TTL(3 * time.Second), natslock.EarlyWarning(2700*time.Millisecond, warn)},
			{natslock.TTL(3 * time.Second), natslock.NoRenew(), natslock.EarlyWarning(math.MaxInt64, warn)},
			{natslock.EarlyWarning(15*time.Second, warn)},
		} {
			_, err := c.TryLock(t.Context(), "l", opts...)
			require.ErrorIs(t, err, natslock.ErrInvalid)
			require.ErrorContains(t, err, "EarlyWarning")
		}
		require.Empty(t, tap.Take(t, c.NC))
		l := kit.Must(t, c.Lock, "l", natslock.TTL(9*time.Second), natslock.EarlyWarning(3*time.Second, warn), natslock.MaxWait(math.MaxInt64))
		require.ErrorIs(t, l.Extend(t.Context(), 3*time.Second), natslock.ErrInvalid)
		time.Sleep(time.Minute)
		require.Zero(t, warned)
		kit.WantHeld(t, l)
		kit.Unlock(t, l)
		require.NoError(t, c.Close(t.Context()))
	})
}

func TestNamesJoin(t *testing.T) {
	s := testutil.RunServer(t)
	c := kit.Join(t, s)
	names := map[string][]string{}
	for _, parts := range [][]string{
		{"a", "b"}, {"a.b"}, {"a", "", "b"}, {"a", "b", ""}, {"", "a", "b"}, {""}, {"", ""}, {"."}, {".", "."}, {"="}, {"=", "="}, {"=2E"}, {"=3D"},
		{"a=", "b"}, {"a", "=b"}, {"tenant", "a.b"}, {"tenant", "a", "b"}, {"*"}, {"a", "*"}, {"a", ">"}, {"é"},
	} {
		name := natslock.Join(parts...)
		require.NotContainsf(t, names, name, "%q and %q", parts, names[name])
		names[name] = parts
		l, err := c.TryLock(t.Context(), name)
		require.NoError(t, err)
		defer l.Unlock(t.Context())
	}
	require.Equal(t, "orders.42", natslock.Join("orders", "42"), "plain parts stay readable")
	var found []string
	for info, err := range admin.New(c.Client).List(t.Context(), "tenant.*") {
		require.NoError(t, err)
		found = append(found, info.Name)
	}
	require.Equal(t, []string{natslock.Join("tenant", "a.b")}, found, "one token below tenant")
}

// TestOwner checks that the owner names the service that holds the lock: the given owner or the
// connection's name.
func TestOwner(t *testing.T) {
	t.Parallel()
	s := testutil.RunServer(t)
	host, _ := os.Hostname()
	process := fmt.Sprintf("%s:%d", host, os.Getpid())
	for want, c := range map[string]struct {
		name string
		opts []natslock.Option
	}{
		"billing@" + process: {name: "billing"},
		process:              {},
		"web-1":              {"billing", []natslock.Option{natslock.WithOwner("web-1")}},
	} {
		client := kit.NewClient(t, s.Connect(nats.Name(c.name)), c.opts...)
		kit.Must(t, client.TryLock, want)
		require.Equal(t, want, kit.Inspect(t, client, want).Holder.Owner)
	}
	client := kit.NewClient(t, s.Connect(nats.Name(strings.Repeat("x", 2000))))
	kit.Must(t, client.TryLock, "long")
	require.Equal(t, process, kit.Inspect(t, client, "long").Holder.Owner)
}
