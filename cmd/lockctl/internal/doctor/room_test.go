package doctor_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

// TestDoctorFindsFullBucket checks that a full bucket is an error, and that the suggested repair
// works.
func TestDoctorFindsFullBucket(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	s := serve(t)
	js := jetStream(t, s)
	limit := func(set func(*jetstream.StreamConfig)) { t.Helper(); update(t, js, "KV_natslock", set) }
	take(t, client(t, s), "x", natslock.TTL(time.Hour))
	limit(func(c *jetstream.StreamConfig) { c.MaxMsgs = 1 })
	d := doctor(t, s)
	require.Equal(t, []string{"error room", "error mutex"}, d.troubles())
	require.Equal(t, 70, d.ExitCode)
	require.Contains(t, d.row(t, "room").Found, "1 of 1 of records")
	require.Contains(t, d.row(t, "mutex").Found, "1 of max_msgs 1 are used")
	for _, row := range []string{"room", "mutex"} {
		require.Contains(t, d.row(t, row).Repair, "nats stream edit KV_natslock --max-msgs=-1")
	}
	limit(func(c *jetstream.StreamConfig) { c.MaxMsgs, c.MaxBytes = -1, 1 })
	d = doctor(t, s)
	require.Equal(t, []string{"error room", "error mutex"}, d.troubles())
	require.Contains(t, d.row(t, "mutex").Found, "of max_bytes 1 are used")
	require.Contains(t, d.row(t, "mutex").Repair, "lockctl init --max-bytes 1048576")
	limit(func(c *jetstream.StreamConfig) { c.MaxBytes = 1048576 })
	d = doctor(t, s)
	require.Empty(t, d.troubles())
	require.Contains(t, d.row(t, "room").Found, "of 1.0 MiB of size")
}

// TestDoctorFindsFullServer checks that the doctor detects an account or a server that is full and
// therefore refuses every write.
func TestDoctorFindsFullServer(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	fill := func(s *testutil.Server) {
		js := jetStream(t, s)
		_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "others", Subjects: []string{"others"}})
		require.NoError(t, err)
		for err == nil {
			_, err = js.Publish(t.Context(), "others", make([]byte, 64<<10))
		}
		for err = nil; err == nil; {
			_, err = js.Publish(t.Context(), "others", nil)
		}
	}
	for name, tc := range map[string]struct {
		s           *testutil.Server
		found, todo string
	}{
		"account": {testutil.RunServer(t, testutil.WithConfigText(`accounts { A { users: [ { user: a, password: p } ], jetstream { max_file: 1M, max_memory: 1M } } }
no_auth_user: a`)), "resource limits exceeded for account", "the account is full"},
		"server": {testutil.RunServer(t, testutil.WithConfig(func(o *server.Options) { o.JetStreamMaxStore = 1 << 20 })), "insufficient resources", "the server is full"},
	} {
		withBucket(t, tc.s)
		fill(tc.s)
		d := doctor(t, tc.s)
		require.Contains(t, d.troubles(), "error mutex", name)
		require.NotContains(t, d.troubles(), "error reader-writer lock", name)
		require.Contains(t, d.row(t, "mutex").Found, tc.found, name)
		require.Contains(t, d.row(t, "mutex").Repair, tc.todo, name)
		require.NoError(t, jetStream(t, tc.s).DeleteStream(t.Context(), "others"))
		require.Empty(t, doctor(t, tc.s).troubles(), name)
	}
}

