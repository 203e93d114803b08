package ratios_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/machine"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/rwlock"
)

type locking func(context.Context, string, ...natslock.LockOption) (*natslock.Lock, error)

// lingering returns a function that takes and releases a lock that lingers at its client.
func lingering(t testing.TB, lock locking, name string) func() {
	lingers := natslock.Linger(time.Hour)
	return func() {
		l, err := lock(context.Background(), name, lingers)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Unlock(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
}

// BenchmarkLinger compares the cycle of a lingering mutex with two publishes.
func BenchmarkLinger(b *testing.B) {
	url := Server(b)
	p := NewPublisher(Connect(b, url), "bare")
	Beside(b, lingering(b, speedClient(b, url).Lock, "linger"), func() { p.Cycle(b) })
}

// BenchmarkLingerRead compares the cycle of a lingering reader with two publishes.
func BenchmarkLingerRead(b *testing.B) {
	url := Server(b)
	p := NewPublisher(Connect(b, url), "bare")
	Beside(b, lingering(b, rwlock.New(speedClient(b, url)).RLock, "linger"), func() { p.Cycle(b) })
}

// TestLinger guards the costs of a lock that lingers at its client: the messages per cycle,
// and the time relative to two publishes, which is a hundredth on a quiet machine.
func TestLinger(t *testing.T) {
	tier.Proof(t)
	url := Server(t)
	p := NewPublisher(Connect(t, url), "bare")
	for name, of := range map[string]func(counted) locking{
		"mutex":  func(c counted) locking { return c.Lock },
		"writer": func(c counted) locking { return rwlock.New(c.Client).Lock },
		"reader": func(c counted) locking { return rwlock.New(c.Client).RLock },
	} {
		t.Run(name, func(t *testing.T) {
			c := countedClient(t, url)
			cycle := lingering(t, of(c), name)
			cycle()
			const cycles = 32 * 400
			took := make([]time.Duration, cycles)
			before := c.nc.Stats().OutMsgs
			for i := range took {
				begun := time.Now()
				cycle()
				took[i] = time.Since(begun)
			}
			sent := c.nc.Stats().OutMsgs - before
			ratio := Ratio(1000, cycle, func() { p.Cycle(t) })
			t.Logf("%d messages sent for %d cycles, each of %v (p50), %.4f times two bare publishes", sent, cycles, median(took), ratio)
			require.LessOrEqual(t, sent, uint64(cycles/32))
			if !machine.Race {
				require.Less(t, ratio, 1./15)
			}
		})
	}
}

// undisturbed returns the 5th percentile of times. On a busy machine other processes run in
// between, which delays an acquire of twelve steps more than one of two.
func undisturbed(times []time.Duration) time.Duration {
	slices.Sort(times)
	return times[len(times)/20]
}

// busyLate is the goroutine lateness at which a machine counts as too busy to compare two
// acquires.
const busyLate = 5 * time.Millisecond

// TestLingerHandOver guards how long another client waits for an idle lock: until the client
// that keeps it gives it up, and until the grant. Both are compared with a plain hand-over,
// whose waiter already has its place. It takes one notification from the other client's place
// to the deletion. A busy machine interrupts the longer of two acquires more often, and makes
// the shorter one faster because its processors do not sleep. There, only TestLingerSteps of
// package simulation judges the steps to the grant.
func TestLingerHandOver(t *testing.T) {
	tier.Proof(t)
	late := machine.Lateness(t)
	url := Server(t)
	var queued atomic.Int64
	owner, asker := countedClient(t, url), countedClient(t, url, admin.WithObserver(func(_ context.Context, ev admin.Event) {
		if ev.Type == admin.EventQueued {
			queued.Store(ev.Time.UnixNano())
		}
	}))
	idles := lingering(t, owner.Lock, "idle")
	w := newWire(t, url)
	var gaveUp, placed, granted, plain []time.Duration
	for range 100 {
		idles()
		time.Sleep(3 * time.Millisecond)
		w.forget(t)
		begun := time.Now()
		l, err := asker.Lock(context.Background(), "idle")
		now := time.Now()
		require.NoError(t, err)
		granted = append(granted, now.Sub(begun))
		gaveUp = append(gaveUp, w.gaveUp(t))
		require.NoError(t, l.Unlock(context.Background()))
		placed = append(placed, now.Sub(time.Unix(0, queued.Load())))

		plain = append(plain, handedOver(t, owner, asker))
	}
	of := func(q func([]time.Duration) time.Duration, all []time.Duration) float64 {
		return float64(q(all)) / float64(q(plain))
	}
	t.Logf("a plain hand-over takes %v; an idle lock is given up in %.2f of that; another client's Lock takes %.2f times, %.2f from its place on",
		median(plain), of(median, gaveUp), of(undisturbed, granted), of(undisturbed, placed))
	if !machine.Race {
		require.Less(t, of(median, gaveUp), 1.5)
		if worst := late(); worst > busyLate {
			t.Logf("the times are not judged: the machine is up to %v late, and more than %v", worst, busyLate)
			return
		}
		require.Less(t, of(undisturbed, placed), 3.5)
		require.Less(t, of(undisturbed, granted), 6.)
	}
}

// handedOver measures the time from one client's Unlock to the grant of another client that
// waits.
func handedOver(t *testing.T, from, to counted) time.Duration {
	t.Helper()
	held, err := from.Lock(context.Background(), "plain")
	require.NoError(t, err)
	type grant struct {
		l   *natslock.Lock
		at  time.Time
		err error
	}
	got := make(chan grant, 1)
	go func() {
		l, err := to.Lock(context.Background(), "plain")
		got <- grant{l, time.Now(), err}
	}()
	for to.Stats().Waiting == 0 {
		time.Sleep(100 * time.Microsecond)
	}
	time.Sleep(3 * time.Millisecond)
	released := time.Now()
	require.NoError(t, held.Unlock(context.Background()))
	g := <-got
	require.NoError(t, g.err)
	require.NoError(t, g.l.Unlock(context.Background()))
	return g.at.Sub(released)
}

// wire receives all messages.
type wire struct {
	nc       *nats.Conn
	messages chan received
}

type received struct {
	subject string
	deleted bool
	at      time.Time
}

const marker = "marker"

func newWire(t *testing.T, url string) *wire {
	w := &wire{Connect(t, url), make(chan received, 1<<16)}
	_, err := w.nc.Subscribe(">", func(m *nats.Msg) { // one subscription for all of them, which keeps the order
		w.messages <- received{m.Subject, m.Header.Get("KV-Operation") != "", time.Now()}
	})
	require.NoError(t, err)
	require.NoError(t, w.nc.Flush())
	return w
}

// forget drops all earlier messages.
func (w *wire) forget(t *testing.T) {
	require.NoError(t, w.nc.Publish(marker, nil))
	w.await(t, marker, false)
}

// gaveUp measures the time from the first place to the tombstone of the lock.
func (w *wire) gaveUp(t *testing.T) time.Duration {
	bucket := "$KV." + kvstore.DefaultBucket
	placed := w.await(t, bucket+".wait.idle.", false)
	return w.await(t, bucket+".lock.idle", true).Sub(placed)
}

func (w *wire) await(t *testing.T, prefix string, deleted bool) time.Time {
	for limit := time.After(patience); ; {
		select {
		case m := <-w.messages:
			if m.deleted == deleted && strings.HasPrefix(m.subject, prefix) {
				return m.at
			}
		case <-limit:
			t.Fatalf("nothing received of %q", prefix)
		}
	}
}

// TestLingerTwoClients compares the grants that the goroutines of two clients get for a lock
// that lingers at both with those for a lock that does not linger.
func TestLingerTwoClients(t *testing.T) {
	tier.Proof(t)
	url := Server(t)
	clients := []counted{countedClient(t, url), countedClient(t, url)}
	var ratios []float64
	for range 5 {
		plain := contend(t, "plain", 300*time.Millisecond, nil, clients...)
		linger := contend(t, "linger", 300*time.Millisecond, []natslock.LockOption{natslock.Linger(time.Minute)}, clients...)
		t.Logf("lingering: %.0f grants/s, longest wait %v, %.3f messages sent per grant; plain: %.0f, %v, %.3f",
			linger.rate, linger.longest, linger.sent, plain.rate, plain.longest, plain.sent)
		ratios = append(ratios, linger.rate/plain.rate)
	}
	slices.Sort(ratios)
	t.Logf("lingering has %.2f times the grants", ratios[len(ratios)/2])
	if !machine.Race {
		require.GreaterOrEqual(t, ratios[len(ratios)/2], 0.2)
	}
}

// TestIdleMemory guards how much memory an idle lock takes at its client.
func TestIdleMemory(t *testing.T) {
	tier.Proof(t)
	if machine.Race {
		t.Skip("the race detector uses memory too")
	}
	const n = 9_000
	c := speedClient(t, Server(t))
	lingering(t, c.Lock, "first")()
	before, begun, routines := Heap(), c.Stats().Renewed, runtime.NumGoroutine()
	var wg sync.WaitGroup
	for w := range 16 {
		wg.Go(func() {
			for i := w; i < n; i += 16 {
				l, err := c.Lock(context.Background(), fmt.Sprint("idle.", i), natslock.Linger(time.Hour))
				if err == nil {
					err = l.Unlock(context.Background())
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	for end := time.Now().Add(patience); c.Stats().Renewed < begun+2*n && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	require.Equal(t, n+1, c.Stats().Idle)
	// A list or renewals under way are not a cost of the leases, so take the minimum over a
	// second.
	each := (Heap() - before) / n
	for range 10 {
		time.Sleep(100 * time.Millisecond)
		each = min(each, (Heap()-before)/n)
	}
	t.Logf("%d bytes for each of %d idle locks, %d goroutines more", each, n, runtime.NumGoroutine()-routines)
	require.LessOrEqual(t, each, int64(2<<10))
	require.Zero(t, c.Stats().Lost)
}
