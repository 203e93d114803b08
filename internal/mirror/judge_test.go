package mirror

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/natslock"
)

// info returns a leader's reply about a fit bucket, on three servers unless change says otherwise.
func info(t testing.TB, change func(*jetstream.StreamInfo)) *kvstore.Info {
	t.Helper()
	cfg, err := kvstore.Config{Bucket: "b"}.StreamConfig()
	require.NoError(t, err)
	cfg.Replicas = 3
	cfg.Metadata["_nats.level"], cfg.Metadata["_nats.ver"] = "2", "2.12.0"
	all := jetstream.StreamInfo{Config: cfg, TimeStamp: time.Now(), State: jetstream.StreamState{LastSeq: 100}, Cluster: &jetstream.ClusterInfo{
		Name: "c", Leader: "n1", Replicas: []*jetstream.PeerInfo{{Name: "n2", Current: true}, {Name: "n3", Current: true}},
	}}
	if change != nil {
		change(&all)
	}
	raw, err := json.Marshal(all.Config)
	require.NoError(t, err)
	return &kvstore.Info{StreamInfo: all, Raw: raw}
}

func TestJudge(t *testing.T) {
	lost, refused := errors.New("lost the connection to n1"), fmt.Errorf("%w: status 503", natslock.ErrUnavailable)
	peers := func(n2, n3 jetstream.PeerInfo) *kvstore.Info {
		return info(t, func(i *jetstream.StreamInfo) { i.Cluster.Replicas = []*jetstream.PeerInfo{&n2, &n3} })
	}
	set := func(change func(*jetstream.StreamConfig)) *kvstore.Info {
		return info(t, func(i *jetstream.StreamInfo) { change(&i.Config) })
	}
	current, away := jetstream.PeerInfo{Current: true}, jetstream.PeerInfo{Offline: true, Lag: 20_000}
	for name, c := range map[string]struct {
		offline bool
		missed  error
		answer  answer
		want    Condition
		says    string // in Why; "": no reason
		current int
	}{
		"all is well":                      {answer: answer{info: info(t, nil)}, want: Live, current: 3},
		"one server, no cluster":           {answer: answer{info: info(t, func(i *jetstream.StreamInfo) { i.Cluster, i.Config.Replicas = nil, 1 })}, want: Live, current: 1},
		"a replica is away":                {answer: answer{info: peers(current, away)}, want: Live, current: 2},
		"a replica is a few writes behind": {answer: answer{info: peers(current, jetstream.PeerInfo{Lag: 3, Active: time.Millisecond})}, want: Live, current: 3},
		"a replica is far behind":          {answer: answer{info: peers(current, jetstream.PeerInfo{Lag: 20_000, Active: time.Millisecond})}, want: Live, current: 2},
		"a replica is silent":              {answer: answer{info: peers(current, jetstream.PeerInfo{Lag: 3, Active: time.Minute})}, want: Live, current: 2},
		"no leader, as clients say it": {answer: answer{err: fmt.Errorf("open bucket: %w: %w: it has no leader on cluster", natslock.ErrUnavailable, kvstore.ErrNoStream)}, want: NoLeader,
			says: `lock service unavailable: bucket b has no leader, so no client can get a lock; start the missing servers, and if none is missing, run "lockctl doctor"`},
		"nothing is known":                      {missed: ErrReading, want: Stale, says: "reading the locks"},
		"the locks are not listed":              {missed: ErrReading, answer: answer{info: info(t, nil)}, want: Stale, says: "reading the locks", current: 3},
		"no connection":                         {offline: true, missed: lost, answer: answer{info: info(t, nil)}, want: Stale, says: "lost the connection to n1", current: 3},
		"no connection, and nobody says why":    {offline: true, answer: answer{info: info(t, nil)}, want: Stale, says: "no connection", current: 3},
		"no connection, and no leader before":   {offline: true, missed: lost, answer: answer{err: refused}, want: Stale, says: "lost the connection to n1"},
		"no leader":                             {answer: answer{err: refused}, want: NoLeader, says: "status 503; start the missing servers"},
		"no leader, and the locks are unlisted": {missed: ErrReading, answer: answer{err: refused}, want: NoLeader, says: "no client can get a lock"},
		"a leader without a majority":           {answer: answer{info: peers(away, away)}, want: NoLeader, says: "the leader of bucket b reaches only 1 of 3 servers", current: 1},
		"the bucket is gone":                    {answer: answer{err: kvstore.ErrNotFound}, want: Unfit, says: "there is no bucket b"},
		"sealed":                                {answer: answer{info: set(func(c *jetstream.StreamConfig) { c.Sealed = true })}, want: Unfit, says: `sealed of bucket b is true, must be unset: nothing can be written. Clients grant no locks in it; stop the clients, then re-create the bucket with "nats stream rm KV_b" and "lockctl init"`, current: 3},
		"an update repairs it":                  {answer: answer{info: set(func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 5 })}, want: Unfit, says: `"lockctl init" repairs it`, current: 3},
		"unfit, and the locks are unlisted":     {missed: ErrReading, answer: answer{info: set(func(c *jetstream.StreamConfig) { c.Sealed = true })}, want: Unfit, says: "sealed", current: 3},
		"slower than need be":                   {answer: answer{info: set(func(c *jetstream.StreamConfig) { c.AllowDirect = false })}, want: Live, current: 3},
		"restored":                              {answer: answer{info: info(t, nil), highest: 200, behind: 2}, want: Unfit, says: `went backwards, from 200 to 100: it was restored from a backup or has lost writes. Clients grant no locks in it; stop them, then re-create the bucket with "nats stream rm KV_b" and "lockctl init"`, current: 3},
		"elected a moment ago":                  {answer: answer{info: info(t, nil), highest: 200, behind: 1}, want: Live, current: 3},
	} {
		t.Run(name, func(t *testing.T) {
			got, why := evidence{connected: !c.offline, missed: c.missed, answer: c.answer}.judge("b")
			require.Equal(t, c.want, got, "%v", why)
			require.Equal(t, c.want == Live, why == nil)
			if c.says != "" {
				require.ErrorContains(t, why, c.says)
			}
			if c.answer.info != nil {
				_, current := replicas(c.answer.info)
				require.Equal(t, c.current, current)
			}
		})
	}
}
