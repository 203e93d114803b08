package model

// rwScope limits how much of a reader-writer lock is explored, and selects the rule to leave
// out, if any.
type rwScope struct {
	name             string
	readers, writers int8
	readTTL, readMargin,
	gateTTL, gateMargin int8
	early, late  int8 // how much before and after the end of its TTL a server may remove a record
	joins        int8 // ids that a reader may try in one call
	readRenewals int8
	gateRenewals int8
	ways         int  // the maximum number of writes in transit
	answers      int  // the maximum number of answers in transit
	losses       bool // answers may be lost
	several      bool // the stream is replicated, so an answer may come from a deposed leader
	cuts         int8 // leaders that are deposed without noticing
	holes        int8 // answers from a replica that is catching up and is not the leader
	window       int8 // how far apart the two answers of a proof may be
	breaks       int8 // breaks of readers
	gateBreaks   int8
	rest         bool // a broken record lives for the rest of the lease
	closes       int8
	again        bool // writers start over forever, and must always get in
	servers           // how servers treat ended records
	weak         weakness
}

// The phases of an actor.
const (
	idle int8 = iota
	trying
	draining // a writer that has the gate
	holding
	stopping // its context has ended, but its work has not
	leaving  // its deletion has been sent
	handing  // its context has ended, and it has sent the write that hands over the lock
	over
)

// The kinds of records.
const (
	none int8 = iota
	held
	broken
	tombstone
)

// The answers to a write.
const (
	acked int8 = 1 + iota
	refused
	inFlight
)

// The writes of a reader-writer lock.
const (
	join int8 = 1 + iota
	renewRead
	deleteRead
	breakRead
	buryRead // a draining writer deletes an overdue reader
	claimGate
	renewGate
	deleteGate
	breakGate
	buryGate // a client deletes an overdue gate
)

var rwVerbs = [...]string{"", "join", "renewal", "deletion", "break", "deletion as overdue", "gate claim", "gate renewal", "gate deletion", "gate break", "deletion of the gate as overdue"}

// readKey is one reader's record. Reader i has the keys 2i and 2i+1, because a repeated join
// has a new id. A variant of the rule "Overdue" adds since to the record's age.
type readKey struct{ rev, kind, renewal, age, since int8 }

type gateKey struct{ rev, kind, writer, renewal, age int8 }

type rwWrite struct{ verb, who, id, expect, n int8 }

func (a rwWrite) compare(b rwWrite) int {
	return compareAll([]int8{a.verb, a.who, a.id, a.expect, a.n}, []int8{b.verb, b.who, b.id, b.expect, b.n})
}

// rwAnswer includes what the client reads after a refusal: the record's kind if the record is
// the client's own, and the record's renewal.
type rwAnswer struct{ verb, who, id, n, code, rev, kind, renewal int8 }

func (a rwAnswer) compare(b rwAnswer) int {
	return compareAll([]int8{a.verb, a.who, a.id, a.n, a.code, a.rev, a.kind, a.renewal}, []int8{b.verb, b.who, b.id, b.n, b.code, b.rev, b.kind, b.renewal})
}

type reader struct {
	phase, left, last, renewals int8
	ids, id                     int8    // joins sent; the join that was granted
	joined                      [2]int8 // the age of each join
	renewed                     [2]int8
}

// writer is the state of a writer. Its writes to the gate are numbered, starting with the
// claim at 0.
type writer struct {
	phase, left, last, renewals, token int8
	age                                [4]int8 // the age of each gate write
	confirmed                          int8    // the last acknowledged gate write
	holds                              int8    // 1 once the drain is over
	// asked is the state of the request for the stream info: 1 in transit, 2 answered.
	asked, askedFor, askedRev int8
	answerRev, answerLive     int8
	// The answer comes from a replica that is catching up, so it lacks recently renewed
	// records.
	answerHole int8
	// first is the first empty answer of a proof: 1 + the gate write that it contained.
	// firstRenewals is the number of gate writes sent by the time it arrived.
	first, firstRenewals int8
}

