package natslock_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

// far is a store at the end of a long way, that may fail to list.
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

// A read of the queue may take longer than the 100 ms for which a queue counts as empty. A
// one-shot acquire makes an attempt after such a read all the same, and gets a free lock.
func TestTryLockFarAway(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		near := kit.Join(t, s)
		away := kit.Join(t, s, faults.WrapStore(func(kv kvstore.KV) kvstore.KV { return &far{KV: kv, way: 110 * time.Millisecond} }))
		kit.Unlock(t, kit.Must(t, near.Lock, "l"))
		for range 2 { // at another's tombstone, and at its own
			l, err := away.TryLock(t.Context(), "l")
			require.NoError(t, err)
			kit.Unlock(t, l)
		}
	})
}

// The error names the holder of a lock although the client cannot read the queue.
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
