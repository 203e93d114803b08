package simulation_test

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/machine"
	"github.com/natslock/locks/internal/verify/tier"
)

// TestSimSemaphores has clients contend for the permits of semaphores in memory while
// everything goes wrong that can go wrong there. Every third seed has clients that know of
// different numbers of permits.
func TestSimSemaphores(t *testing.T) {
	hours := cmp.Or(*simHours, machine.Quarter(0.4))
	seeds(t, 3, func(seed uint64) plan { return permitsOf(seed, hours).inMemory() }, leastPermits, happened...)
}

// leastPermits returns the counts that each plan of TestSimSemaphores must reach.
func leastPermits(p plan) map[string]int {
	return map[string]int{"grants": int(100 * p.hours), "queued": int(20 * p.hours), "remake ok": p.remakes}
}

// TestSimSemaphoresServer is TestSimSemaphores on a real server. The server restarts and
// forgets TTLs, links are cut, and the bucket is re-created.
func TestSimSemaphoresServer(t *testing.T) {
	if tier.IsProof() {
		hours := cmp.Or(*simHours, machine.Quarter(0.4))
		seeds(t, 3, func(seed uint64) plan { return permitsOf(seed, hours) }, leastPermits, append(slices.Clip(happened), "crash")...)
		return
	}
	hours := cmp.Or(*simHours, machine.Quarter(0.2))
	seeds(t, 1, func(seed uint64) plan {
		p := permitsOf(seed, hours)
		p.outages, p.crashes, p.remakes = 2*time.Minute, 2*time.Minute, 1 // one plan has everything
		return p
	}, leastPermits, onlyServer...)
}

// permitsOf makes a plan from a seed, with one or two semaphores and no other locks.
func permitsOf(seed uint64, hours float64) plan {
	p := planOf(seed, hours)
	rng := rand.New(rand.NewPCG(seed, 7))
	p.mutexes, p.rws, p.sems = 0, 0, 1+rng.IntN(2)
	p.clients, p.workers = 3+rng.IntN(3), 2+rng.IntN(3)
	p.think = time.Duration(3+rng.IntN(5)) * time.Second
	numbers := []int{1 + rng.IntN(3), 2 + rng.IntN(3)}
	p.permits = func(client, sem int) int {
		if seed%3 == 0 {
			return numbers[sem] + client%3
		}
		return numbers[sem]
	}
	return p
}

// TestSimSemaphoresBrief has many goroutines take the permits of one semaphore back to back.
func TestSimSemaphoresBrief(t *testing.T) { testSemaphoresBrief(t, true) }

// TestSimSemaphoresBriefServer is TestSimSemaphoresBrief on a real server.
func TestSimSemaphoresBriefServer(t *testing.T) {
	tier.Proof(t)
	testSemaphoresBrief(t, false)
}

func testSemaphoresBrief(t *testing.T, memory bool) {
	base := plan{
		hours: machine.Quarter(0.02), clients: 5, workers: 4, sems: 1, ttl: 2 * time.Second, watchAfter: time.Second, turn: time.Millisecond,
		lag: 250 * time.Microsecond, hold: 20 * time.Millisecond, think: 50 * time.Millisecond,
		permits: func(int, int) int { return 3 },
	}
	for name, change := range map[string]func(p *plan){
		"calm":        func(*plan) {},
		"two numbers": func(p *plan) { p.permits = func(client, _ int) int { return 2 + client%2*2 } },
		"unnotified":  func(p *plan) { p.hours, p.hold, p.rates.DropEvent, p.blind = machine.Half(0.1), time.Second, 0.9, 0.5 },
		"disturbed": func(p *plan) {
			// Each waiter has a place. With more waiters, the outages of those ahead would
			// keep one waiting for longer than check 6 allows.
			p.clients, p.workers, p.hours = 4, 2, machine.Quarter(0.1)
			p.meddles, p.outages = time.Second, 20*time.Second
			p.rates = faults.Rates{Drop: 0.01, LoseAnswer: 0.02, DelayAnswer: 0.02, MaxDelay: 300 * time.Millisecond, DropEvent: 0.05}
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := base
			p.seed = firstSeed()
			change(&p)
			p.calm = p.rates == faults.Rates{}
			if p.memory = memory; memory {
				t.Parallel()
			}
			verify(t, p, t.Name(), map[string]int{"grants": 30, "queued": 30})
		})
	}
}
