package model

// lockScope limits how much of a mutex is explored, and selects the rule to leave out, if any.
// Of the two clients, the first may do everything, and the second only interferes.
type lockScope struct {
	name        string
	ttl, margin int8
	shorter     int8 // a TTL that a renewal may request; 0 for none
	early, late int8 // how much before and after the end of its TTL a server may remove a record
	slow        int8 // how far a client's clock may fall behind
	claims      int8 // claims per client; 0 for no limit
	attempts    [2]int8
	renewals    [2]int8
	ways        int  // the maximum number of writes in transit
	answers     int  // the maximum number of answers in transit
	losses      bool // answers may be lost
	proposals   bool // the stream is replicated: a write is checked first, and stored later or never
	cuts        int8 // leaders that are deposed without noticing
	crashes     int8
	closes      int8
	operators   int8
	rest        bool // a broken record lives for the rest of the lease
	fixed       bool // after a hint the holder reads its record, as with a lease that is not renewed
	now         bool // breaks let the next client in immediately, which is an exception to mutual exclusion
	servers          // how servers treat ended records
	tombs       bool // a restart may bring back even a tombstone
	weak        weakness
}

// The writes of a mutex.
const (
	claimLock int8 = 1 + iota
	renewLock
	deleteLock
	breakLock
)

var lockVerbs = [...]string{"", "attempt", "renewal", "deletion", "break"}

// lockRecord is the record under the key. An acquisition sets attempt, and a renewal sets
// renewal and token. Variants of the rule "Overdue" add since to the record's age.
type lockRecord struct{ rev, kind, client, claim, attempt, renewal, token, age, ttl, since int8 }

func (r lockRecord) live() bool {
	return r.kind == held || r.kind == broken
}

func (r lockRecord) tokenOf() int8 {
	if r.token != 0 {
		return r.token
	}
	return r.rev
}

type lockWrite struct{ verb, client, claim, n, expect, token, ttl int8 }

func (a lockWrite) compare(b lockWrite) int {
	return compareAll([]int8{a.verb, a.client, a.claim, a.n, a.expect, a.token, a.ttl}, []int8{b.verb, b.client, b.claim, b.n, b.expect, b.token, b.ttl})
}

type lockAnswer struct{ verb, client, claim, n, code, rev int8 }

func (a lockAnswer) compare(b lockAnswer) int {
	return compareAll([]int8{a.verb, a.client, a.claim, a.n, a.code, a.rev}, []int8{b.verb, b.client, b.claim, b.n, b.code, b.rev})
}

// attempt is one of a claim's attempts. Its age is measured from when it is sent, on the
// client's clock.
type attempt struct{ expect, age, open int8 }

type client struct {
	phase, claim, made int8
	n                  int8 // attempts sent
	attempts           [2]attempt
	granted            int8 // 1 + the attempt that became the lease
	left, token, last  int8
	renewals           int8
	renewed, asked     [2]int8 // age and TTL of each renewal
	reads, least       int8    // reads is 1 during a read of a state that contains the revision least
	behind             int8    // how far its clock may still fall behind
}

type operator struct{ phase, rev, token, ttl int8 }

type lockState struct {
	next, token     int8 // the next revision; the highest token granted
	rec             lockRecord
	flight          lockWrite // checked but not yet stored
	flightAge       int8
	old             lockRecord // the record at a deposed leader
	oldLast         int8       // that leader's last revision; 0 if there is none
	past            lockRecord // the last record to end, which a restart may bring back
	revives         int8
	ways            [4]lockWrite
	answers         [3]lockAnswer
	c               [2]client
	op              [2]operator
	cuts, crash, cl int8
	wrong           int8 // the violated invariant, as an index into lockWrongs
}

const (
	breakKept  = "a broken lease is not extended"
	superseded = "no renewal is stored after another's grant"
)

var lockWrongs = [...]string{"", tokensGrow, strangers, ownDeletion, breakKept, superseded}

