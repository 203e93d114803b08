package faults_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

func overReplicas(kv kvstore.KV) kvstore.KV { return replicated{kv} }

// TestReleaseBetweenTwoLeaders checks a release just after a partition, when a deposed leader
// refuses the deletion that the current leader applies. Releasing a lock that was held to the end
// is not a loss, whatever the refusal says and however long the deposed leader keeps replying.
func TestReleaseBetweenTwoLeaders(t *testing.T) {
	refusals := map[string]func(w kvstore.Write) error{
		"in flight": func(kvstore.Write) error { return kvstore.ErrInFlight },
		"nothing":   func(w kvstore.Write) error { return &kvstore.ConflictError{Key: w.Key, Expected: w.Expect} },
		"behind": func(w kvstore.Write) error {
			return &kvstore.ConflictError{Key: w.Key, Expected: w.Expect, Last: w.Expect - 1}
		},
	}
	for name, refusal := range refusals {
		betweenTwoLeaders(t, name, refusal, false)
		betweenTwoLeaders(t, name+" and taken", refusal, true)
	}
}

// betweenTwoLeaders releases a lock. If taken is set, the next client takes it before the deposed
// leader falls silent.
func betweenTwoLeaders(t *testing.T, name string, refusal func(kvstore.Write) error, taken bool) {
	t.Run(name, func(t *testing.T) {
		testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
			a, f := kit.FaultyOver(t, s.Connect(), 1, overReplicas)
			real, b := kit.OpenStore(t, s.Connect()), kit.Join(t, s)
			l, err := a.Lock(t.Context(), "x")
			require.NoError(t, err)
			applied := false
			var next *natslock.Lock
			begun := time.Now()
			deposed := func() bool { return time.Since(begun) < 1500*time.Millisecond } // longer than the TTL of a tombstone
			f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
				if !applied {
					applied = true
					_, err := real.Send(w, func(a kvstore.Answer) { assert.NoError(t, a.Err) })
					assert.NoError(t, err)
					if taken {
						next, err = b.Lock(t.Context(), "x")
						assert.NoError(t, err)
					}
				}
				if deposed() {
					return faults.Refuse(refusal(w))
				}
				return faults.Pass
			})
			f.FailReads(func(faults.ReadOp, string) error {
				if deposed() {
					return kvstore.ErrUnavailable
				}
				return nil
			})
			require.NoError(t, l.Unlock(t.Context()))
			require.Greater(t, time.Since(begun), 1500*time.Millisecond)
			if taken {
				kit.Unlock(t, next)
			}
			require.Empty(t, kit.KeysLeft(t, s.Connect()))
		})
	})
}

// TestReleaseShownAnOldRecord checks that a release continues until the client's own record is
// deleted. A deposed leader may show a record from before the lock, which does not mean that
// another client has taken the lock since.
func TestReleaseShownAnOldRecord(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		stale := &staleReads{}
		a, f := kit.FaultyOver(t, s.Connect(), 1, func(kv kvstore.KV) kvstore.KV {
			stale.KV = kv
			return stale
		})
		b := kit.Join(t, s)
		kit.Unlock(t, kit.Must(t, b.Lock, "x"))
		before := kit.NewRaw(t, s.Connect()).Get("lock.x")
		l, err := a.Lock(t.Context(), "x")
		require.NoError(t, err)
		refused := 0
		f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
			if refused++; refused > 3 {
				return faults.Pass
			}
			stale.answer(kvstore.Record{Key: w.Key, Revision: before.Sequence, TTL: time.Minute}, nil)
			return faults.Refuse(&kvstore.ConflictError{Key: w.Key, Expected: w.Expect, Last: before.Sequence})
		})
		require.NoError(t, l.Unlock(t.Context()))
		require.Empty(t, kit.KeysLeft(t, s.Connect()), "its own record keeps others out")
	})
}

// staleReads is the store of a replicated bucket in which a lagging replica answers the next read
// of a key.
type staleReads struct {
	kvstore.KV
	mu   sync.Mutex
	next *staleRead
}

type staleRead struct {
	r   kvstore.Record
	err error
}

func (s *staleReads) Alone() bool { return false }

func (s *staleReads) answer(r kvstore.Record, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next = &staleRead{r, err}
}

func (s *staleReads) Get(ctx context.Context, key string, min uint64) (kvstore.Record, error) {
	s.mu.Lock()
	next := s.next
	s.next = nil
	s.mu.Unlock()
	if next != nil {
		return next.r, next.err
	}
	return s.KV.Get(ctx, key, min)
}

// TestUnlockOfGone checks that Unlock reports a loss if the lock's record no longer exists, on one
// server and on replicas, because another client may have held the lock in the meantime.
func TestUnlockOfGone(t *testing.T) {
	for name, over := range map[string]func(kvstore.KV) kvstore.KV{
		"one server": func(kv kvstore.KV) kvstore.KV { return kv },
		"replicas":   overReplicas,
	} {
		t.Run(name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
				a, _ := kit.FaultyOver(t, s.Connect(), 1, over, natslock.WithTuning(natslock.Tuning{WatchAfter: -1}))
				r := kit.NewRaw(t, s.Connect())
				for _, stays := range []time.Duration{0, 2 * time.Second} { // the tombstone expires after 1 s
					l, err := a.Lock(t.Context(), "x")
					require.NoError(t, err)
					_, err = kit.OpenStore(t, s.Connect()).Delete(t.Context(), "lock.x", record.TokenRevision(l.Token()))
					require.NoError(t, err)
					time.Sleep(stays)
					require.Equal(t, stays == 0, r.Get("lock.x") != nil)
					require.NoError(t, l.Err(), "no notification has come")
					require.ErrorIs(t, l.Unlock(t.Context()), natslock.ErrLost)
				}
			})
		})
	}
}
