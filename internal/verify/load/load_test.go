package load

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/session"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
)

// link is a path to a bucket that carries a limited number of writes per second, in order, and queues the rest.
type link struct {
	mu    sync.Mutex
	pause time.Duration // between two writes; 0: none
	delay time.Duration // of each write
	queue []func()
	sent  int
	wake  chan struct{}
	end   chan struct{}
}

func newLink(t *testing.T) *link {
	l := &link{wake: make(chan struct{}, 1), end: make(chan struct{})}
	var wg sync.WaitGroup
	wg.Go(l.run)
	t.Cleanup(func() { close(l.end); wg.Wait() })
	return l
}

// carry sets how many writes pass per second, or lets all of them pass if rate is 0.
func (l *link) carry(rate int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pause, l.sent = 0, 0
	if rate > 0 {
		l.pause = time.Second / time.Duration(rate)
	}
}

// late delays each write by d.
func (l *link) late(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.delay = d
}

// count returns the number of writes sent since the last call.
func (l *link) count() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, l.sent = l.sent, 0
	return n
}

func (l *link) run() {
	for {
		l.mu.Lock()
		var next func()
		if len(l.queue) > 0 {
			next, l.queue = l.queue[0], l.queue[1:]
		}
		pause := l.pause
		l.mu.Unlock()
		if next == nil {
			select {
			case <-l.wake:
				continue
			case <-l.end:
				return
			}
		}
		select {
		case <-time.After(pause):
			next()
		case <-l.end:
			return
		}
	}
}

func (l *link) add(fn func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue, l.sent = append(l.queue, fn), l.sent+1
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// over is a store behind a link.
type over struct {
	kvstore.KV
	l *link
}

func (o over) Send(w kvstore.Write, done func(kvstore.Answer)) (forget func(), err error) {
	w.Value = bytes.Clone(w.Value)
	o.l.mu.Lock()
	delay := o.l.delay
	o.l.mu.Unlock()
	if delay > 0 {
		time.AfterFunc(delay, func() { _, _ = o.pass(w, done) })
		return func() {}, nil
	}
	return o.pass(w, done)
}

func (o over) pass(w kvstore.Write, done func(kvstore.Answer)) (forget func(), err error) {
	o.l.add(func() {
		if _, err := o.KV.Send(w, done); err != nil {
			done(kvstore.Answer{Err: err})
		}
	})
	return func() {}, nil
}

// hold acquires n locks over a link that carries everything.
func hold(t *testing.T, m *kvstore.Memory, n int) (c *natslock.Client, line *kit.Line, l *link, held []*natslock.Lock) {
	t.Helper()
	l, line = newLink(t), kit.NewLine(m)
	c, err := line.NewClient(faults.WrapStore(func(kv kvstore.KV) kvstore.KV { return over{kv, l} }))
	require.NoError(t, err)
	t.Cleanup(func() {
		l.carry(0)
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = c.Close(ctx)
	})
	for i := range n {
		h, err := c.TryLock(t.Context(), fmt.Sprint(i), natslock.Detached())
		require.NoError(t, err)
		kit.Keep(t, h)
		held = append(held, h)
	}
	return c, line, l, held
}

func alive(held []*natslock.Lock) (n int) {
	for _, h := range held {
		if h.Remaining() > 0 {
			n++
		}
	}
	return n
}

// causes returns why locks were lost.
func causes(held []*natslock.Lock) (all string) {
	for _, h := range held {
		if err := h.Err(); err != nil {
			all += err.Error() + "\n"
		}
	}
	return all
}

// TestNarrowLink holds 1,000 locks with the default TTL. Their client renews each of them every 5 s, but 72 renewals
// per second are enough to keep them all, so a link that carries half of what the client wants loses none. A narrower
// link loses few more than it must, at most a sixth.
func TestNarrowLink(t *testing.T) {
	const locks, validity = 1000, 14
	for _, rate := range []int{140, 100, 60} {
		t.Run(fmt.Sprint(rate), func(t *testing.T) {
			kit.InMemory(t, func(t *testing.T, m *kvstore.Memory) {
				c, _, l, held := hold(t, m, locks)
				l.carry(rate)
				time.Sleep(45 * time.Second)
				n := alive(held)
				_, err := c.TryLock(t.Context(), "one more")
				if rate*validity*2/3 > locks {
					require.NoError(t, err)
				} else { // renewals happen in the last third of the validity
					require.ErrorIs(t, err, natslock.ErrUnavailable)
					require.ErrorContains(t, err, "renewals of held locks are")
					require.ErrorContains(t, c.Healthy(), "overdue")
				}
				require.Equal(t, locks-n, strings.Count(causes(held), "was still queued"))
				t.Logf("%d of %d are left, after %d writes", n, locks, l.count())
				require.GreaterOrEqual(t, n, min(locks, rate*validity*85/100))
			})
		})
	}
}

// TestSlowAnswers makes replies take 400 ms from some point on, no matter how few writes are under way. All locks are
// kept, and new ones can be acquired.
func TestSlowAnswers(t *testing.T) {
	kit.InMemory(t, func(t *testing.T, m *kvstore.Memory) {
		const locks = 3000
		c, _, l, held := hold(t, m, locks)
		time.Sleep(session.DefaultTTL)
		l.late(400 * time.Millisecond)
		time.Sleep(2 * session.DefaultTTL)
		require.Equal(t, locks, alive(held))
		require.NoError(t, c.Healthy())
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		one, err := c.Lock(ctx, "one more", natslock.Detached())
		require.NoError(t, err)
		l.late(0)
		require.NoError(t, one.Unlock(t.Context()))
	})
}

// TestReconnectSpreads checks that the first renewals after a reconnect come all at once, while the following ones are
// spread.
func TestReconnectSpreads(t *testing.T) {
	kit.InMemory(t, func(t *testing.T, m *kvstore.Memory) {
		const locks = 1500
		_, line, l, held := hold(t, m, locks)
		time.Sleep(session.DefaultTTL) // the watches of the locks have begun, with a renewal
		line.Cut()
		line.Heal()
		time.Sleep(session.DefaultTTL)
		const parts = 10
		most := 0
		l.count()
		for range parts {
			time.Sleep(session.DefaultTTL / 3 / parts)
			most = max(most, l.count())
		}
		require.Equal(t, locks, alive(held))
		require.Less(t, most, 2*locks/parts, "renewals in a tenth of the time between two of one lock")
	})
}
