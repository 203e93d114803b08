package rwlock_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/history"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

type acquireFunc = func(context.Context, string, ...natslock.LockOption) (*natslock.Lock, error)

// TestOnceByLaggingReplica checks that a one-shot acquire answered by a lagging replica never
// reports that the lock is held, read or queued for if that is already over, because every refusal
// is confirmed by the leader. With the leader's reply it is granted, or names the holder if there
// is one.
func TestOnceByLaggingReplica(t *testing.T) {
	reader := func(p *peer) acquireFunc { return p.RLock }
	writer := func(p *peer) acquireFunc { return p.Lock }
	mutex := func(p *peer) acquireFunc { return p.c.Lock }
	for _, c := range []struct {
		name   string
		before func(*peer) acquireFunc
		waits  func(*peer) acquireFunc // queued behind before, and gives up; nil for nobody
		try    func(*peer) acquireFunc
	}{
		{"TryLock after Unlock", mutex, nil, func(p *peer) acquireFunc { return p.c.TryLock }},
		{"TryLock after a waiter", mutex, mutex, func(p *peer) acquireFunc { return p.c.TryLock }},
		{"write TryLock after RUnlock", reader, nil, func(p *peer) acquireFunc { return p.TryLock }},
		{"write TryLock after Unlock", writer, nil, func(p *peer) acquireFunc { return p.TryLock }},
		{"TryRLock after Unlock", writer, nil, func(p *peer) acquireFunc { return p.TryRLock }},
		{"TryRLock after a waiter", writer, writer, func(p *peer) acquireFunc { return p.TryRLock }},
	} {
		t.Run(c.name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				newPeer(t, s.Connect(), 0)
				r := history.NewReplica(t, s.Connect())
				a, b, w := newPeerOver(t, s.Connect(), 1, r.Over), newPeerOver(t, s.Connect(), 2, r.Over), newPeerOver(t, s.Connect(), 3, r.Over)
				// b expects its own tombstone, so only a read can tell it more.
				kit.Unlock(t, kit.Must(t, c.before(b), "x"))
				l := kit.Must(t, c.before(a), "x")
				over := func() {}
				if c.waits != nil {
					ctx, cancel := context.WithCancel(t.Context())
					done := make(chan error, 1)
					go func() {
						_, err := c.waits(w)(ctx, "x")
						done <- err
					}()
					kit.Eventually(t, "a waiter", func() bool { return w.c.Stats().Waiting == 1 })
					over = func() {
						cancel()
						require.ErrorIs(t, kit.Receive(t, done, "the waiter"), natslock.ErrTimeout)
						// The waiter's client deletes its place in the background.
						kit.Eventually(t, "its place is gone", func() bool { return len(kit.KeysLeft(t, s.Connect())) == 1 })
					}
				}
				r.Lag()
				over()
				kit.Unlock(t, l)
				got, err := c.try(b)(t.Context(), "x")
				require.NoError(t, err)
				kit.Unlock(t, got)

				l = kit.Must(t, c.before(a), "x")
				_, err = c.try(b)(t.Context(), "x")
				require.NoError(t, heldBy(l, nil, err))
				kit.Unlock(t, l)
				require.Empty(t, kit.KeysLeft(t, s.Connect()), "it leaves no trace")
			})
		})
	}
}

// TestTryLockLeavesNoGate covers a one-shot writer that has seen no reader, takes the gate, and
// then finds a reader behind it. By the time the writer returns its refusal, its gate must be gone.
func TestTryLockLeavesNoGate(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b, c := newPeer(t, s.Connect(), 1), newPeer(t, s.Connect(), 2), newPeer(t, s.Connect(), 3)
		deleted := false
		b.f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
			deleted = deleted || kit.Stage(w) == "rw delete"
			return faults.Delay(200 * time.Millisecond)
		})
		refused := make(chan error, 1)
		go func() {
			_, err := b.TryLock(t.Context(), "x")
			refused <- err
		}()
		time.Sleep(50 * time.Millisecond) // before the gate is taken
		l := kit.Must(t, a.RLock, "x")
		require.NoError(t, heldBy(l, nil, kit.Receive(t, refused, "the refusal")))
		require.True(t, deleted, "it has taken the gate")
		require.NoError(t, freed(c.TryRLock(t.Context(), "x")))
		kit.Unlock(t, l)
	})
}

