package queue_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

// TestHeadGivesUp checks that the successor of a head that gives up lists the queue together with
// the lock, and then immediately claims the lock if it is free and leaves it alone if it is held.
func TestHeadGivesUp(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		holder := kit.Join(t, s)
		head, deaf := kit.JoinFaulty(t, s)
		next, sends := kit.JoinFaulty(t, s)
		l := kit.Must(t, holder.Lock, "l")
		begun := time.Now()
		first := head.Begin(t, "l", natslock.MaxWait(300*time.Millisecond))
		synctest.Wait()
		second := next.Begin(t, "l")
		// Release between the waiters' timed reads, which come 20, 120 and 620 ms after they begin,
		// and before the second waiter looks at a lock that has been free for 50 ms.
		time.Sleep(200 * time.Millisecond)
		deaf.DropAllEvents(true)
		kit.Unlock(t, l)
		time.Sleep(75 * time.Millisecond)
		var stages []string
		sends.OnSend(func(_ int, w kvstore.Write) faults.Fate {
			stages = append(stages, kit.Stage(w))
			return faults.Fate{}
		})
		out := next.NC.Stats().OutMsgs
		require.ErrorIs(t, first.Failed(t), natslock.ErrTimeout)
		got := second.Granted(t)
		require.Equal(t, 300*time.Millisecond, second.At.Sub(begun))
		time.Sleep(50 * time.Millisecond)
		require.Equal(t, []string{"lock take", "wait delete"}, stages)
		require.EqualValues(t, 3, next.NC.Stats().OutMsgs-out, "a list, a claim, and the end of the place")
		kit.Unlock(t, got)
	})
}

// TestMessagesGivenUp counts the messages of a call that gives up: the attempt, a newcomer's list,
// the place, a waiter's list, its subscription's probe, and the deletion of the place. The first
// waiter also reads the holder. Longer waits need a few more reads.
func TestMessagesGivenUp(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		l := kit.Must(t, kit.Join(t, s).Lock, "l")
		first, second := kit.Join(t, s), kit.Join(t, s)
		gives := func(m *kit.Member, sent int) {
			t.Helper()
			out := m.NC.Stats().OutMsgs
			require.ErrorIs(t, m.Begin(t, "l", natslock.MaxWait(15*time.Millisecond)).Failed(t), natslock.ErrTimeout)
			time.Sleep(time.Millisecond)
			require.EqualValues(t, sent, m.NC.Stats().OutMsgs-out)
		}
		gives(first, 7)
		w := first.Begin(t, "l")
		synctest.Wait()
		gives(second, 6)
		kit.Unlock(t, l)
		kit.Unlock(t, w.Granted(t))
	})
}

// TestImpatientCallers checks that impatient callers do not ruin the throughput. They tend to give
// up at the head of the queue, where their patience is nearly over, and each of them costs its
// successor three round trips, here of 1 ms: the deletion of the place, a list and the claim. If
// the claim expected 0, it would be refused and need another read. With five round trips the
// callers would get a twentieth of the grants that patient ones get, instead of a seventh.
func TestImpatientCallers(t *testing.T) {
	const clients, roundTrip, section, d = 12, time.Millisecond, time.Millisecond, 3 * time.Second
	rate := func(t *testing.T, bucket *kvstore.Memory, impatient bool) (grants int64) {
		var n, gaveUp atomic.Int64
		var wg sync.WaitGroup
		begun := time.Now()
		for range clients {
			c := slowly(t, bucket, roundTrip)
			for range 2 {
				wg.Go(func() {
					for time.Since(begun) < d {
						var opts []natslock.LockOption
						if impatient {
							opts = append(opts, natslock.MaxWait(10*time.Millisecond+rand.N(20*time.Millisecond)))
						}
						l, err := c.Lock(context.Background(), "l", opts...)
						if errors.Is(err, natslock.ErrTimeout) {
							gaveUp.Add(1)
							continue
						}
						if err != nil {
							t.Error(err)
							return
						}
						n.Add(1)
						time.Sleep(section)
						_ = l.Unlock(context.Background())
					}
				})
			}
		}
		wg.Wait()
		t.Logf("%d grants, %d given up", n.Load(), gaveUp.Load())
		return n.Load()
	}
	kit.InMemory(t, func(t *testing.T, bucket *kvstore.Memory) {
		patient := rate(t, bucket, false)
		time.Sleep(2 * time.Second)
		require.GreaterOrEqual(t, rate(t, bucket, true), patient/10)
	})
}
