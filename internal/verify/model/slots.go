package model

import (
	"fmt"
	"slices"
	"strings"
)

// slotScope is how much of the slots of a semaphore is explored in time, and which of its
// rules is left out. Three clients claim one slot after the other, each like a mutex.
// mutex.go has all that concerns one record only.
type slotScope struct {
	name          string
	slots         int8
	ttl, margin   int8
	early, slow   int8    // as in a lockScope
	claims        [3]int8 // of each client; 0: none
	attempts      int8    // of a claim
	renewals      [3]int8
	ways, answers int
	losses        bool
	cuts          int8 // leaders that are deposed and do not know it
	crashes       int8 // of A
	breaks        int8 // of A's records
	servers
	weak weakness
}

// slotRecord is the record under the key of a slot.
type slotRecord struct{ rev, kind, client, claim, attempt, renewal, token, age int8 }

// slotWrite is a write on its way, with the verbs of a mutex.
type slotWrite struct{ verb, client, claim, n, slot, expect, token int8 }

func (a slotWrite) compare(b slotWrite) int {
	return compareAll([]int8{a.verb, a.client, a.claim, a.n, a.slot, a.expect, a.token}, []int8{b.verb, b.client, b.claim, b.n, b.slot, b.expect, b.token})
}

type slotAnswer struct{ verb, client, claim, n, slot, code, rev int8 }

func (a slotAnswer) compare(b slotAnswer) int {
	return compareAll([]int8{a.verb, a.client, a.claim, a.n, a.slot, a.code, a.rev}, []int8{b.verb, b.client, b.claim, b.n, b.slot, b.code, b.rev})
}

type slotAttempt struct{ slot, expect, age, open int8 }

type slotClient struct {
	phase, claim, n int8 // claims are numbered; n attempts have been made
	slot            int8 // of the newest attempt, or of the lease
	attempts        [2]slotAttempt
	granted         int8 // the attempt that became the lease
	left            int8
	token, last     int8
	renewals        int8
	renewed         int8 // the age of the renewal
	reads, least    int8 // as in client
	behind          int8
}

type slotState struct {
	next    int8
	recs    [2]slotRecord
	old     [2]slotRecord // the records at a deposed leader
	oldLast int8          // that leader's last revision; 0: there is none
	tokens  [2]int8       // the highest token granted, of each slot
	ways    [3]slotWrite
	answers [2]slotAnswer
	c       [3]slotClient
	cuts, crashes, breaks,
	wrong int8
}

const (
	tooMany   = "no more holders than slots"
	oneRecord = "a claim has one record"
)

func (c *slotScope) system() system[slotState] {
	init := slotState{next: 1, cuts: c.cuts, crashes: c.crashes, breaks: c.breaks}
	for i := range init.c {
		init.c[i].behind = c.slow
	}
	return system[slotState]{name: c.name, init: init, next: c.next, canon: c.canon, broken: c.broken, records: c.records}
}

func (x *slotClient) inside() bool {
	return (x.phase == holding || x.phase == stopping) && x.left > 0
}

func (r slotRecord) live() bool { return r.kind == held || r.kind == broken }

// ttlOf is the TTL of a record. That of a broken record is the lease's own.
func (c *slotScope) ttlOf(r slotRecord) int8 {
	if r.kind == tombstone {
		return 1
	}
	return c.ttl
}

// overdue says whether a client takes a record that it reads for overdue.
func (c *slotScope) overdue(r slotRecord) bool {
	return r.live() && c.past(r.age, c.ttl)
}

func (c *slotScope) broken(s slotState) string {
	inside, both := int8(0), false
	for i := range s.c {
		x := &s.c[i]
		if !x.inside() {
			continue
		}
		inside++
		for j := range i {
			both = both || s.c[j].inside() && s.c[j].slot == x.slot
		}
	}
	a, b := s.recs[0], s.recs[1]
	switch {
	case inside > c.slots:
		return tooMany
	case both:
		return exclusion
	case a.live() && b.live() && a.client == b.client && a.claim == b.claim:
		return oneRecord
	}
	return lockWrongs[s.wrong]
}

func (c *slotScope) next(s slotState, to *steps[slotState]) {
	c.time(s, to)
	c.server(s, to)
	for i, a := range distinct(s.answers[:]) {
		n := s
		take(n.answers[:], i)
		did := c.answered(&n, a)
		to.do(step, n, "%c: gets the answer to its %s %d.%d of slot %d, %s at revision %d: %s", 'A'+a.client, lockVerbs[a.verb], a.claim, a.n, a.slot, codes[a.code], a.rev, did)
	}
	for i := range int8(len(s.c)) {
		c.client(s, i, to)
	}
	if s.breaks > 0 {
		for k := range c.slots {
			if r := s.recs[k]; r.kind == held && r.client == 0 {
				n := s
				n.breaks--
				if put(n.ways[:c.ways], slotWrite{verb: breakLock, slot: k, expect: r.rev, token: r.token}, slotWrite.compare) {
					to.do(fault, n, "operator: breaks revision %d of slot %d", r.rev, k)
				}
			}
		}
	}
}

