package rwlock_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/bridge"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

// tally counts a peer's writes by stage, and delays the replies to writes in the given stages. The
// returned function reports the counts since its last call.
func (p *peer) tally(late ...string) func() map[string]int {
	var mu sync.Mutex
	n := map[string]int{}
	p.f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
		mu.Lock()
		defer mu.Unlock()
		n[kit.Stage(w)]++
		if slices.Contains(late, kit.Stage(w)) {
			return faults.DelayAnswer(100 * time.Millisecond)
		}
		return faults.Pass
	})
	return func() map[string]int {
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		was := n
		n = map[string]int{}
		return was
	}
}

// readAll starts n goroutines of a peer that all try to read at the same time.
func (p *peer) readAll(n int) chan grant {
	grants := make(chan grant, n)
	for i := range n {
		p.read(fmt.Sprint(i), grants)
	}
	return grants
}

// granted receives n grants from a channel.
func granted(t *testing.T, grants <-chan grant, n int) (locks []*natslock.Lock) {
	t.Helper()
	for range n {
		g := kit.Receive(t, grants, "a grant")
		require.NoError(t, g.err)
		locks = append(locks, g.l)
	}
	return locks
}

// refused checks that a peer gets no read lock, neither immediately nor by waiting a moment.
func (p *peer) refused(t *testing.T, why string) {
	t.Helper()
	_, err := p.TryRLock(t.Context(), "x")
	require.ErrorIs(t, err, natslock.ErrLocked, why)
	_, err = p.RLock(t.Context(), "x", natslock.MaxWait(100*time.Millisecond))
	require.ErrorIs(t, err, natslock.ErrTimeout, why)
}

// TestCohortReaders checks that a hundred reading goroutines share one lease, and that a hundred
// later ones share one too. A writer waits only for those that are inside.
func TestCohortReaders(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b := newPeer(t, s.Connect(), 1, natslock.WithTuning(natslock.Tuning{WatchAfter: -1})), newPeer(t, s.Connect(), 2)
		writes := a.tally("read take") // so that all of them ask before the first reply
		locks := granted(t, a.readAll(100), 100)
		require.Equal(t, map[string]int{"read take": 1}, writes())
		ids := map[string]bool{}
		for _, l := range locks {
			require.Equal(t, claimOf(locks[0]), claimOf(l))
			require.Equal(t, locks[0].Token(), l.Token())
			ids[l.ID()] = true
		}
		require.Len(t, ids, 100, "each has an id of its own")
		require.Equal(t, 100, a.c.Stats().Held)

		// The first reader after the turn subscribes. The leader refuses one of its writes, and it
		// lists the queue and the gate.
		overTurn()
		before := trafficOf(a.nc)
		l, err := a.RLock(t.Context(), "x")
		require.NoError(t, err)
		require.Equal(t, claimOf(locks[0]), claimOf(l))
		locks = append(locks, l)
		require.Equal(t, traffic{2, 2}, before.since(a.nc))
		require.Equal(t, map[string]int{"rw probe": 1}, writes())
		before = trafficOf(a.nc)
		for i := range 100 {
			take := a.RLock
			if i%2 == 0 {
				take = a.TryRLock
			}
			l, err := take(t.Context(), "x")
			require.NoError(t, err)
			require.Equal(t, claimOf(locks[0]), claimOf(l))
			locks = append(locks, l)
		}
		kit.Unlock(t, locks[:100]...)
		require.Equal(t, traffic{}, before.since(a.nc))

		// Two seconds later the client has to list again, but only once.
		time.Sleep(2 * time.Second)
		writes()
		before = trafficOf(a.nc)
		locks = append(locks[100:], granted(t, a.readAll(100), 100)...)
		require.Equal(t, traffic{1, 1}, before.since(a.nc))
		require.Empty(t, writes())

		grants := make(chan grant, 1)
		b.write("w", grants)
		time.Sleep(10 * time.Millisecond)
		a.refused(t, "past a writer")
		kit.Unlock(t, locks[1:]...)
		nobody(t, grants, "over a reader")
		left := time.Now()
		kit.Unlock(t, locks[0])
		w := granted(t, grants, 1)[0]
		require.Less(t, time.Since(left), 50*time.Millisecond)
		require.Greater(t, w.Token(), locks[0].Token())
		kit.Unlock(t, w)
		require.Empty(t, kit.KeysLeft(t, s.Connect()))
	})
}

