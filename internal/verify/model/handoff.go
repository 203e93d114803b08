package model

import "fmt"

// handScope limits the exploration of a hand-over. A giver holds a lock and hands it over with its
// last renewal, whose record is fixed. Two adopters have the handle, and each claims exactly the
// record that it has read. A stranger claims the lock once the record has ended. Behind a gate the
// stranger is a reader that joins next to an overdue record and leaves it in place. This is worse
// than anything the protocol allows, because the protocol requires the reader to delete the overdue
// record first.
type handScope struct {
	name        string
	ttl, margin int8
	slow        int8 // how far a client's clock may fall behind
	renewals    int8 // the giver's renewals before its last one
	sends       int8 // how many times the last renewal, and each adopter's claim, may be sent
	adopters    int8
	longer      int8 // how much longer the adopters' TTL is
	ways        int
	answers     int
	fixed       bool // the giver's lease is fixed from the grant
	forged      bool // the adopters have a handle that no hand-over created
	gate        bool
	doubts      bool // a deposed leader may refuse a write that its successor stores
	deaths      int8 // how many adopters may die while they hold the lock
	breaks      int8
	servers
	weak weakness
}

// The writes of a hand-over.
const (
	renewHand int8 = 1 + iota
	adoptHand
	claimHand
	deleteHand
	breakHand
)

var handVerbs = [...]string{"", "renewal", "adoption", "claim", "deletion", "break"}

// The actors, as indices into handState.c. The adopters are 1 and 2.
const (
	giver    int8 = 0
	stranger int8 = 3
)

var handNames = [...]string{"giver", "adopter 1", "adopter 2", "stranger"}

// handRecord is the record under the key. n is the number of the giver's renewal, or of another
// actor's attempt.
type handRecord struct{ rev, kind, who, n, fixed, age, ttl int8 }

func (r handRecord) live() bool { return r.kind == held || r.kind == broken }

type handWrite struct{ verb, who, n, fixed, expect, ttl int8 }

func (a handWrite) compare(b handWrite) int {
	return compareAll([]int8{a.verb, a.who, a.n, a.fixed, a.expect, a.ttl}, []int8{b.verb, b.who, b.n, b.fixed, b.expect, b.ttl})
}

type handAnswer struct{ verb, who, n, code, rev int8 }

func (a handAnswer) compare(b handAnswer) int {
	return compareAll([]int8{a.verb, a.who, a.n, a.code, a.rev}, []int8{b.verb, b.who, b.n, b.code, b.rev})
}

const (
	waitsHand int8 = iota
	triesHand
	holdsHand
	givesHand // the giver has finished its work and sent its last renewal
	overHand
)

// handClient is the giver, an adopter or the stranger. age[n-1] is how long ago attempt or renewal
// n was sent, and by[n-1] is how long the record it replaces had left at that time.
type handClient struct {
	phase, left, last, n int8
	age, by, expect      [2]int8
	sent                 int8 // how many times the giver has sent its last renewal
	behind               int8
}

type handState struct {
	next           int8 // the next revision
	passed         int8 // the stranger was granted a token above the giver's
	rec            handRecord
	ways           [3]handWrite
	answers        [2]handAnswer
	c              [4]handClient
	deaths, break_ int8
	given          int8 // the giver has the handle, because its last renewal is confirmed
	wrong          int8
}

const keptForAdopter = "a lock that was handed over is left to its adopters"

var handWrongs = [...]string{"", tokensGrow, strangers, keptForAdopter}

func (c *handScope) system() system[handState] {
	init := handState{next: 2, deaths: c.deaths, break_: c.breaks}
	init.rec = handRecord{rev: 1, kind: held, who: giver, ttl: c.ttl}
	if c.fixed {
		init.rec.fixed = 1
	}
	if c.forged {
		init.given = 1
	}
	init.c[giver] = handClient{phase: holdsHand, left: c.ttl - c.margin, last: 1}
	for i := range init.c {
		init.c[i].behind = c.slow
	}
	return system[handState]{name: c.name, init: init, next: c.step, canon: c.canon, broken: c.violated, records: c.records}
}

