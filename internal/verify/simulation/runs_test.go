package simulation_test

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/history"
	"github.com/natslock/locks/internal/verify/machine"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
)

// TestSimRuns has several goroutines of each client contend for a few locks in memory, taking
// them back to back. Half of the plans have no faults.
func TestSimRuns(t *testing.T) {
	hours := cmp.Or(*simHours, 1)
	seeds(t, 6, func(seed uint64) plan { return crowdOf(seed, hours).inMemory() }, leastInCrowd)
}

// TestSimRunsServer is TestSimRuns on a real server. In the default tier it runs one short
// plan, with faults.
func TestSimRunsServer(t *testing.T) {
	hours := cmp.Or(*simHours, 1)
	if tier.IsProof() {
		seeds(t, 4, func(seed uint64) plan { return crowdOf(seed, hours) }, leastInCrowd)
		return
	}
	seeds(t, 1, func(seed uint64) plan {
		p := crowdOf(seed|1, hours)
		p.rounds = min(p.rounds, machine.Quarter(100))
		return p
	}, leastInCrowd)
}

// leastInCrowd returns the counts that each plan of TestSimRuns must reach.
func leastInCrowd(p plan) map[string]int {
	least := map[string]int{"grants": p.rounds}
	if p.turn > 0 || p.rws > 0 {
		least["local grants"] = p.rounds / 10
	}
	return least
}

// TestSimRunsBrief runs a few small plans that together cover everything that runs do.
func TestSimRunsBrief(t *testing.T) { testRunsBrief(t, true) }

// TestSimRunsBriefServer is TestSimRunsBrief on a real server.
func TestSimRunsBriefServer(t *testing.T) {
	tier.Proof(t)
	testRunsBrief(t, false)
}

func testRunsBrief(t *testing.T, memory bool) {
	const us = time.Microsecond
	base := plan{
		hours: 1, clients: 3, crowd: 4, rounds: 100, mutexes: 1, ttl: 2 * time.Second, watchAfter: time.Second,
		turn: time.Millisecond, lag: 250 * us, hold: 300 * us, think: us,
	}
	for name, change := range map[string]func(p *plan){
		"in turns": func(p *plan) {},
		"in order": func(p *plan) { p.turn = 0 },
		"many grants": func(p *plan) {
			p.rounds, p.crowd, p.clients, p.think = 200, 8, 2, 1
			p.turn, p.lag, p.hold = 20*time.Millisecond, 2*time.Millisecond, 2*us
		},
		"reading": func(p *plan) {
			p.mutexes, p.rws, p.hold, p.think, p.rounds = 0, 1, 20*time.Millisecond, 5*time.Millisecond, machine.Half(100)
		},
		"reading unnotified": func(p *plan) {
			p.mutexes, p.rws, p.hold, p.think, p.rounds = 0, 1, 30*time.Millisecond, time.Millisecond, 60
			p.rates.DropEvent, p.blind = 0.9, 0.5
		},
		"reading disturbed": func(p *plan) {
			p.mutexes, p.rws, p.hold, p.think, p.rounds = 0, 1, 20*time.Millisecond, 5*time.Millisecond, 100
			p.meddles, p.outages, p.closes = time.Second, 10*time.Second, 5*time.Second
			p.rates = faults.Rates{Drop: 0.01, LoseAnswer: 0.02, DelayAnswer: 0.02, MaxDelay: 300 * time.Millisecond, DropEvent: 0.05}
		},
		"lingering": func(p *plan) {
			p.linger, p.rws, p.crowd, p.think = 10*time.Second, 1, 2, 5*time.Millisecond
		},
		"lingering unnotified": func(p *plan) {
			p.linger, p.rws, p.crowd, p.hold, p.rates.DropEvent, p.blind = 10*time.Second, 1, 4, 10*time.Millisecond, 0.9, 0.5
		},
		"unnotified": func(p *plan) {
			p.rounds, p.hold, p.rates.DropEvent, p.blind = machine.Half(100), 30*time.Millisecond, 0.9, 0.5
		},
		"disturbed": func(p *plan) {
			p.hold, p.meddles, p.outages, p.closes = 5*time.Millisecond, time.Second, 10*time.Second, 5*time.Second
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
			least := map[string]int{"grants": 300, "local grants": 50}
			if p.turn == 0 {
				delete(least, "local grants")
			}
			verify(t, p, t.Name(), least)
		})
	}
}

