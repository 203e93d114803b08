//go:build unix

package main_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

// TestNoBucket checks that every command fails if the bucket does not exist: a mistyped name must
// neither show locks as free nor create another bucket.
func TestNoBucket(t *testing.T) {
	t.Parallel()
	s := serve(t)
	hold(t, s, "x")
	for _, args := range [][]string{
		{"ls"}, {"ls", "--json"}, {"partitions"}, {"partitions", "--watch"}, {"partitions", "x"}, {"info", "x"}, {"break", "-f", "x"}, {"watch"}, {"doctor"},
		{"run", "x", "--", "true"}, {"run", "-n", "x", "--", "true"}, {"run", "--read", "x", "--", "true"},
		{"elect", "x", "--", "true"}, {"acquire", "x"}, {"acquire", "-n", "x"}, {"extend", aHandle}, {"release", aHandle},
	} {
		code, out, errs := run(t, s, append([]string{"--bucket", "typo"}, args...)...)
		require.Equal(t, 78, code, "%q: %s", args, errs)
		require.Contains(t, out+errs, "there is no bucket typo at "+s.URL(), "%q", args)
		require.Contains(t, out+errs, "lockctl init", "%q", args)
		require.NotContains(t, out+errs, "jetstream.New", "%q", args)
	}
	_, err := jetStream(t, s).Stream(t.Context(), "KV_typo")
	require.ErrorIs(t, err, jetstream.ErrStreamNotFound)

	code, _, errs := run(t, s, "--bucket", "typo", "run", "--create", "x", "--", "true")
	require.Zero(t, code, errs)
	require.Contains(t, errs, "created lock bucket (bucket typo")
	code, _, errs = run(t, s, "--bucket", "typo", "run", "--create", "x", "--", "true")
	require.Zero(t, code, errs)
	require.Empty(t, errs, "it is there")
}

// TestServerHasBucket checks that the development server has created the bucket by the time it
// prints its address.
func TestServerHasBucket(t *testing.T) {
	t.Parallel()
	p := start(t, nil, "--bucket", "ours", "server", "--port", "0", "--dir", filepath.Join(t.TempDir(), "kept"))
	url := line(t, p)
	code, _, errs := run(t, nil, "-s", url, "--bucket", "ours", "run", "x", "--", "true")
	require.Zero(t, code, errs)
	require.Empty(t, errs)
	code, _, _ = run(t, nil, "-s", url, "run", "x", "--", "true")
	require.Equal(t, 78, code)
	require.Empty(t, p.err.String())
}

// TestReplicasOnCluster checks that lockctl creates a bucket with three replicas on a cluster,
// unless --replicas says otherwise.
func TestReplicasOnCluster(t *testing.T) {
	t.Parallel()
	s := testutil.RunCluster(t, 3).Servers()[0]
	js := jetStream(t, s)
	replicas := func(bucket string) int {
		stream, err := js.Stream(t.Context(), "KV_"+bucket)
		require.NoError(t, err)
		return stream.CachedInfo().Config.Replicas
	}
	code, out, errs := run(t, s, "--bucket", "a", "init", "-f")
	require.Zero(t, code, errs)
	require.Regexp(t, `num_replicas +3`, out)
	require.Equal(t, 3, replicas("a"))
	code, _, errs = run(t, s, "--bucket", "b", "run", "--create", "x", "--", "true")
	require.Zero(t, code, errs)
	require.Equal(t, 3, replicas("b"))
	code, _, errs = run(t, s, "--bucket", "d", "init", "-f", "--tag", "nosuch")
	require.Equal(t, 78, code)
	require.Contains(t, errs, "lockctl init --replicas 1")
	code, out, errs = run(t, s, "--bucket", "c", "init", "-f", "--replicas", "1")
	require.Zero(t, code, errs)
	require.Contains(t, out, "one replica on cluster")
	require.Equal(t, 1, replicas("c"))
	code, out, errs = run(t, s, "--bucket", "c", "init", "-f")
	require.Zero(t, code, errs)
	require.Regexp(t, `num_replicas +1 +-> +3`, out)
	require.Equal(t, 3, replicas("c"))
}

// TestReplicasInDomain checks that the bucket gets one replica if the domain's servers are not a
// cluster, which only those servers know.
func TestReplicasInDomain(t *testing.T) {
	t.Parallel()
	s := testutil.RunServer(t, testutil.WithConfig(func(o *server.Options) { o.JetStreamDomain = "hub" }))
	code, out, errs := run(t, s, "--js-domain", "hub", "init", "-f")
	require.Zero(t, code, errs)
	require.Contains(t, out, "created bucket natslock with one replica")
	code, _, errs = run(t, s, "--js-domain", "hub", "--bucket", "other", "run", "--create", "x", "--", "true")
	require.Zero(t, code, errs)
	require.Contains(t, errs, "replicas 1")
}

// TestFullBucket checks that a lock refused because the bucket is full is not reported as a
// conflict.
func TestFullBucket(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	s := serve(t)
	take(t, client(t, s), "x", natslock.TTL(time.Hour))
	js := jetStream(t, s)
	config := bucketInfo(t, js).Config
	config.MaxMsgs = 1
	_, err := js.UpdateStream(t.Context(), config)
	require.NoError(t, err)
	for _, args := range [][]string{{"acquire", "--wait", "1s", "y"}, {"run", "--wait", "1s", "y", "--", "true"}} {
		code, _, errs := run(t, s, args...)
		require.Equal(t, 69, code, errs)
		require.Contains(t, errs, "1 of max_msgs 1 are used")
	}
}