// TestCohortReadersUnnotified checks that readers join for at most a second if every gate
// notification is lost and the queue cannot be listed.
func TestCohortReadersUnnotified(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b := newPeer(t, s.Connect(), 1), newPeer(t, s.Connect(), 2)
		var locks []*natslock.Lock
		for range 2 {
			l, err := a.RLock(t.Context(), "x")
			require.NoError(t, err)
			locks = append(locks, l)
			overTurn()
		}
		a.f.DropAllEvents(true)
		a.f.FailReads(func(faults.ReadOp, string) error { return fmt.Errorf("%w: by the test", kvstore.ErrUnavailable) })
		grants := make(chan grant, 1)
		b.write("w", grants)
		begun := time.Now()
		var last time.Duration
		for time.Since(begun) < 3*time.Second {
			time.Sleep(50 * time.Millisecond)
			if l, err := a.RLock(t.Context(), "x", natslock.MaxWait(10*time.Millisecond)); err == nil {
				last = time.Since(begun)
				locks = append(locks, l)
			}
		}
		require.Greater(t, last, 500*time.Millisecond)
		require.Less(t, last, time.Second)
		kit.Unlock(t, locks...)
		kit.Unlock(t, granted(t, grants, 1)...)
	})
}

// TestCohortReadersOfTheQueueOnly covers readers that have waited in the queue, and so have listed
// it but not the gate. The next reader lists both. A writer that finds an empty queue takes the
// gate without taking a place in it.
func TestCohortReadersOfTheQueueOnly(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b := newPeer(t, s.Connect(), 1), newPeer(t, s.Connect(), 2)
		l, err := b.Lock(t.Context(), "x")
		require.NoError(t, err)
		reads := a.readAll(3)
		time.Sleep(10 * time.Millisecond)
		_, err = a.TryRLock(t.Context(), "x")
		require.ErrorIs(t, err, natslock.ErrLocked, "it does not wait with the others")
		kit.Unlock(t, l)
		readers := granted(t, reads, 3)
		synctest.Wait()
		time.Sleep(2 * time.Second) // if the three have listed the gate, that was more than a second ago
		before := trafficOf(a.nc)
		r, err := a.RLock(t.Context(), "x")
		require.NoError(t, err)
		require.EqualValues(t, 1, before.since(a.nc).out, "the gate was not listed")
		readers = append(readers, r)
		grants := make(chan grant, 1)
		b.write("w", grants)
		time.Sleep(10 * time.Millisecond)
		a.refused(t, "past a gate")
		kit.Unlock(t, readers...)
		kit.Unlock(t, granted(t, grants, 1)...)
	})
}

// TestCohortReadersBehindAPlace checks that nobody joins the readers ahead of a queued writer, even
// before the server has the writer's gate.
func TestCohortReadersBehindAPlace(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b, c := newPeer(t, s.Connect(), 1), newPeer(t, s.Connect(), 2), newPeer(t, s.Connect(), 3)
		l, err := c.Lock(t.Context(), "x")
		require.NoError(t, err)
		reads := a.readAll(2)
		time.Sleep(10 * time.Millisecond)
		grants := make(chan grant, 1)
		b.write("w", grants)
		time.Sleep(10 * time.Millisecond)
		b.f.OnSend(kit.At("rw take", faults.Delay(500*time.Millisecond)))
		kit.Unlock(t, l)
		readers := granted(t, reads, 2)
		a.refused(t, "past a writer's place")
		kit.Unlock(t, readers...)
		kit.Unlock(t, granted(t, grants, 1)...)
	})
}

