//go:build unix

package main_test

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/testutil"
)

// asRoot is for servers with a list of users.
var asRoot = []nats.Option{nats.UserInfo("root", "p")}

func jetStream(t *testing.T, s *testutil.Server, opts ...nats.Option) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(s.Connect(opts...))
	require.NoError(t, err)
	return js
}

func bucketInfo(t *testing.T, js jetstream.JetStream) *jetstream.StreamInfo {
	t.Helper()
	stream, err := js.Stream(t.Context(), "KV_natslock")
	require.NoError(t, err)
	return stream.CachedInfo()
}

// makeBucket makes one that is not as it should be.
func makeBucket(t *testing.T, s *testutil.Server, set func(*jetstream.StreamConfig)) jetstream.JetStream {
	t.Helper()
	sc, err := kvstore.Config{}.StreamConfig()
	require.NoError(t, err)
	set(&sc)
	js := jetStream(t, s)
	_, err = js.CreateStream(t.Context(), sc)
	require.NoError(t, err)
	return js
}

func TestInitMakes(t *testing.T) {
	t.Parallel()
	s := testutil.RunServer(t)
	js := jetStream(t, s)
	code, out, errs := run(t, s, "init")
	require.Equal(t, 64, code, "nobody to ask")
	require.Contains(t, errs, "--force")
	require.Contains(t, out, "bucket natslock is not there; to make at "+s.URL())
	_, err := js.Stream(t.Context(), "KV_natslock")
	require.ErrorIs(t, err, jetstream.ErrStreamNotFound)
	code, _, errs = run(t, s, "init", "-f", "--replicas", "3")
	require.Equal(t, 64, code)
	require.Contains(t, errs, "not in a cluster")

	code, out, errs = run(t, s, "init", "--yes", "--max-bytes", "1000000")
	require.Zero(t, code, errs)
	require.Contains(t, out, "made bucket natslock\n")
	made := bucketInfo(t, js)
	require.EqualValues(t, 1000000, made.Config.MaxBytes)
	for range 2 {
		code, out, errs = run(t, s, "init")
		require.Zero(t, code, errs)
		require.Equal(t, "bucket natslock is as it should be: nothing to change\n", out)
		require.Empty(t, errs)
	}
	require.Equal(t, made.Config, bucketInfo(t, js).Config)

	code, out, _ = run(t, s, "init", "-f", "--storage", "memory")
	require.Equal(t, 78, code)
	require.Regexp(t, `! storage +file +should be memory`, out)
	require.Contains(t, out, "nats stream rm KV_natslock")
	code, out, errs = run(t, s, "init", "-f", "--max-bytes", "2000000")
	require.Zero(t, code, errs)
	require.Regexp(t, `max_bytes +1000000 +-> +2000000`, out)
	require.EqualValues(t, 2000000, bucketInfo(t, js).Config.MaxBytes)
	code, out, errs = run(t, s, "init", "-f", "--max-bytes=-1")
	require.Zero(t, code, errs)
	require.Regexp(t, `max_bytes +2000000 +-> +-1`, out)

	for _, args := range [][]string{{"--replicas", "7"}, {"--storage", "paper"}, {"--max-bytes=-2"}, {"--bucket", "a.b"}} {
		code, _, errs := run(t, s, append([]string{"init", "-f"}, args...)...)
		require.Equal(t, 64, code, "%q: %s", args, errs)
	}
}

func TestInitRepairs(t *testing.T) {
	t.Parallel()
	s := testutil.RunServer(t)
	js := makeBucket(t, s, func(c *jetstream.StreamConfig) {
		c.Discard, c.MaxBytes, c.MaxMsgsPerSubject, c.MaxAge = jetstream.DiscardOld, 1<<20, 5, time.Hour
		c.DenyPurge, c.AllowRollup, c.AllowMsgTTL, c.RePublish = false, true, false, nil
		c.Description = "ours\x1b[31m"
		c.FirstSeq = 0
	})
	before := bucketInfo(t, js)
	code, _, errs := run(t, s, "ls")
	require.Equal(t, 78, code, errs)
	code, out, _ := run(t, s, "init")
	require.Equal(t, 64, code)
	for _, want := range []string{`allow_msg_ttl +false +-> +true`, `max_msgs_per_subject +5 +-> +1`, `discard +old +-> +new`, `republish.dest +unset +-> +natslock\.natslock\.[a-z0-9]+\.>`, `max_age +1h0m0s +-> +0`, `first_seq +\d+ +should be`} {
		require.Regexp(t, want, out)
	}
	require.Equal(t, before.Config, bucketInfo(t, js).Config, "shown, not done")

	code, out, errs = run(t, s, "init", "-f")
	require.Zero(t, code, errs)
	require.Contains(t, out, "changed 9 settings")
	require.NotContains(t, out, "\x1b")
	after := bucketInfo(t, js)
	require.Equal(t, before.Config.Description, after.Config.Description, "what is not ours stays")
	require.EqualValues(t, 1<<20, after.Config.MaxBytes)
	code, _, errs = run(t, s, "run", "x", "--", "true")
	require.Zero(t, code, errs)
	code, out, _ = run(t, s, "init", "-f")
	require.Zero(t, code)
	require.Contains(t, out, "nothing to change")
	require.Contains(t, out, "first_seq", "what cannot be changed is created again")
}