// copied is the state of a deposed leader, which removes records by its own clock and receives
// no more writes.
type copied struct {
	last int8
	keys [4]readKey
}

type rwState struct {
	next, token                  int8 // the next revision; the highest token that a writer was granted
	gate                         gateKey
	keys                         [4]readKey
	cut                          [2]copied
	ways                         [4]rwWrite
	answers                      [3]rwAnswer
	r                            [2]reader
	w                            [2]writer
	pastGate                     gateKey // the last gate to end, which a restart may bring back
	pastKey                      readKey // the last reader record to end
	pastOf, revives              int8
	cuts, breaks, gateBreaks, cl int8
	holes                        int8
	wrong                        int8 // the violated invariant, as an index into rwWrongs
}

// The invariants.
const (
	exclusion   = "conflicting holders are not inside their validity together"
	tokensGrow  = "tokens grow from holder to holder"
	strangers   = "a live record is never overwritten by a stranger"
	ownDeletion = "a holder's own live record is not deleted"
)

var rwWrongs = [...]string{"", tokensGrow, strangers, ownDeletion}

func (c *rwScope) system() system[rwState] {
	return system[rwState]{
		name: c.name,
		init: rwState{next: 1, cuts: c.cuts, breaks: c.breaks, gateBreaks: c.gateBreaks, cl: c.closes, revives: c.revives, holes: c.holes},
		next: c.next, canon: c.canon, broken: c.broken, goal: c.goal(), records: c.records,
	}
}

func (c *rwScope) goal() func(rwState) bool {
	if !c.again {
		return nil
	}
	return func(s rwState) bool { return s.w[0].inside() }
}

func (r *reader) inside() bool {
	return (r.phase == holding || r.phase == stopping) && r.left > 0
}

func (w *writer) inside() bool {
	return w.holds == 1 && (w.phase == holding || w.phase == stopping) && w.left > 0
}

func (c *rwScope) broken(s rwState) string {
	readers, writers := 0, 0
	for i := range s.r {
		if s.r[i].inside() {
			readers++
		}
		if s.w[i].inside() {
			writers++
		}
	}
	if writers > 1 || writers > 0 && readers > 0 {
		return exclusion
	}
	return rwWrongs[s.wrong]
}

func (c *rwScope) readLife(k int8) int8 {
	if k == tombstone {
		return 1
	}
	return c.readTTL
}

func (c *rwScope) gateLife(k int8) int8 {
	if k == tombstone {
		return 1
	}
	return c.gateTTL
}

func (c *rwScope) next(s rwState, to *steps[rwState]) {
	c.time(s, to)
	c.server(s, to)
	for i, a := range distinct(s.answers[:]) {
		n := s
		take(n.answers[:], i)
		if a.verb < claimGate {
			did := c.readerAnswered(&n, a)
			to.do(step, n, "R%d: gets the answer to its %s %d.%d: %s", a.who+1, rwVerbs[a.verb], a.id, a.n, did)
		} else {
			did := c.writerAnswered(&n, a)
			to.do(step, n, "W%d: gets the answer to its %s %d: %s", a.who+1, rwVerbs[a.verb], a.n, did)
		}
	}
	for i := range c.readers {
		c.reader(s, i, to)
	}
	for i := range c.writers {
		c.writer(s, i, to)
	}
	c.operator(s, to)
}

// time advances the clocks unless a server is already as late in removing a record as the
// scope allows.
func (c *rwScope) time(s rwState, to *steps[rwState]) {
	n := s
	ok := true
	older := func(k *readKey) {
		if k.kind == none {
			return
		}
		ok = ok && (k.age < c.readLife(k.kind)+c.late || c.forgets)
		k.age = c.older(k.age, c.readLife(k.kind))
	}
	older(&n.pastKey)
	for i := range n.keys {
		older(&n.keys[i])
		for j := range n.cut {
			older(&n.cut[j].keys[i])
		}
	}
	for _, g := range [...]*gateKey{&n.gate, &n.pastGate} {
		if g.kind != none {
			ok = ok && (g.age < c.gateLife(g.kind)+c.late || c.forgets)
			g.age = c.older(g.age, c.gateLife(g.kind))
		}
	}
	if !ok {
		return
	}
	for i := range n.r {
		r, w := &n.r[i], &n.w[i]
		down(&r.left)
		for j := range r.joined {
			r.joined[j] = min(r.joined[j]+1, c.readTTL-c.readMargin)
			r.renewed[j] = min(r.renewed[j]+1, c.readTTL-c.readMargin)
		}
		down(&w.left)
		for j := range w.age {
			w.age[j] = min(w.age[j]+1, max(c.gateTTL-c.gateMargin, c.window))
		}
	}
	to.do(tick, n, "time passes")
}