// TestDoctorFindsLastingRecords checks that the doctor reports a holder and a place without a TTL
// and says how to remove them.
func TestDoctorFindsLastingRecords(t *testing.T) {
	t.Parallel()
	s := serve(t)
	js := jetStream(t, s)
	c := client(t, s)
	l := take(t, c, "x", natslock.TTL(time.Hour))
	waits(t, s, "x")
	require.Equal(t, "ok", func() string { d := doctor(t, s); return d.row(t, "expiry").Status }())
	stream, err := js.Stream(t.Context(), "KV_natslock")
	require.NoError(t, err)
	info, err := stream.Info(t.Context(), jetstream.WithSubjectFilter("$KV.natslock.*.x.>"))
	require.NoError(t, err)
	copied := func(subject, to string) {
		t.Helper()
		m, err := stream.GetLastMsgForSubject(t.Context(), subject)
		require.NoError(t, err)
		_, err = js.PublishMsg(t.Context(), &nats.Msg{Subject: to, Data: m.Data})
		require.NoError(t, err)
	}
	copied("$KV.natslock.lock.x", "$KV.natslock.lock.y")
	for subject := range info.State.Subjects {
		copied(subject, strings.Replace(subject, "wait.x.", "wait.y.", 1))
	}

	d := doctor(t, s)
	require.Equal(t, []string{"warning expiry", "warning expiry"}, d.troubles())
	var found []checked
	for _, c := range d.Checks {
		if c.Check == "expiry" {
			found = append(found, c)
		}
	}
	require.Contains(t, found[0].Found, "1 record without a TTL, blocking other clients forever: the holder of mutex lock y")
	require.Contains(t, found[0].Repair, "lockctl break NAME")
	require.Regexp(t, `1 record without a TTL in queues, .*: place \w+ of mutex lock y`, found[1].Found)
	require.Contains(t, found[1].Repair, "nats kv del natslock KEY")

	// The suggested repairs work.
	require.NoError(t, admin.New(c).Break(t.Context(), admin.BreakRequest{Kind: admin.KindMutex, Name: "y", ID: l.ID(), Immediately: true}))
	kv, err := js.KeyValue(t.Context(), "natslock")
	require.NoError(t, err)
	keys, err := kv.ListKeysFiltered(t.Context(), "wait.y.*")
	require.NoError(t, err)
	for key := range keys.Keys() {
		require.NoError(t, kv.Delete(t.Context(), key))
	}
	require.NoError(t, take(t, c, "y").Unlock(t.Context()))
	require.Equal(t, "ok", func() string { d := doctor(t, s); return d.row(t, "expiry").Status }())
}

// TestDoctorFindsStoppedStream checks the doctor on a replicated stream that has stopped for good,
// which any user with a service's permissions can cause with a single publish. The doctor reports
// it once the stream has had no leader for longer than an election takes, and its repair works.
func TestDoctorFindsStoppedStream(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	cluster := testutil.RunCluster(t, 3, testutil.WithConfigText(userList(map[string]string{"orders": perms(t, admin.Access{Pattern: "orders.>"})})))
	s := cluster.Servers()[0]
	root := []string{"--user", "root", "--password", "p"}
	withBucket(t, s, asRoot...)
	nc := s.Connect(nats.UserInfo("orders", "p"))
	poison := nats.NewMsg("$KV.natslock.lock.orders.b")
	poison.Header.Set("Nats-Expected-Last-Msg-Id", "none")
	answer, err := nc.RequestMsg(poison, kit.Patience)
	require.NoError(t, err)
	var refused struct {
		Error struct {
			Code int `json:"err_code"`
		}
	}
	require.NoError(t, json.Unmarshal(answer.Data, &refused))
	require.Equal(t, 10070, refused.Error.Code, "%s", answer.Data)
	kit.Eventually(t, "a stream without a leader", func() bool { return cluster.StreamLeader("KV_natslock") == nil })

	d := doctor(t, s, root...)
	require.Equal(t, []string{"error bucket"}, d.troubles())
	require.Equal(t, 78, d.ExitCode)
	require.Contains(t, d.row(t, "bucket").Found, "it has stopped for good")
	require.Contains(t, d.row(t, "bucket").Repair, `delete and re-create the stream with "nats stream rm KV_natslock" and "lockctl init"; restarts do not help`)

	require.NoError(t, jetStream(t, s, nats.UserInfo("root", "p")).DeleteStream(t.Context(), "KV_natslock"))
	withBucket(t, s, asRoot...)
	kit.Eventually(t, "a bucket that is well", func() bool { return len(doctor(t, s, root...).troubles()) == 0 })
}

// TestDoctorWithoutMajority checks that without a majority the doctor advises restoring the missing
// servers, and never deleting the stream, even though the remaining server shows the other replicas
// as present.
func TestDoctorWithoutMajority(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	cluster := testutil.RunCluster(t, 3)
	withBucket(t, cluster.Servers()[0])
	cluster.WaitStreamLeader(t, "KV_natslock")
	cluster.Kill(1)
	cluster.Kill(2)
	left := cluster.Servers()[0]
	js := jetStream(t, left)
	kit.Eventually(t, "a cluster and a stream without a leader", func() bool {
		_, err := js.AccountInfo(t.Context())
		return err != nil && cluster.StreamLeader("KV_natslock") == nil
	})
	d := doctor(t, left, "--timeout", "2s")
	require.Contains(t, d.troubles(), "error bucket")
	require.Equal(t, 69, d.ExitCode)
	require.Contains(t, d.row(t, "bucket").Repair, "start the missing servers", "%+v", d.row(t, "bucket"))
	cluster.Restart(1)
	kit.Eventually(t, "a bucket with a leader", func() bool { return !slices.Contains(doctor(t, left).troubles(), "error bucket") })
}

