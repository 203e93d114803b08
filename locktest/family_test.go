package locktest_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/election"
	"github.com/natslock/locks/locktest"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/semaphore"
)

// TestSemaphoreInMemory checks that semaphore permits in memory are limited, waited for and lost
// just like other locks.
func TestSemaphoreInMemory(t *testing.T) {
	inBubble(t, func(t *testing.T, locks *locktest.Locker) {
		sem, other := semaphore.New(locks.Client(), 2), semaphore.New(locks.NewClient(), 2)
		first, err := sem.Acquire(t.Context(), "pool")
		require.NoError(t, err)
		second, err := other.TryAcquire(t.Context(), "pool")
		require.NoError(t, err)
		_, err = other.TryAcquire(t.Context(), "pool")
		require.ErrorIs(t, err, natslock.ErrLocked)
		require.Len(t, locks.Inspect(admin.KindSemaphore, "pool").Permits, 2)

		granted := make(chan *natslock.Lock, 1)
		go func() {
			l, _ := other.Acquire(context.Background(), "pool")
			granted <- l
		}()
		require.NoError(t, locks.AwaitWaiting(t.Context(), "pool", 1))
		require.True(t, locks.Lose("pool"))
		require.ErrorIs(t, first.Err(), natslock.ErrLost)
		require.ErrorIs(t, second.Err(), natslock.ErrLost)
		l := <-granted
		require.NotNil(t, l)

		require.True(t, locks.Break("pool", "stuck"))
		require.ErrorIs(t, l.Err(), natslock.ErrBroken)
		require.ErrorIs(t, l.Unlock(t.Context()), natslock.ErrBroken)
	})
}

// TestElectionInMemory checks that a leader that loses its record stops leading, and that the next
// candidate takes over.
func TestElectionInMemory(t *testing.T) {
	inBubble(t, func(t *testing.T, locks *locktest.Locker) {
		leads, other := election.New(locks.Client(), "scheduler"), election.New(locks.NewClient(), "scheduler")
		term, err := leads.Campaign(t.Context())
		require.NoError(t, err)
		next := make(chan *election.Term, 1)
		go func() {
			term, _ := other.Campaign(context.Background())
			next <- term
		}()
		require.NoError(t, locks.AwaitWaiting(t.Context(), "scheduler", 1))
		require.True(t, locks.Lose("scheduler"))
		_, ok := leads.IsLeader()
		require.False(t, ok)
		require.ErrorIs(t, term.Err(), natslock.ErrLost)
		successor := <-next
		require.NotNil(t, successor)
		require.Greater(t, successor.Token(), term.Token())
		require.NoError(t, successor.Resign(t.Context()))
	})
}

// TestLockAllInMemory checks that several locks are acquired and lost together.
func TestLockAllInMemory(t *testing.T) {
	inBubble(t, func(t *testing.T, locks *locktest.Locker) {
		release := locks.Hold("b")
		_, err := locks.Client().TryLockAll(t.Context(), []string{"a", "b", "c"})
		require.ErrorIs(t, err, natslock.ErrLocked)
		got := make(chan *natslock.LockSet, 1)
		go func() {
			l, _ := locks.Client().LockAll(context.Background(), []string{"a", "b", "c"})
			got <- l
		}()
		require.NoError(t, locks.AwaitWaiting(t.Context(), "b", 1))
		release()
		l := <-got
		require.NotNil(t, l)
		require.True(t, locks.Lose("b"))
		require.ErrorIs(t, l.Err(), natslock.ErrLost)
		require.ErrorIs(t, l.Unlock(t.Context()), natslock.ErrLost)
		l, err = locks.Client().TryLockAll(t.Context(), []string{"a", "b", "c"})
		require.NoError(t, err, "a lock of the set is left")
		require.NoError(t, l.Unlock(t.Context()))
	})
}

// TestLeasesAtRestInMemory checks that locks can be handed over, cool down and linger in memory,
// and that Lose ends them even when nobody is using them.
func TestLeasesAtRestInMemory(t *testing.T) {
	inBubble(t, func(t *testing.T, locks *locktest.Locker) {
		other := locks.NewClient()
		l, err := locks.Lock(t.Context(), "travels")
		require.NoError(t, err)
		h, err := l.Handoff(t.Context())
		require.NoError(t, err)
		adopted, err := other.Adopt(t.Context(), h)
		require.NoError(t, err)
		require.Equal(t, l.Token(), adopted.Token())
		require.NoError(t, adopted.Unlock(t.Context()))

		begun := time.Now()
		rests, err := locks.Lock(t.Context(), "rests", natslock.MinHold(10*time.Second))
		require.NoError(t, err)
		require.NoError(t, rests.Unlock(t.Context()))
		next, err := other.Lock(t.Context(), "rests")
		require.NoError(t, err)
		require.GreaterOrEqual(t, time.Since(begun), 10*time.Second)
		require.NoError(t, next.Unlock(t.Context()))

		idle, err := locks.Lock(t.Context(), "lingers", natslock.Linger(time.Hour))
		require.NoError(t, err)
		require.NoError(t, idle.Unlock(t.Context()))
		require.Equal(t, 1, locks.Client().Stats().Idle)
		require.True(t, locks.Lose("lingers"))
		synctest.Wait()
		require.Zero(t, locks.Client().Stats().Idle)
		require.False(t, locks.Lose("lingers"))
	})
}

// TestOnceInMemory checks that a job runs once per name, no matter which client asks, until its
// record expires.
func TestOnceInMemory(t *testing.T) {
	inBubble(t, func(t *testing.T, locks *locktest.Locker) {
		runs := 0
		for range 3 {
			for _, c := range []*natslock.Client{locks.Client(), locks.NewClient()} {
				err := c.Once(t.Context(), "report", time.Hour, func(context.Context, *natslock.Lock) error {
					runs++
					return nil
				})
				if err != nil {
					require.ErrorIs(t, err, natslock.ErrDone)
				}
			}
			time.Sleep(time.Hour + 2*time.Second)
		}
		require.Equal(t, 3, runs)
	})
}
