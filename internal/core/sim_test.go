package core

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/kvstore"
)

// The simulator runs the core of several clients against a server of some lines and a network that
// delays, loses, repeats and reorders. Everything that happens is decided by a list of choices, so
// the same choices give the same run, bit for bit, and fewer choices give a shorter run.

// choices decide what happens: drawn from a seed, or given. After the given ones each is 0.
type choices struct {
	drawn *rand.Rand
	made  []uint32
	given bool
	i     int
}

func (c *choices) of(n int) int {
	if !c.given {
		c.made = append(c.made, c.drawn.Uint32())
	}
	var v uint32
	if c.i < len(c.made) {
		v = c.made[c.i]
	}
	c.i++
	return int(v % uint32(n))
}

// simServer is a server: a sequence, and the newest record of each key until its TTL is over.
type simServer struct {
	seq  uint64
	keys map[string]simRecord
	// broken are the revisions at which an operator has broken a claim.
	broken map[uint64]bool
}

type simRecord struct {
	entry record.Entry
	until clock.Instant
}

func (s *simServer) read(key string, now clock.Instant) record.Entry {
	r, ok := s.keys[key]
	if !ok || now >= r.until {
		return record.Entry{}
	}
	return r.entry
}

func (s *simServer) write(key string, e record.Entry, expect uint64, ttl time.Duration, now clock.Instant) Answer {
	if last := s.read(key, now).Revision; last != expect {
		return Answer{Refusal: Conflict, Last: last}
	}
	s.seq++
	e.Key, e.Revision, e.Record.TTL = key, s.seq, ttl
	s.keys[key] = simRecord{e, now.Add(ttl)}
	return Answer{Revision: s.seq}
}

func (s *simServer) queue(now clock.Instant) (places []record.Entry) {
	for key, r := range s.keys {
		if now >= r.until {
			delete(s.keys, key)
		}
		if e := s.read(key, now); e.Live() && e.Status == record.StatusWaiting {
			places = append(places, e)
		}
	}
	slices.SortFunc(places, func(a, b record.Entry) int { return cmp.Compare(a.Revision, b.Revision) })
	return places
}

// packet is a message on its way, or something that a client does in a moment.
type packet struct {
	what  string
	lossy bool // it may be lost or repeated
	do    func()
}

const (
	simTTL    = 6 * time.Second
	simMargin = time.Second
	simGate   = "lock.l"
	simRetry  = 700 * time.Millisecond // an attempt without an answer is repeated
	simRenew  = 1500 * time.Millisecond
)

type sim struct {
	choices
	now     clock.Instant
	server  simServer
	net     []packet
	clients []*simClient
	story   []string // what has happened, if it is told
	tell    bool
	digest  interface{ Write([]byte) (int, error) }
	grants  int
	wrong   string
	script  map[string][]string // of each claim: its calls as Go code
	granted map[string]string   // the last claim of each client
}

type simClient struct {
	s    *sim
	id   string
	core Client
	line *Line
	all  []*simCall
}

// simCall is a goroutine that has asked.
type simCall struct {
	c       *simClient
	want    Want
	m       Member
	entered bool
	gone    bool
}

// simRun drives a run: it stands for the goroutine that does so.
type simRun struct {
	c       *simClient
	r       *Run
	claim   *Claim
	key     string // of the claim
	expect  uint64
	resend  clock.Instant
	place   string // its key; "": none
	queues  bool   // the claim is of a place
	watched bool
	turn    clock.Instant // 0: no timer
	again   func()        // what it does at due; nil: nothing
	due     clock.Instant

	// Of its lease.
	lease    string // the claim
	valid    Validity
	last     uint64 // the last revision known
	renewals map[uint64]clock.Instant
	renewAt  clock.Instant
	ended    bool // somebody has seen it ended
}

var simTerms = clock.Terms{TTL: simTTL, Margin: simMargin}

// holds begins the lease of a claim, acknowledged at a revision.
func (d *simRun) holds(id string, a Attempt, revision uint64) Lease {
	d.lease, d.valid, d.last = id, ValidFrom(a.Sent, a.Terms), revision
	d.renewals, d.renewAt = map[uint64]clock.Instant{}, d.c.s.now.Add(simRenew)
	d.writes("v := ValidFrom(%d, terms)", a.Sent)
	return Lease{Revision: revision, Until: d.valid.End}
}

