package locktest_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/locktest"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/rwlock"
)

// inBubble runs a test with a Locker in fake time.
func inBubble(t *testing.T, fn func(t *testing.T, locks *locktest.Locker), opts ...natslock.Option) {
	synctest.Test(t, func(t *testing.T) {
		locks := locktest.New(opts...)
		defer locks.Close()
		fn(t, locks)
	})
}

func TestLoseEndsTheLock(t *testing.T) {
	inBubble(t, func(t *testing.T, locks *locktest.Locker) {
		require.False(t, locks.Lose("a"))
		l, err := locks.Lock(t.Context(), "a")
		require.NoError(t, err)
		begun := time.Now()
		require.True(t, locks.Lose("a"))
		require.Error(t, l.Context().Err(), "Lose returned before the context ended")
		require.ErrorIs(t, context.Cause(l.Context()), natslock.ErrLost)
		require.NotErrorIs(t, l.Err(), natslock.ErrBroken)
		require.ErrorIs(t, l.Err(), natslock.ErrLost)

		next, err := locks.NewClient().TryLock(t.Context(), "a")
		require.NoError(t, err, "the lost lock keeps others out")
		require.Greater(t, next.Token(), l.Token())
		require.ErrorIs(t, l.Unlock(t.Context()), natslock.ErrLost)
		require.Positive(t, next.Remaining())
		require.NoError(t, next.Unlock(t.Context()))
		require.Zero(t, time.Since(begun), "it took time")
	})
}

// TestLoseOfReaders checks that Lose takes the lock from all readers, and that the waiting writer
// gets it.
func TestLoseOfReaders(t *testing.T) {
	inBubble(t, func(t *testing.T, locks *locktest.Locker) {
		other := rwlock.New(locks.NewClient())
		rw := rwlock.New(locks.Client())
		var all []*natslock.Lock
		for _, take := range []func(context.Context, string, ...natslock.LockOption) (*natslock.Lock, error){rw.RLock, rw.RLock, other.RLock} {
			l, err := take(t.Context(), "a")
			require.NoError(t, err)
			all = append(all, l)
		}
		granted := make(chan *natslock.Lock, 1)
		go func() {
			l, err := other.Lock(context.Background(), "a")
			if err == nil {
				granted <- l
			}
			close(granted)
		}()
		require.NoError(t, locks.AwaitWaiting(t.Context(), "a", 1))
		require.True(t, locks.Lose("a"))
		for _, l := range all {
			require.ErrorIs(t, l.Err(), natslock.ErrLost)
		}
		l := <-granted
		require.NotNil(t, l)
		require.NoError(t, l.Unlock(t.Context()))
	})
}

func TestBreakKeepsOthersOut(t *testing.T) {
	inBubble(t, func(t *testing.T, locks *locktest.Locker) {
		require.False(t, locks.Break("a", "stuck"))
		l, err := locks.Lock(t.Context(), "a")
		require.NoError(t, err)
		require.True(t, locks.Break("a", "stuck"))
		require.ErrorIs(t, context.Cause(l.Context()), natslock.ErrBroken)
		require.ErrorContains(t, l.Err(), "by locktest: stuck")
		require.Equal(t, "stuck", locks.Inspect(admin.KindMutex, "a").Holder.Broken.Reason)

		other := locks.NewClient()
		_, err = other.TryLock(t.Context(), "a")
		require.ErrorIs(t, err, natslock.ErrLocked)
		require.ErrorIs(t, l.Unlock(t.Context()), natslock.ErrBroken)
		next, err := other.TryLock(t.Context(), "a")
		require.NoError(t, err)
		require.NoError(t, next.Unlock(t.Context()))
	})
}

