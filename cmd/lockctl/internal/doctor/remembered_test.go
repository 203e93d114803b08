package doctor_test

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

func historyInfo(t *testing.T, js jetstream.JetStream) *jetstream.StreamInfo {
	t.Helper()
	return streamInfo(t, js, "HISTORY_natslock")
}

// remember creates a history and waits until it copies from the bucket. The server starts doing so
// only a moment later.
func remember(t *testing.T, s *testutil.Server, opts ...nats.Option) {
	t.Helper()
	js := jetStream(t, s, opts...)
	_, err := js.CreateStream(t.Context(), kvstore.HistoryStream(bucketInfo(t, js), 7*24*time.Hour, 0))
	require.NoError(t, err)
	sourcing(t, js)
}

// sourcing waits until the history copies from the bucket.
func sourcing(t *testing.T, js jetstream.JetStream) {
	t.Helper()
	kit.Eventually(t, "a history that copies", func() bool { return historyInfo(t, js).Sources[0].Active >= 0 })
}

// copied waits until the history has copied the bucket's last write.
func copied(t *testing.T, js jetstream.JetStream) {
	t.Helper()
	kit.Eventually(t, "a copy of the last write", func() bool {
		stream, err := js.Stream(t.Context(), "HISTORY_natslock")
		require.NoError(t, err)
		last, err := stream.GetMsg(t.Context(), stream.CachedInfo().State.LastSeq)
		return err == nil && strings.Fields(last.Header.Get("Nats-Stream-Source"))[1] == fmt.Sprint(bucketInfo(t, js).State.LastSeq)
	})
}

// updateHistory changes the stream of a history and returns its previous configuration.
func updateHistory(t *testing.T, js jetstream.JetStream, set func(*jetstream.StreamConfig)) (before jetstream.StreamConfig) {
	t.Helper()
	return update(t, js, "HISTORY_natslock", set)
}

// again deletes a history and creates a new one, following the doctor's advice.
func again(t *testing.T, s *testutil.Server, js jetstream.JetStream, repair string) {
	t.Helper()
	require.Contains(t, repair, `"nats stream rm HISTORY_natslock"`)
	require.Contains(t, repair, `"lockctl init --history 7d"`)
	require.NoError(t, js.DeleteStream(t.Context(), "HISTORY_natslock"))
	remember(t, s)
	require.Equal(t, "ok", doctor(t, s).row(t, "history").Status, "the repair works")
}

// TestDoctorHistory checks that the doctor describes a history, detects each way in which it can be
// incomplete, and suggests a repair that works.
func TestDoctorHistory(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	s := serve(t)
	js := jetStream(t, s)
	row := func() checked { t.Helper(); return doctor(t, s).row(t, "history") }
	require.Equal(t, checked{Check: "history", Status: "ok", Found: `none: "lockctl init --history 7d" creates one`}, row())

	remember(t, s)
	take(t, client(t, s), "x", natslock.TTL(time.Hour))
	copied(t, js)
	d := doctor(t, s)
	require.Zero(t, d.ExitCode, d.troubles())
	require.Regexp(t, `^since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d(Z|[+-]\d\d:\d\d), [\d.]+ K?i?B of 256\.0 MiB of size$`, d.row(t, "history").Found)

	// The history is too small.
	used := int64(historyInfo(t, js).State.Bytes)
	updateHistory(t, js, func(c *jetstream.StreamConfig) { c.MaxBytes = used + used/20 })
	d = doctor(t, s)
	require.Equal(t, []string{"warning history"}, d.troubles())
	require.Contains(t, d.row(t, "history").Found, "it is too small for 7d, and reaches back ")
	repair := regexp.MustCompile(`^"lockctl init --history 7d --history-size (\d+)" or more: `).FindStringSubmatch(d.row(t, "history").Repair)
	require.NotNil(t, repair, d.row(t, "history").Repair)
	size, err := strconv.ParseInt(repair[1], 10, 64)
	require.NoError(t, err)
	updateHistory(t, js, func(c *jetstream.StreamConfig) { c.MaxBytes = size })
	updateHistory(t, js, func(c *jetstream.StreamConfig) { c.MaxBytes = kvstore.DefaultHistoryBytes })
	require.Equal(t, "ok", row().Status)

	// The history lacks writes: at least a thousand, and more than a quarter of the total.
	before := updateHistory(t, js, func(c *jetstream.StreamConfig) { c.Sources = nil })
	d = doctor(t, s)
	require.Equal(t, []string{"error history"}, d.troubles())
	require.Equal(t, 70, d.ExitCode)
	require.Equal(t, "stream HISTORY_natslock does not copy all of KV_natslock", d.row(t, "history").Found)
	overwrite(t, s, 1100)
	updateHistory(t, js, func(c *jetstream.StreamConfig) { c.Sources = before.Sources })
	sourcing(t, js)
	copied(t, js)
	d = doctor(t, s)
	require.Equal(t, []string{"warning history"}, d.troubles())
	lost := regexp.MustCompile(`; of (\d+) writes in the last hour (\d+) missing$`).FindStringSubmatch(d.row(t, "history").Found)
	require.NotNil(t, lost, d.row(t, "history").Found)
	require.Len(t, lost[1], 4)
	require.Len(t, lost[2], 4)

	// The history covers only some of the locks.
	updateHistory(t, js, func(c *jetstream.StreamConfig) { c.Sources[0].FilterSubject = "$KV.natslock.lock.>" })
	d = doctor(t, s)
	require.Equal(t, []string{"error history"}, d.troubles())
	again(t, s, js, d.row(t, "history").Repair)
}

