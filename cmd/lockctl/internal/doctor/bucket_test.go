package doctor

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

// A replica counts when it could take over: those that a changed number of
// replicas is still to bring do not.
func TestMissingReplicas(t *testing.T) {
	t.Parallel()
	current := func(name string) *jetstream.PeerInfo { return &jetstream.PeerInfo{Name: name, Current: true} }
	for name, tc := range map[string]struct {
		replicas []*jetstream.PeerInfo
		want     []string
	}{
		"all there":  {[]*jetstream.PeerInfo{current("b"), current("c")}, nil},
		"none named": {nil, []string{"2 replicas not there yet"}},
		"one named":  {[]*jetstream.PeerInfo{current("b")}, []string{"1 replica not there yet"}},
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

// A bucket on several servers counts as full when clients take no new lock in it.
func TestRoom(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		replicas int
		used     uint64
		want     string
	}{{3, 750, checkOK}, {3, 800, checkError}, {1, 800, checkOK}, {1, 950, checkWarning}, {1, 1000, checkError}} {
		d := &doctor{info: &jetstream.StreamInfo{
			Config: jetstream.StreamConfig{Name: "KV_b", Replicas: tc.replicas, MaxBytes: 1000},
			State:  jetstream.StreamState{Bytes: tc.used, Msgs: 3},
		}}
		d.room()
		require.Equal(t, tc.want, d.Checks[0].Status, tc)
	}
}
