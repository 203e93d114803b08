package several_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/machine"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

func TestMain(m *testing.M) {
	kit.Quiet()
	kit.LeakCheck(m)
}

// register records who is inside, by name.
type register struct {
	t  *testing.T
	mu sync.Mutex

	work   map[string]context.Context // the last holder's
	tokens map[string]uint64
	events map[string]int
	grants int
	worst  time.Duration
}

func (r *register) note(event string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events[event]++
}

// enter records that the holder of locks begins to work.
func (r *register) enter(l *natslock.LockSet, waited time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.grants++
	r.worst = max(r.worst, waited)
	for _, name := range l.Names() {
		if work := r.work[name]; work != nil {
			assert.Error(r.t, work.Err(), "two work under %q at %v", name, time.Now())
		}
		assert.Greater(r.t, l.Token(name), r.tokens[name], name)
		r.work[name], r.tokens[name] = l.Context(), l.Token(name)
	}
}

// stroller is a client that locks random sets of names.
type stroller struct {
	*natslock.Client // nil after a crash
	line             line

	dial dial
	reg  *register
	rng  *rand.Rand
	bad  bool // its writes meet faults

	long time.Duration // the length of the simulation
}

const strollTTL = 5 * time.Second

// line is a client's connection. crash cuts it for good.
type line struct {
	cut, heal, crash func()
}

// dial creates a client over a new line.
type dial func(opts ...natslock.Option) (line, *natslock.Client, error)

// onServer creates clients of a real server.
func onServer(s *testutil.Server) dial {
	return func(opts ...natslock.Option) (line, *natslock.Client, error) {
		nc, link := s.ConnectLink(nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond))
		c, err := natslock.New(context.Background(), nc, opts...)
		return line{cut: link.Cut, heal: link.Heal, crash: func() { link.Cut(); nc.Close() }}, c, err
	}
}

// inMemory creates clients of an in-memory bucket.
func inMemory(t *testing.T, m *kvstore.Memory) dial {
	return func(opts ...natslock.Option) (line, *natslock.Client, error) {
		l := kit.NewLine(m)
		t.Cleanup(func() { assert.Zero(t, l.Close(), "stores that a client has left open") })
		c, err := l.NewClient(opts...)
		return line{cut: l.Cut, heal: l.Heal, crash: l.Cut}, c, err
	}
}

// wake creates the client, and re-creates it after a crash.
func (m *stroller) wake(t *testing.T) bool {
	if m.Client != nil {
		return true
	}
	seed := m.rng.Uint64()
	l, c, err := m.dial(natslock.WithTTL(strollTTL), faults.WrapStore(func(kv kvstore.KV) kvstore.KV {
		f := faults.New(kv, seed)
		if m.bad {
			f.Random(faults.Rates{Drop: 0.01, LoseAnswer: 0.02, Delay: 0.01, DelayAnswer: 0.02, Refuse: 0.01, NotSent: 0.01, MaxDelay: 8 * time.Second, DropEvent: 0.05})
		}
		return f
	}))
	m.line, m.Client = l, c
	return assert.NoError(t, err)
}

// die simulates a crash: the process is gone, but its records are not.
func (m *stroller) die() {
	m.line.crash()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = m.Close(ctx)
	m.Client = nil
	m.reg.note("crash")
}