func (c *lockScope) system() system[lockState] {
	init := lockState{next: 1, cuts: c.cuts, crash: c.crashes, cl: c.closes, revives: c.revives}
	for i := range init.c {
		init.c[i].behind = c.slow
	}
	m := system[lockState]{name: c.name, init: init, next: c.next, canon: c.canon, broken: c.broken, records: c.records}
	if c.claims == 0 {
		m.goal = func(s lockState) bool { return s.c[1].inside() }
	}
	return m
}

func (x *client) inside() bool {
	return (x.phase == holding || x.phase == stopping) && x.left > 0
}

// holds reports whether claim is the client's current lease, including one that is ending.
func (x *client) holds(claim int8) bool {
	return x.claim == claim && (x.phase == holding || x.phase == stopping || x.phase == leaving)
}

func (c *lockScope) broken(s lockState) string {
	switch {
	case c.now && lockWrongs[s.wrong] != superseded:
		return ""
	case s.c[0].inside() && s.c[1].inside():
		return exclusion
	}
	return lockWrongs[s.wrong]
}

func (c *lockScope) next(s lockState, to *steps[lockState]) {
	c.time(s, to)
	c.server(s, to)
	for i, a := range distinct(s.answers[:]) {
		n := s
		take(n.answers[:], i)
		did := c.answered(&n, a)
		to.do(step, n, "%c: gets the answer to its %s %d.%d, %s at revision %d: %s", 'A'+a.client, lockVerbs[a.verb], a.claim, a.n, codes[a.code], a.rev, did)
	}
	for i := range int8(2) {
		c.client(s, i, to)
	}
	for i := range c.operators {
		c.operator(s, i, to)
	}
}

// time advances the clocks unless a server is already as late in removing a record as the
// scope allows. A clock that falls behind misses the tick.
func (c *lockScope) time(s lockState, to *steps[lockState]) {
	for _, r := range [...]lockRecord{s.rec, s.old} {
		if r.kind != none && r.age >= r.ttl+c.late && !c.forgets {
			return
		}
	}
	for slow := range 4 {
		n := s
		ok := true
		for i := range n.c {
			x := &n.c[i]
			if slow&(1<<i) != 0 {
				ok = ok && x.behind > 0 && (x.phase == trying || x.phase == holding || x.phase == stopping)
				x.behind--
				continue
			}
			down(&x.left)
			for j := range x.attempts {
				x.attempts[j].age = min(x.attempts[j].age+1, c.ttl-c.margin)
				x.renewed[j] = min(x.renewed[j]+1, c.ttl-c.margin)
			}
		}
		if !ok {
			continue
		}
		for _, r := range [...]*lockRecord{&n.rec, &n.old, &n.past} {
			if r.kind != none {
				r.age = c.older(r.age, r.ttl)
			}
		}
		if n.flight.verb != 0 {
			n.flightAge = min(n.flightAge+1, c.ttl)
		}
		to.do(tick, n, "time passes%s", [...]string{"", ", and A's clock does not notice", ", and B's clock does not notice", ", and no clock notices"}[slow])
	}
}