func (c *handScope) inside(s handState, i int) bool {
	x := s.c[i]
	return (x.phase == holdsHand || x.phase == givesHand && c.weak == handsOverInside) && x.left > 0
}

func (c *handScope) violated(s handState) string {
	inside := 0
	for i := range s.c {
		if c.inside(s, i) {
			inside++
		}
	}
	if inside > 1 {
		return exclusion
	}
	return handWrongs[s.wrong]
}

func (c *handScope) step(s handState, to *steps[handState]) {
	c.time(s, to)
	c.server(s, to)
	for i, a := range distinct(s.answers[:]) {
		n := s
		take(n.answers[:], i)
		did := c.answered(&n, a)
		to.do(step, n, "%s: gets the answer to its %s %d, %s at revision %d: %s", handNames[a.who], handVerbs[a.verb], a.n, codes[a.code], a.rev, did)
	}
	c.giver(s, to)
	for i := range c.adopters {
		c.adopter(s, 1+i, to)
	}
	c.stranger(s, to)
	if r := s.rec; s.break_ > 0 && r.kind == held && r.who == giver {
		n := s
		n.break_--
		ttl := r.ttl
		if r.fixed != 0 {
			ttl = max(r.ttl-c.certain(r.age, c.weak), 1)
		}
		if c.send(&n, handWrite{verb: breakHand, who: giver, n: r.n, expect: r.rev, ttl: ttl}) {
			to.do(fault, n, "operator: breaks revision %d, for %d", r.rev, ttl)
		}
	}
}

func (c *handScope) send(n *handState, w handWrite) bool {
	return put(n.ways[:c.ways], w, handWrite.compare)
}

func (c *handScope) time(s handState, to *steps[handState]) {
	if r := s.rec; r.kind != none && r.age >= r.ttl && !c.forgets {
		return
	}
	tick := func(unseen int) {
		n := s
		for i := range n.c {
			x := &n.c[i]
			if i == unseen {
				x.behind--
				continue
			}
			down(&x.left)
			for j := range x.age {
				x.age[j] = min(x.age[j]+1, c.ttl+c.longer)
			}
		}
		if n.rec.kind != none {
			n.rec.age = c.older(n.rec.age, n.rec.ttl)
		}
		words := "time passes"
		if unseen >= 0 {
			words += ", and the clock of the " + handNames[unseen] + " does not notice"
		}
		to.do(tick, n, "%s", words)
	}
	tick(-1)
	for i := range s.c {
		if s.c[i].behind > 0 && s.c[i].phase != overHand && s.c[i].phase != waitsHand {
			tick(i)
		}
	}
}

func (c *handScope) server(s handState, to *steps[handState]) {
	if r := s.rec; r.kind != none && r.age >= r.ttl {
		n := s
		n.rec = handRecord{}
		to.do(c.removal(), n, "server: removes revision %d by its TTL", r.rev)
	}
	answer := func(n handState, w handWrite, code, rev int8, who string) {
		if w.verb == breakHand || w.verb == deleteHand {
			to.do(step, n, "%s: %s of the %s expecting %d: %s", who, handVerbs[w.verb], handNames[w.who], w.expect, codes[code])
			return
		}
		to.do(fault, n, "%s: %s %d of the %s expecting %d: %s, and the answer is lost", who, handVerbs[w.verb], w.n, handNames[w.who], w.expect, codes[code])
		if put(n.answers[:c.answers], handAnswer{w.verb, w.who, w.n, code, rev}, handAnswer.compare) {
			to.do(step, n, "%s: %s %d of the %s expecting %d: %s", who, handVerbs[w.verb], w.n, handNames[w.who], w.expect, codes[code])
		}
	}
	for i, w := range distinct(s.ways[:]) {
		if c.doubts {
			answer(s, w, refused, 0, "deposed leader")
		}
		n := s
		take(n.ways[:], i)
		if w.expect != s.rec.rev {
			answer(n, w, refused, s.rec.rev, "server")
			continue
		}
		c.store(&n, w)
		answer(n, w, acked, s.next, "server")
	}
}