// TestCohortReadersWait checks that reading goroutines wait together in one place. Those that asked
// before its ticket was issued enter together, past other clients' readers but not past a writer.
// Those that asked later wait together for the next lease.
func TestCohortReadersWait(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b, c, d := newPeer(t, s.Connect(), 1), newPeer(t, s.Connect(), 2), newPeer(t, s.Connect(), 3), newPeer(t, s.Connect(), 4)
		queue := func(n int) {
			t.Helper()
			time.Sleep(10 * time.Millisecond)
			synctest.Wait()
			info, err := admin.New(c.c).Inspect(t.Context(), admin.KindRW, "x")
			require.NoError(t, err)
			require.Len(t, info.Queue, n)
		}
		l, err := c.Lock(t.Context(), "x")
		require.NoError(t, err)
		writes := a.tally("read take") // so that all of them ask before the first reply
		first := a.readAll(50)
		time.Sleep(200 * time.Millisecond)
		queue(1)
		other := b.readAll(1)
		queue(2)
		second := a.readAll(50)
		queue(2)
		grants := make(chan grant, 1)
		d.write("w", grants)
		queue(3)
		third := a.readAll(50)
		queue(3)
		require.Equal(t, 150, a.c.Stats().Waiting)
		kit.Unlock(t, l)
		inside := granted(t, first, 50)
		for _, l := range inside {
			require.Equal(t, claimOf(inside[0]), claimOf(l))
		}
		inside = append(inside, granted(t, other, 1)...)
		nobody(t, second, "past a writer")
		nobody(t, third, "past a writer")
		kit.Unlock(t, inside[1:]...)
		nobody(t, grants, "over a reader")
		kit.Unlock(t, inside[0])
		w := granted(t, grants, 1)
		nobody(t, second, "beside a writer")
		kit.Unlock(t, w...)
		inside = append(granted(t, second, 50), granted(t, third, 50)...)
		for _, l := range inside {
			require.Equal(t, claimOf(inside[0]), claimOf(l))
		}
		kit.Unlock(t, inside...)
		sent := writes()
		require.Equal(t, []int{2, 2}, []int{sent["rwait take"], sent["read delete"]})
		require.Empty(t, kit.KeysLeft(t, s.Connect()))
	})
}

// TestCohortReadersBroken checks that a break ends the contexts of all readers, and that the broken
// record keeps writers out until the last reader has stopped.
func TestCohortReadersBroken(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b := newPeer(t, s.Connect(), 1, natslock.WithTuning(natslock.Tuning{WatchAfter: 1})), newPeer(t, s.Connect(), 2)
		readers := granted(t, a.readAll(3), 3)
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		grants := make(chan grant, 1)
		b.write("w", grants)
		broken := time.Now()
		require.NoError(t, admin.New(b.c).Break(t.Context(), admin.BreakRequest{Kind: admin.KindRW, Name: "x", ID: claimOf(readers[0]), Reason: "test"}))
		for i, l := range readers {
			<-l.Context().Done()
			require.Less(t, time.Since(broken), 20*time.Millisecond)
			require.ErrorIs(t, context.Cause(l.Context()), natslock.ErrBroken)
			require.ErrorIs(t, l.Err(), natslock.ErrLost)
			if i > 0 {
				require.ErrorIs(t, l.Unlock(t.Context()), natslock.ErrBroken)
			}
			broken = time.Now()
		}
		nobody(t, grants, "over a broken reader that has not stopped")
		require.EqualValues(t, 3, a.c.Stats().Broken)
		require.Zero(t, a.c.Stats().Held)
		_, err := a.TryRLock(t.Context(), "x")
		require.ErrorIs(t, err, natslock.ErrLocked, "behind a gate")
		left := time.Now()
		require.ErrorIs(t, readers[0].Unlock(t.Context()), natslock.ErrBroken)
		kit.Unlock(t, granted(t, grants, 1)...)
		require.Less(t, time.Since(left), 50*time.Millisecond)
	})
}

// TestCohortReadersExtend checks that a reader can lengthen the lease for the readers next to it
// while it is inside, but can shorten it only if it is the only one.
func TestCohortReadersExtend(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		const ttl = 15 * time.Second
		a := newPeer(t, s.Connect(), 1, natslock.WithTTL(ttl))
		readers := granted(t, a.readAll(2), 2)
		require.NoError(t, readers[0].Extend(t.Context(), 5*time.Second))
		require.Greater(t, readers[0].Remaining(), ttl-2*time.Second)
		require.NoError(t, readers[0].Extend(t.Context(), time.Minute))
		require.Greater(t, readers[1].Remaining(), 50*time.Second)
		kit.Unlock(t, readers[0])
		synctest.Wait()
		require.Less(t, readers[1].Remaining(), ttl)
		require.NoError(t, readers[1].Extend(t.Context(), 5*time.Second))
		require.Less(t, readers[1].Remaining(), 5*time.Second)
		kit.Unlock(t, readers[1])
	})
}

