package tusdlock_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"github.com/tus/tusd/v2/pkg/handler"

	tusdlock "github.com/natslock/locks/adapters/tusd"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

const patience = 60 * time.Second

func TestMain(m *testing.M) { kit.LeakCheck(m) }

// join returns a client like that of a tusd server.
func join(t *testing.T, nc *nats.Conn) *natslock.Client {
	t.Helper()
	locks, err := natslock.New(t.Context(), nc, natslock.WithTuning(natslock.Tuning{WatchAfter: 1}))
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		require.NoError(t, locks.Close(ctx), "a lock is left")
	})
	return locks
}

func newLock(t *testing.T, locks natslock.Locker, id string, opts ...natslock.LockOption) handler.Lock {
	t.Helper()
	l, err := tusdlock.New(locks, opts...).NewLock(id)
	require.NoError(t, err)
	return l
}

// never returns a callback for a lock whose unlock must not be requested.
func never(t *testing.T) func() {
	return func() { t.Error("requestUnlock was called") }
}

// breakLock breaks the lock of an upload and lets others in immediately.
func breakLock(t *testing.T, locks *natslock.Client, id string) {
	t.Helper()
	info, err := admin.New(locks).Inspect(t.Context(), admin.KindMutex, tusdlock.Prefix+id)
	require.NoError(t, err)
	require.NotNil(t, info.Holder)
	require.NoError(t, admin.New(locks).Break(t.Context(), admin.BreakRequest{Name: info.Name, ID: info.Holder.ID, Reason: "test", Immediately: true}))
}

// TestLockAndUnlock checks that requestUnlock is not called for a lock without waiters, and that
// the lock can be acquired again.
func TestLockAndUnlock(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		l := newLock(t, join(t, s.Connect()), "x")
		for range 2 {
			require.ErrorIs(t, l.Unlock(), natslock.ErrReleased)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			require.NoError(t, l.Lock(ctx, never(t)))
			cancel() // as tusd does
			time.Sleep(time.Minute)
			require.NoError(t, l.Unlock())
		}
	})
}

// TestRequestUnlock checks that requestUnlock is called once if there is a waiter, whether that is
// another client or another goroutine of the same client.
func TestRequestUnlock(t *testing.T) {
	for _, same := range []bool{false, true} {
		t.Run(fmt.Sprintf("same client %t", same), func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				holder := join(t, s.Connect())
				waiter := holder
				if !same {
					waiter = join(t, s.Connect())
				}
				held := newLock(t, holder, "x")
				var calls atomic.Int64
				require.NoError(t, held.Lock(t.Context(), func() {
					if calls.Add(1) == 1 {
						return // not yet
					}
					t.Error("requestUnlock was called twice")
				}))
				begun := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				require.Equal(t, handler.ErrLockTimeout, newLock(t, waiter, "x").Lock(ctx, never(t)))
				require.Equal(t, time.Second, time.Since(begun))
				require.Equal(t, handler.ErrLockTimeout, newLock(t, waiter, "x").Lock(ctx, never(t)))
				require.EqualValues(t, 1, calls.Load())
				require.NoError(t, held.Unlock())

				// This holder unlocks when it is asked to.
				require.NoError(t, held.Lock(t.Context(), func() {
					if err := held.Unlock(); err != nil {
						t.Errorf("unlock: %v", err)
					}
				}))
				begun = time.Now()
				next := newLock(t, waiter, "x")
				hour, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				require.NoError(t, next.Lock(hour, never(t)))
				require.Zero(t, time.Since(begun))
				require.NoError(t, next.Unlock())
			})
		})
	}
}

// TestRequestUnlockOfNext checks that requestUnlock of the next holder is called immediately if
// another waiter is queued behind it.
func TestRequestUnlockOfNext(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		first := newLock(t, join(t, s.Connect()), "x")
		require.NoError(t, first.Lock(t.Context(), func() {}))
		var wg sync.WaitGroup
		var asked atomic.Int64
		for range 3 {
			locks := join(t, s.Connect())
			wg.Go(func() {
				l := newLock(t, locks, "x")
				stop := make(chan struct{})
				if err := l.Lock(t.Context(), func() { asked.Add(1); close(stop) }); err != nil {
					t.Errorf("lock: %v", err)
				}
				select {
				case <-stop:
				case <-time.After(time.Hour): // the last one
				}
				if err := l.Unlock(); err != nil {
					t.Errorf("unlock: %v", err)
				}
			})
		}
		synctest.Wait()
		require.NoError(t, first.Unlock())
		wg.Wait()
		require.EqualValues(t, 2, asked.Load())
	})
}

