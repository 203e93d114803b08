package queue_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/machine"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

// TestGivenUpIsGone checks that a call that gives up returns only when nothing of it is left in the
// bucket, so that a later TryLock does not run into its place.
func TestGivenUpIsGone(t *testing.T) {
	for name, tc := range map[string]struct {
		stage string
		fate  faults.Fate
		limit time.Duration
		held  bool
	}{
		"a place":                       {"wait delete", faults.Delay(30 * time.Millisecond), time.Second, true},
		"a place without an answer":     {"wait take", faults.DelayAnswer(30 * time.Millisecond), 10 * time.Millisecond, true},
		"a claim without an answer":     {"lock take", faults.DelayAnswer(30 * time.Millisecond), 10 * time.Millisecond, false},
		"a place that is still to come": {"wait take", faults.Delay(30 * time.Millisecond), 10 * time.Millisecond, true},
	} {
		t.Run(name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				c, f := kit.JoinFaulty(t, s)
				var holder *natslock.Lock
				if tc.held {
					holder = kit.QuietHolder(t, s)
				}
				f.OnSend(kit.At(tc.stage, tc.fate))
				_, err := c.Lock(t.Context(), "l", natslock.MaxWait(tc.limit))
				require.ErrorIs(t, err, natslock.ErrTimeout)
				require.NotErrorIs(t, err, natslock.ErrLocked)
				if tc.held {
					kit.Unlock(t, holder)
				}
				l, err := kit.Join(t, s).TryLock(t.Context(), "l")
				require.NoError(t, err)
				kit.Unlock(t, l)
			})
		})
	}
}

// TestGivingUpInSilence checks that giving up takes an extra tenth of a second if the server does
// not reply, and no extra time if the connection is down. The place is deleted when the server's
// reply arrives.
func TestGivingUpInSilence(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, _ := kit.JoinFaulty(t, s)
		holder := kit.QuietHolder(t, s)
		for name, late := range map[string]time.Duration{"silent": 100 * time.Millisecond, "away": 0} {
			w := c.Await(t, "l")
			begun := time.Now()
			if name == "silent" {
				c.Link.Blackhole(true)
			} else {
				c.Link.Cut()
			}
			time.Sleep(time.Second)
			w.Cancel(nil)
			require.ErrorIs(t, w.Failed(t), natslock.ErrTimeout)
			require.Equal(t, time.Second+late, time.Since(begun), name)
			c.Link.Heal()
			time.Sleep(10 * time.Second)
			require.Empty(t, kit.NewRaw(t, s.Connect()).Live("wait.l.*"))
		}
		kit.Unlock(t, holder)
	})
}

// TestGivingUpAtHandOver has a waiter give up just as its client hands it the lock. The previous
// holder's handle must be released, and the waiter behind must hold the lock with a context that
// ends on a break.
func TestGivingUpAtHandOver(t *testing.T) {
	s := testutil.RunServer(t)
	c, operator := kit.Join(t, s, natslock.WithTuning(natslock.Tuning{Turn: time.Second})), kit.Join(t, s)
	rounds := machine.Part(1000)
	gaveUp := 0
	for range rounds {
		holder := kit.Must(t, c.Lock, "l")
		leaves, last := c.Await(t, "l"), c.Await(t, "l")
		var both sync.WaitGroup
		both.Go(func() { leaves.Cancel(nil) })
		both.Go(func() { assert.NoError(t, holder.Unlock(context.Background())) })
		if <-leaves.Done; leaves.Err == nil {
			kit.Unlock(t, leaves.Value)
		} else {
			require.ErrorIs(t, leaves.Err, natslock.ErrTimeout)
			gaveUp++
		}
		l := last.Granted(t)
		both.Wait()
		require.False(t, t.Failed())
		require.ErrorIs(t, holder.Err(), natslock.ErrReleased)
		claim, _, _ := strings.Cut(l.ID(), ".")
		require.NoError(t, admin.New(operator.Client).Break(t.Context(), admin.BreakRequest{Kind: admin.KindMutex, Name: "l", ID: claim}))
		require.ErrorIs(t, l.Extend(t.Context(), 0), natslock.ErrBroken)
		kit.Receive(t, l.Context().Done(), "the end of the context")
		require.ErrorIs(t, l.Unlock(t.Context()), natslock.ErrBroken)
	}
	t.Logf("%d of %d gave up", gaveUp, rounds)
}
