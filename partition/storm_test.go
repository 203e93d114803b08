package partition_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/partition"
)

var firstSeed = flag.Uint64("seed", 0, "of TestStorm; 0: another one each time")

// TestStorm lets workers join, leave while others join, crash, return under their IDs, lose the
// server for longer than their leases and come back, fail and be slow, while writes, replies and
// notifications get lost or delayed and operators break locks. No two workers may work on a
// partition at once, tokens must increase, and once all is calm the partitions must be shared again
// within a second of the last lease's end.
func TestStorm(t *testing.T) {
	for i := range 6 {
		seed := *firstSeed + uint64(i)
		if *firstSeed == 0 {
			seed = rand.Uint64N(1 << 40)
		}
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Logf("go test ./partition -run '^TestStorm$' -seed %d", seed)
			inBubble(t, []int{1, 7, 24, 64}[seed%4], func(t *testing.T, c *crew) { storm(t, c, rand.New(rand.NewPCG(seed, 1))) })
		})
	}
}

func storm(t *testing.T, c *crew, rng *rand.Rand) {
	const most = 9
	c.rates = faults.Rates{Drop: 0.01, LoseAnswer: 0.02, Delay: 0.01, DelayAnswer: 0.02, Refuse: 0.01, MaxDelay: 2 * time.Second, DropEvent: 0.05}
	cut := map[string]func(){}
	heal := func(id string) {
		if reconnect := cut[id]; reconnect != nil {
			reconnect()
		}
		delete(cut, id)
	}
	var calm atomic.Bool
	work := func(ctx context.Context, p *partition.Partition) error {
		r := rand.New(rand.NewPCG(p.Token(), 2))
		fails := make(<-chan time.Time)
		if r.IntN(8) == 0 {
			fails = time.After(time.Duration(r.IntN(20_000)) * time.Millisecond)
		}
		select {
		case <-fails:
			if !calm.Load() {
				return errors.New("failed")
			}
			return until(ctx, p)
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-p.Leaving():
		}
		select { // the item being processed
		case <-time.After(time.Duration(r.IntN(3)*r.IntN(2000)) * time.Millisecond):
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	var left []*worker
	happened := map[string]int{}
	for range 150 {
		id := fmt.Sprintf("w%d", rng.IntN(most))
		does := []string{"join", "join", "leave", "crash", "cut", "heal", "outage", "break"}[rng.IntN(8)]
		switch _, there := c.all[id]; {
		case does == "join" && !there:
			c.join(id, work, partition.Drain(time.Second), partition.Weight(1+rng.IntN(2)))
		case does == "leave" && there:
			w := c.all[id]
			delete(c.all, id)
			w.leave(nil) // it continues to leave
			heal(id)
			left = append(left, w)
		case does == "crash" && there && rng.IntN(3) == 0:
			delete(cut, id) // this one never comes back
			c.kill(id)
		case does == "cut" && there && cut[id] == nil:
			cut[id] = c.locks.Disconnect(c.all[id].client)
		case does == "heal" && cut[id] != nil:
			heal(id)
		case does == "outage" && rng.IntN(4) == 0:
			c.locks.Fail(errors.New("no server"))
			time.Sleep(time.Duration(rng.IntN(25)) * time.Second)
			c.locks.Fail(nil)
		case does == "break":
			if !c.locks.Break(fmt.Sprintf("%s.part.%d", name, rng.IntN(c.count)), "storm") {
				continue
			}
		default:
			continue
		}
		happened[does]++
		time.Sleep(time.Duration(rng.IntN(4)*rng.IntN(3000)) * time.Millisecond)
	}
	if len(c.all) == 0 {
		c.join("last", work)
	}
	for id := range cut {
		heal(id)
	}
	for _, w := range left {
		<-w.done
	}
	calm.Store(true)
	wrong := 0
	for _, f := range c.faults {
		f.Random(faults.Rates{})
		f.DropEvents(nil)
		wrong += f.Counts().Faults()
	}
	// Wait for a TTL after the last crash, a second for the members, and a pause after a failure.
	time.Sleep(15*time.Second + time.Second + 10*time.Second)
	owned := 0
	for id, w := range c.all {
		var want []int
		for k, planned := range w.Plan() {
			if planned == id {
				want = append(want, k)
			}
		}
		require.Len(t, w.Members(), len(c.all), id)
		require.Equal(t, want, w.Owned(), id)
		owned += len(want)
	}
	require.Equal(t, c.count, owned)
	moves, gaps := c.ledger.take()
	slices.Sort(gaps)
	t.Logf("%d partitions, %d workers at the end: %v; %d writes went wrong; %d grants, half of the gaps below %v", c.count, len(c.all), happened, wrong, moves, gaps[len(gaps)/2])
	require.Greater(t, moves, 2*c.count)
}