// writes adds to the script of the claim.
func (d *simRun) writes(format string, args ...any) {
	if s := d.c.s; s.tell {
		s.script[d.lease] = append(s.script[d.lease], fmt.Sprintf(format, args...))
	}
}

// renew sends a renewal.
func (d *simRun) renew() {
	s := d.c.s
	n, expect, sent := uint64(len(d.renewals)+1), d.last, s.now
	d.renewals[n], d.renewAt = sent, sent.Add(simRenew)
	d.valid.Renewing(sent, simTerms)
	d.writes("v.Renewing(%d, terms)", sent)
	e := record.Entry{}
	e.ID, e.Client, e.Renewal, e.Status = d.lease, d.c.id, n, record.StatusHeld
	s.send(fmt.Sprintf("the server gets renewal %d of %s, which expects %d", n, e.ID, expect), true, func() {
		a := s.server.write(simGate, e, expect, simTTL, s.now)
		s.send(fmt.Sprintf("%s gets the answer to renewal %d of %s: %+v", d.c.id, n, e.ID, a), true, func() { d.renewed(n, a) })
	})
}

// renewed takes the answer to a renewal.
func (d *simRun) renewed(n uint64, a Answer) {
	s := d.c.s
	if d.r.Over || !d.r.Leased() { // released, and deleted by that
		return
	}
	revision := a.Revision
	if a.Refusal == Conflict {
		if a.Last <= d.last {
			return
		}
		e := s.server.read(simGate, s.now)
		if !e.From(d.lease) || !e.Live() || e.Status != record.StatusHeld || e.Renewal == 0 {
			if e.From(d.lease) && e.Live() {
				d.last = e.Revision // broken: its release deletes that
			}
			d.loses()
			return
		}
		n, revision = e.Renewal, e.Revision // a renewal whose answer was lost
	}
	d.writes("v.InTime(%d) // %t, of what was sent at %d", s.now, d.valid.InTime(s.now), d.renewals[n])
	if !d.valid.InTime(s.now) {
		d.loses()
		return
	}
	d.valid.Renewed(d.renewals[n], simTerms)
	d.writes("v.Renewed(%d, terms)", d.renewals[n])
	d.last = max(d.last, revision)
	d.r.Lease.Until = d.valid.End
}

func (d *simRun) loses() {
	d.valid.End = min(d.valid.End, d.c.s.now)
	d.r.Lease.Until = d.valid.End
}

// later has the run do something by its timer.
func (d *simRun) later(in time.Duration, do func()) { d.again, d.due = do, d.c.s.now.Add(in) }

func (s *sim) log(format string, args ...any) {
	line := fmt.Sprintf("%6dms "+format, append([]any{time.Duration(s.now) / time.Millisecond}, args...)...)
	_, _ = s.digest.Write([]byte(line))
	if s.tell {
		s.story = append(s.story, line)
	}
}

func (s *sim) fail(format string, args ...any) {
	if s.wrong == "" {
		s.wrong = fmt.Sprintf(format, args...)
		s.log("WRONG: %s", s.wrong)
	}
}

func newSim(c choices, clients int, tell bool) (*sim, interface{ Sum64() uint64 }) {
	digest := fnv.New64a()
	s := &sim{choices: c, now: 1, tell: tell, digest: digest, script: map[string][]string{}, granted: map[string]string{}, server: simServer{seq: 100, keys: map[string]simRecord{}, broken: map[uint64]bool{}}}
	for i := range clients {
		s.clients = append(s.clients, &simClient{s: s, id: string(rune('a' + i)), core: Client{ID: string(rune('a' + i)), Turn: time.Millisecond, Most: 2}})
	}
	return s, digest
}

func (s *sim) send(what string, lossy bool, do func()) {
	s.net = append(s.net, packet{what, lossy, do})
}

// step does one thing: mostly it delivers what has been on its way for longest.
func (s *sim) step() {
	k := s.of(24)
	switch {
	case k < 12 && len(s.net) > 0:
		s.deliver(0)
	case k < 16 && len(s.net) > 0:
		s.deliver(s.of(len(s.net)))
	case k == 16 && len(s.net) > 0:
		if i := s.of(len(s.net)); s.net[i].lossy {
			s.log("lost: %s", s.net[i].what)
			s.net = slices.Delete(s.net, i, i+1)
		}
	case k == 17 && len(s.net) > 0:
		if p := s.net[s.of(len(s.net))]; p.lossy {
			s.log("repeated: %s", p.what)
			s.net = append(s.net, p)
		}
	case k == 18:
		s.breaks()
	case k < 22:
		c := s.clients[s.of(len(s.clients))]
		c.acts()
	default:
		s.pass(time.Duration(1+s.of(900)) * time.Millisecond)
		if k == 23 {
			s.pass(time.Duration(s.of(3000)) * time.Millisecond)
		}
	}
	for _, c := range s.clients {
		c.tick()
	}
	s.check()
}

