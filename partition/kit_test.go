package partition_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/locktest"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/partition"
)

// name is the group's name in every test.
const name = "the.group"

// ledger records which worker worked on which partition, and checks the result.
type ledger struct {
	mu     sync.Mutex
	tokens map[int]uint64 // the greatest token per partition
	owners map[int]string // current owner of each partition
	freed  map[int]time.Time
	gaps   []time.Duration
	moves  int
	wrong  []string
}

func newLedger() *ledger {
	return &ledger{tokens: map[int]uint64{}, owners: map[int]string{}, freed: map[int]time.Time{}}
}

// begin records that a worker works on a partition until end is called.
func (l *ledger) begin(worker string, p *partition.Partition) (end func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k, token := p.Number(), p.Token()
	if other, ok := l.owners[k]; ok {
		l.wrong = append(l.wrong, fmt.Sprintf("partition %d: %s began with token %d while %s worked", k, worker, token, other))
	}
	if token <= l.tokens[k] {
		l.wrong = append(l.wrong, fmt.Sprintf("partition %d: %s got token %d after %d", k, worker, token, l.tokens[k]))
	}
	if at, ok := l.freed[k]; ok {
		l.gaps = append(l.gaps, time.Since(at))
	}
	l.owners[k], l.tokens[k] = worker, token
	l.moves++
	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.owners[k] == worker {
			delete(l.owners, k)
			l.freed[k] = time.Now()
		}
	})
}

// take returns the moves and gaps since the last call.
func (l *ledger) take() (moves int, gaps []time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	moves, gaps = l.moves, l.gaps
	l.moves, l.gaps = 0, nil
	return moves, gaps
}

// owned returns how many partitions each worker is working on.
func (l *ledger) owned() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := map[string]int{}
	for _, worker := range l.owners {
		n[worker]++
	}
	return n
}

// crew is a group of workers that share a bucket in memory, in fake time.
type crew struct {
	t      *testing.T
	locks  *locktest.Locker
	count  int
	ledger *ledger
	all    map[string]*worker
	rates  faults.Rates // fault rates between the clients and the bucket
	faults []*faults.Store
}

type worker struct {
	*partition.Group
	client *natslock.Client
	leave  context.CancelCauseFunc
	done   chan struct{}
	err    error
	events []partition.Event
	begun  time.Time
	log    kit.Log
}

// find returns the first event of the given type. The worker must have ended or be idle.
func (w *worker) find(what partition.EventType) partition.Event {
	synctest.Wait()
	for _, ev := range w.events {
		if ev.Type == what {
			return ev
		}
	}
	return partition.Event{}
}

// until works until the worker has to leave or has lost the partition.
func until(ctx context.Context, p *partition.Partition) error {
	select {
	case <-p.Leaving():
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func inBubble(t *testing.T, count int, fn func(t *testing.T, c *crew)) {
	synctest.Test(t, func(t *testing.T) {
		c := &crew{t: t, locks: locktest.New(), count: count, ledger: newLedger(), all: map[string]*worker{}}
		defer c.locks.Close()
		fn(t, c)
		for _, id := range c.ids() {
			c.leave(id)
		}
		require.Empty(t, c.ledger.wrong)
	})
}

func (c *crew) ids() (ids []string) {
	for id := range c.all {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// join adds a worker that runs work, or until if work is nil.
func (c *crew) join(id string, work func(context.Context, *partition.Partition) error, opts ...partition.Option) *worker {
	wrap := faults.WrapStore(func(kv kvstore.KV) kvstore.KV {
		f := faults.New(kv, uint64(len(c.faults)))
		rates := c.rates
		if rates.DropEvent > 0 {
			// A store whose connection misses a deletion reports the end of the lease later. The
			// in-memory store below these faults has seen the deletion and does not report it again, so
			// only writes may be missed here.
			rates.DropEvent = 0
			rng := rand.New(rand.NewPCG(uint64(len(c.faults)), 3))
			var mu sync.Mutex
			f.DropEvents(func(ev kvstore.Event) bool {
				mu.Lock()
				defer mu.Unlock()
				return ev.Kind == kvstore.Put && rng.Float64() < c.rates.DropEvent
			})
		}
		f.Random(rates)
		c.faults = append(c.faults, f)
		return f
	})
	w := &worker{done: make(chan struct{}), begun: time.Now()}
	w.client = c.locks.NewClient(w.log.Option(), wrap)
	if work == nil {
		work = until
	}
	w.Group = partition.New(w.client, name, c.count, append([]partition.Option{
		partition.ID(id),
		partition.OnEvent(func(ev partition.Event) { w.events = append(w.events, ev) }),
	}, opts...)...)
	ctx, cancel := context.WithCancelCause(context.Background())
	w.leave = cancel
	go func() {
		defer close(w.done)
		w.err = w.Run(ctx, func(ctx context.Context, p *partition.Partition) error {
			end := c.ledger.begin(id, p)
			defer end()
			return work(ctx, p)
		})
	}()
	c.all[id] = w
	return w
}

// leave ends a worker and waits until it has left.
func (c *crew) leave(id string) *worker {
	w := c.all[id]
	delete(c.all, id)
	w.leave(nil)
	<-w.done
	return w
}

// kill ends a worker's client the way a crash would.
func (c *crew) kill(id string) {
	w := c.all[id]
	delete(c.all, id)
	c.locks.Disconnect(w.client)
	w.leave(nil)
}

// balanced fails the test unless every worker owns its share and no partition is left over.
func (c *crew) balanced() {
	c.t.Helper()
	owned, n := c.ledger.owned(), len(c.all)
	for id, w := range c.all {
		require.Contains(c.t, []int{c.count / n, (c.count + n - 1) / n}, owned[id], "%s of %v", id, owned)
		require.Len(c.t, w.Owned(), owned[id])
		require.Len(c.t, w.Members(), n)
	}
}
