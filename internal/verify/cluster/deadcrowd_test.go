package cluster_test

import (
	"context"
	"flag"
	"fmt"
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
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

var deadRounds = flag.Int("dead-rounds", 4, "how many rounds TestDeadWithTheirHolder has for each number of waiters")

// TestDeadWithTheirHolder kills a holder and all that wait behind it at once: their connections end, without a word to the
// server. Behind them waits a client that lives. It gets the lock one pause after the lease has ended, however many places
// of the dead stand before its own.
func TestDeadWithTheirHolder(t *testing.T) {
	tier.Proof(t)
	const (
		ttl    = 3 * time.Second
		places = 15 * time.Second // TTL of those that wait: their places outlast a round by far
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
		store := kit.OpenStore(t, on.connect())
		for _, waiters := range []int{1, 3, 8, 17} {
			t.Run(fmt.Sprintf("%d waiters, %d servers", waiters, on.servers), func(t *testing.T) {
				late := machine.Lateness(t)
				var mu sync.Mutex
				var free []time.Duration
				beside := make(chan struct{}, 5) // rounds at a time
				var rounds sync.WaitGroup
				for i := range *deadRounds {
					beside <- struct{}{}
					rounds.Go(func() {
						defer func() { <-beside }()
						mutex := which{Name: fmt.Sprintf("l.%d.%d.%d", on.servers, waiters, i), Kind: admin.KindMutex}
						ended := make(chan time.Duration, 1) // from the end of the dead holder's lease to the next grant
						var lease time.Time
						watch, err := store.Watch(mutex.key(), func(ev kvstore.Event) {
							if ev.Kind != kvstore.Put {
								return
							}
							if at := ev.Record.Time; !lease.IsZero() && at.After(lease) {
								ended <- at.Sub(lease)
							}
							lease = ev.Record.Time.Add(ev.Record.TTL)
						})
						if err != nil {
							t.Error(err)
							return
						}
						defer watch.Stop()
						var conns []*nats.Conn
						client := func() *natslock.Client {
							nc := on.connect()
							conns = append(conns, nc)
							return kit.NewClient(t, nc, on.opts...)
						}
						_, err = client().Lock(t.Context(), mutex.Name, natslock.TTL(ttl))
						if err != nil {
							t.Error(err)
							return
						}
						for range waiters {
							c := client()
							kit.Begin(t, func(ctx context.Context) (*natslock.Lock, error) {
								return c.Lock(ctx, mutex.Name, natslock.TTL(places))
							})
							kit.Eventually(t, "a place", func() bool { return c.Stats().Waiting == 1 })
						}
						last := kit.NewClient(t, on.connect(), on.opts...)
						got := kit.Begin(t, func(ctx context.Context) (*natslock.Lock, error) {
							return last.Lock(ctx, mutex.Name, natslock.TTL(places))
						})
						kit.Eventually(t, "the last place", func() bool { return last.Stats().Waiting == 1 })
						for _, nc := range conns {
							nc.Close()
						}
						<-got.Done
						if got.Err != nil {
							t.Error(got.Err)
							return
						}
						d := kit.Receive(t, ended, "the grant in the watch")
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
