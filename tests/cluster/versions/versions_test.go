package versions_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/rwlock"
	"github.com/natslock/locks/testutil"
)

// refused checks the error of a client whose server is too old.
func refused(t *testing.T, err error, says string) {
	t.Helper()
	require.ErrorIs(t, err, kvstore.ErrBucketConfig)
	config, ok := errors.AsType[*kvstore.ConfigError](err)
	require.True(t, ok)
	require.Equal(t, "nats-server", config.Setting)
	require.ErrorContains(t, err, "nats-server is "+says)
	require.ErrorContains(t, err, "must be 2.12 or later: upgrade every server")
}

// makeByHand creates a bucket from the printed configuration, as an operator would.
func makeByHand(t *testing.T, js jetstream.JetStream) {
	t.Helper()
	config, err := kvstore.Config{}.StreamConfig()
	require.NoError(t, err)
	_, err = js.CreateStream(kit.Bounded(t), config)
	require.NoError(t, err)
}

func TestOldServerRefused(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	nc := connect(t, run(t, old, "", ""))
	js := kit.JetStream(t, nc)

	_, err := natslock.New(kit.Bounded(t), nc)
	refused(t, err, "2.11 (JetStream API level 1)")
	require.ErrorContains(t, err, "the bucket was not created")
	_, err = js.Stream(kit.Bounded(t), "KV_natslock")
	require.ErrorIs(t, err, jetstream.ErrStreamNotFound)

	makeByHand(t, js)
	_, err = natslock.New(kit.Bounded(t), nc)
	refused(t, err, "2.11.4 (JetStream API level 1)")

	// A bucket that no update can repair is left alone.
	info, err := kvstore.Inspect(kit.Bounded(t), js, kvstore.Config{})
	require.NoError(t, err)
	repaired, err := kvstore.Repaired(kvstore.Config{}, info)
	require.NoError(t, err)
	require.Same(t, info, repaired)
}

// TestOldServerRefusedUnasked checks that a user who may create the bucket but not request the API
// level learns the version from the reply to the creation.
func TestOldServerRefusedUnasked(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	nc := connect(t, run(t, old, `authorization { users: [ { user: u, password: p, permissions: { publish: { deny: ["$JS.API.INFO"] } } } ] }`, ""),
		nats.UserInfo("u", "p"), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	_, err := natslock.New(kit.Bounded(t), nc)
	refused(t, err, "2.11.4 (JetStream API level 1)")
}

// TestServersBehindLeafNodes checks that the library judges the server that keeps the bucket, not
// the one that the client is connected to.
func TestServersBehindLeafNodes(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	t.Run("old hub", func(t *testing.T) {
		t.Parallel()
		port := kit.FreePort(t)
		run(t, old, fmt.Sprintf(`leafnodes { listen: "127.0.0.1:%d" }`, port), "hub")
		hub, err := url.Parse(fmt.Sprintf("nats-leaf://127.0.0.1:%d", port))
		require.NoError(t, err)
		leaf := testutil.RunServer(t, testutil.WithoutJetStream(), testutil.WithConfig(func(o *server.Options) {
			o.LeafNode.Remotes = []*server.RemoteLeafOpts{{URLs: []*url.URL{hub}}}
			o.LeafNode.ReconnectInterval = 50 * time.Millisecond
		}))
		nc := leaf.Connect()
		js, err := jetstream.NewWithDomain(nc, "hub")
		require.NoError(t, err)
		reached(t, js)
		_, err = natslock.New(kit.Bounded(t), nc, natslock.WithJetStream(js))
		refused(t, err, "2.11 (JetStream API level 1)")
		makeByHand(t, js)
		_, err = natslock.New(kit.Bounded(t), nc, natslock.WithJetStream(js))
		refused(t, err, "2.11.4 (JetStream API level 1)")
	})
	t.Run("old leaf", func(t *testing.T) {
		t.Parallel()
		port := kit.FreePort(t)
		testutil.RunServer(t, testutil.WithConfig(func(o *server.Options) {
			o.JetStreamDomain, o.LeafNode.Host, o.LeafNode.Port = "hub", "127.0.0.1", port
		}))
		leaf := run(t, old, fmt.Sprintf(`leafnodes { remotes: [ { urls: ["nats-leaf://127.0.0.1:%d"] } ] }`, port), "leaf")
		nc := connect(t, leaf)
		js, err := jetstream.NewWithDomain(nc, "hub")
		require.NoError(t, err)
		reached(t, js)
		c := kit.NewClient(t, nc, natslock.WithJetStream(js))
		exclusive(t, c, c)
		_, err = natslock.New(kit.Bounded(t), nc)
		refused(t, err, "2.11 (JetStream API level 1)") // refused by the leaf's own JetStream
	})
}

// reached waits until the JetStream of js answers.
func reached(t *testing.T, js jetstream.JetStream) {
	t.Helper()
	kit.Eventually(t, "JetStream answers", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := js.AccountInfo(ctx)
		return err == nil
	})
}

