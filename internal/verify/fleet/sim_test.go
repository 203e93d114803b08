package fleet

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/record"
)

const simSteps = 700

// wild is a scope of the simulator: anything may go wrong at any time.
func wild(change func(s *Scope)) Scope {
	s := Scope{
		Kind: record.Mutex, Clients: 3, Asks: [4]int8{-1, -1, -1, -1}, Most: 3, Turn: time.Millisecond, Linger: 2 * time.Second,
		TTL: 6 * time.Second, Margin: time.Second, Early: time.Second, Place: 15 * time.Second, Renewals: -1,
		Least: 4 * time.Second, Extend: 3 * time.Second, Faults: Faults{All: -1, Tries: -1, Hands: -1},
	}
	change(&s)
	return s
}

// simulate plays a scope for some seeds. A run that goes wrong is shrunk to its fewest choices, and its story and its moves
// are printed.
func simulate(t *testing.T, s Scope, seeds uint64) {
	t.Helper()
	t.Parallel()
	grants, moves := 0, 0
	several := s.Several
	for seed := range seeds {
		s.Several = several || s.Kind != record.Mutex && seed%2 == 1
		c := Seeded(seed)
		r := Play(s, c, simSteps, false)
		if grants, moves = grants+r.World.Grants, moves+len(r.Moves); r.World.Wrong == "" {
			continue
		}
		fewest := Shrink(s, c.Made, r.World.Wrong, simSteps)
		told := Play(s, &Choices{Made: fewest}, simSteps, true)
		t.Fatalf("seed %d: %s\nin %d choices: %v\n%s\n%s", seed, r.World.Wrong, len(fewest), fewest, strings.Join(told.Story, "\n"), Script(told.Moves))
	}
	t.Logf("%d operations, %d grants", moves, grants)
	require.Greater(t, grants, int(seeds))
}

// TestSimMutex: whatever the network does, and whenever goroutines ask, give up and leave, one goroutine is
// inside, in a lease that is valid. When the network is calm again, nobody waits for ever.
func TestSimMutex(t *testing.T) { simulate(t, wild(func(s *Scope) {}), 1000) }

// TestSimSeveral is the same with replicas that lag and leaders that are deposed.
func TestSimSeveral(t *testing.T) { simulate(t, wild(func(s *Scope) { s.Several = true }), 500) }

// TestSimSemaphore is the same for a semaphore of two, of which one client knows one permit only, every other time with replicas.
func TestSimSemaphore(t *testing.T) {
	simulate(t, wild(func(s *Scope) { s.Kind, s.Permits = record.Semaphore, [4]int8{1, 2, 2} }), 500)
}

// TestSimReaders is the same for readers and writers, every other time with replicas.
func TestSimReaders(t *testing.T) {
	simulate(t, wild(func(s *Scope) { s.Kind = record.RW }), 500)
}

// TestSimReplays: a seed is the run, bit for bit.
func TestSimReplays(t *testing.T) {
	t.Parallel()
	s := wild(func(s *Scope) {})
	for seed := range uint64(5) {
		c := Seeded(seed)
		first := Play(s, c, simSteps, false)
		for range 50 {
			require.Equal(t, first.Digest, Play(s, Seeded(seed), simSteps, false).Digest)
		}
		require.Equal(t, first.Digest, Play(s, &Choices{Made: c.Made}, simSteps, false).Digest, "the choices of the seed")
		require.Equal(t, Show(first.World), Show(Replay(s, first.Moves)), "the moves of the seed")
	}
}