// server removes expired records, and applies the writes that have arrived.
func (c *rwScope) server(s rwState, to *steps[rwState]) {
	if k := s.gate; k.kind != none && k.age >= c.gateLife(k.kind)-c.early {
		n := s
		c.endedGate(&n)
		n.gate = gateKey{}
		to.do(c.removal(), n, "server: removes the gate, revision %d, by its TTL", k.rev)
	}
	for i, k := range s.keys {
		if k.kind != none && k.age >= c.readLife(k.kind)-c.early {
			n := s
			c.endedKey(&n, int8(i))
			n.keys[i] = readKey{}
			to.do(c.removal(), n, "server: removes R%d.%d, revision %d, by its TTL", i/2+1, i%2, k.rev)
		}
	}
	for j := range s.cut {
		for i, k := range s.cut[j].keys {
			if k.kind != none && k.age >= c.readLife(k.kind)-c.early {
				n := s
				n.cut[j].keys[i] = readKey{}
				to.do(c.removal(), n, "deposed leader %d: removes R%d.%d by its own clock", j+1, i/2+1, i%2)
			}
		}
	}
	c.restarts(s, to)
	if s.cuts > 0 && s.next > 1 {
		n := s
		n.cuts--
		n.cut[c.cuts-s.cuts] = copied{last: s.next - 1, keys: s.keys}
		to.do(fault, n, "servers: the leader is cut off at revision %d, and another is elected", s.next-1)
	}
	for i, w := range distinct(s.ways[:]) {
		n := s
		take(n.ways[:], i)
		a := c.apply(&n, w)
		if w.verb == breakRead || w.verb == buryRead || w.verb == breakGate || w.verb == buryGate {
			to.do(step, n, "server: %s expecting %d: %s", rwVerbs[w.verb], w.expect, codes[a.code])
			continue
		}
		if c.losses {
			to.do(fault, n, "server: %s of %d.%d.%d expecting %d: %s, and the answer is lost", rwVerbs[w.verb], w.who+1, w.id, w.n, w.expect, codes[a.code])
		}
		if put(n.answers[:c.answers], a, rwAnswer.compare) {
			to.do(step, n, "server: %s of %d.%d.%d expecting %d: %s", rwVerbs[w.verb], w.who+1, w.id, w.n, w.expect, codes[a.code])
		}
	}
	for i := range c.writers {
		w := s.w[i]
		if w.asked != 1 {
			continue
		}
		answer := func(n rwState, who string, last int8, keys [4]readKey) {
			x := &n.w[i]
			x.asked, x.answerRev, x.answerLive, x.answerHole = 2, last, 0, s.holes-n.holes
			for j, k := range keys {
				if c.listed(&s, int8(j), k) {
					x.answerLive = 1
				}
			}
			to.do(step, n, "%s: lists the readers for W%d, at revision %d: %s", who, i+1, last, [...]string{"none", "some"}[x.answerLive])
		}
		answer(s, "server", s.next-1, s.keys)
		for j := range s.cut {
			if s.cut[j].last > 0 {
				answer(s, [...]string{"deposed leader 1", "deposed leader 2"}[j], s.cut[j].last, s.cut[j].keys)
			}
		}
		for _, k := range s.keys {
			if s.holes > 0 && k.kind != none {
				n := s
				n.holes--
				answer(n, "a replica that is catching up", k.rev-1, catchingUp(s.keys, k.rev-1))
			}
		}
	}
}