// TestCohortReadersDropped drops one reader's handle. The lease runs out, and nobody can join it
// any more.
func TestCohortReadersDropped(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		const ttl = 5 * time.Second
		a, b := newPeer(t, s.Connect(), 1, natslock.WithTTL(ttl)), newPeer(t, s.Connect(), 2)
		readers := granted(t, a.readAll(3), 3)
		bridge.Natslock[*natslock.Client, *natslock.Lock, natslock.Option, natslock.LockOption, *natslock.Holder]().Drop(readers[0])
		dropped := time.Now()
		l, err := a.RLock(t.Context(), "x")
		require.NoError(t, err)
		require.NotEqual(t, claimOf(readers[1]), claimOf(l))
		kit.Unlock(t, l, readers[1])
		<-readers[2].Context().Done()
		require.ErrorIs(t, readers[2].Err(), natslock.ErrLost)
		require.Less(t, time.Since(dropped), ttl)
		w, err := b.Lock(t.Context(), "x")
		require.NoError(t, err)
		require.Greater(t, time.Since(dropped), ttl-100*time.Millisecond)
		kit.Unlock(t, w)
		require.ErrorIs(t, readers[2].Unlock(t.Context()), natslock.ErrLost)
	})
}

// TestCohortReadersMerge checks that goroutines that arrive after a silent second share one listing
// and join the readers inside. If a writer has arrived, they queue together once those readers'
// lease has ended.
func TestCohortReadersMerge(t *testing.T) {
	for _, writer := range []bool{false, true} {
		t.Run(fmt.Sprintf("writer %v", writer), func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				a, b := newPeer(t, s.Connect(), 1), newPeer(t, s.Connect(), 2)
				readers := granted(t, a.readAll(1), 1)
				readers = append(readers, granted(t, a.readAll(1), 1)...) // subscribes
				time.Sleep(2 * time.Second)
				grants := make(chan grant, 1)
				if writer {
					b.write("w", grants)
					time.Sleep(10 * time.Millisecond)
				}
				writes := a.tally()
				reads := a.readAll(50)
				if writer {
					nobody(t, reads, "past a writer")
					require.Zero(t, writes()["rwait take"])
					kit.Unlock(t, readers...)
					w := granted(t, grants, 1)
					nobody(t, reads, "beside a writer")
					require.Equal(t, 1, writes()["rwait take"])
					kit.Unlock(t, w...)
				}
				more := granted(t, reads, 50)
				for _, l := range more {
					require.Equal(t, claimOf(more[0]), claimOf(l))
					require.Equal(t, !writer, claimOf(l) == claimOf(readers[0]))
				}
				kit.Unlock(t, more...)
				if !writer {
					kit.Unlock(t, readers...)
				}
				require.Empty(t, kit.KeysLeft(t, s.Connect()))
			})
		})
	}
}

// TestCohortWriters checks that a client's writing goroutines share one gate, and drain the readers
// ahead of it only once. If the goroutine that drains gives up, the next one continues.
func TestCohortWriters(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b := newPeer(t, s.Connect(), 1, natslock.WithTuning(natslock.Tuning{WatchAfter: -1})), newPeer(t, s.Connect(), 2)
		r, err := b.RLock(t.Context(), "x")
		require.NoError(t, err)
		writes := a.tally("rw take")
		var asked atomic.Int32
		a.f.FailReads(func(op faults.ReadOp, _ string) error {
			if op == faults.ReadState {
				asked.Add(1)
			}
			return nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		first := make(chan error, 1)
		go func() {
			_, err := a.Lock(ctx, "x")
			first <- err
		}()
		synctest.Wait() // its claim is unanswered
		const n = 10
		grants := make(chan grant, n)
		for i := range n {
			a.write(fmt.Sprint(i), grants)
		}
		nobody(t, grants, "over a reader")
		gate := func() string {
			info, err := admin.New(b.c).Inspect(t.Context(), admin.KindRW, "x")
			require.NoError(t, err)
			return info.Holder.ID
		}
		before := gate()
		cancel()
		require.ErrorIs(t, kit.Receive(t, first, "the end of the wait"), natslock.ErrTimeout)
		nobody(t, grants, "over a reader")
		require.Equal(t, before, gate())
		kit.Unlock(t, r)
		token, drained := uint64(0), int32(0)
		for i := range n {
			l := granted(t, grants, 1)[0]
			require.Equal(t, before, claimOf(l))
			require.Greater(t, l.Token(), token)
			token = l.Token()
			if i == 0 {
				drained = asked.Load()
				_, err := b.TryRLock(t.Context(), "x")
				require.ErrorIs(t, err, natslock.ErrLocked)
			}
			kit.Unlock(t, l)
		}
		require.Equal(t, drained, asked.Load(), "the readers had gone")
		sent := writes()
		require.Equal(t, []int{1, 0}, []int{sent["rw take"], sent["rwait take"]})
		require.Empty(t, kit.KeysLeft(t, s.Connect()))
	})
}