// server removes expired records, and checks and stores the writes that have arrived.
func (c *lockScope) server(s lockState, to *steps[lockState]) {
	if r := s.rec; r.kind != none && r.age >= r.ttl-c.early {
		n := s
		c.ended(&n)
		n.rec = lockRecord{}
		to.do(c.removal(), n, "server: removes revision %d by its TTL", r.rev)
	}
	if r := s.old; r.kind != none && r.age >= r.ttl-c.early {
		n := s
		n.old = lockRecord{}
		to.do(c.removal(), n, "deposed leader: removes revision %d by its own clock", r.rev)
	}
	if s.revives > 0 && s.past.kind != none && !s.rec.live() {
		n := s
		n.revives--
		n.rec, n.past = s.past, lockRecord{}
		to.do(fault, n, "server: restarts and brings revision %d back", n.rec.rev)
	}
	if s.cuts > 0 && s.next > 1 {
		n := s
		n.cuts--
		n.old, n.oldLast = s.rec, s.next-1
		to.do(fault, n, "servers: the leader is cut off at revision %d, and another is elected", n.oldLast)
	}
	answer := func(n lockState, k kind, w lockWrite, code, rev int8, who string) {
		say := func(k kind, n lockState, lost string) {
			to.do(k, n, "%s: %s %d.%d of %c expecting %d: %s%s", who, lockVerbs[w.verb], w.claim, w.n, 'A'+w.client, w.expect, codes[code], lost)
		}
		if w.verb == breakLock || w.verb == deleteLock && w.claim == 0 { // no client waits for the answer
			say(k, n, "")
			return
		}
		if c.losses || s.oldLast > 0 {
			say(fault, n, ", and the answer is lost")
		}
		if put(n.answers[:c.answers], lockAnswer{w.verb, w.client, w.claim, w.n, code, rev}, lockAnswer.compare) {
			say(k, n, "")
		}
	}
	if s.flight.verb != 0 {
		n := s
		n.flight, n.flightAge = lockWrite{}, 0
		to.do(fault, n, "servers: the write in flight is lost with the leader")
		c.store(&n, s.flight, s.flightAge)
		answer(n, step, s.flight, acked, s.next, "servers")
	}
	for i, w := range distinct(s.ways[:]) {
		n := s
		take(n.ways[:], i)
		matches := w.expect == s.rec.rev || c.weak == unconditionalDelete && w.verb == deleteLock
		switch {
		case s.flight.verb != 0:
			answer(n, step, w, inFlight, 0, "server")
		case !matches:
			answer(n, step, w, refused, s.rec.rev, "server")
		case c.proposals:
			n.flight = w
			to.do(step, n, "server: %s %d.%d of %c expecting %d: proposed", lockVerbs[w.verb], w.claim, w.n, 'A'+w.client, w.expect)
		default:
			c.store(&n, w, 0)
			answer(n, step, w, acked, s.next, "server")
		}
		if s.oldLast > 0 && w.expect != s.old.rev {
			// The clients' writes reach both leaders. The other leader may still store this write
			// after the client has trusted the deposed leader's refusal.
			answer(s, step, w, refused, s.old.rev, "deposed leader")
		}
	}
	for i := range int8(2) {
		if s.c[i].reads == 0 {
			continue
		}
		read := func(who string, r lockRecord) {
			n := s
			did := c.found(&n, i, r)
			to.do(step, n, "%s: shows %c revision %d: %s", who, 'A'+i, r.rev, did)
		}
		read("server", s.rec)
		if s.oldLast > 0 && s.oldLast >= s.c[i].least {
			read("deposed leader", s.old)
		}
	}
}

// store applies a write that was checked age ticks ago. The record's TTL starts at the check.
func (c *lockScope) store(n *lockState, w lockWrite, age int8) {
	old := n.rec
	rev := n.next
	n.next++
	x := &n.c[w.client]
	if old.live() && w.verb != breakLock && old.client != w.client && !c.past(old.age, old.ttl) {
		n.wrong = 2
	}
	c.ended(n)
	switch w.verb {
	case claimLock:
		n.rec = lockRecord{rev: rev, kind: held, client: w.client, claim: w.claim, attempt: w.n, ttl: w.ttl, age: age}
	case renewLock:
		if old.kind == broken {
			n.wrong = 4
		}
		if w.token < n.token && c.revives == 0 { // after a restart no client believes such a renewal
			n.wrong = 5
		}
		n.rec = lockRecord{rev: rev, kind: held, client: w.client, claim: w.claim, renewal: w.n, token: w.token, ttl: w.ttl, age: age, since: c.since(old, overdueByAcquisition)}
	case deleteLock:
		if old.kind == held && old.client == w.client && x.phase == holding && x.left > 0 && x.claim == old.claim && x.token == old.tokenOf() {
			n.wrong = 3
		}
		n.rec = lockRecord{rev: rev, kind: tombstone, client: w.client, ttl: 1, age: min(age, 1)}
	case breakLock:
		if c.now || w.ttl == 0 {
			n.rec = lockRecord{rev: rev, kind: tombstone, ttl: 1, age: min(age, 1)}
			return
		}
		n.rec.rev, n.rec.kind, n.rec.token, n.rec.ttl, n.rec.age, n.rec.since = rev, broken, old.tokenOf(), w.ttl, age, c.since(old, overdueByReplaced)
	}
}

