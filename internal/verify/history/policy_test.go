package history

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/record"
)

// policy simulates a mutex whose clients serve their goroutines by mark and turn. Writes take
// no time, and notifications of places take lag. A fault makes it a different policy.
type policy struct {
	story
	rng       *rand.Rand
	fault     string
	turn, lag time.Duration

	now      time.Duration
	due      []event // in order of time
	revision uint64
	clients  []*contender
	queue    []*stand
	holder   *contender

	owed, inTurn, inherited int // how many goroutines were served in each way
}

type event struct {
	at time.Duration
	do func()
}

// contender is a client with its cohort.
type contender struct {
	name  string
	fifo  []*asker
	stand *stand // its place in the queue
	known map[*stand]bool

	id     string // the lease's
	from   time.Duration
	mark   time.Duration // goroutines that asked up to then are owed the lease; negative: not set
	served uint64
}

// stand is a place in the queue.
type stand struct {
	of     *contender
	id     string
	ticket uint64
	sent   time.Duration
}

// asker is a goroutine in an acquire, and what it does afterwards.
type asker struct {
	*Op
	next func()
}

func (p *policy) after(d time.Duration, do func()) {
	at := p.now + d
	i := len(p.due)
	for i > 0 && p.due[i-1].at > at {
		i--
	}
	p.due = slices.Insert(p.due, i, event{at, do})
}

// some returns a random time below most.
func (p *policy) some(most time.Duration) time.Duration {
	return time.Duration(p.rng.Int64N(int64(most)))
}

func (p *policy) write(c *contender, key, id string) *Entry {
	p.revision++
	e := p.put(key, id, p.revision, 0)
	e.At, e.Since, e.Owner = p.now, p.now, c.name
	return e
}

// asks has one of a client's goroutines acquire the lock the given number of times.
func (p *policy) asks(c *contender, rounds int) {
	if rounds == 0 {
		return
	}
	op := &Op{Client: c.name, Lock: mutex, Do: Lock, Call: p.moment(p.now.Seconds()), Bounded: true}
	op.Call.At = p.now
	p.Ops = append(p.Ops, op)
	a := &asker{op, func() { p.after(p.some(50*time.Millisecond), func() { p.asks(c, rounds-1) }) }}
	c.fifo = append(c.fifo, a)
	if p.rng.IntN(8) == 0 {
		p.after(p.some(300*time.Millisecond), func() { p.givesUp(c, a) })
	}
	switch {
	case c.id != "":
	case c.stand != nil:
		p.queued(c, a)
	case p.holder == nil && len(p.queue) == 0:
		p.grant(c)
	default:
		p.place(c)
	}
}

func (p *policy) queued(c *contender, a *asker) {
	a.Tickets = append(a.Tickets, Ticket{ID: c.stand.id, Ticket: c.stand.ticket, At: p.now})
}

// place queues a cohort.
func (p *policy) place(c *contender) {
	s := &stand{of: c, sent: p.now}
	s.id = fmt.Sprint(c.name, "-", p.revision+1)
	e := p.write(c, "wait.m."+s.id, s.id)
	e.Status, s.ticket = 2, e.Revision
	c.stand = s
	p.queue = append(p.queue, s)
	if p.fault == "the last place first" {
		slices.Reverse(p.queue)
	}
	for _, a := range c.fifo {
		p.queued(c, a)
	}
	for _, o := range p.clients {
		if o == c {
			continue
		}
		p.after(p.lag, func() {
			if !slices.Contains(p.queue, s) {
				return
			}
			o.known[s] = true
			if o.id != "" && (o.mark < 0 || p.fault == "a mark at each place") {
				o.mark = p.now
			}
		})
	}
}

// leaves takes a cohort out of the queue.
func (p *policy) leaves(c *contender, status int) {
	s := c.stand
	c.stand = nil
	p.queue = slices.DeleteFunc(p.queue, func(o *stand) bool { return o == s })
	for _, o := range p.clients {
		delete(o.known, s)
	}
	e := p.write(c, "wait.m."+s.id, s.id)
	e.Deleted, e.TTL, e.Status = true, time.Second, status
}

// grant gives a cohort the lock, through its place or because nobody waits.
func (p *policy) grant(c *contender) {
	p.holder, c.from, c.mark, c.served = c, p.now, -1, 0
	c.id = fmt.Sprint(c.name, p.revision+1)
	p.write(c, mutex, c.id)
	revision := p.revision
	if c.stand != nil {
		c.mark = c.stand.sent
		p.leaves(c, statusGranted)
	}
	if len(c.known) > 0 && c.mark < 0 {
		c.mark = p.now
	}
	p.admit(c, revision)
}

