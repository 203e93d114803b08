package semaphore_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/history"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/semaphore"
	"github.com/natslock/locks/testutil"
)

// TestNumbers checks that clients with different numbers of permits share one strictly first-come,
// first-served queue. A waiter whose own slots are taken holds up waiters that know of more slots,
// and newcomers queue as well.
func TestNumbers(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		ctx := t.Context()
		h, a, b, c := join(t, s), join(t, s), join(t, s), join(t, s)
		two, four := semaphore.New(h.Client, 2), semaphore.New(b.Client, 4)
		one := must(t, two, "s")
		zero := must(t, two, "s")
		_, err := two.TryAcquire(ctx, "s")
		require.ErrorIs(t, err, natslock.ErrLocked)
		three := must(t, four, "s")
		require.Equal(t, 3, slot(t, three), "the highest")

		w2 := a.await(t, semaphore.New(a.Client, 2), "s")
		_, err = four.TryAcquire(ctx, "s")
		require.ErrorIs(t, err, natslock.ErrLocked, "slot 2 is free, and a client waits")
		w4 := b.await(t, four, "s")
		late := c.await(t, semaphore.New(c.Client, 2), "s")
		time.Sleep(10 * time.Minute)
		require.False(t, w2.Over(), "it does not know of that slot")
		require.False(t, w4.Over(), "behind it")
		require.False(t, late.Over(), "behind both")

		kit.Unlock(t, one)
		got := w2.Granted(t)
		require.Equal(t, 1, slot(t, got))
		x := w4.Granted(t)
		require.Equal(t, 2, slot(t, x), "no other waiter is before it now")
		kit.Unlock(t, three)
		synctest.Wait()
		require.False(t, late.Over(), "it does not know of that slot")
		_, err = four.TryAcquire(ctx, "s")
		require.ErrorIs(t, err, natslock.ErrLocked)
		kit.Unlock(t, zero)
		last := late.Granted(t)
		require.Zero(t, slot(t, last))
		kit.Unlock(t, last, got, x)
		synctest.Wait()
		require.Empty(t, kit.KeysLeft(t, a.nc))
	})
}

// TestNumbersDeadFirst covers a first waiter that knew of fewer slots and has died. A slot it did
// not know of stays free until its place expires, because that slot proves nothing about it. One of
// its own slots reveals that it is dead.
func TestNumbersDeadFirst(t *testing.T) {
	for name, c := range map[string]struct {
		frees int // the lock that is released
		least time.Duration
		most  time.Duration
	}{
		"a slot that it does not know of": {0, 5 * time.Second, 15*time.Second + 500*time.Millisecond}, // slot 1
		"a slot of its own":               {1, time.Second, 2 * time.Second},                           // slot 0
	} {
		t.Run(name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				a, b, h := join(t, s), join(t, s), join(t, s)
				all := semaphore.New(h.Client, 2)
				held := []*natslock.Lock{must(t, all, "s"), must(t, all, "s")}
				w1 := a.await(t, semaphore.New(a.Client, 1), "s")
				w2 := b.await(t, semaphore.New(b.Client, 2), "s")
				time.Sleep(time.Second)
				a.link.Cut()
				begun := time.Now()
				kit.Unlock(t, held[c.frees])
				l := w2.Granted(t)
				require.Greater(t, time.Since(begun), c.least)
				require.Less(t, time.Since(begun), c.most)
				require.Equal(t, 1-c.frees, slot(t, l))
				kit.Unlock(t, l, held[1-c.frees])
				w1.Cancel(nil)
				<-w1.Done
			})
		})
	}
}

// TestNumbersLost checks that a newcomer whose claim for a slot without a record is lost queues
// behind waiters that have queued in the meantime, even if they know of fewer slots.
func TestNumbersLost(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b, h := join(t, s), join(t, s), join(t, s)
		l := must(t, semaphore.New(h.Client, 1), "s")
		b.f.OnSend(kit.Between("sem take", 1, 2, faults.Drop))
		later := begin(t, semaphore.New(b.Client, 2), "s") // slot 1
		synctest.Wait()
		first := a.await(t, semaphore.New(a.Client, 1), "s")
		time.Sleep(time.Minute)
		require.False(t, later.Over())
		kit.Unlock(t, l)
		l = first.Granted(t)
		kit.Unlock(t, later.Granted(t), l)
	})
}

// TestNumbersGivenUp checks that a waiter takes the slots of those ahead of it once they have given
// up or died.
func TestNumbersGivenUp(t *testing.T) {
	for name, leave := range map[string]func(p *peer, w *kit.Waiting){
		"gives up": func(_ *peer, w *kit.Waiting) { w.Cancel(nil) },
		"dies":     func(p *peer, _ *kit.Waiting) { p.link.Cut() },
	} {
		t.Run(name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				a, b, h := join(t, s), join(t, s), join(t, s)
				all := semaphore.New(h.Client, 2)
				held := []*natslock.Lock{must(t, all, "s"), must(t, all, "s")}
				w1 := a.await(t, semaphore.New(a.Client, 1), "s")
				w2 := b.await(t, semaphore.New(b.Client, 2), "s")
				synctest.Wait()
				leave(a, w1)
				synctest.Wait()
				kit.Unlock(t, held[1]) // slot 0
				l := w2.Granted(t)
				require.Zero(t, slot(t, l))
				kit.Unlock(t, l, held[0])
				w1.Cancel(nil)
				<-w1.Done
			})
		})
	}
}

