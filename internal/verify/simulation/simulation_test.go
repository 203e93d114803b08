package simulation_test

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/history"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/machine"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
)

var (
	simSeeds = flag.Int("seeds", 0, "how many seeds a test tries; 0: as many as it has in its tier")
	simSeed  = flag.Uint64("seed", 0, "the first seed of a test; 0: a new one")
	simHours = flag.Float64("hours", 0, "simulated hours for each seed; 0: those of the test, a quarter under the race detector")
)

func TestMain(m *testing.M) {
	kit.Quiet()
	kit.LeakCheck(m)
}

// plan holds the parameters of a simulation.
type plan struct {
	memory                   bool // the bucket is in memory, so there are no crashes and no remakes
	seed                     uint64
	hours                    float64
	clients, workers         int
	mutexes, rws, sems       int
	permits                  func(client, sem int) int // that a client knows about
	ttl, think, hold, linger time.Duration             // and how long a lock lingers
	watchAfter               time.Duration
	outages, meddles, forge  time.Duration // how often per client; 0: never
	crashes                  time.Duration // how often the server restarts and forgets all TTLs; 0: never
	remakes                  int
	rates                    faults.Rates

	rounds int           // per goroutine in a crowd; 0: a crowd once in a while
	crowd  int           // goroutines of a client that ask one after the other
	turn   time.Duration // of the clients
	lag    time.Duration // from a client to the server, or back
	calm   bool          // nothing fails
	blind  float64       // the rate of failing reads; 0: the rate of lost writes
	closes time.Duration // how often each client closes and another takes its place; 0: never

	over *atomic.Bool // set when the simulation should end; may be nil
}

// inMemory returns the plan with its bucket in memory.
func (p plan) inMemory() plan {
	p.memory, p.crashes, p.remakes = true, 0, 0
	return p
}

func firstSeed() uint64 {
	if *simSeed != 0 {
		return *simSeed
	}
	return rand.Uint64()>>1 + 1
}

// seeds simulates a plan for each of several seeds, n by default, and judges what happens.
// least returns the counts that each plan must reach, and must lists those that n seeds must
// reach together.
func seeds(t *testing.T, n int, planOf func(seed uint64) plan, least func(p plan) map[string]int, must ...string) {
	var mu sync.Mutex
	total := map[string]int{}
	first, count := firstSeed(), cmp.Or(*simSeeds, n)
	t.Cleanup(func() { // once all have ended
		t.Logf("seeds %d to %d: %v", first, first+uint64(count)-1, total)
		if count < n || *simHours > 0 || *simPlan != "" || machine.Race {
			return
		}
		for _, what := range must {
			assert.Positive(t, total[what], what)
		}
	})
	test := t.Name()
	for seed := first; seed < first+uint64(count); seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			p := planOf(seed)
			if p.memory {
				t.Parallel()
			}
			h := verify(t, p, test, least(p))
			mu.Lock()
			defer mu.Unlock()
			for what, n := range h.Counts() {
				total[what] += n
			}
		})
	}
}

// happened lists the counts that the seeds of a plan with all faults must reach together.
var happened = []string{
	"break ok", "break now ok", "delete ok", "outage", "notification forged", "expired", "superseded", "unknown outcomes",
	"lock gave up", "try refused", "unlock lost", "unlock broken",
}

// TestSim has clients contend for mutexes and reader-writer locks in memory while everything
// goes wrong that can go wrong there. Each seed has its own number of clients and names,
// leases, pace and fault rates.
func TestSim(t *testing.T) {
	hours := cmp.Or(*simHours, machine.Quarter(1.))
	seeds(t, 6, func(seed uint64) plan {
		p := planOf(seed, hours).inMemory()
		// In half of the plans the bucket is some distance away, so more is under way at a
		// time.
		rng := rand.New(rand.NewPCG(seed, 8))
		p.lag = []time.Duration{0, 2 * time.Millisecond}[rng.IntN(2)]
		p.turn = []time.Duration{0, time.Millisecond, time.Millisecond}[rng.IntN(3)]
		return p
	}, leastOf, happened...)
}

