package scale_test

import (
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/machine"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

// TestScaleHeld checks that one client keeps 10,000 locks through several TTLs with as many
// goroutines as it needs for ten, even though each lock is watched.
func TestScaleHeld(t *testing.T) {
	n := machine.Part(10_000)
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c, other := kit.Join(t, s), kit.Join(t, s)
		kit.Unlock(t, kit.Must(t, other.Lock, "warm"))
		settled := func() int {
			time.Sleep(5 * time.Second) // until watches have begun and writers have stopped
			synctest.Wait()
			return runtime.NumGoroutine()
		}
		var locks []*natslock.Lock
		take := func(n int) {
			for range n {
				l, err := c.TryLock(t.Context(), fmt.Sprint("many.", len(locks)), natslock.TTL(time.Minute))
				require.NoError(t, err)
				locks = append(locks, l)
			}
		}
		take(10)
		few := settled()
		take(n - 10)
		many := settled()
		require.InDelta(t, few, many, 2, "goroutines with 10 and with %d locks", n)
		time.Sleep(70 * time.Second)
		require.Equal(t, n, c.Stats().Held)
		require.Zero(t, c.Stats().Lost)
		require.GreaterOrEqual(t, c.Stats().Renewed, uint64(n*4))
		for i, l := range locks {
			kit.WantHeld(t, l)
			if i%1000 == 0 {
				_, err := other.TryLock(t.Context(), l.Name())
				require.ErrorIs(t, err, natslock.ErrLocked)
			}
			kit.Unlock(t, l)
		}
		require.LessOrEqual(t, settled(), few)
	})
}

// TestScaleHeldTCP repeats TestScaleHeld over TCP with fewer locks, which many goroutines take
// concurrently.
func TestScaleHeldTCP(t *testing.T) {
	tier.Proof(t)
	s := testutil.RunServer(t)
	c := kit.Join(t, s, natslock.WithTTL(time.Hour))
	kit.Must(t, c.Lock, "one")
	before := kit.Goroutines("locks/internal/")
	const n, workers = 3_000, 8
	locks := make([]*natslock.Lock, n)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := w; i < n; i += workers {
				// Use Lock instead of TryLock: on a busy machine an attempt may take a second.
				l, err := c.Lock(t.Context(), fmt.Sprint("many.", i))
				if err != nil {
					t.Error(err)
					return
				}
				locks[i] = l
			}
		})
	}
	wg.Wait()
	require.False(t, t.Failed())
	kit.Eventually(t, "the goroutines settle", func() bool { return kit.Goroutines("locks/internal/") <= before+1 })
	require.Equal(t, n+1, c.Stats().Held)
	// After a short disconnect every lock is confirmed again and none is lost.
	kit.Eventually(t, "all are watched", func() bool { return c.Stats().Renewed == n+1 })
	c.Link.Cut()
	c.Link.Heal()
	kit.Eventually(t, "all are confirmed after the reconnect", func() bool { return c.Stats().Renewed == 2*(n+1) })
	require.Zero(t, c.Stats().Lost)
	for _, l := range locks {
		kit.Unlock(t, l)
	}
}

// TestScaleWaiters checks that waiters need only their callers' goroutines and one more for each
// lock that the client queues for.
func TestScaleWaiters(t *testing.T) {
	const n = 200
	for what, name := range map[string]func(i int) string{
		"for one lock":    func(int) string { return "l" },
		"for a lock each": func(i int) string { return fmt.Sprint("l", i) },
	} {
		t.Run(what, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				holder, c := kit.Join(t, s), kit.Join(t, s)
				held := map[string]bool{}
				for i := range n {
					if !held[name(i)] {
						kit.Must(t, holder.Lock, name(i), natslock.TTL(time.Hour))
						held[name(i)] = true
					}
				}
				c.Await(t, name(0))
				time.Sleep(5 * time.Second)
				before := runtime.NumGoroutine()
				var ws []*kit.Waiting
				for i := range n {
					ws = append(ws, c.Begin(t, name(i)))
					synctest.Wait()
				}
				time.Sleep(5 * time.Second)
				synctest.Wait()
				require.Equal(t, n+1, c.Stats().Waiting)
				require.InDelta(t, n+len(held)-1, runtime.NumGoroutine()-before, 3) // one of the queues existed before
				for _, w := range ws {
					w.Cancel(nil)
					<-w.Done
				}
				time.Sleep(5 * time.Second)
				synctest.Wait() // for goroutines that run at this very instant
				n := runtime.NumGoroutine()
				for try := 0; n > before+3 && try < 100_000; try++ { // goroutines that have ended may still be counted
					runtime.Gosched()
					n = runtime.NumGoroutine()
				}
				if n > before+3 {
					stacks := make([]byte, 4<<20)
					t.Fatalf("%d goroutines, %d before: %s", n, before, stacks[:runtime.Stack(stacks, true)])
				}
			})
		})
	}
}

// TestScaleIdle checks that a client keeps 10,000 idle locks without extra goroutines and with few
// messages besides the renewals at a third of the TTL, and that another client gets any of them
// immediately.
func TestScaleIdle(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		const ttl = 15 * time.Second
		n := machine.Part(10_000)
		c, other := kit.Join(t, s), kit.Join(t, s)
		kit.Unlock(t, kit.Must(t, other.Lock, "warm"))
		settled := func() int {
			time.Sleep(5 * time.Second) // until watches have begun and writers have stopped
			synctest.Wait()
			return runtime.NumGoroutine()
		}
		name := func(i int) string { return fmt.Sprint("idle.", i) }
		keep := func(from, to int) {
			for i := from; i < to; i++ {
				kit.Unlock(t, kit.Must(t, c.Lock, name(i), natslock.Linger(time.Hour), natslock.TTL(ttl)))
			}
		}
		keep(0, 10)
		few := settled()
		keep(10, n)
		many := settled()
		require.InDelta(t, few, many, 2, "goroutines with 10 and with %d idle locks", n)
		require.Equal(t, n, c.Stats().Idle)
		before, renewed := c.NC.Stats(), c.Stats().Renewed
		time.Sleep(2 * ttl)
		synctest.Wait()
		after := c.NC.Stats()
		each := func(count uint64) float64 { return float64(count) / float64(n) / (2 * ttl).Minutes() }
		renewals, sent := each(c.Stats().Renewed-renewed), each(after.OutMsgs-before.OutMsgs)
		t.Logf("for each idle lock and minute: %.2f renewals, %.2f messages sent and %.2f received", renewals, sent, each(after.InMsgs-before.InMsgs))
		require.InDelta(t, 12, renewals, 1, "one at each third of the TTL")
		require.LessOrEqual(t, sent-renewals, 1.)
		require.Equal(t, n, c.Stats().Idle)
		require.Zero(t, c.Stats().Lost)
		for i := 0; i < n; i += 1000 {
			begun := time.Now()
			kit.Unlock(t, kit.Must(t, other.Lock, name(i)))
			require.Less(t, time.Since(begun), 10*time.Millisecond)
		}
	})
}
