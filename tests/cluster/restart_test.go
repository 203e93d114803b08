//go:build unix

package cluster_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
)

// TestForgottenTTLs stops a server and kills it soon after it starts again. nats-server 2.15 then
// restores locks that were released but forgets their TTLs, so it never removes them. They must
// keep clients that try and clients that wait out only until their TTLs are over.
func TestForgottenTTLs(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	const names, ttl = 200, 3 * time.Second
	s := startServer(t)
	a := kit.NewClient(t, s.connect(), natslock.WithTTL(ttl))
	var locks []which
	for i := range names {
		locks = append(locks, which{Name: fmt.Sprint("n", i), Kind: admin.Kind(i % 2), Mode: admin.Mode(i / 2 % 2 * (i % 2))})
	}
	tokens := map[string]uint64{}
	cycle := func(w which) {
		l := mustTake(t, a, w)
		require.Greater(t, l.Token(), tokens[w.String()])
		tokens[w.String()] = l.Token()
		require.NoError(t, l.Unlock(t.Context()))
	}
	var taken []time.Time
	for _, w := range locks {
		taken = append(taken, time.Now())
		cycle(w)
	}
	written := time.Now()
	time.Sleep(100 * time.Millisecond) // the server writes its state now and then
	s.stop()
	s.start()
	store := kit.OpenStore(t, s.connect())
	kit.Eventually(t, "the tombstones are gone", func() bool {
		cycle(which{Name: "other", Kind: admin.KindMutex})
		state, err := store.State(t.Context(), ">")
		return err == nil && len(state.Keys) < names/10
	})
	time.Sleep(200 * time.Millisecond) // again lets the server write its state
	s.crash()
	nc := s.connect()
	b := kit.NewClient(t, nc, natslock.WithTTL(ttl))
	l, err := kit.OpenStore(t, nc).List(t.Context(), ">", 0)
	require.NoError(t, err)
	t.Logf("%d of %d locks are back, %v after their last record", len(l.Records), names, time.Since(written))

	// The limit allows for a busy machine. An idle one needs half a second.
	ctx, cancel := context.WithDeadline(t.Context(), written.Add(ttl+5*time.Second))
	defer cancel()
	waited := make([]time.Duration, names)
	var wg sync.WaitGroup
	for i, w := range locks {
		wg.Go(func() {
			l, err := w.against().take(ctx, b)
			if !assert.NoError(t, err, "%v", w) {
				return
			}
			waited[i] = time.Since(taken[i])
			assert.Greater(t, l.Token(), tokens[w.String()])
			assert.NoError(t, l.Unlock(context.Background()))
		})
	}
	wg.Wait()
	t.Logf("the longest wait for one ended %v after the end of its TTL", slices.Max(waited)-ttl)
}