// TestCohortWritersLoseTheGate lets a reader in after a writer has lost its gate. The client's next
// writer must drain that reader.
func TestCohortWritersLoseTheGate(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b := newPeer(t, s.Connect(), 1, natslock.WithTTL(5*time.Second)), newPeer(t, s.Connect(), 2)
		a.tally("rw take")
		grants := make(chan grant, 3)
		for range 3 {
			a.write("w", grants)
		}
		l := granted(t, grants, 1)[0]
		a.f.OnSend(kit.At("rw renew", faults.Drop))
		r, err := b.RLock(t.Context(), "x")
		require.NoError(t, err)
		require.ErrorIs(t, l.Err(), natslock.ErrLost)
		nobody(t, grants, "over a reader")
		a.f.OnSend(nil)
		require.ErrorIs(t, l.Unlock(t.Context()), natslock.ErrLost)
		nobody(t, grants, "over a reader")
		kit.Unlock(t, r)
		for range 2 {
			l := granted(t, grants, 1)[0]
			require.Greater(t, l.Token(), r.Token())
			kit.Unlock(t, l)
		}
	})
}

// TestCohortOfEachMode checks that reading and writing goroutines do not join each other, even
// while their claims are unanswered.
func TestCohortOfEachMode(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b := newPeer(t, s.Connect(), 1), newPeer(t, s.Connect(), 2)
		a.f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
			switch kit.Stage(w) {
			case "rw take":
				return faults.Delay(100 * time.Millisecond)
			case "read take":
				return faults.Delay(200 * time.Millisecond)
			}
			return faults.Pass
		})
		writes := make(chan grant, 2)
		a.write("w1", writes)
		synctest.Wait()
		reads := a.readAll(1)
		time.Sleep(50 * time.Millisecond)
		a.write("w2", writes)
		w := granted(t, writes, 1)[0]
		nobody(t, reads, "beside a writer")
		kit.Unlock(t, w)
		readers := granted(t, reads, 1)
		nobody(t, writes, "beside readers")
		_, err := b.TryLock(t.Context(), "x")
		require.ErrorIs(t, err, natslock.ErrLocked)
		kit.Unlock(t, readers...)
		kit.Unlock(t, granted(t, writes, 1)...)
	})
}

// TestCohortReadersDrivenOn lets the goroutine that sent the join give up, after which the next one
// continues. The first join is acknowledged late, which must not cost the next goroutine its
// record.
func TestCohortReadersDrivenOn(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b := newPeer(t, s.Connect(), 1, natslock.WithTuning(natslock.Tuning{WatchAfter: -1})), newPeer(t, s.Connect(), 2)
		a.tally("read take")
		ctx, cancel := context.WithCancel(t.Context())
		first, second := make(chan error, 1), make(chan grant, 1)
		go func() {
			_, err := a.RLock(ctx, "x")
			first <- err
		}()
		synctest.Wait()
		a.read("second", second)
		time.Sleep(50 * time.Millisecond)
		cancel()
		require.ErrorIs(t, kit.Receive(t, first, "the end of the wait"), natslock.ErrTimeout)
		reader := granted(t, second, 1)[0]
		time.Sleep(200 * time.Millisecond) // until the other join is answered
		writes := make(chan grant, 1)
		b.write("w", writes)
		nobody(t, writes, "over a reader")
		kit.Unlock(t, reader)
		kit.Unlock(t, granted(t, writes, 1)...)
		require.Empty(t, kit.KeysLeft(t, s.Connect()))
	})
}