// leastOf returns the counts that each plan of TestSim must reach.
func leastOf(p plan) map[string]int {
	least := map[string]int{"reads": int(20 * p.hours), "writes": int(40 * p.hours), "remake ok": p.remakes}
	if p.hours >= 1 {
		for _, fault := range []string{"notification dropped", "read failed", "dropped", "answer lost", "delayed", "answer delayed", "refused", "not sent"} {
			least[fault] = 1
		}
	}
	return least
}

// TestSimServer is TestSim on a real server. The server restarts and forgets TTLs, links are
// cut, and the bucket is re-created.
func TestSimServer(t *testing.T) {
	if tier.IsProof() {
		hours := cmp.Or(*simHours, machine.Quarter(1.))
		seeds(t, 4, func(seed uint64) plan { return planOf(seed, hours) }, leastOf, append(slices.Clip(happened), "crash")...)
		return
	}
	hours := cmp.Or(*simHours, machine.Quarter(0.5))
	seeds(t, 1, func(seed uint64) plan {
		p := planOf(seed, hours)
		p.outages, p.crashes, p.remakes = 2*time.Minute, 5*time.Minute, 1 // one plan has everything
		return p
	}, leastOf, onlyServer...)
}

// onlyServer lists the counts that a plan on a server must reach because they are its purpose,
// and those without which nothing was tried.
var onlyServer = []string{"outage", "crash", "remake ok", "notification forged", "expired", "unknown outcomes"}

// planOf makes a plan from a seed.
func planOf(seed uint64, hours float64) plan {
	rng := rand.New(rand.NewPCG(seed, 1))
	pick := func(ds ...time.Duration) time.Duration { return ds[rng.IntN(len(ds))] * time.Second }
	p := plan{
		seed: seed, hours: hours,
		clients: 2 + rng.IntN(4), workers: 2 + rng.IntN(3), mutexes: 1 + rng.IntN(2), rws: 1 + rng.IntN(2),
		ttl: pick(2, 5, 5, 15), think: pick(10, 20, 40), hold: pick(1, 4, 8), watchAfter: pick(0, 1, 1, -1),
		outages: pick(300, 1200), meddles: pick(30, 120), forge: pick(10, 60), remakes: rng.IntN(3),
	}
	p.crashes = []time.Duration{3 * time.Minute, 12 * time.Minute}[rand.New(rand.NewPCG(seed, 4)).IntN(2)]
	p.turn = []time.Duration{0, time.Millisecond}[rand.New(rand.NewPCG(seed, 6)).IntN(2)]
	bad := 0.5 + rng.Float64()
	p.rates = faults.Rates{
		Drop: 0.02 * bad, LoseAnswer: 0.03 * bad, Delay: 0.03 * bad, DelayAnswer: 0.03 * bad, Refuse: 0.02 * bad, NotSent: 0.01 * bad,
		MaxDelay: pick(1, 5, 20, 40), DropEvent: 0.05 * bad,
	}
	return p
}

// TestSimDay simulates a day, mostly of a few mutexes, on a real server.
func TestSimDay(t *testing.T) {
	tier.Proof(t)
	hours := cmp.Or(*simHours, machine.Quarter(24.))
	// A shorter day has just as many operators. At the pace of a whole day, one run of 6 hours
	// in a hundred would break no lease.
	meddles := min(time.Duration(hours/24*float64(10*time.Minute)), 10*time.Minute)
	p := plan{
		seed: firstSeed(), hours: hours, clients: 4, workers: 2, mutexes: 3, rws: 1,
		ttl: 5 * time.Second, think: 90 * time.Second, hold: 8 * time.Second, watchAfter: time.Second,
		turn: time.Millisecond, outages: 20 * time.Minute, meddles: meddles, forge: 10 * time.Minute, crashes: time.Hour, remakes: 2,
		rates: faults.Rates{
			Drop: 0.02, LoseAnswer: 0.04, Delay: 0.03, DelayAnswer: 0.03, Refuse: 0.02, NotSent: 0.01,
			MaxDelay: 30 * time.Second, DropEvent: 0.05,
		},
	}
	verify(t, p, "TestSimDay", map[string]int{
		"grants": int(200 * hours), "expired": int(hours), "lock gave up": int(hours), "try refused": int(hours), "outage": int(hours),
		"break ok": 1, "remake ok": 2, "crash": int(hours / 4),
	})
}

