package queue_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/rwlock"
	"github.com/natslock/locks/testutil"
)

// slowRoute is a store in a cluster in which a subscription reaches the stream's leader only with
// the next write. A reply to a read does not show that it has arrived.
type slowRoute struct {
	kvstore.KV
	mu       sync.Mutex
	sent     int
	answered int // number of the latest acknowledged write
}

func (r *slowRoute) Alone() bool { return false }

func (r *slowRoute) State(ctx context.Context, pattern string) (kvstore.State, error) {
	st, err := r.KV.State(ctx, pattern)
	st.Replicas = 3
	return st, err
}

func (r *slowRoute) Send(w kvstore.Write, done func(kvstore.Answer)) (func(), error) {
	r.mu.Lock()
	r.sent++
	n := r.sent
	r.mu.Unlock()
	return r.KV.Send(w, func(a kvstore.Answer) {
		r.mu.Lock()
		r.answered = max(r.answered, n)
		r.mu.Unlock()
		done(a)
	})
}

func (r *slowRoute) Watch(pattern string, deliver func(kvstore.Event)) (kvstore.Watch, error) {
	r.mu.Lock()
	before := r.sent
	r.mu.Unlock()
	return r.KV.Watch(pattern, func(ev kvstore.Event) {
		r.mu.Lock()
		arrived := r.answered > before
		r.mu.Unlock()
		if arrived || ev.Kind == kvstore.Expired || ev.Kind == kvstore.Recheck {
			deliver(ev)
		}
	})
}

func onSlowRoute(kv kvstore.KV) kvstore.KV { return &slowRoute{KV: kv} }

// TestSuccessorProbes checks that a waiter is notified when its predecessor leaves even though only
// the waiter's probe announced its subscription to the cluster.
func TestSuccessorProbes(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		c := kit.Join(t, s, faults.WrapStore(onSlowRoute))
		holder := kit.QuietHolder(t, s)
		gone := kit.Join(t, s).Await(t, "l")
		w := c.Await(t, "l")
		time.Sleep(time.Second) // its early reads are done
		gone.Cancel(nil)
		gone.Failed(t)
		synctest.Wait()
		released := time.Now()
		kit.Unlock(t, holder)
		kit.Unlock(t, w.Granted(t))
		require.Less(t, w.At.Sub(released), 100*time.Millisecond)
	})
}

// TestDrainProbes checks the same for a writer that waits for readers to leave.
func TestDrainProbes(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		readers, c := kit.Join(t, s), kit.Join(t, s, faults.WrapStore(onSlowRoute))
		r, err := rwlock.New(readers.Client).RLock(t.Context(), "l")
		require.NoError(t, err)
		granted := make(chan time.Time, 1)
		go func() {
			l, err := rwlock.New(c.Client).Lock(t.Context(), "l")
			granted <- time.Now()
			if err == nil {
				_ = l.Unlock(t.Context())
			}
		}()
		time.Sleep(time.Second) // its early reads are done
		released := time.Now()
		kit.Unlock(t, r)
		require.Less(t, kit.Receive(t, granted, "a grant").Sub(released), 100*time.Millisecond)
	})
}
