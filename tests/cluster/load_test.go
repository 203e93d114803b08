package cluster_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/history"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
)

// load has clients contend for a few locks of both kinds and take turns incrementing counters that
// only the locks protect.
type load struct {
	t    *testing.T
	ref  *history.Recorder
	end  context.CancelFunc
	wg   sync.WaitGroup
	over sync.Once

	counters map[string]*int // guarded by the locks
	mu       sync.Mutex
	done     map[string]int
}

var contended = []which{
	{Name: "a", Kind: admin.KindMutex},
	{Name: "b", Kind: admin.KindMutex},
	{Name: "c", Kind: admin.KindRW},
	{Name: "c", Kind: admin.KindRW, Mode: admin.Shared},
	{Name: "c", Kind: admin.KindRW, Mode: admin.Shared},
}

func startLoad(t *testing.T, clients int, connect func() *nats.Conn, opts ...natslock.Option) *load {
	t.Helper()
	ld := &load{t: t, ref: history.NewRecorder(), counters: map[string]*int{}, done: map[string]int{}}
	for _, w := range contended {
		ld.counters[w.Name] = new(int)
	}
	ctx, end := context.WithCancel(context.Background())
	ld.end = end
	t.Cleanup(func() { ld.over.Do(func() { end(); ld.wg.Wait() }) })
	for i := range clients {
		c := kit.NewClient(t, connect(), opts...)
		for g := range 2 {
			ld.wg.Go(func() { ld.work(ctx, c, rand.New(rand.NewPCG(uint64(i), uint64(g)))) })
		}
	}
	return ld
}

func (ld *load) work(ctx context.Context, c *natslock.Client, rng *rand.Rand) {
	for ctx.Err() == nil {
		w := contended[rng.IntN(len(contended))]
		l, err := w.take(context.Background(), c)
		if !assert.NoError(ld.t, err, "%v", w) {
			return
		}
		ld.ref.Granted(w.Kind, w.Mode, l)
		count := ld.counters[w.Name]
		if w.Mode == admin.Exclusive {
			*count++
			time.Sleep(2 * time.Millisecond)
			ld.mu.Lock()
			ld.done[w.Name]++
			ld.mu.Unlock()
		} else {
			seen := *count
			time.Sleep(20 * time.Millisecond) // long enough for others to join
			assert.Equal(ld.t, seen, *count, "written under a reader")
		}
		assert.NoError(ld.t, l.Err(), "%v", w)
		assert.NoError(ld.t, l.Unlock(context.Background()), "%v", w)
	}
}

// total returns how often the counters have been incremented.
func (ld *load) total() (n int) {
	ld.mu.Lock()
	defer ld.mu.Unlock()
	for _, d := range ld.done {
		n += d
	}
	return n
}

// more waits until the counters have been incremented n more times.
func (ld *load) more(n int) {
	ld.t.Helper()
	n += ld.total()
	kit.Eventually(ld.t, "the clients are at work", func() bool { return ld.total() >= n })
}

// stop ends the load once there is enough of it to judge, and checks the result.
func (ld *load) stop() {
	ld.t.Helper()
	kit.Eventually(ld.t, "readers have met", func() bool {
		n := ld.ref.History().Counts()
		return n["readers at once"] > 1 && n["reads"] > 10
	})
	ld.over.Do(func() { ld.end(); ld.wg.Wait() })
	ld.ref.Check(ld.t)
	for name, n := range ld.counters {
		require.Equal(ld.t, ld.done[name], *n, "an update of %s was lost", name)
	}
	ld.t.Logf("%v", ld.ref.History().Counts())
}