// canon clears the fields that no step reads again, and renumbers the revisions.
func (c *lockScope) canon(s *lockState) {
	forget(s.answers[:], func(a lockAnswer) bool {
		x := &s.c[a.client]
		var idle bool
		switch a.verb {
		case claimLock:
			// Once the claim is over, an answer matters only if its record can still be
			// deleted.
			bids := x.phase == trying && x.claim == a.claim
			idle = !bids && (a.code != acked || s.rec.rev != a.rev && c.weak != grantedWhenOver) || bids && a.code != acked && a.n != x.n
		case renewLock:
			idle = !(x.phase == holding && x.claim == a.claim)
		case deleteLock:
			idle = !(x.phase == leaving && x.claim == a.claim)
		}
		return idle || x.phase == over
	})
	for i := range s.c {
		x := &s.c[i]
		switch x.phase {
		case idle, over:
			*x = client{phase: x.phase, made: x.made, behind: x.behind}
		case holding:
			if c.weak != grantedWhenOver {
				x.n, x.attempts = 0, [2]attempt{}
			}
		case stopping:
			x.n, x.attempts, x.renewals, x.renewed, x.asked, x.token = 0, [2]attempt{}, 0, [2]int8{}, [2]int8{}, 0
		case leaving:
			x.n, x.attempts, x.renewals, x.renewed, x.asked, x.token, x.left = 0, [2]attempt{}, 0, [2]int8{}, [2]int8{}, 0, 0
		}
		if x.reads == 0 {
			x.least = 0
		}
		if c.claims == 0 {
			x.made = 0
		}
		for j := range x.attempts {
			if int8(j) >= x.n {
				x.attempts[j] = attempt{}
			}
			if int8(j) >= x.renewals {
				x.renewed[j], x.asked[j] = 0, 0
			}
		}
	}
	for _, r := range [...]*lockRecord{&s.rec, &s.old, &s.past} {
		if r.kind == tombstone {
			*r = lockRecord{rev: r.rev, kind: tombstone, age: r.age, ttl: r.ttl}
		}
	}
	if s.crash == 0 && s.c[0].phase == over && c.cuts == 0 {
		s.cl = 0
	}
	if s.revives == 0 {
		s.past = lockRecord{}
	}
	revs := [...]*int8{
		&s.past.rev, &s.past.token, &s.token, &s.rec.rev, &s.rec.token, &s.old.rev, &s.old.token, &s.oldLast, &s.flight.expect, &s.flight.token,
		&s.ways[0].expect, &s.ways[1].expect, &s.ways[2].expect, &s.ways[3].expect,
		&s.ways[0].token, &s.ways[1].token, &s.ways[2].token, &s.ways[3].token,
		&s.answers[0].rev, &s.answers[1].rev, &s.answers[2].rev,
		&s.c[0].attempts[0].expect, &s.c[0].attempts[1].expect, &s.c[0].token, &s.c[0].last, &s.c[0].least,
		&s.c[1].attempts[0].expect, &s.c[1].attempts[1].expect, &s.c[1].token, &s.c[1].last, &s.c[1].least,
		&s.op[0].rev, &s.op[0].token, &s.op[1].rev, &s.op[1].token,
	}
	s.next = renumber(revs[:]...)
}
