package semaphore_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/semaphore"
	"github.com/natslock/locks/testutil"
)

// crowd runs n goroutines on each of several clients for the duration d. Each goroutine repeatedly
// holds one of the permits for about ten milliseconds. crowd returns how many calls each goroutine
// completed and how many messages the clients received.
func crowd(t *testing.T, s *testutil.Server, permits []int, n int, d time.Duration) (calls [][]int, in uint64) {
	t.Helper()
	var inside atomic.Int64
	var wg sync.WaitGroup
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	most := int64(slices.Max(permits))
	counts := make([][]atomic.Int64, len(permits))
	var peers []*peer
	for i, of := range permits {
		p := join(t, s)
		peers, counts[i] = append(peers, p), make([]atomic.Int64, n)
		sem := semaphore.New(p.Client, of)
		for g := range n {
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(uint64(i), uint64(g)))
				for ctx.Err() == nil {
					l, err := sem.Acquire(context.Background(), "s", natslock.MaxWait(2*time.Second))
					if !assert.NoError(t, err) {
						return
					}
					assert.LessOrEqual(t, inside.Add(1), most)
					time.Sleep(9*time.Millisecond + time.Duration(rng.Int64N(2e6))) // rarely at the same instant
					inside.Add(-1)
					counts[i][g].Add(1)
					assert.NoError(t, l.Unlock(context.Background()))
				}
			})
		}
	}
	time.Sleep(d)
	for i := range counts {
		var all []int
		for g := range n {
			all = append(all, int(counts[i][g].Load()))
		}
		calls = append(calls, all)
		in += peers[i].nc.Stats().InMsgs
	}
	stop()
	wg.Wait()
	return calls, in
}

// TestCohortCrowd checks that a client has a single place however many of its goroutines wait, so
// that the permits stay in use, nobody waits long, and more waiting goroutines do not make a call
// cost more messages.
func TestCohortCrowd(t *testing.T) {
	for _, c := range []struct{ n, spread, messages int }{
		{2, 20, 40}, // most goroutines are inside
		{12, 2, 12},
		{50, 2, 5},
		{100, 2, 5},
	} {
		t.Run(fmt.Sprint(c.n), func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				const d = 3 * time.Second
				calls, in := crowd(t, s, []int{5, 5, 5, 5}, c.n, d)
				total := 0
				for _, of := range calls {
					for _, n := range of {
						total += n
					}
					require.LessOrEqual(t, slices.Max(of)-slices.Min(of), c.spread, "%v", calls)
				}
				t.Logf("%d calls, %.1f messages for each", total, float64(in)/float64(total))
				require.Greater(t, total, int(d/time.Second)*500*9/10)
				require.Less(t, in, uint64(total*c.messages))
			})
		})
	}
}

// TestCohortHandsOn checks that goroutines whose client holds all permits wait without a place, and
// receive those permits without a message in the order in which they asked. A goroutine that asks
// after another client has queued waits for the next permit that its own client gets.
func TestCohortHandsOn(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b := join(t, s), join(t, s)
		sem := semaphore.New(a.Client, 2)
		one, zero := must(t, sem, "s"), must(t, sem, "s")
		time.Sleep(time.Second)
		var queue []*kit.Waiting
		for range 4 {
			queue = append(queue, a.await(t, sem, "s"))
			synctest.Wait()
		}
		require.Empty(t, inspect(t, b.Client, "s").Queue)
		require.Equal(t, 4, a.Stats().Waiting)
		foreign := b.await(t, semaphore.New(b.Client, 2), "s")
		synctest.Wait()
		late := a.await(t, sem, "s")
		sent := a.nc.Stats().OutMsgs
		inside := []*natslock.Lock{one, zero}
		for i, w := range queue {
			was := inside[i]
			require.False(t, w.Over())
			kit.Unlock(t, was)
			l := w.Granted(t)
			require.Equal(t, slot(t, was), slot(t, l))
			require.Greater(t, l.Token(), was.Token())
			inside = append(inside, l)
		}
		require.Equal(t, sent, a.nc.Stats().OutMsgs)
		require.False(t, foreign.Over())
		require.False(t, late.Over())
		kit.Unlock(t, inside[4])
		l := foreign.Granted(t)
		synctest.Wait()
		require.False(t, late.Over(), "before another client's")
		kit.Unlock(t, inside[5])
		kit.Unlock(t, late.Granted(t), l)
		synctest.Wait()
		require.Empty(t, kit.KeysLeft(t, s.Connect()))
	})
}

