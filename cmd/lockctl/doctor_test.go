//go:build unix

package main_test

import (
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/testutil"
)

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

// doctor runs it and checks what is true of every answer.
func doctor(t *testing.T, s *testutil.Server, args ...string) diagnosis {
	t.Helper()
	code, out, errs := run(t, s, append([]string{"doctor", "--json"}, args...)...)
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
	// A busy machine has a slow link to itself. TestRoundTrip judges that row.
	for i, c := range d.Checks {
		if c.Check == "round trip" && c.Status == "warning" {
			if d.Checks[i].Status = "ok"; len(d.troubles()) == 0 {
				d.Status, d.ExitCode = "ok", 0
			}
		}
	}
	return d
}

// row returns the rows of a check that are not fine, or all if all are.
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

// left says why a check was left out; empty: it was not.
func (d diagnosis) left(check string) (why string) {
	for _, o := range d.LeftOut {
		if o.Check == check {
			why += o.Why
		}
	}
	return why
}

// troubles names the rows with warnings and errors.
func (d diagnosis) troubles() []string {
	list := []string{}
	for _, c := range d.Checks {
		if c.Status == "warning" || c.Status == "error" {
			list = append(list, c.Status+" "+c.Check)
		}
	}
	return list
}

func TestDoctorFindsNothing(t *testing.T) {
	t.Parallel()
	s := testutil.RunServer(t, testutil.WithConfig(func(o *server.Options) {
		o.HTTPHost, o.HTTPPort, o.SyncAlways = "127.0.0.1", -1, true
	}))
	code, _, errs := run(t, s, "init", "-f")
	require.Zero(t, code, errs)
	js := jetStream(t, s)
	before := bucketInfo(t, js).Config
	monitor := "http://" + s.Server().MonitorAddr().String()
	d := doctor(t, s, "-v", "--monitor", monitor, "--other-domain", "nowhere")
	require.Zero(t, d.ExitCode, "%v", d.troubles())
	require.Equal(t, "natslock", d.Bucket)
	require.Equal(t, s.URL(), d.Server)
	var seen []string
	for _, c := range d.Checks {
		require.Equal(t, "ok", c.Status, "%+v", c)
		seen = append(seen, c.Check)
	}
	for _, want := range []string{"connection", "round trip", "server version", "jetstream", "bucket", "mirror", "max_msgs_per_subject", "allow_msg_ttl",
		"republish", "mirrors", "history", "other domains", "room", "replicas", "expiry", "renewals", "fsync", "permissions", "mutex", "clock", "watching", "reader-writer lock"} {
		require.Contains(t, seen, want)
	}
	require.Empty(t, d.LeftOut)
	require.Contains(t, d.row(t, "server version").Found, server.VERSION)

	// It changes nothing and leaves nothing.
	require.Equal(t, before, bucketInfo(t, js).Config)
	require.Empty(t, locks(t, s, "ls"))
	kit.Eventually(t, "the end of the tombstones", func() bool { return bucketInfo(t, js).State.Msgs == 0 })

	// The same for people.
	code, out, errs := run(t, s, "doctor")
	require.Zero(t, code)
	require.Empty(t, errs)
	require.Regexp(t, `(?m)^STATUS +CHECK +FOUND$`, out)
	require.Regexp(t, `(?m)^ok +mutex +lockctl/doctor\.\w+ taken in `, out)
	require.Regexp(t, `(?m)^ok +settings +\d+ are as they should be$`, out)
	require.NotContains(t, out, "unknown")
	require.NotContains(t, out, "max_msgs_per_subject")
	require.Regexp(t, `(?m)^left out: fsync: .*--monitor$`, out)
	require.Regexp(t, `(?m)^natslock at .*: 17 checks, 0 warnings, 0 errors$`, out)

	// The doctor believes the time in the server's answer. Here the answer is the server's
	// own, with a time one hour late.
	late := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		resp, err := http.Get(monitor + r.URL.Path)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer resp.Body.Close()
		var v map[string]any
		_ = json.NewDecoder(resp.Body).Decode(&v)
		v["now"] = time.Now().Add(-time.Hour)
		_ = json.NewEncoder(w).Encode(v)
	}))
	defer late.Close()
	d = doctor(t, s, "--monitor", late.URL)
	require.Len(t, d.troubles(), 1)
	require.Contains(t, d.troubles()[0], "warning clock of ")
}