// TestCohortReadersUnansweredBehindAGate checks that a reading goroutine does not get in with an
// unanswered join if the client knows of a gate.
func TestCohortReadersUnansweredBehindAGate(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b := newPeer(t, s.Connect(), 1, natslock.WithTuning(natslock.Tuning{WatchAfter: -1})), newPeer(t, s.Connect(), 2)
		var readers []*natslock.Lock
		for range 2 {
			l, err := a.RLock(t.Context(), "x")
			require.NoError(t, err)
			readers = append(readers, l)
			overTurn() // the second reader makes the client subscribe
		}
		a.tally("read take")
		meta := natslock.Meta(map[string]string{"k": "v"})
		reads := make(chan grant, 2)
		read := func(name string) {
			go func() {
				l, err := a.RLock(t.Context(), "x", meta)
				reads <- grant{who: name, l: l, err: err}
			}()
			time.Sleep(20 * time.Millisecond)
		}
		read("before the writer")
		writes := make(chan grant, 1)
		b.write("w", writes)
		time.Sleep(20 * time.Millisecond)
		read("behind the writer")
		time.Sleep(100 * time.Millisecond)
		readers = append(readers, granted(t, reads, 1)...)
		nobody(t, reads, "past a gate")
		kit.Unlock(t, readers...)
		kit.Unlock(t, granted(t, writes, 1)...)
		kit.Unlock(t, granted(t, reads, 1)...)
	})
}

// TestCohortReadersEndTogether loses the lease that many readers share. By the time the first
// reader's context ends, the client must no longer hold anything.
func TestCohortReadersEndTogether(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a := newPeer(t, s.Connect(), 1)
		a.f.OnSend(kit.At("read renew", faults.Drop))
		const n = 1000
		for range 10 { // a single round rarely hits the right moment
			var readers []*natslock.Lock
			for range n {
				l, err := a.RLock(t.Context(), "x", natslock.Detached())
				require.NoError(t, err)
				readers = append(readers, l)
			}
			require.Equal(t, n, a.c.Stats().Held)
			<-readers[n-1].Context().Done() // the newest reader ends first
			require.Zero(t, a.c.Stats().Held)
			for _, l := range readers {
				require.ErrorIs(t, l.Unlock(t.Context()), natslock.ErrLost)
			}
		}
	})
}

// TestCohortReadersTryAgain covers a TryRLock whose lease ends before the call is admitted. It must
// then get its result rather than wait with the others.
func TestCohortReadersTryAgain(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		const ttl = 5 * time.Second
		a, b := newPeer(t, s.Connect(), 1, natslock.WithTTL(ttl)), newPeer(t, s.Connect(), 2)
		a.f.OnSend(kit.At("read renew", faults.Drop))
		var readers []*natslock.Lock
		for range 2 {
			l, err := a.RLock(t.Context(), "x")
			require.NoError(t, err)
			readers = append(readers, l)
		}
		time.Sleep(readers[0].Remaining() - time.Second)
		waits, tries, writes := make(chan grant, 1), make(chan error, 1), make(chan grant, 1)
		go func() { // lists
			l, err := a.RLock(t.Context(), "x")
			waits <- grant{who: "r", l: l, err: err}
		}()
		synctest.Wait()
		go func() {
			_, err := a.TryRLock(t.Context(), "x")
			tries <- err
		}()
		synctest.Wait()
		b.write("w", writes)
		<-readers[0].Context().Done()
		lost := time.Now()
		require.Zero(t, a.c.Stats().Held)
		require.ErrorIs(t, kit.Receive(t, tries, "an answer"), natslock.ErrLocked)
		require.Less(t, time.Since(lost), 100*time.Millisecond)
		kit.Unlock(t, granted(t, writes, 1)...)
		kit.Unlock(t, granted(t, waits, 1)...)
		for _, l := range readers {
			require.ErrorIs(t, l.Unlock(t.Context()), natslock.ErrLost)
		}
	})
}

