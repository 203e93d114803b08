package ratios_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/machine"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
)

// patience bounds every wait for an event. It is far longer than any of them can take.
const patience = 30 * time.Second

func speedClient(t testing.TB, url string, opts ...natslock.Option) *natslock.Client {
	t.Helper()
	c, err := natslock.New(t.Context(), Connect(t, url), opts...)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = c.Close(ctx)
	})
	return c
}

func cycle(t testing.TB, c *natslock.Client, name string) {
	l, err := c.Lock(context.Background(), name)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Unlock(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// BenchmarkCycle compares an uncontended acquire and release with two publishes.
func BenchmarkCycle(b *testing.B) {
	url := Server(b)
	c := speedClient(b, url)
	p := NewPublisher(Connect(b, url), "bare")
	Beside(b, func() { cycle(b, c, "bench") }, func() { p.Cycle(b) })
}

const goroutines = 64

// manyNames returns the work of one of many goroutines, each on its own name: a lock
// cycle, and two publishes.
func manyNames(t testing.TB, url string) (lock, bare func(i int)) {
	c := speedClient(t, url)
	nc := Connect(t, url)
	var publishers [goroutines]*Publisher
	var names [goroutines]string
	for i := range goroutines {
		names[i] = "many." + strconv.Itoa(i)
		publishers[i] = NewPublisher(nc, "bare."+strconv.Itoa(i))
	}
	return func(i int) { cycle(t, c, names[i]) }, func(i int) { publishers[i].Cycle(t) }
}

// BenchmarkParallel runs 64 goroutines of one client on as many names. The ratio is one of
// cycles per second, so more is better here.
func BenchmarkParallel(b *testing.B) {
	lock, bare := manyNames(b, Server(b))
	var locks, bares float64
	for b.Loop() {
		locks += Rate(goroutines, 200*time.Millisecond, lock)
		bares += Rate(goroutines, 200*time.Millisecond, bare)
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(locks/float64(b.N), "locks/s")
	b.ReportMetric(bares/float64(b.N), "bares/s")
	b.ReportMetric(locks/bares, "ratio")
}

// BenchmarkTryBusy compares a one-shot acquire of a lock that another client holds, whose
// error names the holder, with a publish that is refused.
func BenchmarkTryBusy(b *testing.B) {
	url := Server(b)
	holder, c := speedClient(b, url), speedClient(b, url)
	l, err := holder.Lock(b.Context(), "busy")
	require.NoError(b, err)
	defer func() { require.NoError(b, l.Unlock(context.Background())) }()
	p := NewPublisher(Connect(b, url), "busy")
	Beside(b, func() {
		if _, err := c.TryLock(context.Background(), "busy"); err == nil {
			b.Fatal("not busy")
		}
	}, func() { p.Refused(b) })
}

// BenchmarkRenew confirms 1, 100 and 5,000 leases of one client together, and compares
// this with as many asynchronous publishes.
func BenchmarkRenew(b *testing.B) {
	for _, n := range []int{1, 100, 5000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			url := Server(b)
			c := speedClient(b, url, natslock.WithTTL(time.Minute))
			locks := make([]*natslock.Lock, n)
			for i := range locks {
				var err error
				locks[i], err = c.Lock(b.Context(), fmt.Sprint("renew.", i))
				require.NoError(b, err)
			}
			bulk := NewBulk(b, Connect(b, url), n)
			Beside(b, func() {
				var wg sync.WaitGroup
				for _, l := range locks {
					wg.Go(func() {
						if err := l.Extend(context.Background(), 0); err != nil {
							b.Error(err)
						}
					})
				}
				wg.Wait()
			}, func() { bulk.Renew(b) })
		})
	}
}

// BenchmarkHandOver measures the time from a release to the return of the next holder's
// acquire, with two clients, and compares it with a release, its notification and a claim
// that trusts the notification.
func BenchmarkHandOver(b *testing.B) {
	url := Server(b)
	clients := [2]*natslock.Client{speedClient(b, url), speedClient(b, url)}
	var ncs [2]*nats.Conn
	for i := range ncs {
		ncs[i] = Connect(b, url)
	}
	bare := NewHandOver(b, ncs)
	held, err := clients[0].Lock(b.Context(), "hand over")
	require.NoError(b, err)
	n := 0
	// This is timed from within because the waiter must have arrived before.
	BesideTimed(b, func() time.Duration {
		n++
		type grant struct {
			l  *natslock.Lock
			at time.Time
		}
		got := make(chan grant, 1)
		next := clients[n%2]
		go func() {
			l, err := next.Lock(context.Background(), "hand over")
			if err != nil {
				b.Error(err)
			}
			got <- grant{l, time.Now()}
		}()
		for next.Stats().Waiting == 0 {
			time.Sleep(100 * time.Microsecond)
		}
		time.Sleep(3 * time.Millisecond)
		released := time.Now()
		if err := held.Unlock(context.Background()); err != nil {
			b.Fatal(err)
		}
		g := <-got
		held = g.l
		return g.at.Sub(released)
	}, bare.Next)
	require.NoError(b, held.Unlock(context.Background()))
}

// TestAllocations compares the allocations of an uncontended cycle with those of two
// publishes.
func TestAllocations(t *testing.T) {
	tier.Proof(t)
	if machine.Race {
		t.Skip("the race detector allocates too")
	}
	url := Server(t)
	c := speedClient(t, url)
	p := NewPublisher(Connect(t, url), "bare")
	locked := func() { cycle(t, c, "allocations") }
	published := func() { p.Cycle(t) }
	locked()
	published()
	// Take the minimum of many runs, because a lock checks for waiters now and then.
	least := func(fn func()) float64 {
		allocs := testing.AllocsPerRun(10, fn)
		for range 50 {
			allocs = min(allocs, testing.AllocsPerRun(10, fn))
		}
		return allocs
	}
	l, b := least(locked), least(published)
	t.Logf("a cycle %.0f, two bare publishes %.0f: %.2f times", l, b, l/b)
	require.Less(t, l/b, 1.35)
}

// TestSpeed guards the ratios of times, leaving room for a machine that does other things
// at the same time. On a quiet machine they are 1.17 and 0.85.
func TestSpeed(t *testing.T) {
	tier.Proof(t)
	if machine.Race {
		t.Skip("the race detector slows down one side only")
	}
	url := Server(t)
	c := speedClient(t, url)
	p := NewPublisher(Connect(t, url), "bare")
	ratio := Ratio(1000, func() { cycle(t, c, "speed") }, func() { p.Cycle(t) })
	lock, bare := manyNames(t, url)
	var locks, bares float64
	for range 5 {
		locks += Rate(goroutines, 100*time.Millisecond, lock)
		bares += Rate(goroutines, 100*time.Millisecond, bare)
	}
	t.Logf("a cycle takes %.2f times two bare publishes; with %d names %.2f of their cycles a second", ratio, goroutines, locks/bares)
	require.Less(t, ratio, 1.6)
	require.Greater(t, locks/bares, 0.55)
}

// TestHeldMemory guards how much memory a held lock takes at its client while it is
// watched and renewed.
func TestHeldMemory(t *testing.T) {
	tier.Proof(t)
	if machine.Race {
		t.Skip("the race detector uses memory too")
	}
	const n = 5000
	c := speedClient(t, Server(t), natslock.WithTuning(natslock.Tuning{WatchAfter: 1}))
	cycle(t, c, "first")
	before, begun := Heap(), c.Stats().Renewed
	locks := make([]*natslock.Lock, n)
	var wg sync.WaitGroup
	for w := range 16 {
		wg.Go(func() {
			for i := w; i < n; i += 16 {
				l, err := c.Lock(context.Background(), fmt.Sprint("memory.", i))
				if err != nil {
					t.Error(err)
					return
				}
				locks[i] = l
			}
		})
	}
	wg.Wait()
	for end := time.Now().Add(patience); c.Stats().Renewed < begun+2*n && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	each := (Heap() - before) / n
	t.Logf("%d bytes for each of %d locks", each, n)
	require.Less(t, each, int64(2<<10))
	for _, l := range locks {
		require.NoError(t, l.Err())
	}
}