func TestDoctorWithoutBucket(t *testing.T) {
	t.Parallel()
	s := testutil.RunServer(t)
	d := doctor(t, s)
	require.Equal(t, 78, d.ExitCode)
	require.Contains(t, d.row(t, "bucket").Repair, "lockctl init")
	_, err := jetStream(t, s).Stream(t.Context(), "KV_natslock")
	require.ErrorIs(t, err, jetstream.ErrStreamNotFound, "reading makes no bucket")
	s.Stop()
	d = doctor(t, s)
	require.Equal(t, 69, d.ExitCode)
	require.Equal(t, []string{"error connection"}, d.troubles())

	d = doctor(t, testutil.RunServer(t, testutil.WithoutJetStream()))
	require.Equal(t, 69, d.ExitCode)
	require.Equal(t, []string{"error jetstream"}, d.troubles())

	for _, args := range [][]string{{"orders.42"}, {"a.>.b"}, {">", "--bucket", "a.b"}} {
		code, out, errs := run(t, s, append([]string{"doctor"}, args...)...)
		require.Equal(t, 64, code, "%q %s", args, errs)
		require.Empty(t, out)
	}
}

func TestDoctorFindsBadBucket(t *testing.T) {
	t.Parallel()
	s := testutil.RunServer(t, testutil.WithConfig(func(o *server.Options) { o.HTTPHost, o.HTTPPort = "127.0.0.1", -1 }))
	js := makeBucket(t, s, func(c *jetstream.StreamConfig) { c.AllowDirect, c.RePublish = false, nil })
	d := doctor(t, s, "--monitor", "http://"+s.Server().MonitorAddr().String())
	require.Equal(t, []string{"warning republish", "warning allow_direct", "warning fsync"}, d.troubles())
	require.Contains(t, d.row(t, "fsync").Repair, "sync_interval: always")
	require.Contains(t, d.row(t, "allow_direct").Repair, "lockctl init")
	require.Equal(t, "ok", d.row(t, "mutex").Status)

	_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "copy", Mirror: &jetstream.StreamSource{Name: "KV_natslock"}})
	require.NoError(t, err)
	c := bucketInfo(t, js).Config
	c.MaxAge, c.AllowDirect = time.Hour, true
	_, err = js.UpdateStream(t.Context(), c)
	require.NoError(t, err)
	d = doctor(t, s)
	require.Equal(t, 78, d.ExitCode)
	require.Equal(t, []string{"error max_age", "warning republish", "warning mirrors", "error mutex"}, d.troubles())
	require.Contains(t, d.row(t, "mirrors").Found, "copy")
	require.Contains(t, d.row(t, "max_age").Repair, "lockctl init")

	c.MaxAge = 0
	_, err = js.UpdateStream(t.Context(), c)
	require.NoError(t, err)
	require.NoError(t, js.DeleteStream(t.Context(), "copy"))
	code, _, errs := run(t, s, "init", "-f")
	require.Zero(t, code, errs)
	require.Empty(t, doctor(t, s).troubles(), "init has repaired it")
}