// sim is a simulation under way.
type sim struct {
	plan
	t       *testing.T
	bucket  bucket
	rec     *history.Recorder
	clients []*client
}

type client struct {
	*history.Client
	mu   sync.Mutex // guards Client and c if clients close
	c    *natslock.Client
	link line
	f    *faults.Store
	cuts chan struct{} // holds a token while the link is disturbed
}

// simulate runs a plan in a bubble and returns its history.
func simulate(t *testing.T, p plan, test string) *history.History {
	t.Helper()
	tiered := ""
	if tier.IsProof() { // it has other plans
		tiered = tier.Variable + "=proof "
	}
	repeat := fmt.Sprintf(tiered+"go test ./internal/verify/simulation -run '^%s$' -seeds 1 -seed %d", strings.ReplaceAll(test, "/", "$/^"), p.seed)
	if p.over == nil && *simPlan == "" {
		repeat += fmt.Sprintf(" -hours %v", p.hours)
	} else {
		repeat += fmt.Sprintf(" -plan '%v' -count 20", p)
	}
	t.Logf("plan: %v\n%s", p, repeat)
	var h *history.History
	begun := time.Now()
	simulateIn(t, p.memory, func(t *testing.T, b bucket) {
		m := &sim{plan: p, t: t, bucket: b, rec: history.NewRecorder()}
		m.rec.Repeat(repeat)
		m.rec.TTL(p.ttl)
		m.rec.Turn(p.turn, p.notice(), p.calm)
		m.open()
		m.run()
		m.close()
		h = m.rec.History()
	})
	n := h.Counts()
	t.Logf("%d operations in %v (%d writes, %d reads, at most %d at once; %d entries of the stream) in %v: %v",
		n["operations"], h.Ended.Round(time.Minute), n["writes"], n["reads"], n["readers at once"], len(h.Stream), time.Since(begun).Round(time.Millisecond), n)
	return h
}

func (m *sim) open() {
	for i := range m.plan.clients {
		c := &client{cuts: make(chan struct{}, 1), link: m.bucket.line()}
		require.NoError(m.t, m.connect(c, i))
		m.clients = append(m.clients, c)
		if i == 0 {
			m.bucket.tap(m.rec)
		}
	}
}

// connect gives c a client of its own.
func (m *sim) connect(c *client, i int) error {
	name, seed := fmt.Sprint("c", i), m.seed+uint64(i)
	var f *faults.Store
	made, err := c.link.client(m.t.Context(), natslock.WithTTL(m.ttl), natslock.WithOwner(name), natslock.WithTuning(natslock.Tuning{WatchAfter: cmp.Or(m.watchAfter, 1)}),
		natslock.WithTuning(natslock.Tuning{Turn: cmp.Or(m.turn, -1)}), m.rec.Option(), faults.WrapStore(func(kv kvstore.KV) kvstore.KV {
			if m.lag > 0 {
				kv = &wire{KV: kv, lag: m.lag}
			}
			f = faults.New(kv, seed)
			return m.rec.Over(name, f)
		}))
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.c, c.f, c.Client = made, f, m.rec.Client(name, made)
	return nil
}

// now returns the client that c currently is.
func (c *client) now() (*history.Client, *natslock.Client, *faults.Store) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.Client, c.c, c.f
}