// TestLostLock checks that requestUnlock is called for a lost lock before another client can
// acquire it.
func TestLostLock(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		nc, link := s.ConnectLink()
		cutOff, other := newLock(t, join(t, nc), "x"), newLock(t, join(t, s.Connect()), "x")
		asked := make(chan time.Time, 1)
		require.NoError(t, cutOff.Lock(t.Context(), func() { asked <- time.Now() }))
		link.Cut()
		require.NoError(t, other.Lock(t.Context(), never(t)))
		require.NotEmpty(t, asked)
		require.GreaterOrEqual(t, time.Since(<-asked), time.Second, "the margin of a TTL of 15 s")
		require.ErrorIs(t, cutOff.Unlock(), natslock.ErrLost)
		link.Heal()
		require.NoError(t, other.Unlock())
	})
}

func TestBrokenLock(t *testing.T) {
	s := testutil.RunServer(t)
	locks := join(t, s.Connect())
	l := newLock(t, locks, "x")
	asked := make(chan struct{})
	require.NoError(t, l.Lock(t.Context(), func() { close(asked) }))
	breakLock(t, locks, "x")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, receive(ctx, asked))
	require.ErrorIs(t, l.Unlock(), natslock.ErrBroken)
}

// TestErrors checks that only the end of a wait is reported to tusd as a timeout.
func TestErrors(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		holder := newLock(t, join(t, s.Connect()), "x")
		require.NoError(t, holder.Lock(t.Context(), func() {}))
		locks := join(t, s.Connect())
		require.Equal(t, handler.ErrLockTimeout, newLock(t, locks, "x", natslock.MaxWait(time.Second)).Lock(t.Context(), never(t)))
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		require.Equal(t, handler.ErrLockTimeout, newLock(t, locks, "x").Lock(ended, never(t)))
		require.Equal(t, handler.ErrLockTimeout, newLock(t, locks, "y").Lock(ended, never(t)))
		require.ErrorIs(t, newLock(t, locks, "y", natslock.TTL(-1)).Lock(t.Context(), never(t)), natslock.ErrInvalid)
		require.NoError(t, holder.Unlock())
		nc, link := s.ConnectLink()
		away := join(t, nc)
		link.Blackhole(true)
		require.ErrorIs(t, newLock(t, away, "x", natslock.MaxWait(3*time.Second)).Lock(t.Context(), never(t)), natslock.ErrUnavailable, "an outage")
		link.Heal()
		require.NoError(t, locks.Close(t.Context()))
		require.ErrorIs(t, newLock(t, locks, "y").Lock(t.Context(), never(t)), natslock.ErrClosed)
	})
}

// TestIDs checks that each ID has its own lock, even if a key of the bucket cannot contain it.
func TestIDs(t *testing.T) {
	s := testutil.RunServer(t)
	locks := join(t, s.Connect())
	long := strings.Repeat("%", 160)
	ids := []string{
		"24e533e02ec3bc40c387f1a0e460e216", "tenant/2026/a.b", "tenant/2026/a", "tenant.2026.a", "a+b", "a..b", ".", "*", ">",
		"~%!$'()*+,;=/:@", "A", "a", "=2E", "é", "", long, long + "%", long + "!", strings.Repeat("x", 4000),
	}
	for _, id := range ids {
		l := newLock(t, locks, id)
		require.NoErrorf(t, l.Lock(t.Context(), never(t)), "%q", id)
		defer func() { require.NoError(t, l.Unlock()) }()
	}
	require.Equal(t, len(ids), locks.Stats().Held)
	for _, id := range []string{"tenant/2026/a.b", ".", long} {
		_, err := locks.TryLock(t.Context(), tusdlock.Prefix+id)
		require.ErrorIs(t, err, natslock.ErrLocked)
	}
}