// Each subject that is refused is named.
func TestDoctorTriesPermissions(t *testing.T) {
	t.Parallel()
	orders := block(t, "orders.>")
	without := func(subject string) string {
		require.Contains(t, orders, `"`+subject+`"`)
		return strings.Replace(orders, `"`+subject+`"`, "", 1)
	}
	const noQueue, noWord, noGate = "$KV.natslock.rwait.orders.*.>", "natslock.natslock.*.lock.orders.>", "$KV.natslock.rw.orders.>"
	s := testutil.RunServer(t, testutil.WithConfigText(userList(map[string]string{
		"full": orders, "own": block(t, "orders.>", "--own-only"),
		"observer": block(t, "orders.>", "--role", "observer"), "operator": block(t, "orders.>", "--role", "operator"),
		"blind": strings.Replace(block(t, "orders.>", "--role", "observer"), `"$JS.API.DIRECT.GET.KV_natslock.$KV.natslock.lock.orders.>"`, "", 1), "queue": without(noQueue), "word": without(noWord), "gate": without(noGate),
		"info": without("$JS.API.STREAM.INFO.KV_natslock"), "admin": block(t, "orders.>", "--role", "admin"),
	})))
	as := func(user string, args ...string) diagnosis {
		t.Helper()
		return doctor(t, s, append(args, "--user", user, "--password", "p", "--timeout", kit.Patience.String())...)
	}
	code, _, errs := run(t, s, "init", "-f", "--user", "root", "--password", "p")
	require.Zero(t, code, errs)

	d := as("full", "orders.>")
	require.Zero(t, d.ExitCode, "%v", d.troubles())
	require.Contains(t, d.row(t, "mutex").Found, "orders.lockctl/doctor.")
	require.Contains(t, d.left("mirrors"), "$JS.API.STREAM.LIST")
	require.Contains(t, d.left("jetstream"), "$JS.API.INFO")
	require.Contains(t, d.left("history"), "HISTORY_natslock")
	require.Empty(t, d.left("permissions"))
	d = as("admin", "orders.>")
	require.Zero(t, d.ExitCode, "%v", d.troubles())
	require.Equal(t, "ok", d.row(t, "mirrors").Status)
	d = as("own", "orders.>")
	require.Zero(t, d.ExitCode, "%v", d.troubles())
	require.Contains(t, d.left("permissions"), "publish to $JS.API.STREAM.MSG.GET.KV_natslock")
	for role, c := range map[string]struct{ left, tried string }{
		"observer": {"mutex", "expiry"}, "operator": {"queues", "mutex"},
	} {
		d = as(role, "orders.>")
		require.Zero(t, d.ExitCode, "%s: %v", role, d.troubles())
		require.Contains(t, d.row(t, "permissions").Found, "the role "+role)
		require.Contains(t, d.left(c.left), role)
		require.Equal(t, "ok", d.row(t, c.tried).Status)
	}
	d = as("blind", "orders.>")
	require.Equal(t, 77, d.ExitCode)
	require.Contains(t, d.row(t, "permissions").Repair, "lockctl perms 'orders.>'")
	d = as("queue", "orders.>")
	require.Equal(t, 77, d.ExitCode)
	require.Contains(t, d.row(t, "permissions").Found, "publish to $KV.natslock.rwait.orders.lockctl/doctor.")
	require.Contains(t, d.row(t, "permissions").Repair, "lockctl perms 'orders.>'")
	d = as("gate", "orders.>")
	require.Equal(t, 77, d.ExitCode)
	require.Equal(t, "error", d.row(t, "reader-writer lock").Status)
	require.Equal(t, "ok", d.row(t, "mutex").Status)
	d = as("word", "orders.>")
	require.Equal(t, []string{"warning permissions", "warning watching"}, d.troubles())
	d = as("info", "orders.>")
	require.Equal(t, 77, d.ExitCode)
	require.Contains(t, d.row(t, "bucket").Found, "STREAM.INFO.KV_natslock")
	d = as("full", "users.>")
	require.Equal(t, 77, d.ExitCode)
	require.Equal(t, "error", d.row(t, "mutex").Status)
	d = as("nobody")
	require.Equal(t, 77, d.ExitCode)
	require.Equal(t, []string{"error connection"}, d.troubles())
}

