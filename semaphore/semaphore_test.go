package semaphore_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/semaphore"
	"github.com/natslock/locks/testutil"
)

// TestPermits checks that at most as many clients are inside as there are permits, that the highest
// slot is taken first, and that a one-shot acquire beyond the limit names a holder.
func TestPermits(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		ctx := t.Context()
		a, b := join(t, s, natslock.WithOwner("a")), join(t, s)
		var held []*natslock.Lock
		for i := range 3 {
			l := must(t, semaphore.New([]*natslock.Client{a.Client, b.Client}[i%2], 3), "s")
			require.Equal(t, 2-i, slot(t, l))
			held = append(held, l)
		}
		sem := semaphore.New(b.Client, 3)
		_, err := sem.TryAcquire(ctx, "s")
		var locked *natslock.LockedError
		require.ErrorAs(t, err, &locked)
		require.NotNil(t, locked.Holder)
		require.Zero(t, locked.Queued)
		require.ErrorContains(t, err, `semaphore "s" has no free permit; one is held by `)
		kit.Unlock(t, held[1])
		l, err := sem.TryAcquire(ctx, "s")
		require.NoError(t, err)
		require.Equal(t, 1, slot(t, l))
		require.Greater(t, l.Token(), held[1].Token())
		kit.Unlock(t, l, held[0], held[2])
		synctest.Wait()
		require.Empty(t, kit.KeysLeft(t, b.nc))
	})
}

// TestOrder checks that waiters are served in order of arrival, whether they are separate clients
// or goroutines of one client.
func TestOrder(t *testing.T) {
	for name, clients := range map[string]int{"clients": 6, "goroutines": 1} {
		t.Run(name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				h := join(t, s)
				held := []*natslock.Lock{must(t, semaphore.New(h.Client, 2), "s"), must(t, semaphore.New(h.Client, 2), "s")}
				peers := make([]*peer, clients)
				for i := range peers {
					peers[i] = join(t, s)
				}
				var queue []*kit.Waiting
				for i := range 6 {
					p := peers[i%clients]
					queue = append(queue, p.await(t, semaphore.New(p.Client, 2), "s"))
				}
				for i, w := range queue {
					kit.Unlock(t, held[i])
					l := w.Granted(t)
					held = append(held, l)
					synctest.Wait()
					for _, later := range queue[i+1:] {
						require.False(t, later.Over(), "after %d", i)
					}
				}
				kit.Unlock(t, held[6:]...)
				synctest.Wait()
				require.Empty(t, kit.KeysLeft(t, h.nc))
			})
		})
	}
}

// TestKilled checks that a waiter takes the slot of a holder that died, and that a dead waiter's
// place does not hold up those behind it.
func TestKilled(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		dead, late := join(t, s, natslock.WithTTL(5*time.Second)), join(t, s, natslock.WithTTL(5*time.Second))
		sem := semaphore.New(dead.Client, 2)
		must(t, sem, "s")
		begun := time.Now()
		other := must(t, semaphore.New(late.Client, 2), "s")
		gone := dead.await(t, sem, "s")
		w := late.await(t, semaphore.New(late.Client, 2), "s")
		dead.link.Cut()
		l := w.Granted(t)
		assert.WithinDuration(t, begun.Add(5*time.Second), time.Now(), time.Second)
		kit.Unlock(t, l, other)
		gone.Cancel(nil)
		<-gone.Done
	})
}

// TestUnnotified checks that the timers find a slot whose release was not notified.
func TestUnnotified(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b := join(t, s), join(t, s)
		l := must(t, semaphore.New(a.Client, 1), "s")
		w := b.await(t, semaphore.New(b.Client, 1), "s")
		time.Sleep(2 * time.Second)
		b.f.DropAllEvents(true)
		kit.Unlock(t, l)
		begun := time.Now()
		kit.Unlock(t, w.Granted(t))
		require.Less(t, time.Since(begun), 6*time.Second)
	})
}

// TestZero checks that the methods of a zero semaphore return errors, as do those of a valid one
// that is given impossible arguments.
func TestZero(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		ctx := t.Context()
		p := join(t, s)
		fn := func(context.Context, *natslock.Lock) error { return nil }
		var none *semaphore.Semaphore
		for name, sem := range map[string]*semaphore.Semaphore{
			"nil": none, "zero": {}, "no client": semaphore.New(nil, 1), "zero client": semaphore.New(new(natslock.Client), 1),
			"no permits": semaphore.New(p.Client, 0), "too many": semaphore.New(p.Client, semaphore.MaxPermits+1),
		} {
			_, err := sem.Acquire(ctx, "s")
			require.ErrorIs(t, err, natslock.ErrInvalid, name)
			_, err = sem.TryAcquire(ctx, "s")
			require.ErrorIs(t, err, natslock.ErrInvalid, name)
			require.ErrorIs(t, sem.Do(ctx, "s", fn), natslock.ErrInvalid, name)
			require.ErrorIs(t, sem.TryDo(ctx, "s", fn), natslock.ErrInvalid, name)
		}
		sem := semaphore.New(p.Client, semaphore.MaxPermits)
		require.ErrorIs(t, sem.Do(ctx, "s", nil), natslock.ErrInvalid)
		for what, opt := range map[string]natslock.LockOption{"lingers": natslock.Linger(time.Minute), "nil option": nil} {
			_, err := sem.Acquire(ctx, "s", opt)
			require.ErrorIs(t, err, natslock.ErrInvalid, what)
		}
		_, err := sem.Acquire(ctx, "")
		require.ErrorIs(t, err, natslock.ErrInvalid)
		kit.Unlock(t, must(t, sem, "s"))
		_, err = p.Lock(ctx, "s")
		require.ErrorIs(t, err, natslock.ErrInvalid)
		require.ErrorContains(t, err, "as a semaphore, so it cannot also use it as a mutex")
		m, err := p.Lock(ctx, "m")
		require.NoError(t, err)
		_, ok := semaphore.Slot(m)
		require.False(t, ok)
		_, ok = semaphore.Slot(nil)
		require.False(t, ok)
		kit.Unlock(t, m)
	})
}