// TestCohortReadersClaimFound applies a join, then lets a writer get its gate, and then the
// goroutine that sent the join gives up. The acknowledgment arrives once the next goroutine has a
// place that others have joined. None of them may get in ahead of the writer.
func TestCohortReadersClaimFound(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b := newPeer(t, s.Connect(), 1, natslock.WithTuning(natslock.Tuning{WatchAfter: -1})), newPeer(t, s.Connect(), 2)
		a.tally("read take", "rwait take")
		ctx, cancel := context.WithCancel(t.Context())
		first := make(chan error, 1)
		go func() {
			_, err := a.RLock(ctx, "x")
			first <- err
		}()
		synctest.Wait()
		early := a.readAll(2)
		writes := make(chan grant, 1)
		b.write("w", writes)
		time.Sleep(50 * time.Millisecond)
		cancel()
		require.ErrorIs(t, kit.Receive(t, first, "the end of the wait"), natslock.ErrTimeout)
		time.Sleep(20 * time.Millisecond) // the next goroutine has sent its place
		late := a.readAll(2)
		w := granted(t, writes, 1)[0]
		nobody(t, early, "beside a writer")
		nobody(t, late, "beside a writer")
		kit.Unlock(t, w)
		readers := append(granted(t, early, 2), granted(t, late, 2)...)
		kit.Unlock(t, readers...)
		require.Empty(t, kit.KeysLeft(t, s.Connect()))
	})
}

// TestCohortReadersBrokenBeforeEntry breaks the lease that a goroutine joins before the goroutine
// is admitted. The broken record keeps writers out until the readers inside have stopped.
func TestCohortReadersBrokenBeforeEntry(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		const ttl = 15 * time.Second
		a, b := newPeer(t, s.Connect(), 1, natslock.WithTTL(ttl), natslock.WithTuning(natslock.Tuning{WatchAfter: -1})), newPeer(t, s.Connect(), 2)
		a.f.OnSend(kit.At("read renew", faults.Delay(ttl*2/5)))
		var readers []*natslock.Lock
		for range 2 {
			l, err := a.RLock(t.Context(), "x")
			require.NoError(t, err)
			readers = append(readers, l)
		}
		time.Sleep(readers[0].Remaining() - ttl*3/10) // the renewal is in flight
		joins, writes := make(chan grant, 1), make(chan grant, 1)
		a.read("r", joins)
		nobody(t, joins, "before a renewal")
		require.NoError(t, admin.New(b.c).Break(t.Context(), admin.BreakRequest{Kind: admin.KindRW, Name: "x", ID: claimOf(readers[0]), Reason: "test"}))
		b.write("w", writes)
		<-readers[0].Context().Done()
		nobody(t, writes, "over broken readers that have not stopped")
		for _, l := range readers {
			require.ErrorIs(t, l.Unlock(t.Context()), natslock.ErrBroken)
		}
		kit.Unlock(t, granted(t, writes, 1)...)
		kit.Unlock(t, granted(t, joins, 1)...)
	})
}

// TestCohortReadersOfOtherMetadata checks that a goroutine whose metadata differs from the only
// reader's gets its own lease.
func TestCohortReadersOfOtherMetadata(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a := newPeer(t, s.Connect(), 1)
		meta := natslock.Meta(map[string]string{"job": "42"})
		first, err := a.RLock(t.Context(), "x", meta)
		require.NoError(t, err)
		same, err := a.RLock(t.Context(), "x", meta)
		require.NoError(t, err)
		require.Equal(t, claimOf(first), claimOf(same))
		other, err := a.RLock(t.Context(), "x")
		require.NoError(t, err)
		require.NotEqual(t, claimOf(first), claimOf(other))
		kit.Unlock(t, first, same, other)
	})
}

// TestCohortReadersTimeout has goroutines of a client read while a writer waits behind its gate. A
// goroutine that gives up waiting to read gets an error that names the writer, not those readers.
func TestCohortReadersTimeout(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b := newPeer(t, s.Connect(), 1), newPeer(t, s.Connect(), 2)
		readers := granted(t, a.readAll(2), 2)
		writes := make(chan grant, 1)
		b.write("w", writes)
		time.Sleep(10 * time.Millisecond)
		info, err := admin.New(b.c).Inspect(t.Context(), admin.KindRW, "x")
		require.NoError(t, err)
		_, err = a.RLock(t.Context(), "x", natslock.MaxWait(100*time.Millisecond))
		var timeout *natslock.TimeoutError
		require.ErrorAs(t, err, &timeout)
		require.Equal(t, info.Holder.ID, timeout.Holder.ID)
		kit.Unlock(t, readers...)
		kit.Unlock(t, granted(t, writes, 1)...)
	})
}

