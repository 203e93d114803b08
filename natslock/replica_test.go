package natslock_test

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

// late delays the first claim that is sent from now on.
func late(f *faults.Store, d time.Duration) {
	var claims atomic.Int64
	f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
		if kit.Stage(w) == "lock take" && claims.Add(1) == 1 {
			return faults.Delay(d)
		}
		return faults.Pass
	})
}

// catchingUp is a store whose replica lacks a record in one list, as while it catches up. It
// has removed what was overwritten, and not yet stored what has overwritten it.
type catchingUp struct {
	kvstore.KV
	mu    sync.Mutex
	lacks string
}

func (*catchingUp) Alone() bool { return false }

func (s *catchingUp) List(ctx context.Context, pattern string, min uint64, opts ...kvstore.ListOption) (kvstore.Listing, error) {
	l, err := s.KV.List(ctx, pattern, min, opts...)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lacks != "" && len(l.Records) == 2 { // its own place too
		l.Records = slices.DeleteFunc(l.Records, func(r kvstore.Record) bool { return r.Key == s.lacks })
		s.lacks = ""
	}
	return l, err
}

// A waiter lists the queue from a replica that catches up, and sees nobody before it. It asks
// the leader before it takes itself for the first.
func TestFirstOnReplica(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		holder := kit.Join(t, s)
		waiter, f := kit.JoinFaulty(t, s)
		store := &catchingUp{}
		behind, _ := kit.JoinOver(t, s, func(kv kvstore.KV) kvstore.KV {
			store.KV = kv
			return store
		})
		l := kit.Must(t, holder.Lock, "l")
		first := waiter.Await(t, "l")
		synctest.Wait()
		store.lacks = "wait.l." + waiter.Events.Wait(t, admin.EventQueued, "l").ID
		second := behind.Await(t, "l")
		synctest.Wait()
		require.Empty(t, store.lacks, "it has read the replica")
		late(f, 50*time.Millisecond)
		kit.Unlock(t, l)
		l = first.Granted(t)
		require.False(t, second.Over())
		kit.Unlock(t, l)
		kit.Unlock(t, second.Granted(t))
	})
}