// store applies a write. A reader's write leaves the gate unchanged.
func (c *handScope) store(n *handState, w handWrite) {
	old, rev := n.rec, n.next
	n.next++
	fresh := !c.past(old.age, old.ttl)
	switch handed := old.kind == held && old.who == giver && old.fixed != 0 && n.c[giver].phase > holdsHand; {
	case w.verb == claimHand && old.live() && fresh, w.verb == deleteHand && old.live() && old.who != w.who && fresh && !handed:
		n.wrong = 2
	case w.verb == deleteHand && handed && fresh:
		n.wrong = 3
	}
	switch w.verb {
	case renewHand, adoptHand:
		n.rec = handRecord{rev: rev, kind: held, who: w.who, n: w.n, fixed: w.fixed, ttl: w.ttl}
	case claimHand:
		if !c.gate {
			n.rec = handRecord{rev: rev, kind: held, who: w.who, n: w.n, ttl: w.ttl}
		}
	case deleteHand:
		n.rec = handRecord{rev: rev, kind: tombstone, ttl: 1}
	case breakHand:
		n.rec.rev, n.rec.kind, n.rec.ttl, n.rec.age = rev, broken, w.ttl, 0
	}
}

// answered handles the answer to a write.
func (c *handScope) answered(n *handState, a handAnswer) string {
	x := &n.c[a.who]
	switch {
	case a.who == giver && a.verb == renewHand:
		return c.renewed(n, a)
	case x.phase != triesHand:
		if a.code == acked && !(x.phase == holdsHand && x.last == a.n) {
			c.discard(n, a.who, a.rev)
			return "too late: deletes exactly that record"
		}
		return "ignored"
	case a.code == acked:
		return c.granted(n, a.who, a.n, a.rev)
	}
	return c.reads(n, a.who)
}

// renewed handles the answer to one of the giver's renewals. The answer is valid only if it arrives
// before the previous validity ends.
func (c *handScope) renewed(n *handState, a handAnswer) string {
	x := &n.c[giver]
	switch {
	case x.phase == holdsHand && a.code == acked && x.left > 0:
		x.last = max(x.last, a.rev)
		x.left = max(x.left, c.ttl-c.margin-x.age[a.n-1])
		return "extended"
	case x.phase == givesHand && (x.left > 0 || c.weak == handsOverLate) && a.code == acked && a.n == x.n:
		if n.given = 1; c.weak != handsOverInside {
			x.phase = overHand
		}
		return "handed over"
	case x.phase == givesHand && a.code == refused:
		r := n.rec
		switch {
		case r.kind != held || r.who != giver:
			x.phase = overHand
			return "lost before it was handed over"
		case r.n == x.n && (x.left > 0 || c.weak == handsOverLate):
			x.phase, n.given = overHand, 1
			return "handed over, as its record says"
		}
		x.last = r.rev
		return "meets a renewal of its own"
	case x.phase == overHand && a.code == acked && c.weak == giverCleansUp:
		c.discard(n, giver, a.rev)
		return "deletes what came too late"
	}
	return "ignored"
}

// granted turns an attempt that was stored at revision rev into a lease.
func (c *handScope) granted(n *handState, who, number, rev int8) string {
	x := &n.c[who]
	age, by := x.age[number-1], x.by[number-1]
	ttl := c.ttl
	if who != stranger {
		ttl += c.longer
	}
	if age >= ttl-c.margin || who != stranger && c.weak != adoptsLate && age >= by {
		x.phase = overHand
		c.discard(n, who, rev)
		return "too late: deletes it"
	}
	x.phase, x.left, x.last = holdsHand, ttl-c.margin-age, number
	switch {
	case who == stranger:
		n.passed = 1
	case n.passed > 0:
		n.wrong = 1 // the adopter's token is the giver's
	}
	return "holds"
}