func (s *sim) deliver(i int) {
	p := s.net[i]
	s.net = slices.Delete(s.net, i, i+1)
	if s.of(8) == 7 { // the process stands still, and what is due waits
		s.pass(time.Duration(s.of(3000)) * time.Millisecond)
		s.check()
	}
	s.log("%s", p.what)
	p.do()
}

func (s *sim) pass(d time.Duration) { s.now = s.now.Add(d) }

// breaks has an operator break the holder.
func (s *sim) breaks() {
	if e := s.server.read(simGate, s.now); e.Live() && e.Status == record.StatusHeld {
		left := s.server.keys[simGate].until.Sub(s.now)
		e.Status = record.StatusBroken
		a := s.server.write(simGate, e, e.Revision, left, s.now)
		s.server.broken[a.Revision] = true
		s.log("an operator breaks %s at %d", e.ID, a.Revision)
		s.notify(simGate)
	}
}

// calm lets everything go its way: what is sent arrives, goroutines inside leave, and the clock goes
// on. In the end nobody waits.
func (s *sim) calm() {
	s.made, s.given = nil, true
	waits := true
	for i := 0; waits && i < 4000 && s.wrong == ""; i++ {
		if len(s.net) > 0 {
			s.deliver(0)
		} else {
			s.pass(100 * time.Millisecond)
		}
		waits = false
		for _, c := range s.clients {
			c.tick()
			for _, g := range c.all {
				if g.entered && !g.gone {
					g.leaves()
				}
			}
			c.all = slices.DeleteFunc(c.all, func(g *simCall) bool { return g.gone })
			waits = waits || len(c.all) > 0
		}
		s.check()
	}
	if waits {
		s.fail("somebody waits for ever")
	}
}

// check holds the promises: one client inside, in a lease that is valid.
func (s *sim) check() {
	inside := ""
	for _, c := range s.clients {
		for _, g := range c.all {
			if g.m.Run != nil && g.m.Run.Leased() {
				d := g.m.Run.Owner.(*simRun)
				if d.ended && !d.r.Ended(s.now) {
					s.fail("a lease that has ended is valid again")
				}
				d.ended = d.r.Ended(s.now)
			}
			if !g.entered || g.gone || g.m.Run.Ended(s.now) {
				continue
			}
			if inside != "" && inside != c.id {
				s.fail("%s and %s are inside", inside, c.id)
			}
			inside = c.id
		}
	}
}

// notify tells the clients that have subscribed about a change.
func (s *sim) notify(key string) {
	e := s.server.read(key, s.now)
	for _, c := range s.clients {
		l := c.line
		if l == nil || l.Others == nil || !l.Others.Queue {
			continue
		}
		o := l.Others
		s.send(fmt.Sprintf("%s hears of %s at %d", c.id, key, e.Revision), true, func() {
			switch {
			case c.line != l || l.Others != o:
				return
			case strings.HasPrefix(key, "wait.") && e.Deleted:
				o.PlaceGone(key, e.Revision, s.now)
			case strings.HasPrefix(key, "wait.") && e.Client != c.id && !e.Zero():
				l.PlaceSeen(o, e, s.now)
			}
			c.perform()
		})
	}
}

// acts has a goroutine of the client ask, give up, or leave.
func (c *simClient) acts() {
	s := c.s
	var waiting, inside []*simCall
	for _, g := range c.all {
		switch {
		case g.gone:
		case g.entered:
			inside = append(inside, g)
		default:
			waiting = append(waiting, g)
		}
	}
	switch k := s.of(5); {
	case len(inside) > 0 && k < 3:
		inside[s.of(len(inside))].leaves()
	case len(waiting)+len(inside) < 3 && k < 4:
		c.asks(s.of(3) == 0)
	case len(waiting) > 0 && k == 4:
		waiting[s.of(len(waiting))].givesUp()
	}
	c.all = slices.DeleteFunc(c.all, func(g *simCall) bool { return g.gone })
}