// A leaf node that has a JetStream of its own has a bucket of its own.
func TestDoctorFindsSecondBucket(t *testing.T) {
	t.Parallel()
	port := kit.FreePort(t)
	hub := testutil.RunServer(t, testutil.WithConfig(func(o *server.Options) {
		o.JetStreamDomain = "hub"
		o.LeafNode.Host, o.LeafNode.Port = "127.0.0.1", port
	}))
	leaf := testutil.RunServer(t, testutil.WithConfig(func(o *server.Options) {
		o.JetStreamDomain = "leaf"
		o.LeafNode.Remotes = []*server.RemoteLeafOpts{{URLs: []*url.URL{{Scheme: "nats-leaf", Host: fmt.Sprintf("127.0.0.1:%d", port)}}}}
		o.LeafNode.ReconnectInterval = 50 * time.Millisecond
	}))
	code, _, errs := run(t, hub, "init", "-f")
	require.Zero(t, code, errs)
	kit.Eventually(t, "the hub's bucket, from the leaf", func() bool {
		code, _, _ := run(t, leaf, "--js-domain", "hub", "--timeout", "1s", "ls")
		js, err := jetstream.NewWithDomain(leaf.Connect(), "hub")
		require.NoError(t, err)
		_, err = js.Stream(t.Context(), "KV_natslock")
		return code == 0 && err == nil
	})
	d := doctor(t, leaf, "--js-domain", "hub")
	require.Zero(t, d.ExitCode, "%v", d.troubles())
	require.Contains(t, d.row(t, "other domains").Found, "the connection's own domain")

	code, out, errs := run(t, leaf, "init", "-f")
	require.Zero(t, code, errs)
	require.Contains(t, out, "made bucket")
	for _, args := range [][]string{{"--js-domain", "hub"}, {"--other-domain", "hub"}} {
		d = doctor(t, leaf, args...)
		require.Equal(t, []string{"warning other domains"}, d.troubles())
		require.Contains(t, d.row(t, "other domains").Found, "a second bucket natslock")
	}

	// The doctor also finds a second bucket that no flag names, if its server sends it a
	// notification of a change while it listens.
	stop := cycle(t, hub, "busy", 1, 0)
	defer stop()
	kit.Eventually(t, "a doctor that hears of the hub's bucket", func() bool {
		d = doctor(t, leaf)
		return len(d.troubles()) == 1 && strings.Contains(d.Checks[len(d.Checks)-1].Found, "notifications of a second bucket natslock have arrived meanwhile")
	})
	require.Equal(t, []string{"warning other domains"}, d.troubles())
}

// init spreads a bucket over a cluster, and the doctor sees who keeps it.
func TestDoctorOnCluster(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	cluster := testutil.RunCluster(t, 3)
	s := cluster.Servers()[0]
	code, out, errs := run(t, s, "init", "-f", "--replicas", "1")
	require.Zero(t, code, errs)
	require.Contains(t, out, "one replica on cluster")
	d := doctor(t, s)
	require.Equal(t, []string{"warning num_replicas"}, d.troubles())
	require.Contains(t, d.row(t, "num_replicas").Repair, "lockctl init")
	code, out, errs = run(t, s, "init", "-f")
	require.Zero(t, code, errs)
	require.Regexp(t, `num_replicas +1 +-> +3`, out)
	kit.Eventually(t, "three replicas that are up to date", func() bool { return len(doctor(t, s).troubles()) == 0 })
	js, err := jetstream.New(s.Connect())
	require.NoError(t, err)
	kept, err := js.Stream(t.Context(), "KV_natslock")
	require.NoError(t, err)
	require.Len(t, kept.CachedInfo().Cluster.Replicas, 2, "the doctor is content when all are there, not before")
	d = doctor(t, s)
	require.Contains(t, d.row(t, "replicas").Found, "3 on cluster")
	versions := 0
	for _, c := range d.Checks {
		if c.Check == "server version" {
			versions++
		}
	}
	require.Equal(t, 3, versions, "of all servers")

	cluster.StopServer(2)
	kit.Eventually(t, "a replica seen to be offline", func() bool {
		d = doctor(t, s, "--timeout", "2s")
		return slices.Contains(d.troubles(), "warning replicas") && strings.Contains(d.row(t, "replicas").Found, "offline")
	})
}

