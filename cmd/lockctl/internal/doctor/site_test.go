package doctor_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/cmd/lockctl/internal/console"
	lockctldoctor "github.com/natslock/locks/cmd/lockctl/internal/doctor"
	"github.com/natslock/locks/cmd/lockctl/internal/session"
	"github.com/natslock/locks/cmd/lockctl/internal/show"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/tool"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

// Output is compared as text, so it must not contain colors.
func init() { text.DisableColors() }

type diagnosis struct {
	Server   string `json:"server"`
	Bucket   string `json:"bucket"`
	Status   string `json:"status"`
	ExitCode int    `json:"exit_code"`
	Checks   []checked
	LeftOut  []struct{ Check, Why string } `json:"left_out"`
	Renewals struct {
		Records   int
		Demand    float64 `json:"demand_per_second"`
		Confirmed float64 `json:"confirmed_per_second"`
		Late      int
		Latest    float64 `json:"latest_seconds"`
	}
}

type checked struct{ Check, Status, Found, Repair string }

// doctor runs the doctor and checks what must hold for every diagnosis.
func doctor(t *testing.T, s *testutil.Server, args ...string) diagnosis {
	t.Helper()
	code, out, errs := visit(t, s, append([]string{"--json"}, args...)...)
	var d diagnosis
	require.NoError(t, json.Unmarshal([]byte(out), &d), "%s%s", out, errs)
	require.Empty(t, errs)
	require.Equal(t, code, d.ExitCode)
	worst := "ok"
	for _, c := range d.Checks {
		require.NotEmpty(t, c.Check)
		require.NotEmpty(t, c.Found, c.Check)
		switch c.Status {
		case "error":
			worst = "error"
		case "warning":
			if worst == "ok" {
				worst = "warning"
			}
			require.NotEmpty(t, c.Repair, c.Check)
		case "ok", "unknown":
			require.Empty(t, c.Repair, c.Check)
		default:
			t.Fatalf("status %q", c.Status)
		}
	}
	require.Equal(t, worst, d.Status)
	require.Equal(t, d.Status == "ok", d.ExitCode == 0)
	require.Equal(t, d.Status == "warning", d.ExitCode == 1)
	// A busy machine may have a slow link to itself, so TestRoundTrip checks that row instead.
	for i, c := range d.Checks {
		if c.Check == "round trip" && c.Status == "warning" {
			if d.Checks[i].Status = "ok"; len(d.troubles()) == 0 {
				d.Status, d.ExitCode = "ok", 0
			}
		}
	}
	return d
}

// row returns the first row of a check that is not ok, or its first row if all are.
func (d diagnosis) row(t *testing.T, check string) checked {
	t.Helper()
	rows := slices.DeleteFunc(slices.Clone(d.Checks), func(c checked) bool { return c.Check != check })
	require.NotEmpty(t, rows, "no row %s", check)
	for _, c := range rows {
		if c.Status != "ok" {
			return c
		}
	}
	return rows[0]
}

// left returns why a check was left out, or "" if it was not.
func (d diagnosis) left(check string) (why string) {
	for _, o := range d.LeftOut {
		if o.Check == check {
			why += o.Why
		}
	}
	return why
}

// troubles returns the rows with warnings and errors, by status and name.
func (d diagnosis) troubles() []string {
	list := []string{}
	for _, c := range d.Checks {
		if c.Status == "warning" || c.Status == "error" {
			list = append(list, c.Status+" "+c.Check)
		}
	}
	return list
}

// visit runs the doctor with the given flags, as lockctl does.
func visit(t *testing.T, s *testutil.Server, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs kit.Log
	var c struct {
		session.Globals
		Doctor lockctldoctor.Command `cmd:""`
	}
	c.Console = console.New(nil, strings.NewReader(""), &out, &errs)
	parser, err := kong.New(&c, show.Durations, tool.Names, kong.Vars{"version": ""})
	require.NoError(t, err)
	if s != nil && !slices.Contains(args, "--server") {
		args = append([]string{"--server", s.URL()}, args...)
	}
	ctx, err := parser.Parse(append([]string{"doctor", "--no-context"}, args...))
	require.NoError(t, err)
	c.Parsed(ctx)
	require.NoError(t, c.Verify())
	code = c.Report(c.End(ctx.Run(&c.Globals)))
	return code, out.String(), errs.String()
}

