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

// crowd has n goroutines of each of some clients work for about ten milliseconds at a time with one of
// the permits, for a while. It returns how many calls each goroutine has had, and how many messages the
// clients have received.
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
					time.Sleep(9*time.Millisecond + time.Duration(rng.Int64N(2e6))) // seldom at the same instant
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

// A client has one place, however many of its goroutines wait. So the permits are in use all the time,
// nobody waits for long, and a call costs no more messages when more goroutines wait.
func TestCohortCrowd(t *testing.T) {
	for _, c := range []struct{ n, spread, messages int }{
		{2, 20, 40}, // most of them are inside
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

// Goroutines whose client holds all permits wait without a place, and get those in the order in which
// they have asked, without a message. One that has asked since another client queued waits for
// the next permit that its client gets.
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

// A client whose goroutines wait has one place, even while it gets permits.
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
		placed(0, 17) // there is no other permit
		for i, w := range queue[3:] {
			kit.Unlock(t, held[3+i])
			held = append(held, w.Granted(t))
		}
		kit.Unlock(t, held[20:]...)
		synctest.Wait()
		require.Empty(t, kit.KeysLeft(t, s.Connect()))
	})
}

// Goroutines of one process use different numbers of permits, as in a roll-out. They share no place, and
// none of them gets a permit beyond its number.
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

// Clients of five permits and of eight work side by side.
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