// catchingUp returns the state of a replica that is catching up from a snapshot. It has removed
// everything that the leader has replaced since revision last, but lacks the replacements.
func catchingUp(keys [4]readKey, last int8) [4]readKey {
	for i := range keys {
		if keys[i].rev > last {
			keys[i] = readKey{}
		}
	}
	return keys
}

var codes = [...]string{"", "stored", "refused", "in flight"}

// apply stores a write if the record has the revision that the write expects.
func (c *rwScope) apply(n *rwState, w rwWrite) rwAnswer {
	a := rwAnswer{verb: w.verb, who: w.who, id: w.id, n: w.n, code: refused}
	rev := n.next
	switch w.verb {
	case join:
		a.rev = n.gate.rev
		if n.gate.rev != w.expect && c.weak != unguardedJoin {
			return a
		}
		n.keys[2*w.who+w.id] = readKey{rev: rev, kind: held}
	case renewRead, deleteRead, breakRead, buryRead:
		k := &n.keys[2*w.who+w.id]
		a.rev, a.kind, a.renewal = k.rev, k.kind, k.renewal
		if k.rev != w.expect || w.expect == 0 {
			return a
		}
		c.endedKey(n, 2*w.who+w.id)
		r := &n.r[w.who]
		switch w.verb {
		case renewRead:
			*k = readKey{rev: rev, kind: held, renewal: w.n, since: c.sinceJoin(*k)}
		case deleteRead:
			if k.kind == held && r.inside() && r.id == w.id && r.last >= k.rev {
				n.wrong = 3
			}
			*k = readKey{rev: rev, kind: tombstone}
		case breakRead:
			age := int8(0)
			if c.rest {
				age = c.certain(k.age, c.weak)
			}
			*k = readKey{rev: rev, kind: broken, renewal: k.renewal, age: age}
		case buryRead:
			if k.kind != tombstone && !c.past(k.age, c.readTTL) {
				n.wrong = 2
			}
			*k = readKey{rev: rev, kind: tombstone}
		}
	default:
		g := &n.gate
		a.rev = g.rev
		if g.writer == w.who {
			a.kind, a.renewal = g.kind, g.renewal
		}
		if g.rev != w.expect {
			return a
		}
		who, age := w.who, int8(0)
		if w.verb == breakGate {
			if who = g.writer; c.rest {
				age = c.certain(g.age, c.weak)
			}
		}
		if !g.free() && (g.writer != who || w.verb == buryGate) && !c.past(g.age, c.gateTTL) {
			n.wrong = 2
		}
		c.endedGate(n)
		kinds := [...]int8{claimGate: held, renewGate: held, deleteGate: tombstone, breakGate: broken, buryGate: tombstone}
		*g = gateKey{rev: rev, kind: kinds[w.verb], writer: who, renewal: w.n, age: age}
	}
	n.next++
	a.code, a.rev, a.kind, a.renewal = acked, rev, none, 0
	return a
}

func (g gateKey) free() bool { return g.kind == none || g.kind == tombstone }

// operator breaks the record that the server has returned.
func (c *rwScope) operator(s rwState, to *steps[rwState]) {
	for i, k := range s.keys {
		if s.breaks > 0 && k.kind == held {
			n := s
			n.breaks--
			if put(n.ways[:c.ways], rwWrite{verb: breakRead, who: int8(i / 2), id: int8(i % 2), expect: k.rev}, rwWrite.compare) {
				to.do(fault, n, "operator: breaks R%d.%d at revision %d", i/2+1, i%2, k.rev)
			}
		}
	}
	if s.gateBreaks > 0 && s.gate.kind == held {
		n := s
		n.gateBreaks--
		if put(n.ways[:c.ways], rwWrite{verb: breakGate, who: s.gate.writer, expect: s.gate.rev}, rwWrite.compare) {
			to.do(fault, n, "operator: breaks the gate at revision %d", s.gate.rev)
		}
	}
}