// The doctor's verdict is the majority's, whichever server it connects to first, and it names the
// server that is cut off. A server whose disk was full has stopped JetStream, and says so.
func TestDoctorVisitsAllServers(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	cluster := testutil.RunCluster(t, 3)
	s := cluster.Servers()[0]
	withBucket(t, s)
	leader := cluster.Index(cluster.WaitStreamLeader(t, "KV_natslock"))
	kit.Eventually(t, "a bucket that is well", func() bool { return len(doctor(t, s).troubles()) == 0 })
	cut := cluster.Servers()[(leader+1)%3]
	cluster.Isolate((leader + 1) % 3)
	for i := range 3 {
		var d diagnosis
		urls := cluster.Servers()[i].URL() + "," + cluster.URLs()
		kit.Eventually(t, "a server that is cut off", func() bool {
			d = doctor(t, s, "--server", urls)
			return slices.Contains(d.troubles(), "warning server")
		})
		require.Contains(t, d.row(t, "server").Found, cut.Server().Name()+" reaches no leader of the bucket, and ")
		require.Contains(t, d.row(t, "server").Repair, "incidents.md")
		require.NotContains(t, d.Status, "error", "%v", d.troubles())
		require.Equal(t, "ok", d.row(t, "mutex").Status)
	}
	cluster.Rejoin((leader + 1) % 3)
	kit.Eventually(t, "a bucket that is well again", func() bool { return len(doctor(t, s).troubles()) == 0 })

	full := cluster.Servers()[(leader+2)%3]
	require.NoError(t, full.Server().ShutdownJetStream())
	kit.Eventually(t, "a server without JetStream", func() bool {
		d := doctor(t, cluster.Servers()[leader])
		return slices.Contains(d.troubles(), "warning replicas") && strings.Contains(d.row(t, "replicas").Found, full.Server().Name()+" answers, and its JetStream is off")
	})
	d := doctor(t, cluster.Servers()[leader])
	require.Contains(t, d.row(t, "replicas").Repair, "free room on the disk of "+full.Server().Name()+" and restart the server")
}

// The certificate of a server ends: a warning before, an error of that server after.
func TestDoctorReadsCertificates(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	dir := t.TempDir()
	authority := newAuthority(t, dir)
	good := []string{}
	for name, until := range map[string]time.Duration{"good": 30 * 24 * time.Hour, "soon": 13 * 24 * time.Hour, "over": -time.Minute} {
		cert, key := authority.issue(name, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(until) })
		s := testutil.RunServer(t, testutil.WithConfigText(fmt.Sprintf("tls { cert_file: %q, key_file: %q }", cert, key)))
		if name != "over" {
			withBucket(t, s, "--tlsca", authority.file)
		}
		good = append(good, s.URL())
		if name == "good" {
			d := doctor(t, s, "--tlsca", authority.file)
			require.Equal(t, "ok", d.row(t, "certificate").Status)
		}
	}
	d := doctor(t, nil, "--server", strings.Join(good, ","), "--tlsca", authority.file)
	require.Contains(t, d.troubles(), "warning certificate")
	require.Contains(t, d.troubles(), "error certificate")
}

// An account that imports the bucket needs no more of JetStream than the locks do.
func TestDoctorThroughImport(t *testing.T) {
	t.Parallel()
	s := testutil.RunServer(t, testutil.WithConfigText(`accounts {
		OWNER { jetstream: enabled, users: [ { user: owner, password: p } ], exports: [
			{ service: "$JS.API.STREAM.INFO.KV_natslock" }, { service: "$JS.API.DIRECT.GET.KV_natslock.>" },
			{ service: "$KV.natslock.>" }, { stream: "natslock.natslock.>" } ] }
		APP { users: [ { user: app, password: p } ], imports: [
			{ service: { account: OWNER, subject: "$JS.API.STREAM.INFO.KV_natslock" }, to: "locks.API.STREAM.INFO.KV_natslock" }
			{ service: { account: OWNER, subject: "$JS.API.DIRECT.GET.KV_natslock.>" }, to: "locks.API.DIRECT.GET.KV_natslock.>" }
			{ service: { account: OWNER, subject: "$KV.natslock.>" }, to: "locks.API.$KV.natslock.>" }
			{ stream: { account: OWNER, subject: "natslock.natslock.>" } } ] } }`))
	withBucket(t, s, "--user", "owner", "--password", "p")
	app := func(args ...string) (code int, out, errs string) {
		return run(t, s, append([]string{"--user", "app", "--password", "p", "--js-api-prefix", "locks.API"}, args...)...)
	}
	code, out, errs := app("doctor")
	require.Zero(t, code, out+errs)
	require.NotContains(t, out, "unknown")
	for _, check := range []string{"jetstream", "mirrors", "history"} {
		require.Regexp(t, `left out: `+check+`: .*locks\.API does not lead there`, out)
	}
	require.Contains(t, out, "no second bucket in the connection's own domain")
	code, _, errs = app("init", "-f", "--max-bytes", "100000000")
	require.Equal(t, 69, code, errs)
	require.Contains(t, errs, "what another account does not export, only its own users can do")
}
