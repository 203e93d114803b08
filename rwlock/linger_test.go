package rwlock_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

type locking func(context.Context, string, ...natslock.LockOption) (*natslock.Lock, error)

// soon acquires and releases a lock, which must not take longer than within.
func soon(t *testing.T, lock locking, within time.Duration, opts ...natslock.LockOption) {
	t.Helper()
	begun := time.Now()
	l, err := lock(t.Context(), "x", append([]natslock.LockOption{natslock.MaxWait(time.Minute)}, opts...)...)
	require.NoError(t, err)
	require.LessOrEqual(t, time.Since(begun), within)
	kit.Unlock(t, l)
	synctest.Wait()
}

// TestLinger checks that either side of a lingering reader-writer lock is reacquired without a
// message, and given up immediately to anyone else who waits. Another client's one-shot acquire
// learns that the lock is idle.
func TestLinger(t *testing.T) {
	lingers := natslock.Linger(time.Hour)
	const within = 10 * time.Millisecond
	for name, idle := range map[string]func(p *peer) locking{
		"a writer":  func(p *peer) locking { return p.Lock },
		"a reader":  func(p *peer) locking { return p.RLock },
		"by a try":  func(p *peer) locking { return p.TryLock },
		"by a read": func(p *peer) locking { return p.TryRLock },
	} {
		for who, other := range map[string]func(a, b *peer) locking{
			"another writer":     func(_, b *peer) locking { return b.Lock },
			"another reader":     func(_, b *peer) locking { return b.RLock },
			"another's TryLock":  func(_, b *peer) locking { return b.TryLock },
			"another's TryRLock": func(_, b *peer) locking { return b.TryRLock },
			"its own writer":     func(a, _ *peer) locking { return a.Lock },
			"its own reader":     func(a, _ *peer) locking { return a.RLock },
			"its own TryLock":    func(a, _ *peer) locking { return a.TryLock },
			"its own TryRLock":   func(a, _ *peer) locking { return a.TryRLock },
		} {
			t.Run(name+", "+who, func(t *testing.T) {
				testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
					a, b := newPeer(t, s.Connect(), 1), newPeer(t, s.Connect(), 2)
					for range 2 {
						soon(t, idle(a), within, lingers)
						time.Sleep(time.Second)
						before := trafficOf(a.nc)
						for range 30 {
							soon(t, idle(a), 0, lingers)
						}
						require.LessOrEqual(t, before.since(a.nc).out, uint64(1))
						time.Sleep(time.Minute)
						if who == "another's TryLock" || who == "another's TryRLock" && !strings.Contains(name, "read") {
							_, err := other(a, b)(t.Context(), "x")
							var locked *natslock.LockedError
							require.ErrorAs(t, err, &locked)
							require.True(t, locked.Idle)
							require.Equal(t, 1, a.c.Stats().Idle)
							soon(t, b.Lock, within)
							continue
						}
						soon(t, other(a, b), within)
					}
					soon(t, idle(a), within)
					time.Sleep(2 * time.Second)
					require.Empty(t, kit.KeysLeft(t, s.Connect()))
				})
			})
		}
	}
}

// TestLingerReadersUnnotified has a writer wait for readers' idle lease whose client is not
// notified of the gate. The gate is written again a second later, and that write is notified.
func TestLingerReadersUnnotified(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b := newPeer(t, s.Connect(), 1), newPeer(t, s.Connect(), 2, natslock.WithTTL(time.Hour))
		soon(t, a.RLock, time.Second, natslock.Linger(time.Hour))
		time.Sleep(time.Minute)
		a.f.DropAllEvents(true)
		time.AfterFunc(500*time.Millisecond, func() { a.f.DropAllEvents(false) })
		begun := time.Now()
		soon(t, b.Lock, time.Second+10*time.Millisecond)
		require.Greater(t, time.Since(begun), 500*time.Millisecond)
	})
}

// TestLingerBehindATry checks that a goroutine that asks while its client's TryRLock is in progress
// does not wait for the end of an idle lease.
func TestLingerBehindATry(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a := newPeer(t, s.Connect(), 1)
		lingers := natslock.Linger(time.Hour)
		soon(t, a.Lock, time.Second, lingers)
		time.Sleep(time.Minute)
		a.f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
			switch {
			case w.Delete && strings.HasPrefix(w.Key, "rw."), strings.HasPrefix(w.Key, "read."):
				return faults.DelayAnswer(400 * time.Millisecond)
			}
			return faults.Pass
		})
		tried := make(chan error, 1)
		go func() { // gives up the idle lease, and gets no reply in time
			l, err := a.TryRLock(t.Context(), "x")
			if err == nil {
				err = l.Unlock(context.Background())
			}
			tried <- err
		}()
		synctest.Wait()
		soon(t, a.Lock, time.Second, lingers) // idle again
		time.Sleep(300 * time.Millisecond)    // until the other goroutine has continued
		soon(t, a.Lock, 2*time.Second, lingers)
		require.NoError(t, <-tried)
		require.NoError(t, a.c.Close(context.Background()))
		require.Empty(t, kit.KeysLeft(t, s.Connect()))
	})
}

// TestLingerTryBesideAReader checks that a one-shot writer is refused while a reader of its own
// client is inside with a lingering lease, and gets the lock once the reader has left.
func TestLingerTryBesideAReader(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a := newPeer(t, s.Connect(), 1)
		l, err := a.RLock(t.Context(), "x", natslock.Linger(time.Hour))
		require.NoError(t, err)
		_, err = a.TryLock(t.Context(), "x")
		require.NoError(t, heldBy(l, nil, err))
		kit.Unlock(t, l)
		soon(t, a.TryLock, time.Second)
	})
}

// replicated is a store with replicas that counts listings.
type replicated struct {
	kvstore.KV
	lists *atomic.Int64
}

func (replicated) Alone() bool { return false }

func (s replicated) List(ctx context.Context, pattern string, least uint64, opts ...kvstore.ListOption) (kvstore.Listing, error) {
	s.lists.Add(1)
	return s.KV.List(ctx, pattern, least, opts...)
}

// TestLingerReadersTogether checks that a client lists the queues of idle readers in one request,
// even if replicas can lag. A replica that has nothing to show does not report its state.
func TestLingerReadersTogether(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		var lists atomic.Int64
		a := newPeerOver(t, s.Connect(), 1, func(kv kvstore.KV) kvstore.KV { return replicated{kv, &lists} })
		for i := range 50 {
			l, err := a.RLock(t.Context(), fmt.Sprint(i), natslock.Linger(time.Hour))
			require.NoError(t, err)
			kit.Unlock(t, l)
		}
		time.Sleep(30 * time.Second)
		before := lists.Load()
		time.Sleep(time.Minute)
		require.LessOrEqual(t, lists.Load()-before, int64(31))
		require.Equal(t, 50, a.c.Stats().Idle)
	})
}