// disturb begins or ends the faults of a client's writes and reads.
func (m *sim) disturb(c *client, i int, on bool) {
	name, _, f := c.now()
	if !on {
		f.OnSend(nil)
		f.FailReads(nil)
		f.Random(faults.Rates{})
		return
	}
	names := map[faults.FateKind]string{
		faults.KindDrop: "dropped", faults.KindLoseAnswer: "answer lost", faults.KindDelay: "delayed", faults.KindDelayAnswer: "answer delayed",
		faults.KindRefuse: "refused", faults.KindNotSent: "not sent",
	}
	seed := m.seed + uint64(i)
	f.Random(faults.Rates{DropEvent: m.rates.DropEvent})
	f.OnSend(func(n int, w kvstore.Write) faults.Fate {
		fate := m.rates.Fate(seed, n)
		if fate.Kind != faults.KindPass {
			m.rec.Fault(name.Name, names[fate.Kind])
		}
		return fate
	})
	var mu sync.Mutex
	rng := rand.New(rand.NewPCG(seed, 2))
	f.FailReads(func(faults.ReadOp, string) error {
		mu.Lock()
		bad := rng.Float64() < cmp.Or(m.blind, m.rates.Drop)
		mu.Unlock()
		if !bad {
			return nil
		}
		m.rec.Fault(name.Name, "read failed")
		return fmt.Errorf("%w: simulated", kvstore.ErrUnavailable)
	})
}

func (m *sim) run() {
	ctx, stop := context.WithTimeout(context.Background(), time.Duration(m.hours*float64(time.Hour)))
	defer stop()
	var wg, workers sync.WaitGroup
	every := func(stream uint64, d time.Duration, fn func(rng *rand.Rand)) {
		if d <= 0 {
			return
		}
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(m.seed, stream))
			for {
				select {
				case <-ctx.Done():
					return
				case <-time.After(rand2(rng, 2*d)):
				}
				fn(rng)
			}
		})
	}
	for i, c := range m.clients {
		id := uint64(100 * (i + 1))
		m.disturb(c, i, true)
		every(id+1, m.outages, func(rng *rand.Rand) { m.outage(rng, c) })
		every(id+2, m.meddles*time.Duration(len(m.clients)), func(rng *rand.Rand) { m.meddle(rng, c) })
		every(id+3, m.forge, func(rng *rand.Rand) { m.forged(rng, c) })
		every(id+4, m.closes, func(*rand.Rand) { m.reopen(c, i) })
		for w := range m.workers {
			workers.Go(func() {
				rng := rand.New(rand.NewPCG(m.seed, id+10+uint64(w)))
				for ctx.Err() == nil && !m.ended() {
					m.contend(rng, c)
				}
			})
		}
		for w := range m.crowd {
			workers.Go(func() {
				rng := rand.New(rand.NewPCG(m.seed, id+50+uint64(w)))
				for n := 0; n < m.rounds && ctx.Err() == nil && !m.ended(); n++ {
					m.press(rng, c)
				}
			})
		}
	}
	wg.Go(func() {
		workers.Wait()
		stop()
	})
	server, _ := m.bucket.(*onServer)
	every(4, m.crashes, func(*rand.Rand) {
		over := m.rec.Outage("", "crash")
		defer over()
		server.crash(m.clients)
	})
	wg.Go(func() {
		rng := rand.New(rand.NewPCG(m.seed, 3))
		for range m.remakes {
			time.Sleep(rand2(rng, time.Duration(m.hours*float64(time.Hour))/time.Duration(m.remakes)))
			server.remake(m.rec)
		}
	})
	wg.Wait()
}

// ended reports whether the simulation should end early.
func (m *sim) ended() bool { return m.over != nil && m.over.Load() }

func rand2(rng *rand.Rand, most time.Duration) time.Duration {
	return time.Duration(rng.Int64N(int64(most)))
}