func (c *simClient) asks(lingers bool) {
	if c.line == nil {
		c.line = &Line{}
		c.line.Begin(&c.core, c)
	}
	g := &simCall{c: c, want: Want{TTL: simTTL}}
	g.want.Owner, g.m.Want = g, &g.want
	if lingers {
		g.m.Linger = 2 * time.Second
	}
	c.all = append(c.all, g)
	c.see()
	c.s.log("%s asks", c.id)
	c.line.Ask(&g.m, c.s.now)
	c.perform()
}

// see tells the core that leases may be idle.
func (c *simClient) see() {
	if c.line == nil {
		return
	}
	for _, r := range c.line.Runs {
		r.MayIdle = r.Leased() && c.s.now < r.Lease.Until
	}
}

func (g *simCall) givesUp() {
	r := g.m.Run
	d := r.Owner.(*simRun)
	g.c.s.log("%s gives up", g.c.id)
	g.c.see()
	switch left, _ := g.m.GiveUp(g.c.s.now); left {
	case Unused:
		d.release()
	case Withdrawn:
		d.withdraw()
	}
	g.gone = true
	g.c.perform()
}

func (g *simCall) leaves() {
	c, r := g.c, g.m.Run
	c.s.log("%s leaves", c.id)
	c.see()
	left := g.m.Leave(c.s.now)
	g.gone = true
	if left == Nothing {
		left = r.Next(c.s.now)
	}
	if left == Unused {
		r.Owner.(*simRun).release()
	}
	c.perform()
}

// perform performs the effects of the core.
func (c *simClient) perform() {
	s := c.s
	for i := 0; i < len(c.core.Effects); i++ {
		e := c.core.Effects[i]
		var d *simRun
		if e.Run != nil && e.Do != Open {
			d = e.Run.Owner.(*simRun)
		}
		switch e.Do {
		case Open:
			d := &simRun{c: c, r: e.Run}
			e.Run.Owner = d
			s.send(c.id+" drives a run", false, d.begin)
		case OnEnd:
			d.watched = true
		case EndTurn:
			d.turn = e.At
		case KeepTurn:
			d.turn = 0
		case Release:
			d.release()
		case List:
			l := e.Line
			s.send(c.id+" lists the queue", false, func() { c.list(l); l.Others.Refreshed() })
		case Relist:
			r := e.Run
			s.send(c.id+" lists the queue of an idle lease", false, func() { c.list(r.Line); r.Relisted(s.now); c.perform() })
		case Close:
			if len(e.Line.Runs) == 0 {
				e.Line.Others = nil
				if c.line == e.Line {
					c.line = nil
				}
			}
		}
	}
	c.core.Effects = c.core.Effects[:0]
}

// list subscribes to the queue and lists it.
func (c *simClient) list(l *Line) {
	c.subscribe(l)
	if _, epoch := l.Others.Proven(); true {
		l.Others.Prove(c.s.now, epoch)
	}
	l.Listed(c.s.server.queue(c.s.now), 0, nil, c.s.now, c.s.now, time.Time{})
	c.perform()
}

func (c *simClient) subscribe(l *Line) {
	if l.Others == nil {
		l.Others = &Others{}
		l.Others.Subscribed(false)
	}
}

// tick does what is due by the clock, and lets goroutines in.
func (c *simClient) tick() {
	s := c.s
	for _, g := range c.all {
		if r := g.m.Run; !g.gone && !g.entered && g.m.Inside {
			if r.Ended(s.now) {
				last, opens := g.m.Lost(s.now)
				if opens {
					if c.line == nil {
						c.line = &Line{}
						c.line.Begin(&c.core, c)
					}
					c.line.Reopen(&g.m, s.now)
				}
				if last {
					r.Owner.(*simRun).release()
				}
			} else {
				g.entered = true
				s.log("%s is inside", c.id)
			}
			c.perform()
		}
	}
	if c.line == nil {
		return
	}
	for _, r := range slices.Clone(c.line.Runs) {
		d := r.Owner.(*simRun)
		if d.turn != 0 && s.now >= d.turn {
			d.turn = 0
			r.TurnOver(s.now)
		}
		if d.watched && r.Ended(s.now) {
			d.watched = false
			r.LeaseEnded(s.now)
		}
		if r.Leased() && s.now >= d.renewAt && !d.valid.Over(s.now) {
			d.renew()
		}
		if d.claim != nil && !d.claim.Over && s.now >= d.resend {
			d.attempt()
		}
		if do := d.again; do != nil && s.now >= d.due {
			d.again = nil
			do()
		}
		c.perform()
	}
	if c.core.rings != 0 && s.now >= c.core.rings {
		for _, r := range c.core.Tend(s.now) {
			c.list(r.Line)
			r.ListedTogether(s.now)
		}
		c.perform()
	}
}

