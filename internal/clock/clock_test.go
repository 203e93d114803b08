package clock_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/call"
	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/cohort"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/session"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/testutil"
)

// newClient creates a client with the given clock, or with the machine's clock if now is
// nil.
func newClient(t *testing.T, kv kvstore.KV, cfg session.Config, now func() clock.Instant) *cohort.Client {
	t.Helper()
	b := bucket.New(kv, "", now)
	c := cohort.New(b, session.New(b, cfg), cohort.DefaultTurn, cohort.DefaultMaxLingering)
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = c.Close(ctx) // immediately, although a test may still hold locks
	})
	return c
}

func open(t *testing.T, nc *nats.Conn) kvstore.KV {
	t.Helper()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	store, err := kvstore.Open(t.Context(), js, kvstore.Config{})
	require.NoError(t, err)
	return store
}

func newTestClient(t *testing.T, nc *nats.Conn, ttl time.Duration, now func() clock.Instant) *cohort.Client {
	t.Helper()
	return newClient(t, open(t, nc), session.Config{TTL: ttl}, now)
}

// two is a pair of requests that exclude each other.
type two struct {
	name          string
	first, second call.Request
}

var conflicts = []two{
	{"mutex", call.Request{Name: "x"}, call.Request{Name: "x"}},
	{"writer before reader", call.Request{Name: "x", Kind: record.RW}, call.Request{Name: "x", Kind: record.RW, Mode: record.Shared}},
	{"reader before writer", call.Request{Name: "x", Kind: record.RW, Mode: record.Shared}, call.Request{Name: "x", Kind: record.RW}},
}

// next is the holding that gets the lock after the first one, and the time of its grant.
type next struct {
	l  cohort.Holding
	at time.Time
}

// await queues for the lock in the background and delivers the resulting holding.
func await(t *testing.T, e *cohort.Client, req call.Request) <-chan next {
	got := make(chan next, 1)
	go func() {
		l, err := e.Acquire(context.Background(), req)
		assert.NoError(t, err)
		got <- next{l, time.Now()}
	}()
	time.Sleep(100 * time.Millisecond)
	_, waiting, _ := e.Held()
	writes := req.Kind == record.RW && req.Mode == record.Exclusive // already behind its gate
	require.True(t, writes || waiting == 1, "it does not wait")
	return got
}

// drifting returns a clock that advances by rate nanoseconds per true nanosecond from now
// on.
func drifting(rate float64) func() clock.Instant {
	begun := clock.Now()
	return func() clock.Instant {
		return begun.Add(time.Duration(float64(clock.Now().Sub(begun)) * rate))
	}
}

// TestClockRate runs the clocks of two clients at wrong rates, one slow and one fast, and
// judges by true time whether both believe they hold the lock. They never do while their
// rates are off by at most margin/T. A clock that is slow by four times as much is outside
// the promise, and the overlap that it causes proves that this test can fail.
func TestClockRate(t *testing.T) {
	tier.Proof(t)
	for _, c := range []struct {
		ttl     time.Duration
		allowed float64 // margin/T
	}{
		{time.Second, 0.1},
		{10 * time.Second, 0.1},
		{15 * time.Second, 1.0 / 15},
		{time.Hour, 0.001},
	} {
		for _, r := range []struct {
			name    string
			holder  float64 // as a multiple of the allowed rate
			overlap bool
		}{
			{"holder slow", -1, false},
			{"holder fast", +1, false},
			{"holder far too slow", -4, true},
		} {
			for _, who := range conflicts {
				if c.ttl > time.Minute && who.first.Kind != record.Mutex {
					continue // hours are expensive even here, and the kind makes no difference
				}
				t.Run(fmt.Sprintf("%v/%s/%s", c.ttl, r.name, who.name), func(t *testing.T) {
					testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
						nc, link := s.ConnectLink()
						a := newTestClient(t, nc, c.ttl, drifting(1+r.holder*c.allowed))
						b := newTestClient(t, s.Connect(), c.ttl, drifting(1-r.holder/max(1, -r.holder)*c.allowed))
						held, err := a.Acquire(t.Context(), who.first)
						require.NoError(t, err)
						got := await(t, b, who.second)
						time.Sleep(2 * c.ttl) // renewed by its own clock
						state, _, _ := held.Status()
						require.Equal(t, session.Held, state, "renewals come in time at any rate")
						require.Empty(t, got)

						link.Cut()
						n := <-got
						require.NotNil(t, n.l)
						state, left, _ := held.Status()
						require.Equal(t, r.overlap, state == session.Held, "%v left at the next one's grant", left)
						require.Greater(t, n.l.Token(), held.Token())
						<-held.Context().Done()
						if over := time.Since(n.at); r.overlap {
							require.Greater(t, over, c.ttl/1000)
							t.Logf("both for %v", over)
						}
						state, _, _ = n.l.Status()
						require.Equal(t, session.Held, state)
					})
				})
			}
		}
	}
}