// want picks a lock.
func (m *sim) want(rng *rand.Rand, c *client) history.Want {
	n := rng.IntN(m.mutexes + m.rws + m.sems)
	switch {
	case n < m.mutexes:
		return history.Want{Kind: admin.KindMutex, Name: fmt.Sprint("m", n)}
	case n >= m.mutexes+m.rws:
		return m.permit(c, n-m.mutexes-m.rws)
	}
	w := history.Want{Kind: admin.KindRW, Name: fmt.Sprint("w", n-m.mutexes)}
	if rng.IntN(3) > 0 {
		w.Mode = admin.Shared
	}
	return w
}

// permit returns a permit of a semaphore as the client knows it.
func (m *sim) permit(c *client, n int) history.Want {
	return history.Want{Kind: admin.KindSemaphore, Name: fmt.Sprint("s", n), Permits: m.permits(slices.Index(m.clients, c), n)}
}

// alone records that a goroutine queues by itself, as it does if clients have no turns.
func (m *sim) alone(w *history.Want) {
	if m.turn == 0 && w.Kind != admin.KindSemaphore && w.Mode != admin.Shared {
		w.Cohort = history.Alone
	}
}

// contend does one of the things that a client may do with a lock.
func (m *sim) contend(rng *rand.Rand, c *client) {
	time.Sleep(rand2(rng, m.think))
	w := m.want(rng, c)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var opts []natslock.LockOption
	bounded := false
	switch n := rng.IntN(20); {
	case n < 4:
		w.Try = true
	case n < 9:
		time.AfterFunc(rand2(rng, 4*m.ttl), cancel)
		bounded = true
	}
	m.alone(&w)
	parked := rng.IntN(20) == 0
	if parked && rng.IntN(2) == 0 {
		opts, w.Cohort = append(opts, natslock.NoRenew()), history.Alone // expires under its holder
	}
	h, err := c.Acquire(ctx, w, opts...)
	if err != nil {
		ok := errors.Is(err, natslock.ErrTimeout) && bounded || w.Try && (errors.Is(err, natslock.ErrLocked) || errors.Is(err, natslock.ErrUnavailable))
		assert.True(m.t, ok, "%v: %v", w, err) // no fault here lasts
		return
	}
	h.Use()
	if rng.IntN(2) == 0 {
		cancel() // the context does not affect the lease
	}
	if parked {
		time.Sleep(4 * m.ttl)
	} else {
		for range 1 + rng.IntN(3) {
			time.Sleep(rand2(rng, m.hold))
			h.Use()
		}
		if rng.IntN(10) == 0 {
			_ = h.Extend(context.Background(), 0)
		}
	}
	h.Use()
	err = h.Unlock(context.Background())
	if err != nil && !errors.Is(err, natslock.ErrLost) {
		assert.ErrorIs(m.t, err, natslock.ErrUnavailable)
	}
}

// outage cuts a client off. Either its connection is gone, or its bytes are held back so that
// its messages arrive when no client or server expects them any more.
func (m *sim) outage(rng *rand.Rand, c *client) {
	c.cuts <- struct{}{}
	defer func() { <-c.cuts }()
	off := rand2(rng, 3*m.ttl)
	over := m.rec.Outage(c.Name, "outage")
	defer over()
	if rng.IntN(2) == 0 {
		c.link.Cut()
		time.Sleep(off)
		c.link.Heal()
		return
	}
	c.link.Blackhole(true)
	time.Sleep(off)
	c.link.Blackhole(false)
}

// meddle ends a holder or a reader, either as an operator or by deleting its record by hand.
func (m *sim) meddle(rng *rand.Rand, c *client) {
	w := m.want(rng, c)
	ctx := context.Background()
	operator, nl, _ := c.now()
	info, err := admin.New(nl).Inspect(ctx, w.Kind, w.Name)
	if err != nil {
		return
	}
	in := append(info.Readers, info.Permits...)
	if info.Holder != nil {
		in = append(in, *info.Holder)
	}
	if len(in) == 0 {
		return
	}
	victim := in[rng.IntN(len(in))]
	switch rng.IntN(4) {
	case 0:
		key := "lock." + w.Name
		if w.Kind == admin.KindSemaphore {
			key = fmt.Sprintf("sem.%s.%d", w.Name, victim.Slot)
		}
		if w.Kind == admin.KindRW {
			key = "rw." + w.Name
			if info.Holder == nil || victim.Token != info.Holder.Token {
				key = "read." + w.Name + "." + victim.ID
			}
		}
		assert.NoError(m.t, m.rec.ByHand(key, func() (uint64, error) { return m.bucket.remove(key) }))
	case 1:
		_ = operator.Break(ctx, w.Kind, w.Name, victim, true)
	default:
		_ = operator.Break(ctx, w.Kind, w.Name, victim, false)
	}
}