// time passes, unless a record is as late as a server may be.
func (c *slotScope) time(s slotState, to *steps[slotState]) {
	for _, r := range slices.Concat(s.recs[:], s.old[:]) {
		if r.kind != none && r.age >= c.ttlOf(r) && !c.forgets {
			return
		}
	}
	for late := range int8(len(s.c) + 1) { // 1 + the client whose clock falls behind; 0: none
		n := s
		for i := range n.c {
			x := &n.c[i]
			if late == int8(i)+1 {
				continue
			}
			down(&x.left)
			for j := range x.attempts {
				x.attempts[j].age = min(x.attempts[j].age+1, c.ttl-c.margin)
			}
			x.renewed = min(x.renewed+1, c.ttl-c.margin)
		}
		if late > 0 {
			x := &n.c[late-1]
			if x.behind == 0 || x.phase != trying && x.phase != holding && x.phase != stopping {
				continue
			}
			x.behind--
		}
		for k := range n.recs {
			for _, r := range [...]*slotRecord{&n.recs[k], &n.old[k]} {
				if r.kind != none {
					r.age = c.older(r.age, c.ttlOf(*r))
				}
			}
		}
		words := "time passes"
		if late > 0 {
			words += fmt.Sprintf(", and %c's clock does not notice", 'A'+late-1)
		}
		to.do(tick, n, "%s", words)
	}
}

// server removes expired records. It checks the writes that have arrived, and stores them.
func (c *slotScope) server(s slotState, to *steps[slotState]) {
	for k := range c.slots {
		if r := s.recs[k]; r.kind != none && r.age >= c.ttlOf(r)-c.early {
			n := s
			n.recs[k] = slotRecord{}
			to.do(c.removal(), n, "server: removes revision %d of slot %d by its TTL", r.rev, k)
		}
		if r := s.old[k]; r.kind != none && r.age >= c.ttlOf(r)-c.early {
			n := s
			n.old[k] = slotRecord{}
			to.do(c.removal(), n, "deposed leader: removes revision %d of slot %d by its own clock", r.rev, k)
		}
	}
	if s.cuts > 0 && s.next > 1 {
		n := s
		n.cuts--
		n.old, n.oldLast = s.recs, s.next-1
		to.do(fault, n, "servers: the leader is cut off at revision %d, another one is elected", n.oldLast)
	}
	for i, w := range distinct(s.ways[:]) {
		n := s
		take(n.ways[:], i)
		answer := func(n slotState, code, rev int8, who string) {
			if w.verb == breakLock {
				to.do(step, n, "%s: break of slot %d expecting %d: %s", who, w.slot, w.expect, codes[code])
				return
			}
			say := func(k kind, n slotState, lost string) {
				to.do(k, n, "%s: %s %d.%d of %c for slot %d expecting %d: %s%s", who, lockVerbs[w.verb], w.claim, w.n, 'A'+w.client, w.slot, w.expect, codes[code], lost)
			}
			if c.losses || s.oldLast > 0 {
				say(fault, n, ", and the answer is lost")
			}
			if put(n.answers[:c.answers], slotAnswer{w.verb, w.client, w.claim, w.n, w.slot, code, rev}, slotAnswer.compare) {
				say(step, n, "")
			}
		}
		r := s.recs[w.slot]
		if w.expect == r.rev || c.weak == unconditionalDelete && w.verb == deleteLock || c.weak == semUnconditional && w.verb == claimLock {
			c.store(&n, w)
			answer(n, acked, s.next, "server")
		} else {
			answer(n, refused, r.rev, "server")
		}
		if s.oldLast > 0 && w.expect != s.old[w.slot].rev {
			answer(s, refused, s.old[w.slot].rev, "deposed leader")
		}
	}
	for i := range int8(len(s.c)) {
		x := &s.c[i]
		if x.reads == 0 {
			continue
		}
		read := func(who string, r slotRecord) {
			n := s
			did := c.found(&n, i, r)
			to.do(step, n, "%s: shows %c revision %d of slot %d: %s", who, 'A'+i, r.rev, x.slot, did)
		}
		read("server", s.recs[x.slot])
		if s.oldLast > 0 && s.oldLast >= x.least {
			read("deposed leader", s.old[x.slot])
		}
	}
}

// store applies a write.
func (c *slotScope) store(n *slotState, w slotWrite) {
	was, rev := n.recs[w.slot], n.next
	n.next++
	x := &n.c[w.client]
	if was.live() && w.verb != breakLock && was.client != w.client && !c.past(was.age, c.ttl) {
		n.wrong = 2
	}
	switch w.verb {
	case claimLock:
		n.recs[w.slot] = slotRecord{rev: rev, kind: held, client: w.client, claim: w.claim, attempt: w.n, token: rev}
	case renewLock:
		if was.kind == broken {
			n.wrong = 4
		}
		n.recs[w.slot] = slotRecord{rev: rev, kind: held, client: w.client, claim: w.claim, renewal: w.n, token: w.token}
	case deleteLock:
		if was.kind == held && was.client == w.client && x.phase == holding && x.left > 0 && x.slot == w.slot && x.token == was.token {
			n.wrong = 3
		}
		n.recs[w.slot] = slotRecord{rev: rev, kind: tombstone}
	case breakLock:
		n.recs[w.slot].rev, n.recs[w.slot].kind, n.recs[w.slot].age = rev, broken, 0
	}
}

func (c *slotScope) records(s slotState) string {
	var b strings.Builder
	for k := range c.slots {
		r := s.recs[k]
		what := [...]string{none: "none", held: "held", broken: "broken", tombstone: "tombstone"}[r.kind]
		if fmt.Fprintf(&b, "%d: %s", k, what); r.kind != none {
			fmt.Fprintf(&b, " #%d", r.rev)
		}
		if r.live() {
			fmt.Fprintf(&b, " %c %d.%d.%d, age %d", 'A'+r.client, r.claim, r.attempt, r.renewal, r.age)
		}
		b.WriteString("; ")
	}
	for i, x := range s.c {
		if x.inside() {
			fmt.Fprintf(&b, "%c holds %d, %d left; ", 'A'+i, x.slot, x.left)
		}
	}
	return b.String()
}
