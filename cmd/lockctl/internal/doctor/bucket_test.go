package doctor

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/cmd/lockctl/internal/session"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/testutil"
)

// TestSecondBucket checks that a notification from a second bucket is recognized if it arrived in
// time, even if the doctor reads it late. Notifications from the doctor's own bucket, and messages
// that no stream has sent, are ignored.
func TestSecondBucket(t *testing.T) {
	t.Parallel()
	nc := testutil.RunServer(t).Connect()
	d := &doctor{g: &session.Globals{Bucket: "natslock"}, s: &session.Session{NC: nc}, info: &kvstore.Info{StreamInfo: jetstream.StreamInfo{Config: jetstream.StreamConfig{
		RePublish: &jetstream.RePublish{Destination: "natslock.natslock.own.>"}}}}}
	heard := d.listen()
	word := func(bucket string, header nats.Header) {
		t.Helper()
		require.NoError(t, nc.PublishMsg(&nats.Msg{Subject: "natslock.natslock." + bucket + ".lock.x", Header: header}))
		require.NoError(t, nc.Flush())
	}
	stored := nats.Header{"Nats-Sequence": {"1"}}
	word("own", stored)
	word("other", nil)
	d.second(heard, time.Now())
	require.Empty(t, d.Checks)
	word("other", stored)
	d.second(heard, time.Now().Add(-time.Hour))
	require.Len(t, d.Checks, 1)
	require.Equal(t, "notifications of a second bucket natslock arrived in the meantime", d.Checks[0].Found)

	done := make(chan struct{})
	go func() { defer close(done); d.second(heard, time.Now().Add(time.Hour)) }()
	word("own", stored)
	word("other", stored)
	<-done // returns long before the deadline
	require.Len(t, d.Checks, 2)
}

// TestRoundTrip checks that only a slow median makes a link slow, because a busy machine can delay
// a single round trip.
func TestRoundTrip(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rtts   []time.Duration
		status string
	}{
		{[]time.Duration{time.Hour, slowLink, slowLink}, checkOK},
		{[]time.Duration{slowLink + 1, 0, time.Hour}, checkWarning},
	} {
		d := &doctor{}
		d.roundTrip(c.rtts)
		require.Equal(t, c.status, d.Checks[0].Status, "%v", c.rtts)
	}
}

// TestMissingReplicas checks that a replica counts only if it could take over, which excludes those
// that the server has yet to add after a change of num_replicas.
func TestMissingReplicas(t *testing.T) {
	t.Parallel()
	current := func(name string) *jetstream.PeerInfo { return &jetstream.PeerInfo{Name: name, Current: true} }
	for name, tc := range map[string]struct {
		replicas []*jetstream.PeerInfo
		want     []string
	}{
		"all there":  {[]*jetstream.PeerInfo{current("b"), current("c")}, nil},
		"none named": {nil, []string{"2 replicas missing"}},
		"one named":  {[]*jetstream.PeerInfo{current("b")}, []string{"1 replica missing"}},
		"new":        {[]*jetstream.PeerInfo{{Name: "c"}, current("b")}, []string{"c is not up to date yet"}},
		"behind":     {[]*jetstream.PeerInfo{{Name: "c", Lag: 7}, {Name: "b", Lag: 5}}, []string{"b is 5 behind", "c is 7 behind"}},
		"silent":     {[]*jetstream.PeerInfo{{Name: "c", Active: 12 * time.Second}, current("b")}, []string{"c was last active 12s ago"}},
		"offline":    {[]*jetstream.PeerInfo{{Name: "c", Offline: true, Current: true}, current("b")}, []string{"c is offline"}},
	} {
		require.Equal(t, tc.want, missing(&jetstream.ClusterInfo{Replicas: tc.replicas}, 3, map[string]bool{}), name)
	}
	replicas := []*jetstream.PeerInfo{{Name: "b", Lag: 3}, current("c")}
	caught := map[string]bool{}
	require.Equal(t, []string{"b is 3 behind"}, missing(&jetstream.ClusterInfo{Replicas: replicas}, 3, caught))
	replicas = []*jetstream.PeerInfo{current("b"), {Name: "c", Lag: 2}}
	require.Empty(t, missing(&jetstream.ClusterInfo{Replicas: replicas}, 3, caught), "each has been current")
	replicas[0].Offline = true
	require.Equal(t, []string{"b is offline"}, missing(&jetstream.ClusterInfo{Replicas: replicas}, 3, caught))
}

// TestRoom checks that a bucket is reported as full once clients refuse to take new locks in it.
func TestRoom(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		replicas int
		used     uint64
		want     string
	}{{3, 75000, checkOK}, {3, 80000, checkError}, {1, 80000, checkOK}, {1, 92000, checkWarning}, {1, 95000, checkError}, {1, 100000, checkError}} {
		d := &doctor{info: &kvstore.Info{StreamInfo: jetstream.StreamInfo{
			Config: jetstream.StreamConfig{Name: "KV_b", Replicas: tc.replicas, MaxBytes: 100000},
			State:  jetstream.StreamState{Bytes: tc.used, Msgs: 300},
		}}}
		d.room()
		require.Equal(t, tc.want, d.Checks[0].Status, tc)
	}
}