// TestNewcomerQueues checks that a newcomer whose claim is refused after others may have queued
// does not wait for that slot, but queues behind them.
func TestNewcomerQueues(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b, c := join(t, s), join(t, s), join(t, s)
		sem := func(p *peer) *semaphore.Semaphore { return semaphore.New(p.Client, 1) }
		kit.Unlock(t, must(t, sem(b), "s"))
		a.f.OnSend(kit.Between("sem take", 1, 1, faults.Delay(200*time.Millisecond)))
		late := begin(t, sem(a), "s")
		synctest.Wait()
		l := must(t, sem(b), "s")
		first := c.await(t, sem(c), "s")
		time.Sleep(150 * time.Millisecond)
		c.f.OnSend(kit.Between("sem take", 1, 1, faults.Delay(100*time.Millisecond)))
		kit.Unlock(t, l)
		l = first.Granted(t)
		require.False(t, late.Over())
		kit.Unlock(t, l)
		kit.Unlock(t, late.Granted(t))
	})
}

// TestNewcomerOnReplica lets a newcomer read a lagging replica that shows a free slot and an empty
// queue. The server names a later holder's tombstone, and another client has queued behind that
// holder.
func TestNewcomerOnReplica(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		join(t, s) // creates the bucket
		r := history.NewReplica(t, s.Connect())
		over := func() *peer {
			p := &peer{nc: s.Connect(), queued: make(chan admin.Event, 1000)}
			p.Client, p.f = kit.FaultyOver(t, p.nc, 1, r.Over, admin.WithObserver(p.observe))
			return p
		}
		holder, waiter, newcomer := over(), over(), over()
		sem := func(p *peer) *semaphore.Semaphore { return semaphore.New(p.Client, 1) }
		kit.Unlock(t, must(t, sem(holder), "s"))
		r.Lag()
		l := must(t, sem(holder), "s")
		first := waiter.await(t, sem(waiter), "s")
		synctest.Wait()
		waiter.f.OnSend(kit.Between("sem take", 1, 1, faults.Delay(50*time.Millisecond)))
		kit.Unlock(t, l)
		second := newcomer.await(t, sem(newcomer), "s")
		l = first.Granted(t)
		require.False(t, second.Over())
		kit.Unlock(t, l)
		kit.Unlock(t, second.Granted(t))
	})
}

// TestHeadProves checks that the first waiter reads the slots only after the leader has
// acknowledged a write that the waiter sent after subscribing.
func TestHeadProves(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b := join(t, s), join(t, s)
		l := must(t, semaphore.New(a.Client, 1), "s")
		var steps []string
		b.f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
			steps = append(steps, kit.Stage(w))
			return faults.Pass
		})
		b.f.FailReads(func(op faults.ReadOp, asked string) error {
			steps = append(steps, string(op)+" "+asked)
			return nil
		})
		w := b.await(t, semaphore.New(b.Client, 1), "s")
		synctest.Wait()
		require.Equal(t, []string{"List sem.s.*", "swait take", "List swait.s.*", "sem probe", "List sem.s.*"}, steps)
		kit.Unlock(t, l)
		kit.Unlock(t, w.Granted(t))
	})
}

// readFrom records the minimum revisions with which the queue was listed.
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

// TestReadApart checks that a user without permission to read many keys in one request reads the
// slots first, and then the queue in a state that includes them.
func TestReadApart(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		h := join(t, s)
		l := must(t, semaphore.New(h.Client, 2), "s")
		seen := &readFrom{}
		c, f := kit.FaultyOver(t, s.Connect(), 1, func(kv kvstore.KV) kvstore.KV {
			seen.KV = kv
			return seen
		})
		n := 0
		f.FailReads(func(_ faults.ReadOp, asked string) error {
			if asked == "sem.s.*" {
				if n++; n == 1 {
					return kvstore.ErrUnavailable
				}
			}
			return nil
		})
		got := must(t, semaphore.New(c, 2), "s")
		require.Len(t, seen.least, 1)
		require.GreaterOrEqual(t, seen.least[0], l.Token()>>6)
		kit.Unlock(t, l, got)
	})
}