// TestDoctorFindsSilentLeader checks that the doctor detects a leader cut off from its followers,
// which replies to requests but not to writes.
func TestDoctorFindsSilentLeader(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	cluster := testutil.RunCluster(t, 3)
	withBucket(t, cluster.Servers()[0])
	leader := cluster.WaitStreamLeader(t, "KV_natslock")
	i := cluster.Index(leader)
	cluster.Isolate(i)
	d := doctor(t, leader, "--timeout", "2s")
	cluster.Rejoin(i)
	// The doctor may have reached another server, which may already lead.
	troubles := slices.DeleteFunc(d.troubles(), func(s string) bool { return s == "warning server" })
	if len(troubles) == 0 {
		require.Contains(t, d.row(t, "server").Found, "it is cut off")
		return
	}
	if troubles[0] == "warning replicas" { // the leader already misses the other replicas
		require.Regexp(t, `last active|behind|offline|not up to date`, d.row(t, "replicas").Found)
		troubles = troubles[1:]
		require.NotEmpty(t, troubles)
	}
	switch troubles[0] {
	case "error mutex":
		require.Equal(t, 70, d.ExitCode)
		require.Contains(t, d.row(t, "mutex").Found, "no answer within")
		require.Contains(t, d.row(t, "mutex").Repair, "writes go unanswered")
	default: // the leader had stepped down before the doctor connected
		require.Equal(t, []string{"error bucket"}, troubles)
	}
	kit.Eventually(t, "a bucket that is well", func() bool { return len(doctor(t, cluster.Servers()[0]).troubles()) == 0 })
}

// TestDoctorOfBusyCluster checks that the doctor does not report replicas that lag by a write for a
// moment, as they often do under load, but only those that do not catch up.
func TestDoctorOfBusyCluster(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	cluster := testutil.RunCluster(t, 3)
	s := cluster.Servers()[0]
	withBucket(t, s)
	cluster.WaitStreamLeader(t, "KV_natslock")
	kit.Eventually(t, "a bucket that is well", func() bool { return len(doctor(t, s).troubles()) == 0 })
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	for i := range 4 {
		c, err := natslock.New(t.Context(), cluster.Connect())
		require.NoError(t, err)
		wg.Go(func() {
			for ctx.Err() == nil {
				_ = c.Do(ctx, fmt.Sprint("busy", i), func(context.Context, *natslock.Lock) error { return nil })
			}
		})
	}
	for range 8 {
		require.NotContains(t, doctor(t, s).troubles(), "warning replicas")
	}
}

// TestDoctorRepairs checks that "doctor --repair" removes overdue records of the locks that its
// pattern matches, and leaves live records alone.
func TestDoctorRepairs(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	s := serve(t)
	c := client(t, s)
	for _, name := range []string{"left.a", "left.b", "right"} {
		take(t, c, name, natslock.TTL(time.Second), natslock.NoRenew())
	}
	s.Stop()
	kit.ForgetTTLs(t, s)
	s.Restart()
	take(t, client(t, s), "held", natslock.TTL(time.Hour))
	kit.Eventually(t, "all are overdue", func() bool {
		n := 0
		for _, info := range listed(t, s) {
			if info.Holder.Overdue {
				n++
			}
		}
		return n == 3
	})
	row := doctor(t, s).row(t, "expiry")
	require.Equal(t, "warning", row.Status)
	require.Contains(t, row.Repair, "lockctl doctor --repair")
	d := doctor(t, s, "--repair", "left.>")
	require.Equal(t, "2 overdue records removed", d.row(t, "repair").Found)
	require.Len(t, listed(t, s), 2)
	d = doctor(t, s, "--repair")
	require.Equal(t, "1 overdue record removed", d.row(t, "repair").Found)
	require.Equal(t, "ok", d.row(t, "expiry").Status)
	require.Zero(t, d.ExitCode)
	l := listed(t, s)
	require.Len(t, l, 1)
	require.Equal(t, "held", l[0].Name)
}