// TestCohortReadersLost ends the leases of readers that joined one after another. The client no
// longer counts anyone as a holder, and every Unlock reports what happened.
func TestCohortReadersLost(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a := newPeer(t, s.Connect(), 1, natslock.WithTTL(5*time.Second))
		meta := natslock.Meta(map[string]string{"job": "42"})
		var locks []*natslock.Lock
		for _, opts := range [][]natslock.LockOption{nil, nil, {meta}, {meta}} {
			l, err := a.RLock(t.Context(), "x", opts...)
			require.NoError(t, err)
			locks = append(locks, l)
		}
		require.Equal(t, claimOf(locks[0]), claimOf(locks[1]))
		require.Equal(t, claimOf(locks[2]), claimOf(locks[3]))
		require.Equal(t, 4, a.c.Stats().Held)
		a.f.OnSend(func(int, kvstore.Write) faults.Fate { return faults.Drop })
		for _, l := range locks {
			<-l.Context().Done()
		}
		synctest.Wait()
		require.Zero(t, a.c.Stats().Held)
		for _, l := range locks {
			require.ErrorIs(t, l.Unlock(t.Context()), natslock.ErrLost)
		}
	})
}

// TestCohortOwnWriter checks that reading goroutines of a client do not shut out the client's own
// writer. Goroutines that ask after the writer wait, even though the earlier ones have a place
// ahead of it.
func TestCohortOwnWriter(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b := newPeer(t, s.Connect(), 1), newPeer(t, s.Connect(), 2)
		l, err := b.Lock(t.Context(), "x")
		require.NoError(t, err)
		first := a.readAll(1)
		time.Sleep(10 * time.Millisecond)
		writes := make(chan grant, 2)
		a.write("w1", writes)
		time.Sleep(10 * time.Millisecond)
		second := a.readAll(2)
		time.Sleep(10 * time.Millisecond)
		kit.Unlock(t, l)
		readers := granted(t, first, 1)
		nobody(t, second, "past its own writer")
		a.write("w2", writes) // behind the first writer
		nobody(t, writes, "over readers")
		kit.Unlock(t, readers...)
		w := granted(t, writes, 1)
		nobody(t, writes, "beside a writer")
		nobody(t, second, "beside a writer")
		kit.Unlock(t, w...)
		for range 2 { // one after the other, in either order
			select {
			case g := <-writes:
				require.NoError(t, g.err)
				nobody(t, second, "beside a writer")
				kit.Unlock(t, g.l)
			case g := <-second:
				require.NoError(t, g.err)
				readers := append(granted(t, second, 1), g.l)
				nobody(t, writes, "over readers")
				kit.Unlock(t, readers...)
			}
		}
		require.Empty(t, kit.KeysLeft(t, s.Connect()))
	})
}

// TestCohortBehindATry checks that a TryLock that finds a reader behind its gate gives up the gate,
// and that a Lock of the same client keeps waiting.
func TestCohortBehindATry(t *testing.T) {
	for _, waits := range []bool{false, true} {
		t.Run(fmt.Sprintf("another waits %v", waits), func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				a, b := newPeer(t, s.Connect(), 1), newPeer(t, s.Connect(), 2)
				a.f.OnSend(kit.At("rw take", faults.Delay(100*time.Millisecond)))
				tries, writes := make(chan error, 1), make(chan grant, 1)
				go func() {
					_, err := a.TryLock(t.Context(), "x")
					tries <- err
				}()
				time.Sleep(50 * time.Millisecond)
				r, err := b.RLock(t.Context(), "x")
				require.NoError(t, err)
				if waits {
					a.write("w", writes)
				}
				require.ErrorIs(t, kit.Receive(t, tries, "an answer"), natslock.ErrLocked)
				synctest.Wait()
				if waits {
					nobody(t, writes, "over a reader")
				}
				other := natslock.TTL(time.Minute) // prevents sharing
				again, err := b.TryRLock(t.Context(), "x", other)
				if !waits {
					require.NoError(t, err, "the gate is left")
					kit.Unlock(t, again, r)
				} else {
					require.ErrorIs(t, err, natslock.ErrLocked, "past a writer")
					kit.Unlock(t, r)
					kit.Unlock(t, granted(t, writes, 1)...)
				}
				require.Empty(t, kit.KeysLeft(t, s.Connect()))
			})
		})
	}
}
