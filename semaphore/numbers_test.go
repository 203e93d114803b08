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

// One queue for clients of all numbers, strictly first come, first served: a waiter whose own slots
// are taken holds up those that know of more, and newcomers queue.
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

// The first waiter knows of fewer slots and has died. A slot that it does not know of stays free until
// its place has ended, and says nothing about it. A slot of its own shows that it is dead.
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

// A newcomer whose claim of a slot without a record gets lost queues behind those that have queued
// meanwhile, which know of fewer slots.
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

// A waiter takes the slots of those before it when they have given up, and when they have died.
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

// A newcomer whose claim is refused when others may have queued does not follow the slot: it
// queues behind them.
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

// A newcomer reads a replica that lags: it shows a free slot and no queue. The server names
// the tombstone of a later holder, and behind that holder another client has queued.
func TestNewcomerOnReplica(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		join(t, s) // which makes the bucket
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

// The first waiter reads the slots when the leader has answered a write that was sent after
// it had subscribed.
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

// A place without a number of permits could never be served. It is none, and holds up nobody.
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

// lists is a store that lists late, and counts what is asked of the leader before the first claim.
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

// on makes a client on the store.
func (s *lists) on(t *testing.T, server *testutil.Server) *peer {
	p := &peer{queued: make(chan admin.Event, 10)}
	c, err := natslock.New(t.Context(), server.Connect(), admin.WithObserver(p.observe),
		faults.WrapStore(func(kv kvstore.KV) kvstore.KV { s.KV = kv; return s }))
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	p.Client = c
	return p
}

// A newcomer whose list came late queues behind those that have queued since.
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

// However many slots are overdue, one question for the server's time shows it.
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

// One that does not wait takes a free permit over a slow link, too.
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

// A goroutine whose client holds permits, and may have more, is queued when its client's place is at the server, and not
// before: others that come then are behind it.
func TestQueuedWithThePlace(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		holder, b := join(t, s), join(t, s)
		must(t, semaphore.New(holder.Client, 1), "s")
		four := semaphore.New(b.Client, 4)
		must(t, four, "s")
		a := join(t, s)
		a.await(t, semaphore.New(a.Client, 1), "s") // the head, which knows of one slot only
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
