package ratios_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/machine"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
)

// impatience is how callers that want one lock again and again bound their waits, at random between
// two limits. Without limits they wait for as long as it takes.
type impatience struct {
	what        string
	least, most time.Duration
	tries       bool // a TryLock, followed by a pause of that length if it is refused
}

// got is what the callers get over a period.
type got struct {
	grants, gaveUp float64 // per second
	messages       float64 // in and out, of all clients, per call
}

// callers has two goroutines of each client take a lock over and over, and keep it for hold each
// time.
func callers(t testing.TB, d, hold time.Duration, how impatience, clients []counted) got {
	t.Helper()
	messages := func() (n uint64) {
		for _, c := range clients {
			s := c.nc.Stats()
			n += s.InMsgs + s.OutMsgs
		}
		return n
	}
	var grants, gaveUp atomic.Int64
	var wg sync.WaitGroup
	ctx := context.Background()
	before, begun := messages(), time.Now()
	for _, c := range clients {
		for range 2 {
			wg.Go(func() {
				for time.Since(begun) < d {
					var opts []natslock.LockOption
					var limit time.Duration
					if how.most > 0 {
						limit = how.least + rand.N(how.most-how.least)
						opts = append(opts, natslock.MaxWait(limit))
					}
					take := c.Lock
					if how.tries {
						take, opts = c.TryLock, nil
					}
					l, err := take(ctx, "l", opts...)
					switch {
					case err == nil:
						grants.Add(1)
						time.Sleep(hold)
						_ = l.Unlock(ctx)
					case !errors.Is(err, natslock.ErrTimeout) && !errors.Is(err, natslock.ErrLocked):
						t.Error(err)
						return
					default:
						gaveUp.Add(1)
						if how.tries {
							time.Sleep(limit)
						}
					}
				}
			})
		}
	}
	wg.Wait()
	took, n := time.Since(begun).Seconds(), float64(grants.Load()+gaveUp.Load())
	return got{float64(grants.Load()) / took, float64(gaveUp.Load()) / took, float64(messages()-before) / n}
}

// TestImpatience guards what callers that bound their waits get. There are 24 of them on 12 clients,
// so their queue takes 24 hand-overs of 2 ms. Callers with a limit well above that get what patient
// ones get, and so do those that try and pause. What a shorter limit gets depends on the machine:
// with round trips of 3 ms, next to nothing (docs/guide/waiting.md). natslock's TestImpatientCallers
// judges that.
func TestImpatience(t *testing.T) {
	tier.Proof(t)
	url := Server(t)
	var clients []counted
	for range 12 {
		clients = append(clients, countedClient(t, url))
	}
	kinds := []impatience{
		{what: "patient"},
		{what: "at most 200 to 300 ms", least: 200 * time.Millisecond, most: 300 * time.Millisecond},
		{what: "at most 50 to 100 ms", least: 50 * time.Millisecond, most: 100 * time.Millisecond},
		{what: "at most 10 to 30 ms", least: 10 * time.Millisecond, most: 30 * time.Millisecond},
		{what: "TryLock each 10 to 30 ms", least: 10 * time.Millisecond, most: 30 * time.Millisecond, tries: true},
	}
	best := make([]float64, len(kinds)) // the best of the rounds, because a busy machine slows the impatient more
	for range 3 {
		for i, how := range kinds {
			g := callers(t, time.Second, time.Millisecond, how, clients)
			t.Logf("%s: %.0f grants/s, %.0f given up/s, %.1f messages for each call", how.what, g.grants, g.gaveUp, g.messages)
			best[i] = max(best[i], g.grants)
			time.Sleep(1100 * time.Millisecond) // their tombstones live for a second
		}
	}
	if !machine.Race {
		require.Positive(t, best[0])
		assert.GreaterOrEqual(t, best[1]/best[0], 0.5, "a limit above what the queue takes")
		assert.GreaterOrEqual(t, best[4]/best[0], 0.3, "tries")
	}
}