func TestInitCannotRepair(t *testing.T) {
	t.Parallel()
	s := testutil.RunServer(t)
	js := makeBucket(t, s, func(c *jetstream.StreamConfig) { c.Retention, c.MaxAge = jetstream.WorkQueuePolicy, time.Hour })
	before := bucketInfo(t, js)
	code, out, errs := run(t, s, "init", "-f")
	require.Equal(t, 78, code)
	require.Regexp(t, `! retention +workqueue +should be limits`, out)
	require.Contains(t, out, "nats stream rm KV_natslock")
	require.Contains(t, errs, "no update can change that")
	require.Equal(t, before.Config, bucketInfo(t, js).Config)
}

// On a terminal it asks, and does what was shown or nothing.
func TestInitAsks(t *testing.T) {
	t.Parallel()
	s := testutil.RunServer(t)
	js := jetStream(t, s)
	term := openTerminal(t, s)
	init := func(answer string, meanwhile func()) {
		term.send("$lockctl init; echo exit=$?\n")
		term.expect("[y/N] ")
		meanwhile()
		term.send(answer + "\n")
	}
	init("n", func() {})
	term.expect("nothing was changed")
	term.expect("exit=1")
	init("y", func() {})
	term.expect("made bucket natslock")
	term.expect("exit=0")

	update := func(set func(*jetstream.StreamConfig)) {
		c := bucketInfo(t, js).Config
		set(&c)
		_, err := js.UpdateStream(t.Context(), c)
		require.NoError(t, err)
	}
	update(func(c *jetstream.StreamConfig) { c.AllowDirect = false })
	init("yes", func() { update(func(c *jetstream.StreamConfig) { c.Description = "other" }) })
	term.expect("another user has changed description")
	term.expect("exit=1")
	require.False(t, bucketInfo(t, js).Config.AllowDirect)
	init("yes", func() {})
	term.expect("changed 1 setting")
	term.expect("exit=0")
	require.True(t, bucketInfo(t, js).Config.AllowDirect)
}

// The configuration printed is what a declarative tool makes the bucket of.
func TestInitPrint(t *testing.T) {
	t.Parallel()
	code, out, errs := run(t, nil, "init", "--print", "--replicas", "3", "--bucket", "b", "--server", "nats://127.0.0.1:1", "--cluster", "east", "--tag", "ssd", "--tag", "z1")
	require.Zero(t, code, errs)
	var known server.StreamConfig // and the server knows all of it
	dec := json.NewDecoder(bytes.NewReader([]byte(out)))
	dec.DisallowUnknownFields()
	require.NoError(t, dec.Decode(&known))
	require.Equal(t, "KV_b", known.Name)
	require.Equal(t, 3, known.Replicas)
	require.Equal(t, &server.Placement{Cluster: "east", Tags: []string{"ssd", "z1"}}, known.Placement)

	_, out, _ = run(t, nil, "init", "--print")
	s := testutil.RunServer(t)
	js := jetStream(t, s)
	answer, err := js.Conn().Request("$JS.API.STREAM.CREATE.KV_natslock", []byte(out), kit.Patience)
	require.NoError(t, err)
	require.NotContains(t, string(answer.Data), `"error"`)
	code, out, errs = run(t, s, "init")
	require.Zero(t, code)
	require.Contains(t, out, "nothing to change")
	require.Empty(t, errs)
}

func TestInitWithoutServer(t *testing.T) {
	t.Parallel()
	s := testutil.RunServer(t, testutil.WithoutJetStream())
	code, _, errs := run(t, s, "init", "-f")
	require.Equal(t, 69, code)
	require.Contains(t, errs, "no JetStream at "+s.URL())
	code, _, errs = run(t, nil, "init", "-f", "--server", "nats://127.0.0.1:1")
	require.Equal(t, 69, code)
	require.Contains(t, errs, "no server at")
}

func TestInitWithoutPermission(t *testing.T) {
	t.Parallel()
	s := testutil.RunServer(t, testutil.WithConfigText(userList(map[string]string{
		"user": block(t, ">"), "admin": block(t, "x", "--role", "admin"),
	})))
	as := func(user string, args ...string) (int, string) {
		code, _, errs := run(t, s, append([]string{"init", "-f", "--user", user, "--password", "p"}, args...)...)
		return code, errs
	}
	code, errs := as("user")
	require.Equal(t, 77, code, errs)
	code, errs = as("admin")
	require.Zero(t, code)
	require.Empty(t, errs)
	code, errs = as("user", "--max-bytes", "100000")
	require.Equal(t, 77, code)
	require.Contains(t, errs, "STREAM.UPDATE.KV_natslock")
	require.Contains(t, errs, "lockctl perms --role admin")
	code, errs = as("admin", "--max-bytes", "100000")
	require.Zero(t, code)
	require.Empty(t, errs)
}