// stroll locks a set once and works.
func (m *stroller) stroll(t *testing.T, names int) {
	var set []string
	for range 1 + m.rng.IntN(5) {
		set = append(set, fmt.Sprint("n", m.rng.IntN(names)))
	}
	ctx, kill := context.WithCancel(context.Background())
	defer kill()
	cut := m.line.cut
	crashed := time.AfterFunc(24*time.Hour, func() { cut(); kill() })
	// A shorter simulation has just as many crashes.
	crashes := m.rng.IntN(max(int(24*min(m.long.Hours(), 1)), 3)) == 0
	if crashes { // most likely while it waits, or else while it works
		crashed.Reset(time.Duration(m.rng.IntN(40_000)) * time.Millisecond)
	}
	begun := time.Now()
	var l *natslock.LockSet
	var err error
	if m.rng.IntN(5) == 0 {
		l, err = m.TryLockAll(ctx, set)
	} else {
		l, err = m.LockAll(ctx, set, natslock.MaxWait(20*time.Minute))
		if ctx.Err() == nil {
			assert.NotErrorIs(t, err, natslock.ErrTimeout, "after %v", time.Since(begun))
			assert.NotErrorIs(t, err, natslock.ErrUnavailable, "after %v", time.Since(begun))
		}
	}
	if err != nil {
		if !crashed.Stop() {
			m.die()
			return
		}
		m.reg.note(refusal(err))
		time.Sleep(time.Duration(m.rng.IntN(2000)) * time.Millisecond)
		return
	}
	m.reg.enter(l, time.Since(begun))
	work := time.NewTimer(time.Duration(m.rng.IntN(3000)) * time.Millisecond)
	outage := !crashes && m.rng.IntN(40) == 0
	if outage { // the server is away for a while, but the work goes on
		m.line.cut()
		work.Reset(2 * strollTTL)
	}
	select {
	case <-work.C:
	case <-l.Context().Done():
	}
	if !crashed.Stop() {
		m.die()
		return
	}
	if outage {
		m.line.heal()
		m.reg.note("outage")
	}
	switch err = l.Unlock(ctx); {
	case outage:
		assert.ErrorIs(t, err, natslock.ErrLost)
	case err != nil:
		assert.True(t, m.bad, "%v", err)
		m.reg.note("bad unlock")
	}
	time.Sleep(time.Duration(m.rng.IntN(6000)) * time.Millisecond)
}

// refusal returns the name of an acquire's error.
func refusal(err error) string {
	for _, known := range []error{natslock.ErrLocked, natslock.ErrLost, natslock.ErrUnavailable, natslock.ErrTimeout} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	return err.Error()
}

// TestLockAll has twenty clients lock random sets of ten names in memory, for a quarter of an hour
// of fake time, or for an hour in the proof tier. Clients crash while they wait and while they
// work, and lose the connection for a while. The writes of half of them meet faults. No two clients
// are ever inside one lock, tokens rise, every client gets its locks, and nothing is left in the
// end.
func TestLockAll(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	kit.InMemory(t, func(t *testing.T, m *kvstore.Memory) {
		store := m.Open()
		defer store.Close()
		strollers(t, seed, span(15*time.Minute), inMemory(t, m), store)
	})
}

// TestLockAllServer is TestLockAll on a real server, for a few minutes by default.
func TestLockAllServer(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		dial := onServer(s)
		_, first, err := dial()
		require.NoError(t, err) // the bucket now exists
		require.NoError(t, first.Close(context.Background()))
		strollers(t, seed, span(5*time.Minute), dial, kit.OpenStore(t, s.Connect()))
	})
}

// span returns how long a storm lasts, which is brief by default.
func span(brief time.Duration) time.Duration {
	if tier.IsProof() {
		return machine.Quarter(time.Hour)
	}
	return brief
}

func strollers(t *testing.T, seed uint64, long time.Duration, dial dial, store kvstore.KV) {
	end := time.Now().Add(long)
	reg := &register{t: t, work: map[string]context.Context{}, tokens: map[string]uint64{}, events: map[string]int{}}
	var all sync.WaitGroup
	for i := range 20 {
		m := &stroller{dial: dial, reg: reg, rng: rand.New(rand.NewPCG(seed, uint64(i))), bad: i%2 == 0, long: long}
		all.Go(func() {
			for time.Now().Before(end) && m.wake(t) {
				m.stroll(t, 10)
			}
			if m.Client != nil {
				ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
				defer cancel()
				assert.NoError(t, m.Close(ctx))
			}
		})
	}
	all.Wait()
	time.Sleep(time.Minute)
	left, err := store.List(context.Background(), ">", 0)
	require.NoError(t, err)
	require.Empty(t, left.Records, "nothing is left")
	t.Logf("%d grants, the longest wait %v; %v", reg.grants, reg.worst, reg.events)
	require.Greater(t, reg.grants, int(1000*long.Hours()))
	require.Greater(t, reg.events["crash"], 20)
	require.GreaterOrEqual(t, reg.events["outage"], int(10*long.Hours()))
}
