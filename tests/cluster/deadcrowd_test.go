package cluster_test

import (
	"context"
	"flag"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/machine"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

var deadRounds = flag.Int("dead-rounds", 8, "how many rounds TestDeadWithTheirHolder has for each number of waiters")

// leases records when the leases of mutexes end, and how long a mutex was free after a lease that
// nobody released.
type leases struct {
	mu    sync.Mutex
	ends  map[string]time.Time
	freed map[string]time.Duration
	works bool // an event has arrived
}

func watchLeases(t testing.TB, store *kvstore.Store) *leases {
	t.Helper()
	x := &leases{ends: map[string]time.Time{}, freed: map[string]time.Duration{}}
	watch, err := store.Watch("lock.*", func(ev kvstore.Event) {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.works = true
		switch end, known := x.ends[ev.Record.Key]; {
		case ev.Kind == kvstore.Deleted && ev.Record.Time.After(end): // a waiter deleted the overdue record
		case ev.Kind == kvstore.Deleted:
			delete(x.ends, ev.Record.Key)
		case ev.Kind == kvstore.Put:
			if known && ev.Record.Time.After(end) {
				x.freed[ev.Record.Key] = ev.Record.Time.Sub(end)
			}
			x.ends[ev.Record.Key] = ev.Record.Time.Add(ev.Record.TTL)
		}
	})
	require.NoError(t, err)
	t.Cleanup(watch.Stop)
	return x
}

func (x *leases) any() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.works
}

func (x *leases) free(key string) time.Duration {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.freed[key]
}

// TestDeadWithTheirHolder kills a holder together with all waiters but the last: their connections
// end without a word to the server. The last waiter must get the lock one pause after the end of
// the lease, however many places of the dead are ahead of its own.
func TestDeadWithTheirHolder(t *testing.T) {
	tier.Proof(t)
	const (
		ttl    = 8 * time.Second
		places = 12 * time.Second // the waiters' TTL: their places outlast the lease and the pause
		pause  = 1500 * time.Millisecond
		slack  = 500 * time.Millisecond
	)
	single, three := testutil.RunServer(t), testutil.RunCluster(t, 3)
	for _, on := range []struct {
		servers int
		connect func(...nats.Option) *nats.Conn
		opts    []natslock.Option
	}{
		{1, single.Connect, nil},
		{3, three.Connect, []natslock.Option{r3}},
	} {
		kit.NewClient(t, on.connect(), on.opts...) // creates the bucket
		seen := watchLeases(t, kit.OpenStore(t, on.connect()))
		warm := kit.NewClient(t, on.connect(), on.opts...)
		kit.Eventually(t, "an event", func() bool { // until the subscription is in place
			kit.Unlock(t, kit.Must(t, warm.Lock, "warm"))
			return seen.any()
		})
		for _, waiters := range []int{1, 3, 8, 17} {
			t.Run(fmt.Sprintf("%d waiters, %d servers", waiters, on.servers), func(t *testing.T) {
				late := machine.Lateness(t)
				var mu sync.Mutex
				var free []time.Duration
				beside := make(chan struct{}, 8) // limits the concurrent rounds
				var rounds sync.WaitGroup
				for i := range *deadRounds {
					beside <- struct{}{}
					rounds.Go(func() {
						defer func() { <-beside }()
						name := fmt.Sprintf("%d-%d", waiters, i)
						var conns []*nats.Conn
						client := func() *natslock.Client {
							nc := on.connect()
							conns = append(conns, nc)
							return kit.NewClient(t, nc, on.opts...)
						}
						held, err := client().Lock(t.Context(), name, natslock.TTL(ttl))
						if err != nil {
							t.Error(err)
							return
						}
						for range waiters {
							c := client()
							kit.Begin(t, func(ctx context.Context) (*natslock.Lock, error) {
								return c.Lock(ctx, name, natslock.TTL(places))
							})
							kit.Eventually(t, "a place", func() bool { return c.Stats().Waiting == 1 })
						}
						last := kit.NewClient(t, on.connect(), on.opts...)
						got := kit.Begin(t, func(ctx context.Context) (*natslock.Lock, error) {
							return last.Lock(ctx, name, natslock.TTL(places))
						})
						kit.Eventually(t, "the last place", func() bool { return last.Stats().Waiting == 1 })
						for _, nc := range conns {
							nc.Close()
						}
						<-got.Done
						runtime.KeepAlive(held) // a dropped handle would end the lease
						if got.Err != nil {
							t.Error(got.Err)
							return
						}
						var d time.Duration
						kit.Eventually(t, "the grant in the watch", func() bool { d = seen.free("lock." + name); return d > 0 })
						mu.Lock()
						free = append(free, d)
						mu.Unlock()
						kit.Unlock(t, got.Value)
					})
				}
				rounds.Wait()
				slices.Sort(free)
				require.Len(t, free, *deadRounds)
				t.Logf("free after the lease's end for %v, median %v, at most %v, the machine late by %v", free[0], free[len(free)/2], free[len(free)-1], late())
				require.LessOrEqual(t, free[len(free)-1], pause+slack+3*late())
			})
		}
	}
}