// TestPlaceWithoutNumber checks that a place without a number of permits, which could never be
// served, is ignored and holds up nobody.
func TestPlaceWithoutNumber(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a := join(t, s)
		two := semaphore.New(a.Client, 2)
		held := []*natslock.Lock{must(t, two, "s"), must(t, two, "s")}
		body := record.Body{Version: 1, Status: record.StatusWaiting, ID: "x", Client: "faulty", Attempt: 1}
		value, err := body.Encode()
		require.NoError(t, err)
		_, err = a.nc.Request("$KV.natslock.swait.s.x", value, kit.Patience)
		require.NoError(t, err)
		w := a.await(t, two, "s")
		kit.Unlock(t, held...)
		kit.Unlock(t, w.Granted(t), must(t, two, "s"))
	})
}

// lists is a store whose listings are late. It counts the requests to the leader that precede the
// first claim.
type lists struct {
	kvstore.KV
	late          time.Duration
	asked, claims atomic.Int64
}

func (s *lists) List(ctx context.Context, pattern string, revision uint64, opts ...kvstore.ListOption) (kvstore.Listing, error) {
	l, err := s.KV.List(ctx, pattern, revision, opts...)
	if strings.HasPrefix(pattern, "sem.") {
		time.Sleep(s.late)
	}
	return l, err
}

func (s *lists) State(ctx context.Context, pattern string) (kvstore.State, error) {
	if s.claims.Load() == 0 {
		s.asked.Add(1)
	}
	return s.KV.State(ctx, pattern)
}

func (s *lists) Send(w kvstore.Write, done func(kvstore.Answer)) (func(), error) {
	if strings.HasPrefix(w.Key, "sem.") && w.Expect != kvstore.NoRevision {
		s.claims.Add(1)
	}
	return s.KV.Send(w, done)
}

// on creates a client that uses the store.
func (s *lists) on(t *testing.T, server *testutil.Server) *peer {
	p := &peer{queued: make(chan admin.Event, 10)}
	c, err := natslock.New(t.Context(), server.Connect(), admin.WithObserver(p.observe),
		faults.WrapStore(func(kv kvstore.KV) kvstore.KV { s.KV = kv; return s }))
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	p.Client = c
	return p
}

// TestNewcomerListsLate checks that a newcomer whose listing arrives late queues behind those that
// have queued since it was taken.
func TestNewcomerListsLate(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, h := join(t, s), join(t, s)
		b := (&lists{late: 300 * time.Millisecond}).on(t, s)
		l := must(t, semaphore.New(h.Client, 1), "s")
		later := begin(t, semaphore.New(b.Client, 2), "s") // slot 1 is free
		time.Sleep(50 * time.Millisecond)
		first := a.await(t, semaphore.New(a.Client, 1), "s")
		time.Sleep(time.Second)
		passed := later.Over()
		kit.Unlock(t, l)
		l = first.Granted(t)
		kit.Unlock(t, later.Granted(t), l)
		require.False(t, passed)
	})
}

// TestOverdueAskedOnce checks that a single request for the server's time is enough, however many
// slots are overdue.
func TestOverdueAskedOnce(t *testing.T) {
	for name, once := range map[string]bool{"acquire": false, "try": true} {
		t.Run(name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				h := join(t, s)
				for range 16 {
					must(t, semaphore.New(h.Client, 16), "s", natslock.TTL(5*time.Second))
				}
				h.link.Cut()
				kit.RestartWithoutTTLs(t, s)
				time.Sleep(30 * time.Second)
				kv := &lists{}
				sem := semaphore.New(kv.on(t, s).Client, 16)
				before := kv.asked.Load()
				take := sem.Acquire
				if once {
					take = sem.TryAcquire
				}
				l, err := take(t.Context(), "s")
				require.NoError(t, err)
				require.EqualValues(t, 1, kv.asked.Load()-before)
				kit.Unlock(t, l)
			})
		})
	}
}

// TestTryListsLate checks that a one-shot acquire gets a free permit even over a slow link.
func TestTryListsLate(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		h := join(t, s)
		b := (&lists{late: 300 * time.Millisecond}).on(t, s)
		l := must(t, semaphore.New(h.Client, 2), "s")
		got, err := semaphore.New(b.Client, 2).TryAcquire(t.Context(), "s")
		require.NoError(t, err)
		kit.Unlock(t, l, got)
	})
}

// TestQueuedWithThePlace covers a goroutine whose client holds permits and may get more. It counts
// as queued only once its client's place has reached the server, so later arrivals are behind it.
func TestQueuedWithThePlace(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		holder, b := join(t, s), join(t, s)
		must(t, semaphore.New(holder.Client, 1), "s")
		four := semaphore.New(b.Client, 4)
		must(t, four, "s")
		a := join(t, s)
		a.await(t, semaphore.New(a.Client, 1), "s") // first in the queue, and limited to one slot
		b.f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
			if strings.HasPrefix(w.Key, record.SWaitPrefix) {
				return faults.Delay(time.Second)
			}
			return faults.Fate{}
		})
		asked := time.Now()
		b.await(t, four, "s")
		require.GreaterOrEqual(t, time.Since(asked), time.Second)
	})
}
