package natslock_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/rwlock"
	"github.com/natslock/locks/testutil"
)

// counted counts the lists that are asked for.
type counted struct {
	kvstore.KV
	lists *atomic.Int64
}

func (c counted) List(ctx context.Context, pattern string, min uint64, opts ...kvstore.ListOption) (kvstore.Listing, error) {
	c.lists.Add(1)
	return c.KV.List(ctx, pattern, min, opts...)
}

// List reads many locks in parts. The first ones come before the next part is asked for, and a
// part shows the locks as they are then.
func TestListInParts(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, srv *testutil.Server) {
		const n, part = 1500, 256
		ctx := t.Context()
		owner := kit.NewClient(t, srv.Connect())
		held := make([]*natslock.Lock, n)
		for i := range held {
			var err error
			held[i], err = owner.TryLock(ctx, fmt.Sprintf("many.%04d", i), natslock.Detached())
			require.NoError(t, err)
			kit.Keep(t, held[i])
		}
		reader, err := rwlock.New(kit.NewClient(t, srv.Connect())).RLock(ctx, "many.0700")
		require.NoError(t, err)
		kit.Keep(t, reader)

		var lists atomic.Int64
		c := kit.NewClient(t, srv.Connect(), faults.WrapStore(func(kv kvstore.KV) kvstore.KV { return counted{kv, &lists} }))
		var names []string
		readers := 0
		for info, err := range admin.New(c).List(ctx, "many.*") {
			require.NoError(t, err)
			readers += len(info.Readers)
			names = append(names, info.Name)
			asked := int64(len(names)-1)/part + 1
			if want := 7 + asked; len(names) <= part && lists.Load() != want {
				t.Fatalf("%d lists before lock %d, not %d", lists.Load(), len(names), want)
			}
			if len(names) == 1 {
				require.NoError(t, held[n-1].Unlock(ctx))
				require.NoError(t, held[n-2].Unlock(ctx))
				again, err := owner.TryLock(ctx, held[n-2].Name(), natslock.Meta(map[string]string{"taken": "again"}))
				require.NoError(t, err)
				kit.Keep(t, again)
				time.Sleep(2 * time.Second) // the tombstone is gone, too
			}
			if info.Name == held[n-2].Name() {
				require.Equal(t, "again", info.Holder.Meta["taken"])
			}
		}
		require.Len(t, names, n) // two kinds of many.0700, and without the last one
		require.IsNonDecreasing(t, names)
		require.Equal(t, 1, readers)
		require.Equal(t, int64(7+(n+part-1)/part), lists.Load())

		lists.Store(0)
		for _, err := range admin.New(c).List(ctx, "many.*") {
			require.NoError(t, err)
			break
		}
		require.Equal(t, int64(8), lists.Load(), "nothing is read that nobody wants")
	})
}