// admit serves a cohort's first goroutine with the cohort's lease.
func (p *policy) admit(c *contender, revision uint64) {
	a := c.fifo[0]
	if p.fault == "the last goroutine first" {
		a = c.fifo[len(c.fifo)-1]
	}
	c.fifo = slices.DeleteFunc(c.fifo, func(o *asker) bool { return o == a })
	if c.served == 0 && c.mark >= 0 && a.Call.At > c.mark {
		p.inherited++
	}
	a.Return, a.Outcome = p.moment(0), OK
	a.Return.At = p.now
	a.Token, a.ID = record.Token(revision, int(c.served)), c.id
	if c.served > 0 {
		a.ID = fmt.Sprint(c.id, ".", c.served+1)
	}
	c.served++
	h := &Hold{Client: c.name, Lock: mutex, ID: a.ID, Token: a.Token, Asked: a.Call, From: a.Return, Until: p.now + sec(4), Released: true}
	p.Holds = append(p.Holds, h)
	p.after(1+p.some(20*time.Millisecond), func() {
		op := &Op{Client: c.name, Lock: mutex, Do: Unlock, Call: p.moment(0), Outcome: OK, Token: h.Token, ID: h.ID}
		op.Call.At = p.now
		op.Return, h.Unlock, h.Unlocked, h.Until = op.Call, op.Call, op.Call, p.now
		p.Ops = append(p.Ops, op)
		a.next()
		p.serve(c, revision, h.Token)
	})
}

// serve passes a cohort's lease on to its next goroutine or releases it.
func (p *policy) serve(c *contender, revision, token uint64) {
	known := len(c.known) > 0
	if p.fault == "blind" {
		known = false
	}
	if len(c.fifo) > 0 && c.served < record.GrantsPerRevision {
		owed := c.fifo[0].Call.At <= c.mark
		inTurn := p.now < c.from+p.turn
		if p.fault == "a long turn" {
			inTurn = p.now < c.from+40*p.turn
		}
		switch {
		case known && owed:
			p.owed++
		case known && inTurn:
			p.inTurn++
		}
		if owed || inTurn || !known {
			p.admit(c, revision)
			return
		}
	}
	e := p.write(c, mutex, c.id)
	e.Deleted, e.TTL, e.Status, e.Token, e.Grants = true, time.Second, statusGone, token, c.served
	p.holder, c.id = nil, ""
	switch {
	case len(c.fifo) == 0:
	case p.fault == "a claim past the queue":
		p.grant(c)
		return
	case p.fault == "the rest is forgotten":
		c.fifo = nil
	default:
		p.place(c)
	}
	p.first()
}

// first grants the lock to the head of the queue.
func (p *policy) first() {
	if p.holder == nil && len(p.queue) > 0 {
		p.grant(p.queue[0].of)
	}
}

// givesUp ends a goroutine's wait.
func (p *policy) givesUp(c *contender, a *asker) {
	if !slices.Contains(c.fifo, a) {
		return
	}
	c.fifo = slices.DeleteFunc(c.fifo, func(o *asker) bool { return o == a })
	a.Return, a.Outcome = p.moment(0), GaveUp
	a.Return.At = p.now
	a.next()
	if len(c.fifo) == 0 && c.stand != nil {
		p.leaves(c, statusGone)
	}
}

// run lets clients contend and returns their history.
func (p *policy) run() *History {
	p.Calm, p.Turn, p.Notice, p.Faults = true, p.turn, p.lag+1, map[string]int{}
	for i := range 2 + p.rng.IntN(3) {
		c := &contender{name: string(rune('a' + i)), known: map[*stand]bool{}}
		p.clients = append(p.clients, c)
		for range 1 + p.rng.IntN(8) {
			p.after(p.some(20*time.Millisecond), func() { p.asks(c, 6) })
		}
	}
	for len(p.due) > 0 {
		e := p.due[0]
		p.due = p.due[1:]
		p.now = e.at
		e.do()
	}
	return p.history()
}

func newPolicy(seed uint64, fault string) *policy {
	rng := rand.New(rand.NewPCG(seed, 9))
	return &policy{
		rng: rng, fault: fault, lag: []time.Duration{time.Microsecond, time.Millisecond, 5 * time.Millisecond}[rng.IntN(3)],
		turn: []time.Duration{time.Millisecond, 20 * time.Millisecond}[rng.IntN(2)],
	}
}

// TestPolicy judges clients that serve their goroutines by mark and turn, and clients that
// have a fault.
func TestPolicy(t *testing.T) {
	owed, inTurn, inherited := 0, 0, 0
	for seed := range uint64(150) {
		p := newPolicy(seed, "")
		require.Empty(t, Check(p.run(), Options{}), seed)
		owed, inTurn, inherited = owed+p.owed, inTurn+p.inTurn, inherited+p.inherited
	}
	for what, n := range map[string]int{"owed": owed, "in turn": inTurn, "by a place from before a foreign one": inherited} {
		assert.Greater(t, n, 10, what)
	}
	for fault, check := range map[string]int{
		"blind": 5, "a long turn": 5, "a mark at each place": 5, "the last goroutine first": 5, "the last place first": 5,
		"a claim past the queue": 5, "the rest is forgotten": 6,
	} {
		t.Run(fault, func(t *testing.T) {
			caught := 0
			for seed := range uint64(30) {
				if slices.ContainsFunc(Check(newPolicy(seed, fault).run(), Options{}), func(v Violation) bool { return v.Check == check }) {
					caught++
				}
			}
			t.Logf("caught in %d of 30", caught)
			assert.Greater(t, caught, 10)
		})
	}
}
