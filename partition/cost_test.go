package partition_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/partition"
	"github.com/natslock/locks/testutil"
)

// TestCost counts the messages that a join, a leave and an idle minute cost, with a few partitions
// and with a thousand, and measures how long it takes until every partition is where it belongs.
func TestCost(t *testing.T) {
	tier.Proof(t)
	for _, c := range []struct {
		workers, count           int
		join, leave, idle        float64 // intended limits on messages, per move and per second; nothing checks them
		joinsWithin, startWithin time.Duration
	}{
		{7, 64, 2000, 2000, 200, 2 * time.Second, 4 * time.Second},
		{50, 1000, 20000, 20000, 2000, 5 * time.Second, 20 * time.Second},
	} {
		t.Run(fmt.Sprintf("%d of %d", c.workers, c.count), func(t *testing.T) {
			s := testutil.RunServer(t)
			var running sync.WaitGroup
			defer running.Wait()
			all, cancel := context.WithCancel(t.Context())
			defer cancel()
			var groups []*partition.Group
			join := func(ctx context.Context) *partition.Group {
				locks, err := natslock.New(t.Context(), s.Connect())
				require.NoError(t, err)
				g := partition.New(locks, name, c.count, partition.ID(fmt.Sprintf("w%d", len(groups))))
				groups = append(groups, g)
				running.Go(func() {
					_ = g.Run(ctx, until)
					_ = locks.Close(context.Background())
				})
				return g
			}
			balanced := func() bool {
				owned := 0
				for _, g := range groups {
					st := g.Stats()
					if st.Members != len(groups) || st.Waiting+st.Draining > 0 {
						return false
					}
					owned += st.Owned
				}
				return owned == c.count
			}
			await := func(what string) time.Duration {
				begun := time.Now()
				for !balanced() {
					require.Less(t, time.Since(begun), time.Minute, what)
					time.Sleep(time.Millisecond)
				}
				return time.Since(begun)
			}
			count := func() (in, out int64) {
				v, err := s.Server().Varz(&server.VarzOptions{})
				require.NoError(t, err)
				return v.InMsgs, v.OutMsgs
			}
			var in, out int64
			since := func(what string) {
				i, o := count()
				t.Logf("%s: %d messages to the server, %d from it", what, i-in, o-out)
				in, out = i, o
			}
			for range c.workers {
				join(all)
			}
			t.Logf("start: balanced after %v", await("the start"))
			time.Sleep(12 * time.Second) // the reads after the grants
			in, out = count()
			ctx, leave := context.WithCancel(all)
			joined := join(ctx)
			took := await("the join")
			require.Less(t, took, c.joinsWithin)
			moves := joined.Stats().Owned
			t.Logf("join: balanced after %v, %d moves", took, moves)
			time.Sleep(3 * time.Second)
			since("join and 3 s")
			time.Sleep(10 * time.Second)
			in, out = count()
			time.Sleep(time.Minute)
			since("an idle minute")
			in, out = count()
			leave()
			groups = groups[:len(groups)-1]
			time.Sleep(10 * time.Millisecond)
			t.Logf("leave: balanced after %v", await("the leave"))
			time.Sleep(3 * time.Second)
			since("leave and 3 s")
			cancel()
		})
	}
}
