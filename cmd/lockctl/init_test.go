//go:build unix

package main_test

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/testutil"
)

// asRoot logs in on servers that have a list of users.
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

// makeBucket creates a bucket whose configuration has been altered by set.
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

// TestInitAsks checks that init on a terminal asks for confirmation and then makes exactly the
// changes it has shown, or none.
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
	term.expect("created bucket natslock")
	term.expect("exit=0")

	update := func(set func(*jetstream.StreamConfig)) {
		c := bucketInfo(t, js).Config
		set(&c)
		_, err := js.UpdateStream(t.Context(), c)
		require.NoError(t, err)
	}
	update(func(c *jetstream.StreamConfig) { c.AllowDirect = false })
	init("yes", func() { update(func(c *jetstream.StreamConfig) { c.Description = "other" }) })
	term.expect("another user changed description")
	term.expect("exit=1")
	require.False(t, bucketInfo(t, js).Config.AllowDirect)
	init("yes", func() {})
	term.expect("changed 1 setting")
	term.expect("exit=0")
	require.True(t, bucketInfo(t, js).Config.AllowDirect)
}

// TestInitPrint checks that the server knows every field of the printed configuration.
func TestInitPrint(t *testing.T) {
	t.Parallel()
	code, out, errs := run(t, nil, "init", "--print", "--replicas", "3", "--bucket", "b", "--server", "nats://127.0.0.1:1", "--cluster", "east", "--tag", "ssd", "--tag", "z1")
	require.Zero(t, code, errs)
	var known server.StreamConfig
	dec := json.NewDecoder(bytes.NewReader([]byte(out)))
	dec.DisallowUnknownFields()
	require.NoError(t, dec.Decode(&known))
}