// TestGivingUp checks that a waiter that gives up leaves no place behind and reports its position
// and the holder it waited for, and that Close ends the waiters.
func TestGivingUp(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b := join(t, s, natslock.WithOwner("a")), join(t, s)
		l := must(t, semaphore.New(a.Client, 1), "s")
		sem := semaphore.New(b.Client, 1)
		first := b.await(t, sem, "s")
		bounded := b.await(t, sem, "s", natslock.MaxWait(2*time.Second))
		<-bounded.Done
		var timeout *natslock.TimeoutError
		require.ErrorAs(t, bounded.Err, &timeout)
		require.Equal(t, 2, timeout.Position)
		first.Cancel(nil)
		<-first.Done
		require.ErrorIs(t, first.Err, context.Canceled)
		require.ErrorAs(t, first.Err, &timeout)
		require.Equal(t, 1, timeout.Position)
		require.NotNil(t, timeout.Holder)
		require.Equal(t, "a", timeout.Holder.Owner)
		synctest.Wait()
		require.Equal(t, []string{"sem.s.0"}, kit.KeysLeft(t, a.nc))

		closed := b.await(t, sem, "s")
		require.Equal(t, 1, b.Stats().Waiting)
		require.NoError(t, b.Close(t.Context()))
		<-closed.Done
		require.ErrorIs(t, closed.Err, natslock.ErrClosed)
		require.Equal(t, 1, a.Stats().Held)
		kit.Unlock(t, l)
	})
}

// TestIdleSlotBesideUsedOne checks that a waiter takes a slot out of turn only if the slot stays
// free, not one that others use now and then. A waiter may try either slot first, so some of the
// ten waiters start with the wrong one.
func TestIdleSlotBesideUsedOne(t *testing.T) {
	for range 10 {
		testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
			h, a, b := join(t, s), join(t, s), join(t, s)
			sem := semaphore.New(h.Client, 2)
			first, second := must(t, sem, "s"), must(t, sem, "s")
			stuck := a.await(t, semaphore.New(a.Client, 2), "s")
			w := b.await(t, semaphore.New(b.Client, 2), "s")
			time.Sleep(time.Second)
			a.f.OnSend(kit.At("sem take", faults.Drop))
			kit.Unlock(t, first, second)
			store := kit.OpenStore(t, s.Connect())
			last, err := store.Get(t.Context(), "sem.s.0", 0)
			require.NoError(t, err)
			begun := time.Now()
			for revision := last.Revision; !w.Over() && time.Since(begun) < 20*time.Second; time.Sleep(700 * time.Millisecond) {
				for _, end := range []bool{false, true} {
					answer := make(chan kvstore.Answer, 1)
					_, err := store.Send(kvstore.Write{Key: "sem.s.0", Value: []byte("another's"), TTL: time.Second, Delete: end, Expect: revision},
						func(got kvstore.Answer) { answer <- got })
					require.NoError(t, err)
					got := <-answer
					require.NoError(t, got.Err)
					revision = got.Revision
				}
			}
			l := w.Granted(t)
			require.Less(t, time.Since(begun), 8*time.Second)
			require.Equal(t, 1, slot(t, l))
			a.f.OnSend(nil)
			kit.Unlock(t, l)
			kit.Unlock(t, stuck.Granted(t))
		})
	}
}

// TestIdleSlot checks that waiters take a slot out of turn if it stays free because the first
// waiter is stuck, even if there are many slots.
func TestIdleSlot(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		h, a, b := join(t, s), join(t, s), join(t, s)
		sem := semaphore.New(h.Client, 10)
		var held []*natslock.Lock
		for range 10 {
			held = append(held, must(t, sem, "s"))
		}
		stuck := a.await(t, semaphore.New(a.Client, 10), "s")
		w := b.await(t, semaphore.New(b.Client, 10), "s")
		time.Sleep(time.Second)
		a.f.OnSend(kit.At("sem take", faults.Drop))
		kit.Unlock(t, held[4])
		begun := time.Now()
		l := w.Granted(t)
		require.Less(t, time.Since(begun), 8*time.Second)
		require.Equal(t, slot(t, held[4]), slot(t, l))
		require.False(t, stuck.Over())
		a.f.OnSend(nil)
		kit.Unlock(t, l)
		kit.Unlock(t, stuck.Granted(t))
	})
}