func TestHold(t *testing.T) {
	inBubble(t, func(t *testing.T, locks *locktest.Locker) {
		release := locks.Hold("a")
		require.Panics(t, func() { locks.Hold("a") })
		require.Panics(t, func() { locks.Hold("") })
		_, err := locks.TryLock(t.Context(), "a")
		locked, ok := errors.AsType[*natslock.LockedError](err)
		require.True(t, ok, "%v", err)
		require.Equal(t, "locktest", locked.Holder.Owner)
		require.False(t, locked.Own)

		_, err = locks.Lock(t.Context(), "a", natslock.MaxWait(time.Minute))
		timeout, ok := errors.AsType[*natslock.TimeoutError](err)
		require.True(t, ok, "%v", err)
		require.Equal(t, time.Minute, timeout.Waited)
		require.Equal(t, 1, timeout.Position)

		got := make(chan error)
		go func() {
			got <- locks.Do(t.Context(), "a", func(context.Context, *natslock.Lock) error { return nil })
		}()
		require.NoError(t, locks.AwaitWaiting(t.Context(), "a", 1))
		require.Len(t, locks.Inspect(admin.KindMutex, "a").Queue, 1)
		release()
		require.NoError(t, <-got)
		release()
		require.Zero(t, locks.Waiting("a"))
		require.Zero(t, locks.Waiting(""))
	})
}

// took checks that an operation took exactly as long as the delay of its single write. If the delay
// is a second or more, the operation may take longer, because the client asks again.
func took(t *testing.T, d time.Duration, begun time.Time) {
	t.Helper()
	require.GreaterOrEqual(t, time.Since(begun), d)
	if d < time.Second {
		require.Equal(t, d, time.Since(begun))
	}
	require.Less(t, time.Since(begun), d+time.Second)
}

// TestDelay checks that a grant takes as long as the delay, and that a lease is lost if its renewal
// comes too late.
func TestDelay(t *testing.T) {
	for _, d := range []time.Duration{time.Millisecond, time.Second, 3 * time.Second} {
		inBubble(t, func(t *testing.T, locks *locktest.Locker) {
			locks.Delay("a", d)
			begun := time.Now()
			l, err := locks.Lock(t.Context(), "a")
			require.NoError(t, err)
			took(t, d, begun)
			begun = time.Now()
			other, err := locks.Lock(t.Context(), "b")
			require.NoError(t, err)
			require.Zero(t, time.Since(begun), "a lock of another name is slow")
			require.NoError(t, other.Unlock(t.Context()))

			time.Sleep(time.Hour)
			require.NoError(t, l.Err(), "it was not renewed")
			begun = time.Now()
			require.NoError(t, l.Unlock(t.Context()))
			require.Zero(t, time.Since(begun), "the release is slow")
			locks.Delay("a", 0)
			begun = time.Now()
			l, err = locks.Lock(t.Context(), "a")
			require.NoError(t, err)
			require.Zero(t, time.Since(begun))

			locks.Delay("a", time.Minute)
			<-l.Context().Done()
			require.ErrorIs(t, l.Err(), natslock.ErrLost)
			require.Less(t, time.Since(begun), 15*time.Second)
			require.ErrorIs(t, l.Unlock(t.Context()), natslock.ErrLost)
		})
	}
}

// TestFailAsAnOutage checks that an outage ends held locks when their validity runs out, and that
// waiters continue once it is over.
func TestFailAsAnOutage(t *testing.T) {
	inBubble(t, func(t *testing.T, locks *locktest.Locker) {
		l, err := locks.Lock(t.Context(), "a")
		require.NoError(t, err)
		require.NoError(t, locks.Client().Healthy())
		locks.Fail(natslock.ErrUnavailable)
		require.ErrorIs(t, locks.Client().Healthy(), natslock.ErrUnavailable)
		_, err = locks.TryLock(t.Context(), "b")
		require.ErrorIs(t, err, natslock.ErrUnavailable)
		begun := time.Now()
		got := make(chan error)
		go func() {
			got <- locks.Do(t.Context(), "a", func(context.Context, *natslock.Lock) error { return nil })
		}()
		<-l.Context().Done()
		require.ErrorIs(t, l.Err(), natslock.ErrLost)
		require.Less(t, time.Since(begun), 15*time.Second)
		time.Sleep(time.Hour)
		locks.Fail(nil)
		begun = time.Now()
		require.NoError(t, <-got)
		require.Less(t, time.Since(begun), 10*time.Millisecond, "the client has not noticed the end of the outage")
		require.NoError(t, locks.Client().Healthy())
	})
}

// TestFailForAMoment checks that a short outage harms nobody.
func TestFailForAMoment(t *testing.T) {
	inBubble(t, func(t *testing.T, locks *locktest.Locker) {
		l, err := locks.Lock(t.Context(), "a")
		require.NoError(t, err)
		locks.Fail(natslock.ErrUnavailable)
		time.Sleep(10 * time.Second)
		locks.Fail(nil)
		time.Sleep(time.Hour)
		require.NoError(t, l.Unlock(t.Context()))
	})
}

