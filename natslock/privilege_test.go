package natslock_test

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

// A client does not repeat requests that its permissions leave out: the
// server refuses them without an answer, so that each one costs a hand-over tens of
// milliseconds. How long hand-overs take is in the log only, it depends on the
// machine.
func TestLeastPrivilegeHandOver(t *testing.T) {
	tier.Proof(t)
	least, err := admin.Permissions(admin.Access{OwnOnly: true})
	require.NoError(t, err)
	cluster := testutil.RunCluster(t, 3, testutil.WithConfigText(fmt.Sprintf(
		"authorization { users: [ { user: all, password: p }, { user: least, password: p, %s } ] }", least)))
	kit.NewClient(t, cluster.Connect(kit.As("all")...), natslock.WithReplicas(3))
	for _, user := range []string{"all", "least"} {
		var refused atomic.Int32
		var clients [2]*kit.Member
		for i := range clients {
			c := &kit.Member{Events: kit.NewObserver()}
			c.NC = cluster.ConnectTo(i, nats.UserInfo(user, "p"), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) { refused.Add(1) }))
			c.Client = kit.NewClient(t, c.NC, c.Events.Option())
			clients[i] = c
		}
		const n = 100
		var took []time.Duration
		l := kit.Must(t, clients[0].Lock, "l")
		for i := range n {
			w := clients[(i+1)%2].Await(t, "l")
			begun := time.Now()
			kit.Unlock(t, l)
			w.Granted(t)
			took = append(took, w.At.Sub(begun))
			l = w.Value
		}
		kit.Unlock(t, l)
		slices.Sort(took)
		t.Logf("user %s: median %v, 90%% within %v, %d refusals", user, took[n/2], took[n*9/10], refused.Load())
		// Those under way when the first one is refused are refused too.
		require.Less(t, refused.Load(), int32(n))

		// Of locks without a tombstone in their queue the messages can be counted. A replica
		// that lags costs more of them, but not each time.
		var sent []uint64
		for i := range 20 {
			l := kit.Must(t, clients[0].Lock, fmt.Sprint("fresh", i))
			before := clients[1].NC.Stats().OutMsgs
			w := clients[1].Await(t, l.Name())
			kit.Unlock(t, l)
			w.Granted(t)
			sent = append(sent, clients[1].NC.Stats().OutMsgs-before)
			kit.Unlock(t, w.Value)
		}
		t.Logf("user %s: messages of a wait %v", user, sent)
		require.LessOrEqual(t, slices.Min(sent), uint64(13), "the queue was read more than once")
	}
}