// begin claims the lock, or queues.
func (d *simRun) begin() {
	switch {
	case d.r.Over || d.r.Leased() || d.claim != nil:
	case d.r.Queues || d.r.Behind:
		d.enqueue()
	default:
		d.newClaim(simGate, false)
		d.expect = 0
		d.attempt()
	}
}

func (d *simRun) newClaim(key string, queues bool) {
	s := d.c.s
	s.server.seq++ // a number for an id, that nothing else has
	d.claim, d.key, d.queues = &Claim{}, key, queues
	d.claim.Begin(fmt.Sprint(d.c.id, s.server.seq))
	if queues {
		d.key = "wait.l." + d.claim.ID
	}
	d.expect = 0
}

// enqueue writes a place, when the run before has a record.
func (d *simRun) enqueue() {
	if d.r.Over || d.r.Leased() {
		return
	}
	if d.r.Before() != nil {
		d.later(10*time.Millisecond, d.enqueue)
		return
	}
	if d.r.Several() {
		d.c.subscribe(d.r.Line)
	}
	d.newClaim("", true)
	d.r.Queueing(d.c.s.now)
	d.attempt()
}

// attempt sends an attempt of the claim.
func (d *simRun) attempt() {
	s, cl := d.c.s, d.claim
	terms := clock.Terms{TTL: simTTL, Margin: simMargin}
	if d.queues {
		terms.TTL = 15 * time.Second
	}
	n := cl.Send(Attempt{Expect: d.expect, Terms: terms, Sent: s.now, Floor: 0})
	d.resend = s.now.Add(simRetry)
	if s.tell {
		s.script[cl.ID] = append(s.script[cl.ID], fmt.Sprintf("c.Send(Attempt{Expect: %d, Terms: clock.Terms{TTL: %d * time.Second, Margin: time.Second}, Sent: %d})",
			d.expect, terms.TTL/time.Second, s.now))
	}
	e := record.Entry{}
	e.ID, e.Client, e.Attempt, e.Status = cl.ID, d.c.id, n, record.StatusHeld
	if d.queues {
		e.Status = record.StatusWaiting
	}
	key, expect := d.key, d.expect
	s.send(fmt.Sprintf("the server gets attempt %d of %s, which expects %d", n, cl.ID, expect), true, func() {
		a := s.server.write(key, e, expect, terms.TTL, s.now)
		if a.Refusal == Acknowledged {
			s.notify(key)
		}
		s.send(fmt.Sprintf("%s gets the answer to attempt %d of %s: %+v", d.c.id, n, cl.ID, a), true, func() { d.answered(cl, n, key, a) })
	})
}

// answered hands an answer to the claim, and follows its verdict.
func (d *simRun) answered(cl *Claim, n int, key string, a Answer) {
	s := d.c.s
	if cl.IsSettled(n) { // the answer was repeated
		return
	}
	if s.tell {
		s.script[cl.ID] = append(s.script[cl.ID], fmt.Sprintf("c.Answered(Reply{N: %d, Answer: Answer{Refusal: %d, Revision: %d, Last: %d}, At: %d}, true)",
			n, a.Refusal, a.Revision, a.Last, s.now))
	}
	if cl.Answered(Reply{N: n, Answer: a, At: s.now}, true) {
		d.delete(key, cl.ID, a.Revision)
	}
	for d.claim == cl && !cl.Over {
		r, more := cl.Next()
		if !more {
			return
		}
		v := cl.Judge(r, cl.Attempts(), s.now)
		var e record.Entry
		if v.Outcome == Refused {
			e = s.server.read(key, s.now)
			v = cl.Found(e, s.now)
			if s.tell {
				s.script[cl.ID] = append(s.script[cl.ID], fmt.Sprintf("c.Found(stored(%d, %q, %d, %d), %d) // %+v", e.Revision, e.ID, e.Attempt, e.Status, s.now, v))
			}
		}
		d.follow(v, e)
	}
}

