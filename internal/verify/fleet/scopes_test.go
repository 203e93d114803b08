package fleet

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/verify/explore"
	"github.com/natslock/locks/internal/verify/tier"
)

// scope is one of the explorer. The parameters that change leaves alone are small.
func scope(name string, change func(s *Scope)) Scope {
	s := Scope{
		Name: name, Kind: record.Mutex, Clients: 2, Asks: [4]int8{1, 1}, Most: 2, Renewals: -1, Prompt: true,
		TTL: 3 * time.Second, Margin: time.Second, Early: time.Second, Place: 3 * time.Second, Tick: time.Second,
	}
	s.Faults.All = -1
	change(&s)
	return s
}

// twoTwo has two clients of two goroutines, which act while nothing is on its way.
func twoTwo(s *Scope) { s.Asks, s.Ways = [4]int8{2, 2}, 1 }

// trouble is a lost answer, a crash and an expiry; most bounds how many of them there are.
func trouble(s *Scope, most int8) {
	s.Faults = Faults{All: most, Unanswered: 1, Crashes: 1, Expiries: 1}
}

// holds has one goroutine ask for a minimum hold, which a server is on time with, and a holder for another TTL.
func holds(s *Scope) {
	s.Ways, s.Least, s.Extend, s.Early = 1, 5*time.Second, 6*time.Second, 0
	s.Faults = Faults{All: -1, Holds: 1, Extends: 2, Expiries: 1, Crashes: 1}
}

// travels has a holder hand the lock over, and goroutines adopt it.
func travels(s *Scope) {
	s.Ways, s.Faults = 1, Faults{All: 4, Hands: 1, Adopts: 2, Unanswered: 1, Breaks: 1, Crashes: 1}
}

// two makes the lock a semaphore of two.
func two(s *Scope) { s.Kind, s.Permits = record.Semaphore, [4]int8{2, 2, 2} }

// reads makes it a reader-writer lock, which so many goroutines of each client read.
func reads(s *Scope, a, b int8) { s.Kind, s.Reads = record.RW, [4]int8{a, b} }