// forged gives a client a false notification of a record.
func (m *sim) forged(rng *rand.Rand, c *client) {
	records := m.bucket.records()
	if len(records) == 0 {
		return
	}
	r := records[rng.IntN(len(records))]
	waits := strings.HasPrefix(r.Key, "wait.") || strings.HasPrefix(r.Key, "swait.")
	ev := kvstore.Event{Kind: kvstore.Put, Record: r}
	switch rng.IntN(5) {
	case 0: // released
		ev.Kind, ev.Record.Deleted = kvstore.Deleted, true
		ev.Record.Revision += rng.Uint64N(3)
	case 1:
		ev.Kind = kvstore.Expired
	case 2:
		ev.Kind = kvstore.Recheck
	case 3: // granted, broken, gone
		status := 1 + rng.IntN(5)
		if waits && status == 5 {
			status = 4 // a forged grant makes its successor the first, and order is not protected against that
		}
		ev.Record.Value = kit.WithStatus(r.Value, status)
		ev.Record.Revision++
		if rng.IntN(2) == 0 {
			ev.Kind, ev.Record.Deleted = kvstore.Deleted, true
		}
	case 4:
		ev.Record.Value, ev.Record.Revision = []byte("?"), r.Revision+1
	}
	name, _, f := c.now()
	if waits && ev.Kind != kvstore.Recheck {
		m.rec.Fault(name.Name, history.PlaceForged)
	}
	f.Forge(ev)
}

// close ends all faults and waits until all late writes are over. Then it takes every lock
// with every client, because no record that is left may keep a client out.
func (m *sim) close() {
	for i, c := range m.clients {
		m.disturb(c, i, false)
	}
	time.Sleep(10 * time.Minute)
	ctx := context.Background()
	for _, c := range m.clients {
		for n := range m.sems {
			w := m.permit(c, n)
			w.Try = true
			h, err := c.Acquire(ctx, w)
			if assert.NoError(m.t, err, "%s cannot have %v: blocked by an orphan record", c.Name, w) {
				require.NoError(m.t, h.Unlock(ctx))
			}
		}
		for n := range m.mutexes + m.rws {
			w := history.Want{Kind: admin.KindMutex, Name: fmt.Sprint("m", n), Try: true}
			if n >= m.mutexes {
				w = history.Want{Kind: admin.KindRW, Name: fmt.Sprint("w", n-m.mutexes), Try: true}
			}
			h, err := c.Acquire(ctx, w)
			if assert.NoError(m.t, err, "%s cannot have %v: blocked by an orphan record", c.Name, w) {
				require.NoError(m.t, h.Unlock(ctx))
			}
		}
	}
	for _, c := range m.clients {
		require.NoError(m.t, c.c.Close(ctx))
		if left := c.link.left(); left != "" {
			m.rec.Left(left + " of " + c.Name)
		}
		m.count(c.f)
	}
	m.bucket.close()
	synctest.Wait()
	if n := kit.Goroutines("locks/internal/session.") + kit.Goroutines("locks/internal/bucket.") + kit.Goroutines("locks/internal/cohort.") + kit.Goroutines("locks/internal/admin.") + kit.Goroutines("locks/internal/kvstore."); n > 0 {
		m.rec.Left(fmt.Sprintf("%d goroutines", n))
	}
	m.rec.Left(m.bucket.left()...)
}