// serve runs a server that has the bucket.
func serve(t *testing.T, opts ...testutil.ServerOption) *testutil.Server {
	t.Helper()
	s := testutil.RunServer(t, opts...)
	withBucket(t, s)
	return s
}

// withBucket creates the bucket as "lockctl init" does.
func withBucket(t *testing.T, s *testutil.Server, opts ...nats.Option) {
	t.Helper()
	nc := s.Connect(opts...)
	cfg := kvstore.Config{}
	if nc.ConnectedClusterName() != "" {
		cfg.Replicas = 3
	}
	store, err := kvstore.Open(kit.Bounded(t), jetStream(t, s, opts...), cfg)
	require.NoError(t, err)
	store.Close()
}

// client returns a client that creates the bucket if it is missing.
func client(t *testing.T, s *testutil.Server, opts ...natslock.Option) *natslock.Client {
	t.Helper()
	return kit.NewClient(t, s.Connect(), opts...)
}

func take(t *testing.T, c *natslock.Client, name string, opts ...natslock.LockOption) *natslock.Lock {
	t.Helper()
	l, err := c.Lock(kit.Bounded(t), name, append(opts, natslock.Detached())...)
	require.NoError(t, err)
	kit.Keep(t, l)
	return l
}

// waits has a client wait for a mutex until the test ends. It returns once the client is queued.
func waits(t *testing.T, s *testutil.Server, name string, opts ...natslock.LockOption) {
	t.Helper()
	c := client(t, s)
	go func() { _, _ = c.Lock(t.Context(), name, opts...) }()
	kit.Eventually(t, "a waiter for "+name, func() bool {
		info, err := admin.New(c).Inspect(kit.Bounded(t), admin.KindMutex, name)
		return err == nil && len(info.Queue) == 1
	})
}

// cycle keeps acquiring and releasing a lock until stop is called.
func cycle(t *testing.T, s *testutil.Server) (stop func()) {
	t.Helper()
	c := client(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			_ = c.Do(context.WithoutCancel(ctx), "busy", func(context.Context, *natslock.Lock) error { return nil })
		}
	}()
	return func() { cancel(); <-ended }
}

// listed returns all locks in the bucket.
func listed(t *testing.T, s *testutil.Server) (infos []admin.Info) {
	t.Helper()
	for info, err := range admin.New(client(t, s)).List(kit.Bounded(t), ">") {
		require.NoError(t, err)
		infos = append(infos, info)
	}
	return infos
}

// asRoot logs in on servers that have a list of users.
var asRoot = []nats.Option{nats.UserInfo("root", "p")}

// userList returns a server configuration with an unrestricted user "root" and the given users.
func userList(permissions map[string]string) string {
	text := "authorization { users: [\n{ user: root, password: p }\n"
	for user, block := range permissions {
		text += fmt.Sprintf("{ user: %s, password: p\n%s}\n", user, block)
	}
	return text + "] }\n"
}

func perms(t *testing.T, access admin.Access) string {
	t.Helper()
	access.Bucket = "natslock"
	set, err := admin.Permissions(access)
	require.NoError(t, err)
	return fmt.Sprint(set)
}

func jetStream(t *testing.T, s *testutil.Server, opts ...nats.Option) jetstream.JetStream {
	t.Helper()
	return kit.JetStream(t, s.Connect(opts...))
}

func streamInfo(t *testing.T, js jetstream.JetStream, name string) *jetstream.StreamInfo {
	t.Helper()
	stream, err := js.Stream(t.Context(), name)
	require.NoError(t, err)
	return stream.CachedInfo()
}

func bucketInfo(t *testing.T, js jetstream.JetStream) *jetstream.StreamInfo {
	t.Helper()
	return streamInfo(t, js, "KV_natslock")
}

// update changes a stream and returns its previous configuration.
func update(t *testing.T, js jetstream.JetStream, name string, set func(*jetstream.StreamConfig)) (before jetstream.StreamConfig) {
	t.Helper()
	before = streamInfo(t, js, name).Config
	to := before
	set(&to)
	_, err := js.UpdateStream(t.Context(), to)
	require.NoError(t, err)
	return before
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