// small are the scopes of each run of the tests.
func small() []Scope {
	return []Scope{
		scope("mutex 1+1: a lost answer, a crash, an expiry", func(s *Scope) { trouble(s, 3) }),
		scope("mutex 1+1: one other fault", func(s *Scope) {
			s.Faults = Faults{All: 1, Breaks: 1, Late: 1, Pauses: 1, Missed: 1, GiveUps: 1, Forgets: 1}
		}),
		scope("mutex 2+1: in order", func(s *Scope) { s.Asks, s.Fifo = [4]int8{2, 1}, true }),
		scope("mutex 3+1: in order", func(s *Scope) { s.Asks, s.Most, s.Ways, s.Fifo = [4]int8{3, 1}, 3, 1, true }),
		scope("mutex 1+1: a minimum hold, an Extend, an expiry, a crash", func(s *Scope) { holds(s) }),
		scope("mutex 1+1: handed over, adopted twice, a lost answer, a break, a crash", func(s *Scope) { travels(s) }),
		scope("mutex 2+1: handed over, adopted", func(s *Scope) {
			s.Asks, s.Ways, s.Turn, s.Faults = [4]int8{2, 1}, 1, time.Millisecond, Faults{All: 2, Hands: 1, Adopts: 1}
		}),
		scope("mutex 2+2: in order, by notifications", func(s *Scope) { twoTwo(s); s.Fifo, s.Untimed = true, true }),
		scope("lingering 1+1: a lost answer, a crash, an expiry", func(s *Scope) {
			trouble(s, 3)
			s.Linger = Forever
		}),
		scope("lingering 2+1: in order", func(s *Scope) { s.Asks, s.Ways, s.Linger, s.Fifo = [4]int8{2, 1}, 1, Forever, true }),
		scope("lingering 2+1: two ask once", func(s *Scope) { s.Asks, s.Ways, s.Linger, s.Faults.Tries = [4]int8{2, 1}, 1, Forever, 2 }),
		scope("lingering readers and writers 2+1: in order", func(s *Scope) {
			s.Asks, s.Ways, s.Linger, s.Fifo = [4]int8{2, 1}, 1, Forever, true
			reads(s, 1, 0)
		}),
		scope("semaphore of one and two 1+2: in order", func(s *Scope) {
			two(s)
			s.Permits, s.Asks, s.Ways, s.Fifo = [4]int8{1, 2}, [4]int8{1, 2}, 1, true
		}),
		scope("semaphore of two 2+2: in order, by notifications", func(s *Scope) { twoTwo(s); two(s); s.Fifo, s.Untimed = true, true }),
		scope("readers and writers 1+1: a lost answer, a crash, an expiry", func(s *Scope) { trouble(s, 3); reads(s, 0, 1) }),
		scope("readers and a writer 2+1: in order, slow answers", func(s *Scope) {
			s.Asks, s.Ways, s.Fifo, s.Delayed = [4]int8{2, 1}, 2, true, true
			reads(s, 2, 0)
		}),
		scope("readers and a writer 2+1: an Extend, an expiry", func(s *Scope) {
			s.Asks, s.Ways, s.Extend, s.Faults = [4]int8{2, 1}, 1, 6*time.Second, Faults{All: 3, Extends: 2, Expiries: 1}
			reads(s, 2, 0)
		}),
		scope("readers and a writer 1+1: a minimum hold, an Extend, an expiry, a crash", func(s *Scope) { holds(s); reads(s, 0, 1) }),
		scope("readers and a writer 1+1: handed over, adopted twice, a lost answer, a break, a crash", func(s *Scope) { travels(s); reads(s, 0, 1) }),
		scope("readers and writers 2+2: in order, by notifications", func(s *Scope) { twoTwo(s); reads(s, 2, 0); s.Fifo, s.Untimed = true, true }),
	}
}

// large are those of the proof tier.
func large() []Scope {
	return []Scope{
		scope("lingering 2+2: a lost answer, a crash, an expiry", func(s *Scope) { twoTwo(s); trouble(s, 3); s.Linger = Forever }),
		scope("readers and writers 2+2: a lost answer, a crash, an expiry", func(s *Scope) { twoTwo(s); trouble(s, 3); reads(s, 2, 0) }),
		scope("mutex 2+2: a lost answer, a crash, an expiry", func(s *Scope) { twoTwo(s); trouble(s, 3) }),
		scope("mutex 2+2: at any time", func(s *Scope) { s.Asks = [4]int8{2, 2} }),
		scope("lingering 2+1: in order, slow answers", func(s *Scope) {
			s.Asks, s.Ways, s.Linger, s.Fifo, s.Delayed = [4]int8{2, 1}, 2, Forever, true, true
		}),
		scope("lingering 2+2: one asks once", func(s *Scope) { twoTwo(s); s.Linger, s.Faults.Tries = Forever, 1 }),
		scope("mutex 2+2: in order, slow answers", func(s *Scope) { twoTwo(s); s.Ways, s.Fifo, s.Delayed = 2, true, true }),
		scope("mutex 3+2: in order", func(s *Scope) { s.Asks, s.Most, s.Ways, s.Fifo = [4]int8{3, 2}, 3, 1, true }),
		scope("mutex 1+1: handed over, adopted, a late message", func(s *Scope) { s.Ways, s.Faults = 1, Faults{All: 3, Hands: 1, Adopts: 1, Late: 1} }),
		scope("mutex 1+1: a minimum hold, a late message, a break", func(s *Scope) {
			holds(s)
			s.Renewals, s.Faults = 1, Faults{All: 2, Holds: 1, Late: 1, Breaks: 1}
		}),
		scope("lingering 2+1: a lost notification", func(s *Scope) { s.Asks, s.Linger, s.Faults.Missed = [4]int8{2, 1}, Forever, 1 }),
		scope("mutex 2+1: in order, slow notifications", func(s *Scope) { s.Asks, s.Ways, s.Fifo, s.Slow = [4]int8{2, 1}, 2, true, true }),
		scope("readers and a writer 2+1: in order, slow notifications", func(s *Scope) {
			s.Asks, s.Ways, s.Fifo, s.Slow = [4]int8{2, 1}, 2, true, true
			reads(s, 2, 0)
		}),
		scope("lingering readers and a writer 2+1: in order, slow answers", func(s *Scope) {
			s.Asks, s.Ways, s.Linger, s.Fifo, s.Delayed = [4]int8{2, 1}, 2, Forever, true, true
			reads(s, 2, 0)
		}),
		scope("lingering readers and a writer 2+1: in order, slow notifications", func(s *Scope) {
			s.Asks, s.Ways, s.Fifo, s.Slow, s.Linger = [4]int8{2, 1}, 1, true, true, Forever
			reads(s, 2, 0)
		}),
		scope("semaphore of two 2+2: a lost answer, a crash, an expiry", func(s *Scope) { twoTwo(s); two(s); trouble(s, 3) }),
		scope("semaphore of one and two 1+1+1: a crash, an expiry", func(s *Scope) {
			two(s)
			s.Clients, s.Asks, s.Permits, s.Ways, s.Faults.Crashes, s.Faults.Expiries = 3, [4]int8{1, 1, 1}, [4]int8{1, 2, 2}, 1, 1, 1
		}),
		scope("mutex 3+1: a turn, a crash, one gives up", func(s *Scope) {
			s.Asks, s.Ways, s.Turn, s.Faults.GiveUps, s.Faults.Crashes = [4]int8{3, 1}, 1, time.Millisecond, 1, 1
		}),
	}
}

