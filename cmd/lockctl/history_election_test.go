//go:build unix

package main_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

// TestHistoryOverElection checks how long a history stalls after the bucket has elected a new
// leader, losing the records replaced meanwhile: up to 20 s if the history keeps its own leader,
// and up to 45 s if that changes too. The doctor quotes these times.
func TestHistoryOverElection(t *testing.T) {
	tier.Proof(t)
	for name, c := range map[string]struct {
		together bool
		most     time.Duration
	}{
		"one leader of both": {true, 45 * time.Second},
		"two leaders":        {false, 20 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := testutil.RunCluster(t, 3)
			withBucket(t, cluster.Servers()[0])
			remember(t, cluster.Servers()[0])
			leader := cluster.WaitStreamLeader(t, "KV_natslock")
			for (cluster.WaitStreamLeader(t, "HISTORY_natslock") == leader) != c.together {
				cluster.StepDown(t, "HISTORY_natslock")
			}
			i := cluster.Index(leader)
			nc := cluster.ConnectTo((i+1)%3, nats.MaxReconnects(-1))
			js, err := jetstream.New(nc)
			require.NoError(t, err)
			locks, err := natslock.New(t.Context(), nc)
			require.NoError(t, err)
			var writing sync.WaitGroup
			defer writing.Wait()
			ctx, end := context.WithCancel(t.Context())
			defer end()
			writing.Go(func() {
				for ctx.Err() == nil {
					_ = locks.Do(ctx, "x", func(context.Context, *natslock.Lock) error { return nil }, natslock.MaxWait(time.Second))
				}
			})
			last := func(stream string) uint64 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				s, err := js.Stream(ctx, stream)
				if err != nil {
					return 0
				}
				return s.CachedInfo().State.LastSeq
			}
			grows := func(stream string) time.Time {
				t.Helper()
				var before uint64
				kit.Eventually(t, "a write to "+stream, func() bool {
					now := last(stream)
					if before == 0 {
						before = now
					}
					return now > before && before > 0
				})
				return time.Now()
			}
			grows("HISTORY_natslock")
			killed := time.Now()
			cluster.Kill(i)
			led := grows("KV_natslock")
			copied := grows("HISTORY_natslock")
			t.Logf("%v until the bucket had a leader, %v more until the history went on", led.Sub(killed), copied.Sub(led))
			require.Less(t, copied.Sub(led), c.most+5*time.Second) // allowance for a busy machine
		})
	}
}
