package natslock_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

// A watch shows by how much a renewal came too late: from two thirds of the TTL on.
func TestWatchLateRenewal(t *testing.T) {
	for name, of := range map[string]struct {
		silent time.Duration // since the grant
		late   bool
	}{"in time": {0, false}, "before two thirds": {8 * time.Second, false}, "after two thirds": {10 * time.Second, true}} {
		t.Run(name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				a, faulty := kit.JoinFaulty(t, s, natslock.WithTTL(15*time.Second), natslock.WithTuning(natslock.Tuning{WatchAfter: -1}))
				viewer := kit.Join(t, s)
				events := make(chan admin.Event, 100)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				go func() {
					for ev, err := range admin.New(viewer.Client).Watch(ctx, "x") {
						if err == nil {
							events <- ev
						}
					}
				}()
				require.Equal(t, admin.EventWatching, kit.Receive(t, events, "the watch").Type)
				begun := time.Now()
				kit.OnRenewal(faulty, func(int) faults.Fate {
					if time.Since(begun) < of.silent {
						return faults.Drop
					}
					return faults.Pass
				})
				l := kit.Must(t, a.Lock, "x")
				granted := kit.Receive(t, events, "the grant")
				require.Equal(t, admin.EventGranted, granted.Type)
				for i := range 2 {
					ev := kit.Receive(t, events, "a renewal")
					require.Equal(t, admin.EventRenewed, ev.Type)
					if of.late && i == 0 {
						require.Equal(t, ev.Time.Sub(granted.Time), ev.Late)
						require.Greater(t, ev.Late, 10*time.Second)
					} else {
						require.Zero(t, ev.Late, "%v after the grant", ev.Time.Sub(granted.Time))
					}
				}
				kit.Unlock(t, l)
			})
		})
	}
}