// machine is the clock of a machine that can be suspended while others keep running.
type machine struct {
	counts bool // the clock counts suspended time

	mu     sync.Mutex
	slept  bool
	since  clock.Instant
	missed time.Duration
}

func (m *machine) now() clock.Instant {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.slept {
		return m.since.Add(-m.missed)
	}
	return clock.Now().Add(-m.missed)
}

func (m *machine) sleep() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.slept, m.since = true, clock.Now()
}

func (m *machine) wake() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.slept = false; !m.counts {
		m.missed += clock.Now().Sub(m.since)
	}
}

// TestSuspendedHolder suspends the holder's machine for longer than its lease. If its clock
// counts suspended time, the lock is lost at the first clock reading after the nap, before
// the network is back. Otherwise two clients believe they hold the lock until the server
// answers the holder, which is why clients use a clock that counts it.
func TestSuspendedHolder(t *testing.T) {
	for _, counts := range []bool{true, false} {
		for _, who := range conflicts {
			t.Run(fmt.Sprintf("counts %v/%s", counts, who.name), func(t *testing.T) {
				testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
					const ttl = 10 * time.Second
					laptop := &machine{counts: counts}
					nc, link := s.ConnectLink()
					a, b := newTestClient(t, nc, ttl, laptop.now), newTestClient(t, s.Connect(), ttl, nil)
					held, err := a.Acquire(t.Context(), who.first)
					require.NoError(t, err)
					got := await(t, b, who.second)

					laptop.sleep()
					link.Blackhole(true)
					n := <-got
					time.Sleep(time.Minute)
					laptop.wake()
					state, _, _ := held.Status()
					require.Equal(t, counts, state == session.Lost, "at the first look")
					woken := time.Now()
					if !counts {
						link.Heal() // so that its renewal is refused now
					}
					<-held.Context().Done()
					require.ErrorIs(t, context.Cause(held.Context()), session.ErrLost)
					require.LessOrEqual(t, time.Since(woken), 4*time.Second)
					link.Heal()
					time.Sleep(time.Minute)
					state, _, _ = held.Status()
					require.Equal(t, session.Lost, state, "revived")
					state, _, _ = n.l.Status()
					require.Equal(t, session.Held, state)
					require.Greater(t, n.l.Token(), held.Token())
				})
			})
		}
	}
}

// TestClockAsksAgain hides a suspend from the comparison of the wall clock with the
// monotonic clock. The client's clock must still discover it a little later.
func TestClockAsksAgain(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		before := clock.Now()
		clock.NapUnseen(time.Hour)
		time.Sleep(100 * time.Millisecond)
		require.Equal(t, time.Hour+100*time.Millisecond, clock.Now().Sub(before).Round(10*time.Millisecond))
		clock.Nap(time.Hour)
		require.Equal(t, 2*time.Hour+100*time.Millisecond, clock.Now().Sub(before).Round(10*time.Millisecond), "seen at once")
	})
}

// TestClockCountsSuspend suspends the machine itself and checks that a lease on the default
// clock counts the nap.
func TestClockCountsSuspend(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		e := newTestClient(t, s.Connect(), 10*time.Second, nil)
		l, err := e.Acquire(t.Context(), call.Request{Name: "x", Fixed: true})
		require.NoError(t, err)
		clock.Nap(8500 * time.Millisecond)
		state, left, _ := l.Status()
		require.Equal(t, session.Held, state)
		require.InDelta(t, 500*time.Millisecond, left, float64(100*time.Millisecond))
		clock.Nap(700 * time.Millisecond)
		state, _, cause := l.Status()
		require.Equal(t, session.Lost, state)
		require.ErrorIs(t, cause, session.ErrLost)
		require.Error(t, l.Context().Err())

		// The context ends even if no caller asks for the status. Timers do not run during
		// a nap.
		l, err = e.Acquire(t.Context(), call.Request{Name: "y", Fixed: true})
		require.NoError(t, err)
		time.Sleep(2 * time.Second) // the renewer has nothing to do before the end
		clock.Nap(time.Hour)
		begun := time.Now()
		<-l.Context().Done()
		require.LessOrEqual(t, time.Since(begun), time.Second)
	})
}