func TestOldestServer(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	url := run(t, oldest, "", "")
	a, b := kit.NewClient(t, connect(t, url)), kit.NewClient(t, connect(t, url))
	exclusive(t, a, b)
	exclusive(t, b, a)

	ctx, name := kit.Bounded(t), "books"
	ra, rb := rwlock.New(a), rwlock.New(b)
	one, err := ra.RLock(ctx, name)
	require.NoError(t, err)
	two, err := rb.TryRLock(ctx, name)
	require.NoError(t, err, "readers do not exclude each other")
	_, err = rb.TryLock(ctx, name)
	require.ErrorIs(t, err, natslock.ErrLocked)
	require.NoError(t, one.Unlock(ctx))
	require.NoError(t, two.Unlock(ctx))
	writer, err := ra.Lock(ctx, name)
	require.NoError(t, err)
	_, err = rb.TryRLock(ctx, name)
	require.ErrorIs(t, err, natslock.ErrLocked)
	require.NoError(t, writer.Unlock(ctx))
}

// TestOldestServerListsTheEnd checks that the oldest server sends the end of a long list in one
// response.
func TestOldestServerListsTheEnd(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	nc := connect(t, run(t, oldest, "", ""))
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	store, err := kvstore.Open(t.Context(), js, kvstore.Config{})
	require.NoError(t, err)
	defer store.Close()
	var last uint64
	for i := range 1100 {
		last, err = store.Create(t.Context(), fmt.Sprint("many.", i), []byte("x"), time.Minute)
		require.NoError(t, err)
	}
	in := nc.Stats().InMsgs
	l, err := store.List(t.Context(), "many.*", last, kvstore.From(last-1))
	require.NoError(t, err)
	require.Len(t, l.Records, 2)
	require.EqualValues(t, 3, nc.Stats().InMsgs-in, "messages of the answer")
}

// exclusive has one client hold a mutex while the other waits for it.
func exclusive(t *testing.T, a, b *natslock.Client) {
	t.Helper()
	ctx, name := kit.Bounded(t), "jobs"
	l, err := a.TryLock(ctx, name)
	require.NoError(t, err)
	_, err = b.TryLock(ctx, name)
	require.ErrorIs(t, err, natslock.ErrLocked)
	type grant struct {
		l   *natslock.Lock
		err error
	}
	got := make(chan grant, 1)
	go func() {
		l, err := b.Lock(ctx, name)
		got <- grant{l, err}
	}()
	kit.Eventually(t, "the second client waits", func() bool { return b.Stats().Waiting == 1 })
	require.NoError(t, l.Extend(ctx, 0))
	require.Empty(t, got)
	require.NoError(t, l.Unlock(ctx))
	next := <-got
	require.NoError(t, next.err)
	require.Greater(t, next.l.Token(), l.Token())
	require.NoError(t, next.l.Unlock(ctx))
}

// TestLockctlRefusesOldServer checks that every lockctl command that needs the bucket refuses an
// old server.
func TestLockctlRefusesOldServer(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	lockctl := filepath.Join(t.TempDir(), "lockctl")
	_, err := goTool("../../..", "build", "-o", lockctl, "./cmd/lockctl")
	require.NoError(t, err)
	server := run(t, old, "", "")
	js := kit.JetStream(t, connect(t, server))
	refuses := func(says string, args ...string) {
		out, err := exec.CommandContext(kit.Bounded(t), lockctl, append([]string{"--no-context", "--server", server}, args...)...).CombinedOutput()
		exit, ok := errors.AsType[*exec.ExitError](err)
		require.True(t, ok, "%q: %v %s", args, err, out)
		require.Equal(t, 78, exit.ExitCode(), "%q: %s", args, out)
		require.Contains(t, string(out), says, "%q", args)
		require.Contains(t, string(out), "2.12 or later", "%q", args)
	}
	refuses("2.11 (JetStream API level 1)", "init", "-f")
	_, err = js.Stream(kit.Bounded(t), "KV_natslock")
	require.ErrorIs(t, err, jetstream.ErrStreamNotFound)
	refuses("2.11.4", "doctor")

	makeByHand(t, js)
	for _, args := range [][]string{{"ls"}, {"info", "x"}, {"run", "x", "--", "true"}, {"init", "-f"}, {"doctor"}} {
		refuses("2.11.4 (JetStream API level 1)", args...)
	}
}