// TestCohortPlace checks that a client with waiting goroutines has a single place, even while it
// receives permits.
func TestCohortPlace(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		h, a := join(t, s), join(t, s)
		sem := semaphore.New(h.Client, 3)
		held := []*natslock.Lock{must(t, sem, "s"), must(t, sem, "s"), must(t, sem, "s")}
		var queue []*kit.Waiting
		for range 20 {
			queue = append(queue, begin(t, semaphore.New(a.Client, 3), "s"))
			synctest.Wait()
		}
		placed := func(n, goroutines int) {
			t.Helper()
			synctest.Wait()
			require.Len(t, inspect(t, h.Client, "s").Queue, n)
			require.Equal(t, goroutines, a.Stats().Waiting)
		}
		placed(1, 20)
		for i := range 2 {
			kit.Unlock(t, held[i])
			held = append(held, queue[i].Granted(t))
			placed(1, 19-i)
		}
		kit.Unlock(t, held[2])
		held = append(held, queue[2].Granted(t))
		placed(0, 17) // no other permit exists
		for i, w := range queue[3:] {
			kit.Unlock(t, held[3+i])
			held = append(held, w.Granted(t))
		}
		kit.Unlock(t, held[20:]...)
		synctest.Wait()
		require.Empty(t, kit.KeysLeft(t, s.Connect()))
	})
}

// TestCohortNumbers lets goroutines of one process use different numbers of permits, as during a
// rollout. They do not share a place, and none of them gets a permit beyond its own number.
func TestCohortNumbers(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		h, a := join(t, s), join(t, s)
		five, eight := semaphore.New(a.Client, 5), semaphore.New(a.Client, 8)
		var held []*natslock.Lock
		for range 8 {
			held = append(held, must(t, semaphore.New(h.Client, 8), "s"))
		}
		var of5, of8 []*kit.Waiting
		for range 4 {
			of5 = append(of5, begin(t, five, "s"))
			synctest.Wait()
			of8 = append(of8, begin(t, eight, "s"))
			synctest.Wait()
		}
		info := inspect(t, h.Client, "s")
		require.Len(t, info.Queue, 2)
		require.Equal(t, []int{5, 8}, []int{info.Queue[0].Of, info.Queue[1].Of})
		require.Equal(t, 8, a.Stats().Waiting)
		kit.Unlock(t, held[0]) // slot 7
		time.Sleep(30 * time.Second)
		for _, w := range append(slices.Clone(of5), of8...) {
			require.False(t, w.Over(), "the first in the queue does not know of that slot")
		}
		for _, l := range held[1:] {
			kit.Unlock(t, l)
		}
		for i := range of5 {
			l := of5[i].Granted(t)
			require.Less(t, slot(t, l), 5)
			kit.Unlock(t, l, of8[i].Granted(t))
		}
		synctest.Wait()
		require.Empty(t, kit.KeysLeft(t, s.Connect()))
	})
}

// TestCohortCrowdOfNumbers runs clients with five permits next to clients with eight.
func TestCohortCrowdOfNumbers(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		calls, _ := crowd(t, s, []int{5, 8, 5, 8}, 10, 2*time.Second)
		total := 0
		for _, of := range calls {
			for _, c := range of {
				total += c
			}
			require.LessOrEqual(t, slices.Max(of)-slices.Min(of), 2, "%v", calls)
		}
		require.Greater(t, total, 2*500*9/10)
	})
}
