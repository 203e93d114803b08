package semaphore_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/history"
	"github.com/natslock/locks/kvstore"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/semaphore"
	"github.com/natslock/locks/testutil"
)

// A waiter whose own slots are taken does not hold up those that know of more, and they
// leave its slots to it.
func TestNumbers(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		ctx := t.Context()
		a, b, c := join(t, s), join(t, s), join(t, s)
		two, four := semaphore.New(a.Client, "s", 2), semaphore.New(b.Client, "s", 4)
		one := must(t, two)
		zero := must(t, two)
		w2 := a.await(t, two)

		three := must(t, four)
		require.Equal(t, 3, slot(t, three))
		x, err := four.TryAcquire(ctx)
		require.NoError(t, err)
		require.Equal(t, 2, slot(t, x))
		_, err = four.TryAcquire(ctx)
		require.ErrorIs(t, err, natslock.ErrLocked)
		_, err = two.TryAcquire(ctx)
		require.ErrorIs(t, err, natslock.ErrLocked)

		w4 := b.await(t, four)
		late := c.await(t, semaphore.New(c.Client, "s", 2))
		synctest.Wait()
		unlock(t, one)
		got := w2.granted(t)
		require.Equal(t, 1, slot(t, got))
		synctest.Wait()
		require.False(t, w4.over())
		require.False(t, late.over())
		_, err = four.TryAcquire(ctx)
		require.ErrorIs(t, err, natslock.ErrLocked)

		unlock(t, zero) // the client with four has waited for longer
		lowest := w4.granted(t)
		require.Zero(t, slot(t, lowest))
		synctest.Wait()
		require.False(t, late.over())
		unlock(t, three)
		synctest.Wait()
		require.False(t, late.over(), "it does not know of that slot")
		_, err = two.TryAcquire(ctx)
		require.ErrorIs(t, err, natslock.ErrLocked)
		unlock(t, lowest)
		last := late.granted(t)
		require.Zero(t, slot(t, last))
		unlock(t, last, got, x)
		synctest.Wait()
		require.Empty(t, history.KeysLeft(t, a.nc))
	})
}

// A waiter passes an earlier one at once where a slot is free that this one does not know of.
func TestNumbersPass(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b, h := join(t, s), join(t, s), join(t, s)
		all := semaphore.New(h.Client, "s", 3)
		held := []*natslock.Lock{must(t, all), must(t, all), must(t, all)}
		w2 := a.await(t, semaphore.New(a.Client, "s", 2))
		w3 := b.await(t, semaphore.New(b.Client, "s", 3))
		time.Sleep(time.Second)
		unlock(t, held[0])
		begun := time.Now()
		l := w3.granted(t)
		require.Less(t, time.Since(begun), 100*time.Millisecond)
		require.Equal(t, 2, slot(t, l))
		require.False(t, w2.over())
		unlock(t, held[1])
		unlock(t, w2.granted(t), held[2], l)
	})
}

// A waiter that others were to go before of takes their slots too when they have given up,
// and when they have died.
func TestNumbersGivenUp(t *testing.T) {
	for name, leave := range map[string]func(p *peer, w *waiting){
		"gives up": func(_ *peer, w *waiting) { w.cancel() },
		"dies":     func(p *peer, _ *waiting) { p.link.Cut() },
	} {
		t.Run(name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				a, b, h := join(t, s), join(t, s), join(t, s)
				all := semaphore.New(h.Client, "s", 2)
				held := []*natslock.Lock{must(t, all), must(t, all)}
				w1 := a.await(t, semaphore.New(a.Client, "s", 1))
				w2 := b.await(t, semaphore.New(b.Client, "s", 2))
				synctest.Wait()
				leave(a, w1)
				synctest.Wait()
				unlock(t, held[1]) // slot 0
				l := w2.granted(t)
				require.Zero(t, slot(t, l))
				unlock(t, l, held[0])
				w1.cancel()
				<-w1.done
			})
		})
	}
}

// Newcomers and later waiters leave a free slot to an earlier waiter that knows of it, while
// its claim is on the way.
func TestNumbersLeft(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b, h := join(t, s), join(t, s), join(t, s)
		all := semaphore.New(h.Client, "s", 4)
		held := []*natslock.Lock{must(t, all), must(t, all), must(t, all), must(t, all)}
		w2 := a.await(t, semaphore.New(a.Client, "s", 2))
		w4 := b.await(t, semaphore.New(b.Client, "s", 4))
		time.Sleep(time.Second)
		a.bend("sem take", 1, 1, testutil.Delay(500*time.Millisecond))
		unlock(t, held[3]) // slot 0
		time.Sleep(100 * time.Millisecond)
		_, err := semaphore.New(h.Client, "s", 4).TryAcquire(t.Context())
		require.ErrorIs(t, err, natslock.ErrLocked)
		require.False(t, w4.over())
		l := w2.granted(t)
		require.Zero(t, slot(t, l))
		unlock(t, l)
		unlock(t, w4.granted(t))
		unlock(t, held[:3]...)
	})
}

// A claim without an answer is given up when earlier waiters know of its slot. Its next attempt
// would pass them once the lease of the first attempt is over.
func TestNumbersUnanswered(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b, h := join(t, s), join(t, s), join(t, s)
		all := semaphore.New(h.Client, "s", 3)
		held := []*natslock.Lock{must(t, all), must(t, all), must(t, all)}
		unlock(t, held[1])
		takes := 0
		b.f.OnSend(func(_ int, w kvstore.Write) testutil.Fate {
			if w.Key != "sem.s.1" || w.Delete {
				return testutil.Pass
			}
			switch takes++; takes {
			case 1:
				return testutil.LoseAnswer
			case 2:
				return testutil.Drop
			}
			return testutil.Pass
		})
		later := begin(t, semaphore.New(b.Client, "s", 3), natslock.TTL(2*time.Second))
		synctest.Wait()
		a.bend("sem take", 1, 1, testutil.Delay(2*time.Second))
		first := a.await(t, semaphore.New(a.Client, "s", 2))
		l := first.granted(t)
		require.Equal(t, 1, slot(t, l))
		require.False(t, later.over())
		unlock(t, held[0]) // slot 2
		got := later.granted(t)
		require.Equal(t, 2, slot(t, got))
		unlock(t, held[2], l, got)
	})
}