// overwrite writes one key n times, so the bucket keeps only the last record.
func overwrite(t *testing.T, s *testutil.Server, n int) {
	t.Helper()
	js := jetStream(t, s)
	for range n {
		_, err := js.PublishMsg(t.Context(), &nats.Msg{Subject: "$KV.natslock.lock.busy", Header: nats.Header{"Nats-TTL": {"3600s"}, "KV-Operation": {"DEL"}}})
		require.NoError(t, err)
	}
}

// TestDoctorHistoryRemade checks that the doctor notices when a re-created bucket has lower
// revisions than its history: the server then copies nothing and reports no error. With higher
// revisions the history simply continues.
func TestDoctorHistoryRemade(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	s := serve(t)
	remember(t, s)
	js := jetStream(t, s)
	overwrite(t, s, 1)
	copied(t, js)
	before := historyInfo(t, js).State.LastSeq
	require.NoError(t, js.DeleteStream(t.Context(), "KV_natslock"))
	withBucket(t, s)
	overwrite(t, s, 1)
	kit.Eventually(t, "a history that goes on", func() bool { return historyInfo(t, js).State.LastSeq > before })
	require.Equal(t, "ok", doctor(t, s).row(t, "history").Status)

	require.NoError(t, js.DeleteStream(t.Context(), "KV_natslock"))
	makeBucket(t, s, func(c *jetstream.StreamConfig) { c.FirstSeq = 0 })
	d := doctor(t, s)
	require.Equal(t, []string{"warning first_seq", "error history"}, d.troubles())
	require.Regexp(t, `copies revisions from \d{14} on, but KV_natslock was re-created and is at \d$`, d.row(t, "history").Found)
	again(t, s, js, d.row(t, "history").Repair)
}

// TestDoctorHistoryWithoutSource checks that the row quotes the server's reason for copying
// nothing.
func TestDoctorHistoryWithoutSource(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	s := testutil.RunServer(t)
	js := makeBucket(t, s, func(c *jetstream.StreamConfig) {
		c.ConsumerLimits = jetstream.StreamConsumerLimits{InactiveThreshold: time.Second}
	})
	_, err := js.CreateStream(t.Context(), kvstore.HistoryStream(bucketInfo(t, js), 7*24*time.Hour, 0))
	require.NoError(t, err)
	kit.Eventually(t, "the error of the source", func() bool { return historyInfo(t, js).Sources[0].Error != nil })
	d := doctor(t, s)
	require.Equal(t, []string{"error history"}, d.troubles())
	require.Contains(t, d.row(t, "history").Found, "the server cannot copy KV_natslock: consumer inactive threshold")

	update(t, js, "KV_natslock", func(c *jetstream.StreamConfig) { c.ConsumerLimits = jetstream.StreamConsumerLimits{} })
	sourcing(t, js)
	require.Equal(t, "ok", doctor(t, s).row(t, "history").Status)
}