// TestGivenUpWriterLeavesNoGate checks that a writer that gives up waiting for readers returns only
// once its gate is gone, so that a reader that tries next is not refused because of it.
func TestGivenUpWriterLeavesNoGate(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b, c := newPeer(t, s.Connect(), 1), newPeer(t, s.Connect(), 2), newPeer(t, s.Connect(), 3)
		l := kit.Must(t, a.RLock, "x")
		b.f.OnSend(kit.At("rw delete", faults.Delay(30*time.Millisecond)))
		_, err := b.Lock(t.Context(), "x", natslock.MaxWait(time.Second))
		require.ErrorIs(t, err, natslock.ErrTimeout)
		require.NoError(t, freed(c.TryRLock(t.Context(), "x")))
		kit.Unlock(t, l)
	})
}

// TestOnceWithoutLeaderReads checks that a user who is denied reads from the leader gets the
// replica's reply.
func TestOnceWithoutLeaderReads(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		over := func(kv kvstore.KV) kvstore.KV { return notAlone{kv} }
		a, b := newPeerOver(t, s.Connect(), 1, over), newPeerOver(t, s.Connect(), 2, over)
		kit.Unlock(t, kit.Must(t, b.c.Lock, "x")) // so that b reads before it tries again
		l := kit.Must(t, a.c.Lock, "x")
		lists := 0
		b.f.FailReads(func(op faults.ReadOp, _ string) error {
			if op == faults.ReadList {
				lists++
			}
			if lists > 1 && op != faults.ReadState {
				return kvstore.ErrWithheld
			}
			return nil
		})
		_, err := b.c.TryLock(t.Context(), "x")
		require.NoError(t, heldBy(l, nil, err))
		require.Greater(t, lists, 1, "it has asked for more")
		kit.Unlock(t, l)
	})
}

// TestTryLockReaderGoneWhenRead covers a one-shot writer to which the leader names a reader that is
// gone by the time its record is read. The writer must ask again, rather than report that an
// unknown owner holds the lock.
func TestTryLockReaderGoneWhenRead(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a, b := newPeer(t, s.Connect(), 1), newPeer(t, s.Connect(), 2)
		kit.Unlock(t, kit.Must(t, a.RLock, "x")) // its tombstone is still named for a second
		reads := 0
		b.f.FailReads(func(op faults.ReadOp, _ string) error {
			if op == faults.ReadGet {
				reads++
				time.Sleep(1800 * time.Millisecond) // longer than a tombstone lasts
			}
			return nil
		})
		l, err := b.TryLock(t.Context(), "x")
		require.NoError(t, err)
		require.Equal(t, 1, reads, "it has to be named")
		kit.Unlock(t, l)
	})
}

// TestOnceRoundTrips checks that without a lagging replica a one-shot acquire sends no more than it
// has to. A grant takes one request if the lock was never held, and three if another client has
// just released it. A refusal takes two, because the leader refuses the write.
func TestOnceRoundTrips(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		over := func(kv kvstore.KV) kvstore.KV { return notAlone{kv} }
		a, b := newPeerOver(t, s.Connect(), 1, over), newPeerOver(t, s.Connect(), 2, over)
		sent := func(fn func()) int {
			before := b.nc.Stats().OutMsgs
			fn()
			return int(b.nc.Stats().OutMsgs - before)
		}
		var l *natslock.Lock
		try := func() {
			var err error
			l, err = b.c.TryLock(t.Context(), "x")
			require.NoError(t, err)
		}
		require.Equal(t, 1, sent(try), "never held")
		kit.Unlock(t, l)
		kit.Unlock(t, kit.Must(t, a.c.Lock, "y"))
		require.Equal(t, 3, sent(func() {
			var err error
			l, err = b.c.TryLock(t.Context(), "y")
			require.NoError(t, err)
		}), "refused, listed, taken at the tombstone of another")
		kit.Unlock(t, l)
		held := kit.Must(t, a.c.Lock, "z")
		require.Equal(t, 2, sent(func() {
			_, err := b.c.TryLock(t.Context(), "z")
			require.NoError(t, heldBy(held, nil, err))
		}), "refused and listed")
		kit.Unlock(t, held)
		require.Equal(t, 1, sent(func() {
			var err error
			l, err = b.TryRLock(t.Context(), "r")
			require.NoError(t, err)
		}), "a reader where nobody was")
		kit.Unlock(t, l)
	})
}

// notAlone is a store that claims its bucket has replicas.
type notAlone struct{ kvstore.KV }

func (notAlone) Alone() bool { return false }
