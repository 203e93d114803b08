package load

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/election"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/rwlock"
	"github.com/natslock/locks/semaphore"
	"github.com/natslock/locks/testutil"
)

// crowd is a kind of lock that many clients want simultaneously. takes acquires it for the i-th client and returns a
// function that gives it back.
type crowd struct {
	name  string
	most  int // the maximum number of clients
	takes func(ctx context.Context, c *natslock.Client, i int) (giveBack func() error, err error)
}

var crowds = []crowd{
	{"mutex", 3000, func(ctx context.Context, c *natslock.Client, i int) (func() error, error) {
		return unlocking(c.Lock(ctx, "crowd"))
	}},
	{"semaphore of 5", 3000, func(ctx context.Context, c *natslock.Client, i int) (func() error, error) {
		return unlocking(semaphore.New(c, 5).Acquire(ctx, "crowd"))
	}},
	{"readers, a tenth of writers", 3000, func(ctx context.Context, c *natslock.Client, i int) (func() error, error) {
		if i%10 == 0 {
			return unlocking(rwlock.New(c).Lock(ctx, "crowd"))
		}
		return unlocking(rwlock.New(c).RLock(ctx, "crowd"))
	}},
	{"readers", 3000, func(ctx context.Context, c *natslock.Client, i int) (func() error, error) {
		return unlocking(rwlock.New(c).RLock(ctx, "crowd"))
	}},
	{"election", 300, func(ctx context.Context, c *natslock.Client, i int) (func() error, error) {
		term, err := election.New(c, "crowd").Campaign(ctx)
		if err != nil {
			return nil, err
		}
		return func() error { return term.Resign(context.Background()) }, nil
	}},
}

func unlocking(l *natslock.Lock, err error) (func() error, error) {
	if err != nil {
		return nil, err
	}
	return func() error { return l.Unlock(context.Background()) }, nil
}

// gathered is the outcome of a crowd.
type gathered struct {
	served   int
	took     time.Duration // until the last client had left
	gap      time.Duration // the longest time without a grant
	messages float64       // from the server, per client
}

// gather makes n clients, each on its own connection, ask simultaneously, work for a millisecond, and leave.
func (w crowd) gather(t *testing.T, n int) (g gathered) {
	t.Helper()
	s := testutil.RunServer(t)
	conns, clients := make([]*nats.Conn, n), make([]*natslock.Client, n)
	for i := range n {
		conns[i] = s.Connect()
		clients[i] = kit.NewClient(t, conns[i])
	}
	in := func() (sum uint64) {
		for _, nc := range conns {
			sum += nc.Stats().InMsgs
		}
		return sum
	}
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
	defer stop()
	grants := make(chan time.Time, n)
	begin := make(chan struct{})
	var wg sync.WaitGroup
	for i, c := range clients {
		wg.Go(func() {
			<-begin
			giveBack, err := w.takes(ctx, c, i)
			if err != nil {
				return
			}
			grants <- time.Now()
			time.Sleep(time.Millisecond)
			_ = giveBack() // a slow machine may not confirm it in time
		})
	}
	before, begun := in(), time.Now()
	close(begin)
	wg.Wait()
	g.took, g.messages = time.Since(begun), float64(in()-before)/float64(n)
	close(grants)
	last := begun
	for at := range grants {
		g.served++
		g.gap = max(g.gap, at.Sub(last))
		last = at
	}
	return g
}

// TestCrowd has many clients want one lock simultaneously, as a deployment of as many pods does. All of them are
// served, and what this costs each client does not grow with the crowd: the number of messages at most doubles, and the
// time is logged.
func TestCrowd(t *testing.T) {
	tier.Proof(t)
	for _, w := range crowds {
		t.Run(w.name, func(t *testing.T) {
			var few gathered
			for _, n := range []int{100, 300, 1000, 3000} {
				if n > w.most || n > 1000 && !*full {
					continue
				}
				g := w.gather(t, n)
				t.Logf("n = %d: %d served in %v, %.1f ms each, longest gap %v, %.0f messages for each",
					n, g.served, g.took.Round(time.Millisecond), float64(g.took.Microseconds())/1000/float64(n), g.gap.Round(time.Millisecond), g.messages)
				require.Equal(t, n, g.served)
				if n == 100 {
					few = g
				}
				require.LessOrEqual(t, g.messages, 2*few.messages)
			}
		})
	}
}

// TestManyGoroutinesOfSemaphore has four clients with n goroutines each use the permits of a semaphore for 10 ms at a
// time. Five permits allow 500 calls per second. What a call costs does not grow with the number of goroutines, and
// they are served in turn.
func TestManyGoroutinesOfSemaphore(t *testing.T) {
	tier.Proof(t)
	for _, n := range []int{2, 12, 25, 50, 250} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			s := testutil.RunServer(t)
			ctx, stop := context.WithTimeout(t.Context(), either(5*time.Second, 20*time.Second))
			defer stop()
			var calls atomic.Int64
			var conns []*nats.Conn
			var wg sync.WaitGroup
			served := make([][]int, 4) // per goroutine of each client
			begun := time.Now()
			for i := range served {
				nc := s.Connect()
				conns = append(conns, nc)
				sem := semaphore.New(kit.NewClient(t, nc), 5)
				served[i] = make([]int, n)
				for g := range n {
					wg.Go(func() {
						for ctx.Err() == nil {
							l, err := sem.Acquire(ctx, "rate")
							if err != nil {
								if !errors.Is(err, ctx.Err()) {
									t.Error(err)
								}
								return
							}
							time.Sleep(10 * time.Millisecond)
							_ = l.Unlock(context.Background())
							calls.Add(1)
							served[i][g]++
						}
					})
				}
			}
			<-ctx.Done()
			rate := float64(calls.Load()) / time.Since(begun).Seconds()
			var in uint64
			for _, nc := range conns {
				in += nc.Stats().InMsgs
			}
			messages := float64(in) / float64(max(calls.Load(), 1))
			wg.Wait()
			apart := 0
			for _, all := range served {
				apart = max(apart, slices.Max(all)-slices.Min(all))
			}
			t.Logf("4 clients of %d goroutines: %.0f calls/s, %.1f messages a call, the goroutines of a client at most %d calls apart", n, rate, messages, apart)
			require.Greater(t, rate, 100.0)
			if n > 5 { // with fewer goroutines than permits each call queues
				require.LessOrEqual(t, apart, 4)
				require.Less(t, messages, 20.0)
			}
		})
	}
}