// explored requires that a scope is explored to its end, and that nothing is violated. Every so many-th world that is a
// state met before has to go on as that state does.
func explored(t *testing.T, s Scope, recheck int) {
	t.Helper()
	r := explore.Explore(Model(s), explore.Limits{States: 12_000_000, Recheck: recheck})
	if r.Violated != "" {
		t.Fatalf("violates: %s\n%s\n%s", r.Violated, strings.Join(r.Story, "\n"), Script(r.Moves))
	}
	require.True(t, r.Exhausted, "explored to its end: %d states", r.States)
	t.Logf("%d states, %d moves, %d deep, %v", r.States, r.Transitions, r.Depth, r.Took.Round(100*time.Millisecond))
}

// TestCanon: what the canonical form forgets changes nothing that happens later.
func TestCanon(t *testing.T) {
	t.Parallel()
	for _, s := range append(small(), large()...) {
		m := Model(s)
		for seed := range uint64(40) {
			draw := rand.New(rand.NewPCG(seed, 2))
			plain, forgets := m.Init(), m.Init()
			var moves []explore.Move
			for range 60 {
				if moves = Moves(plain, moves[:0]); len(moves) == 0 {
					break
				}
				move := moves[draw.IntN(len(moves))]
				Take(plain, move)
				Take(forgets, move)
				m.Canon(forgets)
				c := explore.CopyAs(m.Form, plain)
				m.Canon(c)
				want, got := explore.Encode(m.Form, c, c.Now, nil), explore.Encode(m.Form, forgets, forgets.Now, nil)
				require.Equal(t, want, got, "%s, seed %d: %s", s.Name, seed, Say(plain, explore.Move{Kind: mvPass}))
			}
		}
	}
}

// TestScopes explores the small scopes to their end.
func TestScopes(t *testing.T) {
	t.Parallel()
	for _, s := range small() {
		t.Run(s.Name, func(t *testing.T) { explored(t, s, 50) })
	}
}

// TestLargeScopes explores the large ones.
func TestLargeScopes(t *testing.T) {
	tier.Proof(t)
	for _, s := range large() {
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			explored(t, s, 10_000)
		})
	}
}
