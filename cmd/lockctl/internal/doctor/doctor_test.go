package doctor_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

func TestMain(m *testing.M) {
	kit.MoreAtOnce()
	os.Exit(m.Run())
}

func TestDoctorFindsNothing(t *testing.T) {
	t.Parallel()
	s := testutil.RunServer(t, testutil.WithConfig(func(o *server.Options) {
		o.HTTPHost, o.HTTPPort, o.SyncAlways = "127.0.0.1", -1, true
	}))
	withBucket(t, s)
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

	// The doctor changes nothing and leaves nothing behind.
	require.Equal(t, before, bucketInfo(t, js).Config)
	require.Empty(t, listed(t, s))
	kit.Eventually(t, "the end of the tombstones", func() bool { return bucketInfo(t, js).State.Msgs == 0 })

	// Check the human-readable output too.
	code, out, errs := visit(t, s)
	require.Zero(t, code)
	require.Empty(t, errs)
	require.Regexp(t, `(?m)^STATUS +CHECK +FOUND$`, out)
	require.Regexp(t, `(?m)^ok +mutex +lockctl/doctor\.\w+ taken in `, out)
	require.Regexp(t, `(?m)^ok +settings +\d+ are as they should be$`, out)
	require.NotContains(t, out, "unknown")
	require.NotContains(t, out, "max_msgs_per_subject")
	require.Regexp(t, `(?m)^left out: fsync: .*--monitor$`, out)
	require.Regexp(t, `(?m)^natslock at .*: 17 checks, 0 warnings, 0 errors$`, out)

	// The doctor relies on the time in the server's reply. Here a proxy passes on the reply with a
	// time that is an hour behind.
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
		code, out, errs := visit(t, s, args...)
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
	require.Equal(t, []string{"warning republish"}, doctor(t, s).troubles())
}

// TestDoctorTriesPermissions checks that the doctor names each subject that the server refuses.
func TestDoctorTriesPermissions(t *testing.T) {
	t.Parallel()
	orders := perms(t, admin.Access{Pattern: "orders.>"})
	without := func(subject string) string {
		require.Contains(t, orders, `"`+subject+`"`)
		return strings.Replace(orders, `"`+subject+`"`, "", 1)
	}
	const noQueue, noWord, noGate = "$KV.natslock.rwait.orders.*.>", "natslock.natslock.*.lock.orders.>", "$KV.natslock.rw.orders.>"
	s := testutil.RunServer(t, testutil.WithConfigText(userList(map[string]string{
		"full": orders, "own": perms(t, admin.Access{Pattern: "orders.>", OwnOnly: true}),
		"observer": perms(t, admin.Access{Pattern: "orders.>", Role: admin.RoleObserver}), "operator": perms(t, admin.Access{Pattern: "orders.>", Role: admin.RoleOperator}),
		"blind": strings.Replace(perms(t, admin.Access{Pattern: "orders.>", Role: admin.RoleObserver}), `"$JS.API.DIRECT.GET.KV_natslock.$KV.natslock.lock.orders.>"`, "", 1), "queue": without(noQueue), "word": without(noWord), "gate": without(noGate),
		"info": without("$JS.API.STREAM.INFO.KV_natslock"), "admin": perms(t, admin.Access{Pattern: "orders.>", Role: admin.RoleAdmin}),
	})))
	as := func(user string, args ...string) diagnosis {
		t.Helper()
		return doctor(t, s, append(args, "--user", user, "--password", "p", "--timeout", kit.Patience.String())...)
	}
	withBucket(t, s, asRoot...)

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

// TestDoctorFindsSecondBucket checks that the doctor finds the separate bucket of a leaf node that
// has its own JetStream.
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
	withBucket(t, hub)
	js, err := jetstream.NewWithDomain(leaf.Connect(), "hub")
	require.NoError(t, err)
	kit.Eventually(t, "the hub's bucket, from the leaf", func() bool {
		_, err := js.Stream(t.Context(), "KV_natslock")
		return err == nil
	})
	d := doctor(t, leaf, "--js-domain", "hub")
	require.Zero(t, d.ExitCode, "%v", d.troubles())
	require.Contains(t, d.row(t, "other domains").Found, "the connection's own domain")

	withBucket(t, leaf)
	for _, args := range [][]string{{"--js-domain", "hub"}, {"--other-domain", "hub"}} {
		d = doctor(t, leaf, args...)
		require.Equal(t, []string{"warning other domains"}, d.troubles())
		require.Contains(t, d.row(t, "other domains").Found, "a second bucket natslock")
	}

	// The doctor also finds a second bucket that no flag names, if it receives one of that bucket's
	// notifications while it listens.
	stop := cycle(t, hub)
	defer stop()
	kit.Eventually(t, "a doctor that hears of the hub's bucket", func() bool {
		d = doctor(t, leaf)
		return len(d.troubles()) == 1 && strings.Contains(d.Checks[len(d.Checks)-1].Found, "notifications of a second bucket natslock arrived in the meantime")
	})
	require.Equal(t, []string{"warning other domains"}, d.troubles())
}

// TestDoctorOnCluster checks that the doctor sees which servers of a cluster keep the bucket.
func TestDoctorOnCluster(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	cluster := testutil.RunCluster(t, 3)
	s := cluster.Servers()[0]
	client(t, s, natslock.WithReplicas(1))
	d := doctor(t, s)
	require.Equal(t, []string{"warning num_replicas"}, d.troubles())
	require.Contains(t, d.row(t, "num_replicas").Repair, "lockctl init")
	update(t, jetStream(t, s), "KV_natslock", func(c *jetstream.StreamConfig) { c.Replicas = 3 })
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

// TestDoctorVisitsAllServers checks that the verdict is the majority's, regardless of which server
// the doctor connects to first, and that it names the isolated server. It also reports a server
// that has stopped JetStream after its disk was full.
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
		require.Contains(t, d.row(t, "server").Found, cut.Server().Name()+" cannot reach a leader of the bucket, but ")
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
		return slices.Contains(d.troubles(), "warning replicas") && strings.Contains(d.row(t, "replicas").Found, full.Server().Name()+" answers, but its JetStream is off")
	})
	d := doctor(t, cluster.Servers()[leader])
	require.Contains(t, d.row(t, "replicas").Repair, "free space on the disk of "+full.Server().Name()+" and restart the server")
}
