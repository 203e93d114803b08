package queue_test

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
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

// far is a distant store whose lists may fail.
type far struct {
	kvstore.KV
	way  time.Duration
	fail error
}

func (f *far) List(ctx context.Context, pattern string, min uint64, opts ...kvstore.ListOption) (kvstore.Listing, error) {
	l, err := f.KV.List(ctx, pattern, min, opts...)
	time.Sleep(f.way)
	if f.fail != nil {
		return kvstore.Listing{}, f.fail
	}
	return l, err
}

func (f *far) Get(ctx context.Context, key string, min uint64) (kvstore.Record, error) {
	r, err := f.KV.Get(ctx, key, min)
	time.Sleep(f.way)
	return r, err
}

func (f *far) Send(w kvstore.Write, done func(kvstore.Answer)) (func(), error) {
	return f.KV.Send(w, func(a kvstore.Answer) { time.AfterFunc(f.way, func() { done(a) }) })
}

// TestTryLockFarAway checks that TryLock gets a free lock even if reading the queue takes longer
// than the 100 ms for which the queue may be treated as empty. TryLock still makes one attempt
// after such a read.
func TestTryLockFarAway(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		near := kit.Join(t, s)
		away := kit.Join(t, s, faults.WrapStore(func(kv kvstore.KV) kvstore.KV { return &far{KV: kv, way: 110 * time.Millisecond} }))
		kit.Unlock(t, kit.Must(t, near.Lock, "l"))
		for range 2 { // first at another client's tombstone, then at its own
			l, err := away.TryLock(t.Context(), "l")
			require.NoError(t, err)
			kit.Unlock(t, l)
		}
	})
}

// TestTryLockWithoutList checks that the error names the holder of a lock even if the client cannot
// read the queue.
func TestTryLockWithoutList(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		a := kit.Join(t, s)
		b := kit.Join(t, s, faults.WrapStore(func(kv kvstore.KV) kvstore.KV { return &far{KV: kv, fail: kvstore.ErrUnavailable} }))
		l := kit.Must(t, a.Lock, "l")
		_, err := b.TryLock(t.Context(), "l")
		var locked *natslock.LockedError
		require.ErrorAs(t, err, &locked)
		require.Equal(t, l.Token(), locked.Holder.Token)
		kit.Unlock(t, l)
	})
}

// TestHandOverWithoutNotifications checks that a waiter without notifications gets a released lock
// through its timers, within the time stated in docs/operate/topologies.md, no matter when the
// release happens.
func TestHandOverWithoutNotifications(t *testing.T) {
	const most = 6 * time.Second
	for i := range 20 {
		testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
			holder := kit.Join(t, s)
			waiter, f := kit.JoinFaulty(t, s)
			kit.Deaf(f)
			l := kit.Must(t, holder.Lock, "l")
			w := waiter.Await(t, "l")
			time.Sleep(6*time.Second + time.Duration(i)*270*time.Millisecond) // spread over a cycle of its timers
			released := time.Now()
			kit.Unlock(t, l)
			<-w.Done
			require.NoError(t, w.Err)
			require.Less(t, time.Since(released), most)
			kit.Unlock(t, w.Value)
		})
	}
}

// late delays the next claim by d.
func late(f *faults.Store, d time.Duration) {
	var claims atomic.Int64
	f.OnSend(func(_ int, w kvstore.Write) faults.Fate {
		if kit.Stage(w) == "lock take" && claims.Add(1) == 1 {
			return faults.Delay(d)
		}
		return faults.Pass
	})
}

// catchingUp is a store whose replica omits a record from one list, like a replica that is catching
// up and has removed an overwritten record but not yet stored its replacement.
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
	if s.lacks != "" && len(l.Records) == 2 { // the other record is its own place
		l.Records = slices.DeleteFunc(l.Records, func(r kvstore.Record) bool { return r.Key == s.lacks })
		s.lacks = ""
	}
	return l, err
}

// TestFirstOnReplica checks that a waiter that sees no place ahead of its own on a replica asks the
// leader before it considers itself first. The replica may be catching up and lack a place.
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