// TestFailWithAnError checks that any other error reaches the caller immediately.
func TestFailWithAnError(t *testing.T) {
	inBubble(t, func(t *testing.T, locks *locktest.Locker) {
		for _, failure := range []error{natslock.ErrPermission, errors.New("no more disk")} {
			locks.Fail(failure)
			begun := time.Now()
			_, err := locks.Lock(t.Context(), "a")
			require.ErrorIs(t, err, failure)
			_, err = locks.TryLock(t.Context(), "a")
			require.ErrorIs(t, err, failure)
			require.Zero(t, time.Since(begun))
		}
		release := locks.Hold("a") // unaffected by faults
		release()
		locks.Fail(nil)
		l, err := locks.Lock(t.Context(), "a")
		require.NoError(t, err)
		require.NoError(t, l.Unlock(t.Context()))
	})
}

// TestOrderAcrossClients checks that waiters are served in order of arrival, no matter which client
// they belong to.
func TestOrderAcrossClients(t *testing.T) {
	inBubble(t, func(t *testing.T, locks *locktest.Locker) {
		release := locks.Hold("a")
		const n = 12
		order := make(chan int, n)
		for i := range n {
			c := locks.NewClient(natslock.WithTuning(natslock.Tuning{Turn: -1}))
			go func() {
				_ = c.Do(context.Background(), "a", func(context.Context, *natslock.Lock) error {
					order <- i
					return nil
				})
			}()
			require.NoError(t, locks.AwaitWaiting(t.Context(), "a", i+1))
		}
		release()
		for i := range n {
			require.Equal(t, i, <-order)
		}
	})
}

func TestAwaitWaitingEnds(t *testing.T) {
	inBubble(t, func(t *testing.T, locks *locktest.Locker) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := locks.AwaitWaiting(ctx, "a", 1)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, `0 goroutines are waiting for lock "a", want 1`)
	})
}

// TestOptions checks that New applies the real client's options and refuses invalid ones just as
// that client does.
func TestOptions(t *testing.T) {
	require.PanicsWithValue(t, `locktest: natslock: invalid option: Turn: 1m0s is more than 1s`, func() { locktest.New(natslock.WithTuning(natslock.Tuning{Turn: time.Minute})) })
	inBubble(t, func(t *testing.T, locks *locktest.Locker) {
		l, err := locks.Lock(t.Context(), "a")
		require.NoError(t, err)
		require.LessOrEqual(t, l.Remaining(), 3*time.Second)
		require.Equal(t, "me", locks.Inspect(admin.KindMutex, "a").Holder.Owner)
		require.Panics(t, func() { locks.Inspect(admin.KindMutex, "") })
		require.NoError(t, l.Unlock(t.Context()))
	}, natslock.WithTTL(3*time.Second), natslock.WithOwner("me"))
}

// TestClose checks that Close ends everything that is left.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := locktest.New()
		l, err := locks.Lock(t.Context(), "a")
		require.NoError(t, err)
		got := make(chan error)
		go func() {
			_, err := locks.NewClient().Lock(t.Context(), "a")
			got <- err
		}()
		require.NoError(t, locks.AwaitWaiting(t.Context(), "a", 1))
		locks.Delay("a", time.Hour)
		locks.Close()
		require.ErrorIs(t, l.Err(), natslock.ErrClosed)
		require.ErrorIs(t, <-got, natslock.ErrClosed)
		locks.Close()
	})
}

// TestHoldDropped checks that the lock stays held if a test drops the function that Hold returned,
// because another client holds it.
func TestHoldDropped(t *testing.T) {
	inBubble(t, func(t *testing.T, locks *locktest.Locker) {
		locks.Hold("a")
		for range 5 {
			runtime.GC()
		}
		time.Sleep(time.Minute)
		_, err := locks.TryLock(t.Context(), "a")
		require.ErrorIs(t, err, natslock.ErrLocked)
		require.True(t, locks.Lose("a"))
		l, err := locks.TryLock(t.Context(), "a")
		require.NoError(t, err)
		require.NoError(t, l.Unlock(t.Context()))
	})
}