// discard sends a write that deletes the record at exactly revision rev.
func (c *handScope) discard(n *handState, who, rev int8) {
	if !(who == stranger && c.gate) {
		c.send(n, handWrite{verb: deleteHand, who: who, expect: rev})
	}
}

// reads makes an adopter or the stranger judge the record after a refusal.
func (c *handScope) reads(n *handState, who int8) string {
	r, x := n.rec, &n.c[who]
	own := r.who == who
	if c.weak == adoptsUnderOneID && who != stranger {
		own = r.who == giver && r.n > 0 && r.fixed != 0 && x.n > 0 && r.n == x.n
	}
	switch {
	case r.kind == held && own && r.n >= 1 && r.n <= x.n:
		return "its own, adopted as of its sending: " + c.granted(n, who, r.n, r.rev)
	case c.mayAdopt(n, who):
		return "may try again"
	}
	return "another's, or nothing"
}

// mayAdopt reports whether a client believes that it may adopt the record.
func (c *handScope) mayAdopt(n *handState, who int8) bool {
	r := n.rec

	switch {
	case who == stranger || n.given == 0:
		return false
	case c.weak == adoptsAnything && (!r.live() || c.past(r.age, r.ttl)), c.weak == adoptsBroken && r.kind == broken:
		return true
	}
	return r.kind == held && r.who == giver && (r.fixed != 0 || c.weak == adoptsUnfixed) && r.age < r.ttl-c.margin
}

func (c *handScope) giver(s handState, to *steps[handState]) {
	x := s.c[giver]
	send := func(fixed int8, change func(x *handClient), words string) {
		n := s
		change(&n.c[giver])
		g := &n.c[giver]
		if c.send(&n, handWrite{verb: renewHand, who: giver, n: g.n, fixed: fixed, expect: g.last, ttl: c.ttl}) {
			to.do(step, n, "giver: %s expecting %d", words, g.last)
		}
	}
	next := func(x *handClient) {
		x.n++
		x.age[x.n-1] = 0
	}
	switch {
	case x.phase == holdsHand && x.left == 0:
		n := s
		n.c[giver].phase = overHand
		to.do(step, n, "giver: its validity has ended: lost")
	case x.phase == holdsHand:
		if x.n < c.renewals && !c.fixed {
			send(0, next, "renews")
		}
		send(1, func(x *handClient) {
			next(x)
			x.phase, x.sent = givesHand, 1
		}, "finishes its work, and sends its last renewal")
	case x.phase == givesHand:
		if x.sent < c.sends {
			send(1, func(x *handClient) { x.sent++ }, "sends its last renewal again")
		}
		n := s
		n.c[giver].phase = overHand
		if c.weak == giverCleansUp {
			c.discard(&n, giver, s.rec.rev)
		}
		to.do(step, n, "giver: no longer waits for an answer")
	}
}