func (d *simRun) follow(v Verdict, e record.Entry) {
	s, cl := d.c.s, d.claim
	if v.Delete != 0 {
		d.delete(d.key, cl.ID, v.Delete)
	}
	switch v.Outcome {
	case Granted:
		a := cl.Attempt(v.N)
		d.close(v.N)
		if d.queues {
			d.place, d.queues, d.claim = d.key, false, nil
			d.r.PlaceAt(v.Revision, s.now)
			s.send(d.c.id+" lists its queue", false, d.stand)
			break
		}
		s.grants++
		s.granted[d.c.id] = cl.ID
		s.log("%s is granted %d", d.c.id, v.Revision)
		switch {
		case s.now >= a.Terms.End(a.Sent):
			s.fail("%s is granted %d after the end of its validity", d.c.id, v.Revision)
		case s.server.broken[v.Revision]:
			s.fail("%s is granted %d, which an operator has broken", d.c.id, v.Revision)
		}
		d.claim = nil
		m := d.r.Driver
		if d.r.Over || m == nil || !d.r.Granted(m, d.holds(cl.ID, a, v.Revision), s.now) {
			s.release(d, v.Revision)
			break
		}
		d.watched = true
		if d.place != "" {
			d.leavePlace()
		}
	case Free:
		d.expect = e.Revision
		d.attempt()
	case Busy:
		if d.queues || d.place != "" {
			d.close(0)
			d.claim = nil
			d.later(0, d.stand)
			break
		}
		d.close(0)
		d.enqueue()
	case Lost:
		d.close(0)
		d.claim = nil
		d.later(0, d.driveOn)
	}
	d.c.perform()
}

func (d *simRun) driveOn() {
	if d.place != "" {
		d.stand()
	} else {
		d.begin()
	}
}

// stand reads the queue, and claims the lock at its head.
func (d *simRun) stand() {
	s := d.c.s
	if d.r.Over || d.r.Leased() || d.claim != nil {
		return
	}
	if d.place == "" {
		d.enqueue()
		return
	}
	queue := s.server.queue(s.now)
	d.r.Line.Listed(queue, 0, nil, s.now, s.now, time.Time{})
	d.r.Shown()
	i := slices.IndexFunc(queue, func(e record.Entry) bool { return e.Key == d.place })
	gate := s.server.read(simGate, s.now)
	switch {
	case i < 0:
		d.place = ""
		d.r.PlaceLost()
		d.enqueue()
	case i == 0 && !gate.Live():
		d.newClaim(simGate, false)
		d.expect = gate.Revision
		d.attempt()
	default:
		d.later(100*time.Millisecond, d.stand)
	}
	d.c.perform()
}

// close ends the claim, and deletes what it has left.
func (d *simRun) close(n int) {
	unwanted, open, _ := d.claim.Close(n)
	for _, revision := range unwanted {
		d.delete(d.key, d.claim.ID, revision)
	}
	for _, a := range open {
		if n == 0 { // takes away what the attempt expects
			d.delete(d.key, d.claim.ID, a.Expect)
		}
	}
}

func (d *simRun) withdraw() {
	if d.claim != nil {
		d.close(0)
		d.claim = nil
	}
	if d.place != "" {
		d.leavePlace()
	}
}

func (d *simRun) leavePlace() {
	s, key := d.c.s, d.place
	d.place = ""
	s.send(d.c.id+" deletes "+key, true, func() {
		if e := s.server.read(key, s.now); e.Live() {
			s.tombstone(key, e.Revision)
		}
	})
}

func (d *simRun) release() {
	if d.r.Leased() {
		d.c.s.release(d, d.last)
	}
}

func (s *sim) release(d *simRun, revision uint64) {
	if d.place != "" {
		d.leavePlace()
	}
	s.send(fmt.Sprintf("%s releases %d", d.c.id, revision), true, func() { s.tombstone(simGate, revision) })
}

func (s *sim) tombstone(key string, expect uint64) {
	e := record.Entry{Record: kvstore.Record{Deleted: true}}
	if s.server.write(key, e, expect, record.TombstoneLife, s.now).Refusal == Acknowledged {
		s.notify(key)
	}
}

// delete deletes a record of a claim, if it is that.
func (d *simRun) delete(key, id string, revision uint64) {
	s := d.c.s
	s.send(fmt.Sprintf("the server deletes %s of %s at %d", key, id, revision), true, func() {
		if e := s.server.read(key, s.now); revision == 0 && e.Zero() || e.Live() && e.From(id) && e.Revision == revision {
			s.tombstone(key, revision)
		}
	})
}