// TestDoctorFindsRestoredBucket checks that the doctor finds a bucket restored from a backup, whose
// revisions are lower than those in its history. Clients refuse the bucket until the doctor's
// repair has been followed.
func TestDoctorFindsRestoredBucket(t *testing.T) {
	t.Parallel()
	s := serve(t)
	js := jetStream(t, s)
	remember(t, s)
	overwrite(t, s, 10)
	copied(t, js)
	require.Equal(t, "ok", func() string { d := doctor(t, s); return d.row(t, "history").Status }())
	was := bucketInfo(t, js)
	c := was.Config
	c.FirstSeq = was.State.LastSeq - 3 // as after restoring an earlier state
	require.NoError(t, js.DeleteStream(t.Context(), "KV_natslock"))
	_, err := js.CreateStream(t.Context(), c)
	require.NoError(t, err)

	d := doctor(t, s)
	require.Equal(t, []string{"error tokens"}, d.troubles())
	require.Equal(t, 78, d.ExitCode)
	require.Contains(t, d.row(t, "tokens").Found, "restored from a backup")
	require.Contains(t, d.row(t, "tokens").Repair, `"nats stream rm KV_natslock" and "lockctl init"`)
	require.NoError(t, js.DeleteStream(t.Context(), "KV_natslock"))
	withBucket(t, s)
	require.Empty(t, doctor(t, s).troubles())
}

// TestDoctorHistoryOfUser checks that a user without permission to read the history is told so.
func TestDoctorHistoryOfUser(t *testing.T) {
	t.Parallel()
	may := perms(t, admin.Access{Pattern: "orders.>", History: true})
	const read = `"$JS.API.DIRECT.GET.HISTORY_natslock"`
	require.Contains(t, may, read)
	s := testutil.RunServer(t, testutil.WithConfigText(userList(map[string]string{
		"may": may, "finds": strings.Replace(may, read, "", 1), "other": perms(t, admin.Access{Pattern: "orders.>"}),
	})))
	withBucket(t, s, asRoot...)
	as := func(user string) diagnosis {
		t.Helper()
		d := doctor(t, s, "orders.>", "--user", user, "--password", "p")
		require.Zero(t, d.ExitCode, d.troubles())
		return d
	}
	row := func(user string) checked { d := as(user); return d.row(t, "history") }
	require.Equal(t, "ok", row("may").Status)
	require.Contains(t, row("may").Found, "none")
	remember(t, s, asRoot...)
	js := jetStream(t, s, asRoot...)
	kit.Eventually(t, "a copy of a write", func() bool {
		row("may") // causes a write
		return historyInfo(t, js).State.Msgs > 0
	})
	require.Equal(t, "ok", row("may").Status)
	for user, subject := range map[string]string{"other": "$JS.API.STREAM.INFO.HISTORY_natslock", "finds": "$JS.API.DIRECT.GET.HISTORY_natslock"} {
		why := as(user).left("history")
		require.Contains(t, why, `the history cannot be read by this user: `)
		require.Contains(t, why, `Publish to "`+subject+`"`)
	}
}

// TestDoctorHistoryOnCluster checks that the doctor notices a history that has lost its servers
// while the bucket still has its own.
func TestDoctorHistoryOnCluster(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	cluster := testutil.RunCluster(t, 3)
	withBucket(t, cluster.Servers()[0])
	js := jetStream(t, cluster.Servers()[0])
	c := kvstore.HistoryStream(bucketInfo(t, js), time.Hour, 0)
	c.Replicas = 1
	_, err := js.CreateStream(t.Context(), c)
	require.NoError(t, err)
	i := cluster.Index(cluster.WaitStreamLeader(t, "HISTORY_natslock"))
	s := cluster.Servers()[(i+1)%3]
	require.Equal(t, "ok", doctor(t, s).row(t, "history").Status)
	cluster.StopServer(i)
	cluster.WaitStreamLeader(t, "KV_natslock")
	kit.Eventually(t, "a history without a leader", func() bool {
		d := doctor(t, s)
		return strings.Contains(strings.Join(d.troubles(), " "), "error history") && d.row(t, "history").Found == "stream HISTORY_natslock has no leader: all of its servers are offline"
	})
	cluster.Restart(i)
	kit.Eventually(t, "a history that is well", func() bool { return len(doctor(t, s).troubles()) == 0 })
}