func (c *handScope) adopter(s handState, i int8, to *steps[handState]) {
	x := s.c[i]
	switch x.phase {
	case waitsHand, triesHand:
		if r := s.rec; x.n < c.sends && c.mayAdopt(&s, i) {
			n := s
			w := handWrite{verb: adoptHand, who: i, n: x.n + 1, expect: r.rev, ttl: c.ttl + c.longer}
			if c.weak == adoptsUnderOneID {
				w.who, w.fixed, w.n = giver, 1, r.n+1
			}
			a := &n.c[i]
			a.phase, a.n = triesHand, w.n
			if int(w.n) <= len(a.age) {
				a.age[w.n-1], a.by[w.n-1], a.expect[w.n-1] = 0, max(r.ttl-c.margin-r.age, 0), r.rev
				if c.weak == adoptsAnything {
					a.by[w.n-1] = c.ttl
				}
				if c.send(&n, w) {
					to.do(step, n, "%s: reads revision %d, and adopts it", handNames[i], r.rev)
				}
			}
		}
		if x.phase == triesHand && c.weak == adoptsUnderOneID { // it reads because it has no answer
			n := s
			did := c.reads(&n, i)
			to.do(step, n, "%s: reads revision %d: %s", handNames[i], s.rec.rev, did)
		}
		n := s
		n.c[i].phase = overHand
		if c.weak == adopterCleansUp && x.n > 0 {
			c.send(&n, handWrite{verb: deleteHand, who: i, expect: x.expect[x.n-1]})
		}
		to.do(step, n, "%s: gives up", handNames[i])
	case holdsHand:
		if s.deaths > 0 {
			n := s
			n.deaths--
			n.c[i].phase = overHand
			to.do(fault, n, "%s: dies", handNames[i])
		}
		n := s
		n.c[i].phase = overHand
		if x.left > 0 && s.rec.who == i && s.rec.kind == held {
			c.discard(&n, i, s.rec.rev)
		}
		to.do(step, n, "%s: leaves the lock", handNames[i])
	}
}

// stranger claims the lock once it is free or its record is overdue.
func (c *handScope) stranger(s handState, to *steps[handState]) {
	r, n := s.rec, s
	x := &n.c[stranger]
	if x.phase != waitsHand || r.live() && !c.past(r.age, r.ttl) {
		return
	}
	x.phase, x.n, x.age[0], x.by[0] = triesHand, 1, 0, c.ttl
	if c.send(&n, handWrite{verb: claimHand, who: stranger, n: 1, expect: r.rev, ttl: c.ttl}) {
		to.do(step, n, "stranger: claims at revision %d", r.rev)
	}
}

// canon clears the fields that no step reads again, and renumbers the revisions.
func (c *handScope) canon(s *handState) {
	for i := range s.c {
		x := &s.c[i]
		switch x.phase {
		case overHand:
			*x = handClient{phase: overHand}
		case holdsHand:
			if int8(i) != giver {
				x.n, x.age, x.by, x.expect = 0, [2]int8{}, [2]int8{}, [2]int8{}
			}
		}
		if x.phase == waitsHand || int8(i) == giver && x.phase != holdsHand {
			x.age, x.by = [2]int8{}, [2]int8{}
		}
		if c.weak != adopterCleansUp {
			x.expect = [2]int8{}
		}
		for j := range x.age {
			if int8(j) >= x.n {
				x.age[j], x.by[j], x.expect[j] = 0, 0, 0
			}
		}
	}

	if s.rec.kind == tombstone {
		s.rec.who, s.rec.n, s.rec.fixed = 0, 0, 0
	}
	revs := []*int8{&s.rec.rev, &s.c[giver].last}
	for i := range s.ways {
		revs = append(revs, &s.ways[i].expect)
	}
	for i := range s.answers {
		revs = append(revs, &s.answers[i].rev)
	}
	for i := range s.c {
		revs = append(revs, &s.c[i].expect[0], &s.c[i].expect[1])
	}
	s.next = renumber(revs...)
}

func (c *handScope) records(s handState) string {
	r := s.rec
	text := "lock: none"
	switch r.kind {
	case tombstone:
		text = fmt.Sprintf("lock: #%d tombstone, age %d of %d", r.rev, r.age, r.ttl)
	case held, broken:
		text = fmt.Sprintf("lock: #%d %s, %s %d, fixed %d, age %d of %d", r.rev, handNames[r.who], [...]string{held: "held", broken: "broken"}[r.kind], r.n, r.fixed, r.age, r.ttl)
	}
	for i := range s.c {
		if c.inside(s, i) {
			text += fmt.Sprintf("; the %s holds, %d left", handNames[i], s.c[i].left)
		}
	}
	return text
}
