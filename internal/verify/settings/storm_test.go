package settings

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/rwlock"
	"github.com/natslock/locks/semaphore"
	"github.com/natslock/locks/testutil"
)

// Clients contend while the settings change, to worse and to unfit ones, and back. No two of
// them are ever inside together, tokens rise, and in the end everybody gets in.
func TestStorm(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		js, err := jetstream.New(s.Connect())
		require.NoError(t, err)
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		var grants, refusals atomic.Int64
		type guarded struct {
			inside atomic.Int32
			token  atomic.Uint64
		}
		kinds := map[string]func(context.Context, *natslock.Client) (*natslock.Lock, error){
			"mutex": func(ctx context.Context, c *natslock.Client) (*natslock.Lock, error) { return c.Lock(ctx, "l") },
			"try":   func(ctx context.Context, c *natslock.Client) (*natslock.Lock, error) { return c.TryLock(ctx, "t") },
			"writer": func(ctx context.Context, c *natslock.Client) (*natslock.Lock, error) {
				return rwlock.New(c).Lock(ctx, "w")
			},
			"semaphore": func(ctx context.Context, c *natslock.Client) (*natslock.Lock, error) {
				return semaphore.New(c, 1).Acquire(ctx, "s")
			},
		}
		things := make(map[string]*guarded)
		for kind := range kinds {
			things[kind] = &guarded{}
		}
		var clients []*client
		for range 4 {
			c := join(t, s)
			clients = append(clients, c)
			for kind, lock := range kinds {
				wg.Go(func() {
					g := things[kind]
					for ctx.Err() == nil {
						l, err := lock(ctx, c.Client)
						if err != nil {
							refusals.Add(1)
							time.Sleep(50 * time.Millisecond)
							continue
						}
						if n := g.inside.Add(1); n != 1 {
							t.Errorf("%s: %d inside", kind, n)
						}
						if before := g.token.Swap(l.Token()); before >= l.Token() {
							t.Errorf("%s: token %d after %d", kind, l.Token(), before)
						}
						grants.Add(1)
						time.Sleep(time.Duration(5+rand.N(30)) * time.Millisecond)
						g.inside.Add(-1)
						_ = l.Unlock(context.Background())
					}
				})
			}
		}
		str, err := js.Stream(t.Context(), stream)
		require.NoError(t, err)
		made := 0
		for round := range changes {
			ch := changes[round]
			if ch.want == refused || ch.gone { // these remove the records of holders
				continue
			}
			info, err := str.Info(t.Context())
			require.NoError(t, err)
			sc := info.Config
			ch.set(&sc)
			_, err = js.UpdateStream(t.Context(), sc)
			require.NoErrorf(t, err, ch.setting)
			if round%2 == 0 {
				clients[round%len(clients)].reconnect()
			}
			time.Sleep(time.Duration(rand.N(2000)) * time.Millisecond)
			changed, err := kvstore.Inspect(t.Context(), js, kvstore.Config{})
			require.NoError(t, err)
			changed, err = kvstore.Repaired(kvstore.Config{}, changed)
			require.NoError(t, err)
			sc = changed.Config
			if sc.Metadata["natslock.protocol"] != "3" { // not a repair, except in this test
				sc.Metadata["natslock.protocol"] = "3"
			}
			sc.MaxBytes, sc.Discard = -1, jetstream.DiscardNew
			if sc.RePublish == nil || sc.RePublish.HeadersOnly {
				sc.RePublish = &jetstream.RePublish{Source: "$KV.natslock.>", Destination: "natslock.natslock.again.>"}
			}
			_, err = js.UpdateStream(t.Context(), sc)
			require.NoErrorf(t, err, "after %s", ch.setting)
			time.Sleep(time.Duration(rand.N(2000)) * time.Millisecond)
			made++
		}
		before := grants.Load()
		time.Sleep(10 * time.Second) // until each client has verified the bucket again
		require.Greater(t, grants.Load(), before+100)
		for _, c := range clients {
			require.NoError(t, c.Healthy())
		}
		stop()
		wg.Wait()
		require.NotZero(t, refusals.Load())
		t.Logf("%d grants, %d refusals, %d changes", grants.Load(), refusals.Load(), made)
	})
}