// A waiter behind one that was granted is not the first where another one is between them.
func TestNumbersBetween(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b, c, h := join(t, s), join(t, s), join(t, s), join(t, s)
		two := semaphore.New(h.Client, "s", 2)
		one, zero := must(t, two), must(t, two)
		first := a.await(t, semaphore.New(a.Client, "s", 2))
		between := b.await(t, semaphore.New(b.Client, "s", 1))
		last := c.await(t, semaphore.New(c.Client, "s", 2))
		time.Sleep(time.Second)
		b.bend("sem take", 1, 1, testutil.Delay(500*time.Millisecond))
		unlock(t, one)
		l := first.granted(t)
		time.Sleep(100 * time.Millisecond)
		unlock(t, zero)
		time.Sleep(100 * time.Millisecond)
		require.False(t, last.over())
		got := between.granted(t)
		require.Zero(t, slot(t, got))
		unlock(t, got)
		unlock(t, last.granted(t), l)
	})
}

// A newcomer whose claim is refused when others may have queued does not follow the slot: it
// queues behind them.
func TestNewcomerQueues(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b, c := join(t, s), join(t, s), join(t, s)
		sem := func(p *peer) *semaphore.Semaphore { return semaphore.New(p.Client, "s", 1) }
		unlock(t, must(t, sem(b)))
		a.bend("sem take", 1, 1, testutil.Delay(200*time.Millisecond))
		late := begin(t, sem(a))
		synctest.Wait()
		l := must(t, sem(b))
		first := c.await(t, sem(c))
		time.Sleep(150 * time.Millisecond)
		c.bend("sem take", 1, 1, testutil.Delay(100*time.Millisecond))
		unlock(t, l)
		l = first.granted(t)
		require.False(t, late.over())
		unlock(t, l)
		unlock(t, late.granted(t))
	})
}

// A newcomer reads a replica that lags: it shows a free slot and no queue. The server names
// the tombstone of a later holder, and behind that holder another client has queued.
func TestNewcomerOnReplica(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		join(t, s) // which makes the bucket
		r := history.NewReplica(t, s.Connect())
		over := func() *peer {
			p := &peer{nc: s.Connect(), queued: make(chan natslock.Event, 1000)}
			p.Client, p.f = history.FaultyOver(t, p.nc, 1, r.Over, natslock.WithObserver(p.observe))
			return p
		}
		holder, waiter, newcomer := over(), over(), over()
		sem := func(p *peer) *semaphore.Semaphore { return semaphore.New(p.Client, "s", 1) }
		unlock(t, must(t, sem(holder)))
		r.Lag()
		l := must(t, sem(holder))
		first := waiter.await(t, sem(waiter))
		synctest.Wait()
		waiter.bend("sem take", 1, 1, testutil.Delay(50*time.Millisecond))
		unlock(t, l)
		second := newcomer.await(t, sem(newcomer))
		l = first.granted(t)
		require.False(t, second.over())
		unlock(t, l)
		unlock(t, second.granted(t))
	})
}

// The first waiter reads the slots when the leader has answered a write that was sent after
// it had subscribed.
func TestHeadProves(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b := join(t, s), join(t, s)
		l := must(t, semaphore.New(a.Client, "s", 1))
		var steps []string
		b.f.OnSend(func(_ int, w kvstore.Write) testutil.Fate {
			steps = append(steps, history.Stage(w))
			return testutil.Pass
		})
		b.f.FailReads(func(op testutil.ReadOp, asked string) error {
			steps = append(steps, string(op)+" "+asked)
			return nil
		})
		w := b.await(t, semaphore.New(b.Client, "s", 1))
		synctest.Wait()
		require.Equal(t, []string{"List sem.s.*", "swait take", "List swait.s.*", "sem probe", "List sem.s.*"}, steps)
		unlock(t, l)
		unlock(t, w.granted(t))
	})
}

// readFrom notes from which revisions on the queue was listed.
type readFrom struct {
	kvstore.KV
	least []uint64
}

func (r *readFrom) List(ctx context.Context, pattern string, min uint64, opts ...kvstore.ListOption) (kvstore.Listing, error) {
	if pattern == "swait.s.*" {
		r.least = append(r.least, min)
	}
	return r.KV.List(ctx, pattern, min, opts...)
}

// A user that may not read many keys with one request reads the slots first, and then the
// queue in a state that contains them.
func TestReadApart(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		h := join(t, s)
		l := must(t, semaphore.New(h.Client, "s", 2))
		seen := &readFrom{}
		c, f := history.FaultyOver(t, s.Connect(), 1, func(kv kvstore.KV) kvstore.KV {
			seen.KV = kv
			return seen
		})
		n := 0
		f.FailReads(func(_ testutil.ReadOp, asked string) error {
			if asked == "sem.s.*" {
				if n++; n == 1 {
					return kvstore.ErrUnavailable
				}
			}
			return nil
		})
		got := must(t, semaphore.New(c, "s", 2))
		require.Len(t, seen.least, 1)
		require.GreaterOrEqual(t, seen.least[0], l.Token()>>6)
		unlock(t, l, got)
	})
}