// crowdOf makes a plan from a seed. Its hours bound it, but its rounds usually end it earlier.
func crowdOf(seed uint64, hours float64) plan {
	rng := rand.New(rand.NewPCG(seed, 5))
	pick := func(ds ...time.Duration) time.Duration { return ds[rng.IntN(len(ds))] }
	p := plan{
		seed: seed, hours: hours,
		clients: 2 + rng.IntN(3), mutexes: 1 + rng.IntN(2),
		ttl: pick(2*time.Second, 5*time.Second), watchAfter: pick(0, time.Second, -1),
		crowd: 2 + rng.IntN(6), rounds: machine.Quarter(300),
		turn: pick(0, time.Millisecond, time.Millisecond, 20*time.Millisecond),
		lag:  pick(100*time.Microsecond, 250*time.Microsecond, 2*time.Millisecond),
		hold: pick(time.Microsecond, 300*time.Microsecond, 5*time.Millisecond), think: pick(time.Microsecond, 3*time.Millisecond, 60*time.Millisecond),
	}
	p.think = min(p.think, 3*time.Millisecond+10*p.hold) // or hardly anybody would wait
	if seed%4 > 1 {
		p.rws, p.rounds, p.crowd = 1, machine.Quarter(100), 3+p.crowd%2 // readers overlap, and longer stretches take long to judge
	}
	p.linger = pick(0, 0, 5*time.Millisecond, 10*time.Second)
	if seed%2 == 0 {
		p.calm = true
		return p
	}
	p.outages, p.meddles, p.forge = pick(0, 20*time.Second, 90*time.Second), pick(5*time.Second, 30*time.Second), pick(0, 10*time.Second)
	p.crashes, p.closes = pick(0, 0, time.Minute), pick(0, 20*time.Second)
	bad := rng.Float64()
	p.rates = faults.Rates{
		Drop: 0.01 * bad, LoseAnswer: 0.02 * bad, Delay: 0.02 * bad, DelayAnswer: 0.02 * bad, Refuse: 0.01 * bad, NotSent: 0.01 * bad,
		MaxDelay: pick(3*time.Millisecond, 300*time.Millisecond, 5*time.Second), DropEvent: 0.1 * float64(rng.IntN(2)),
	}
	return p
}

// notice returns how long it may take a client to learn of another client's place. Without
// faults, the notification takes one trip, and the client's own write, which others of its
// goroutines may join, takes another one until it is answered. If notifications are lost, a
// list from the last second shows the place.
func (p plan) notice() time.Duration {
	if p.calm {
		return 2*p.lag + time.Microsecond
	}
	return time.Second + 4*p.lag + 10*time.Millisecond
}

// press takes a lock in a crowd and does what a holder may do.
func (m *sim) press(rng *rand.Rand, c *client) {
	if rng.IntN(3) > 0 {
		time.Sleep(rand2(rng, m.think))
	}
	w := m.want(rng, c)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var opts []natslock.LockOption
	bounded := false
	switch n := rng.IntN(40); {
	case n == 0:
		w.Try = true
	case n < 6:
		time.AfterFunc(rand2(rng, 20*(m.hold+m.lag)), cancel)
		bounded = true
	case n == 6 && !m.calm:
		opts, w.Cohort = append(opts, natslock.TTL(2*m.ttl)), "ttl"
	case n == 7 && !m.calm:
		opts, w.Cohort = append(opts, natslock.NoRenew()), history.Alone
	case n == 8 && !m.calm:
		opts, w.Cohort = append(opts, natslock.Until(time.Now().Add(m.ttl))), history.Alone
	}
	m.alone(&w)
	if m.linger > 0 && len(opts) == 0 && w.Cohort == "" && rng.IntN(4) > 0 {
		opts = append(opts, natslock.Linger(m.linger))
	}
	who, _, _ := c.now()
	h, err := who.Acquire(ctx, w, opts...)
	if err != nil {
		ok := errors.Is(err, natslock.ErrTimeout) && bounded || w.Try && errors.Is(err, natslock.ErrLocked) ||
			!m.calm && (errors.Is(err, natslock.ErrClosed) || errors.Is(err, natslock.ErrUnavailable) && w.Try) ||
			len(opts) > 0 && (errors.Is(err, natslock.ErrInvalid) || errors.Is(err, natslock.ErrTimeout))
		assert.True(m.t, ok, "%v: %v", w, err)
		if errors.Is(err, natslock.ErrClosed) {
			time.Sleep(100 * time.Millisecond) // another client takes its place
		}
		return
	}
	h.Use()
	if rng.IntN(3) > 0 {
		time.Sleep(rand2(rng, m.hold))
		h.Use()
	}
	switch n := rng.IntN(200); {
	case n < 4:
		_ = h.Extend(context.Background(), 0)
	case n < 6 && !m.calm:
		_ = h.Extend(context.Background(), m.ttl+time.Second)
	case n < 8 && !m.calm:
		time.Sleep(rand2(rng, 2*m.ttl)) // others wait, and the lease is renewed
	case n == 8 && !m.calm:
		h.Drop()
		return
	}
	h.Use()
	if err = h.Unlock(context.Background()); err != nil && !errors.Is(err, natslock.ErrLost) && !errors.Is(err, natslock.ErrEnded) && !errors.Is(err, natslock.ErrClosed) {
		assert.ErrorIs(m.t, err, natslock.ErrUnavailable)
	}
	if rng.IntN(10) == 0 {
		time.Sleep(rand2(rng, m.hold))
		assert.Equal(m.t, err, h.Lock().Unlock(context.Background()), "the same again")
		assert.Error(m.t, h.Lock().Extend(context.Background(), 0), "it has ended")
	}
}

// reopen closes a client, with all the locks that it holds and waits for, and lets another
// client take its place.
func (m *sim) reopen(c *client, i int) {
	c.cuts <- struct{}{}
	defer func() { <-c.cuts }()
	_, was, f := c.now()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	_ = was.Close(ctx)
	m.rec.Count("close", 1)
	m.count(f)
	for m.connect(c, i) != nil {
		time.Sleep(100 * time.Millisecond) // its link was cut a moment ago
	}
	m.disturb(c, i, true)
}

// count adds up the faults that have hit a client's notifications.
func (m *sim) count(f *faults.Store) {
	n := f.Counts()
	m.rec.Count("notification dropped", n.EventsDropped)
	m.rec.Count("notification forged", n.EventsForged)
}
