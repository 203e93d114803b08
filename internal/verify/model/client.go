package model

import (
	"fmt"
	"slices"
)

// This file models the client's side of a mutex, plus the operator's break. Reading a record
// and judging it are a single step, because judging the same content later could only lead to
// more refusals.

// send puts a write in transit. It returns false if the scope allows no more writes.
func (c *lockScope) send(n *lockState, w lockWrite) bool {
	return put(n.ways[:c.ways], w, lockWrite.compare)
}

// discard sends a write that deletes the record at exactly revision rev. The deletion is a
// courtesy that may never be applied.
func (c *lockScope) discard(n *lockState, i, rev int8) {
	w := lockWrite{verb: deleteLock, client: i, expect: rev}
	if !slices.Contains(n.ways[:], w) {
		c.send(n, w)
	}
}

// end ends the claim or the lease. Any record and messages it leaves behind stay in the state.
func (x *client) end() {
	*x = client{phase: idle, made: x.made, behind: x.behind}
}

func (c *lockScope) grant(n *lockState, i, number, rev, age int8) string {
	x := &n.c[i]
	if c.weak == validityFromAnswer {
		age = 0
	}
	x.phase, x.granted, x.token, x.last, x.left = holding, number, rev, rev, c.ttl-c.margin-age
	x.renewals, x.reads = 0, 0
	if rev <= n.token {
		n.wrong = 1
	}
	n.token = max(n.token, rev)
	return "holds"
}

// answered handles the answer to a write.
func (c *lockScope) answered(n *lockState, a lockAnswer) string {
	x := &n.c[a.client]
	switch a.verb {
	case claimLock:
		if x.phase == trying && x.claim == a.claim {
			return c.judged(n, a)
		}
		if a.code != acked || x.holds(a.claim) && a.n == x.granted {
			return "nothing new"
		}
		if c.weak == grantedWhenOver && (x.phase == idle || x.phase == holding && x.claim == a.claim && x.attempts[a.n-1].age < c.ttl-c.margin) {
			x.claim = a.claim
			return "granted, although the claim was over: " + c.grant(n, a.client, a.n, a.rev, x.attempts[a.n-1].age)
		}
		c.discard(n, a.client, a.rev)
		return "an orphan record: deletes exactly that record"
	case renewLock:
		if x.phase != holding || x.claim != a.claim {
			return "nothing to do"
		}
		switch {
		case a.code == acked:
			return c.confirmed(n, a.client, a.n, a.rev)
		case a.code == inFlight:
			return "to be sent again"
		case x.reads == 0 && (a.rev == 0 || a.rev > x.last):
			x.reads, x.least = 1, max(a.rev, x.last)
			return "reads the record"
		}
		return "old news"
	default:
		if x.phase != leaving || x.claim != a.claim {
			return "nothing to do"
		}
		switch a.code {
		case acked:
			x.end()
			return "released"
		case refused:
			x.reads, x.least = 1, max(a.rev, x.last)
			return "reads the record"
		}
		return "to be sent again"
	}
}

// judged handles the answer to an attempt of the current claim.
func (c *lockScope) judged(n *lockState, a lockAnswer) string {
	x := &n.c[a.client]
	at := &x.attempts[a.n-1]
	at.open = 0
	switch {
	case a.code == acked:
		if at.age < c.ttl-c.margin || c.weak == lateAnswer {
			return c.grant(n, a.client, a.n, a.rev, at.age)
		}
		c.discard(n, a.client, a.rev)
		x.end()
		return "too late: deletes it, the claim is over"
	case a.n != x.n:
		return "refused, but not the newest: ignored"
	case a.code == refused && a.rev != 0:
		x.reads, x.least = 1, a.rev
		return "reads the record"
	}
	return "may try again"
}

// found judges the record under the key.
func (c *lockScope) found(n *lockState, i int8, r lockRecord) string {
	x := &n.c[i]
	x.reads = 0
	own := r.client == i && r.claim == x.claim && r.live()
	switch x.phase {
	case trying:
		switch {
		case !own:
			return "not its own"
		case r.kind == broken && c.weak != brokenAdopted:
			c.discard(n, i, r.rev)
			x.end()
			return "its own and broken: deletes it, the claim is over"
		case r.attempt == 0 || x.attempts[r.attempt-1].open == 0:
			return "from an attempt that was answered: not its own"
		}
		age := x.attempts[r.attempt-1].age
		if c.weak == adoptedAsNewest {
			age = x.attempts[x.n-1].age
		}
		if age < c.ttl-c.margin {
			return "its own, adopted as of its sending: " + c.grant(n, i, r.attempt, r.rev, age)
		}
		c.discard(n, i, r.rev)
		x.end()
		return "its own, too late: deletes it, the claim is over"
	case holding:
		switch {
		case own && r.kind == held && r.rev <= x.last:
			return "as expected"
		case own && r.kind == held && r.renewal > 0 && r.renewal <= x.renewals:
			return "its own renewal: " + c.confirmed(n, i, r.renewal, r.rev)
		case own && r.kind == broken:
			x.phase, x.last = stopping, r.rev
			return "broken: its context ends"
		case own:
			x.end()
			c.discard(n, i, r.rev)
			return "its own acquisition: lost, deletes it"
		}
		x.end()
		return "no longer there: lost"
	case leaving:
		if own {
			x.last = r.rev
			c.send(n, lockWrite{verb: deleteLock, client: i, claim: x.claim, expect: r.rev})
			return "still its own: deletes it"
		}
		x.end()
		return "no longer there: released"
	}
	return "nothing to do"
}

// confirmed extends the lease after the renewal with the given number was stored at rev.
func (c *lockScope) confirmed(n *lockState, i, number, rev int8) string {
	x := &n.c[i]
	if x.left <= 0 && c.weak != lateAnswer {
		c.discard(n, i, rev)
		x.end()
		return "too late: lost, deletes it"
	}
	age := x.renewed[number-1]
	if c.weak == validityFromAnswer {
		age = 0
	}
	x.last = max(x.last, rev)
	x.left = max(x.left, x.asked[number-1]-c.margin-age)
	return "extended"
}

// client takes the steps that a client can take on its own.
func (c *lockScope) client(s lockState, i int8, to *steps[lockState]) {
	x := s.c[i]
	if x.phase == over {
		return
	}
	do := func(k kind, w lockWrite, change func(n *lockState, x *client), words string) {
		n := s
		change(&n, &n.c[i])
		w.client = i
		if w.verb == 0 {
			to.do(k, n, "%c: %s", 'A'+i, words)
		} else if c.send(&n, w) {
			to.do(k, n, "%c: %s: %s %d.%d expecting %d", 'A'+i, words, lockVerbs[w.verb], w.claim, w.n, w.expect)
		}
	}
	if i == 0 && s.crash > 0 && x.phase != idle {
		do(fault, lockWrite{}, func(n *lockState, x *client) { n.crash--; x.phase = over }, "crashes")
	}
	if r := s.rec; r.kind == held && (r.client == i || c.weak == notificationBelieved) && r.renewal == 0 && c.unwanted(x, i, r) {
		if !slices.Contains(s.ways[:], lockWrite{verb: deleteLock, client: i, expect: r.rev}) {
			do(step, lockWrite{verb: deleteLock, expect: r.rev}, func(*lockState, *client) {}, "is notified of its own record, from an attempt that is over")
		}
	}
	attempts := func(claim int8, words string) {
		for _, e := range c.expects(&s) {
			do(step, lockWrite{verb: claimLock, claim: claim, n: x.n + 1, expect: e, ttl: c.ttl}, func(n *lockState, x *client) {
				if x.phase == idle {
					*x = client{phase: trying, claim: claim, made: x.made + 1, behind: x.behind}
				}
				x.attempts[x.n] = attempt{expect: e, open: 1}
				x.n++
				x.reads = 0
			}, words)
		}
	}
	switch x.phase {
	case idle:
		if claim := c.fresh(s, i); claim != 0 {
			attempts(claim, "claims")
			c.buries(s, i, to)
		}
	case trying:
		c.buries(s, i, to)
		if x.n < c.attempts[i] {
			attempts(x.claim, "tries again")
		}
		do(step, lockWrite{}, func(n *lockState, x *client) {
			for _, a := range x.attempts {
				if a.open == 1 { // once this deletion is stored, the server refuses that attempt
					c.discard(n, i, a.expect)
				}
			}
			x.end()
		}, "gives up, and puts tombstones where open attempts expect none")
	case holding:
		c.holder(s, i, do)
	case stopping:
		w := lockWrite{}
		if x.last != 0 {
			w = lockWrite{verb: deleteLock, claim: x.claim, expect: x.last}
		}
		do(step, w, func(n *lockState, x *client) { x.end() }, "has stopped")
	case leaving:
		do(step, lockWrite{}, func(n *lockState, x *client) { x.end() }, "no longer waits for its deletion")
	}
}

// holder takes the steps of a client that holds the lock.
func (c *lockScope) holder(s lockState, i int8, do func(kind, lockWrite, func(*lockState, *client), string)) {
	x := s.c[i]
	if x.left <= 0 {
		do(step, lockWrite{}, func(n *lockState, x *client) { x.end() }, "its validity has ended: lost")
		do(step, lockWrite{verb: deleteLock, expect: x.last}, func(n *lockState, x *client) { x.end() }, "its validity has ended: lost, and unlocked")
		return
	}
	if c.fixed && x.reads == 0 {
		do(step, lockWrite{}, func(n *lockState, x *client) { x.reads, x.least = 1, x.last }, "gets a hint, and reads the record")
	}
	if x.renewals < c.renewals[i] && x.reads == 0 {
		renew := func(ttl, expect int8) {
			do(step, lockWrite{verb: renewLock, claim: x.claim, n: x.renewals + 1, expect: expect, token: x.token, ttl: ttl}, func(n *lockState, x *client) {
				x.renewed[x.renewals], x.asked[x.renewals] = 0, ttl
				x.renewals++
				if c.weak != shorterNotHeeded {
					x.left = min(x.left, ttl-c.margin)
				}
			}, fmt.Sprintf("renews with a TTL of %d", ttl))
		}
		renew(c.ttl, x.last)
		if c.shorter != 0 {
			renew(c.shorter, x.last)
		}
		if c.weak == renewalAtZero {
			renew(c.ttl, 0)
		}
	}
	do(step, lockWrite{verb: deleteLock, claim: x.claim, expect: x.last}, func(n *lockState, x *client) { x.phase, x.reads = leaving, 0 }, "unlocks")
	if s.cl > 0 && i == 0 {
		w := lockWrite{}
		if c.weak == closeDeletes {
			w = lockWrite{verb: deleteLock, claim: x.claim, expect: x.last}
		}
		do(fault, w, func(n *lockState, x *client) {
			n.cl--
			x.phase, x.last, x.reads = stopping, 0, 0
		}, "closes: its context ends, but its work is still stopping")
	}
}

// unwanted reports whether a client's own record belongs to an attempt that is over.
func (c *lockScope) unwanted(x client, i int8, r lockRecord) bool {
	switch {
	case c.weak == notificationBelieved && r.client != i:
		return true
	case x.phase == trying:
		return r.claim != x.claim
	case x.holds(r.claim):
		return r.attempt != x.granted
	}
	return true
}

// fresh returns a number for a new claim, or 0 if no more claims are allowed. It never reuses a
// number that still appears in a write, an answer or a record.
func (c *lockScope) fresh(s lockState, i int8) int8 {
	if c.claims > 0 {
		if s.c[i].made < c.claims {
			return s.c[i].made + 1
		}
		return 0
	}
	var used [5]bool
	for _, w := range s.ways {
		if w.verb != 0 && w.client == i {
			used[w.claim] = true
		}
	}
	for _, a := range s.answers {
		if a.verb != 0 && a.client == i {
			used[a.claim] = true
		}
	}
	for _, r := range [...]lockRecord{s.rec, s.old, s.past} {
		if r.live() && r.client == i {
			used[r.claim] = true
		}
	}
	if s.flight.client == i {
		used[s.flight.claim] = true
	}
	for n := int8(1); n < 5; n++ {
		if !used[n] {
			return n
		}
	}
	return 0
}

// operator reads the record, and then breaks exactly the holder that the record names.
func (c *lockScope) operator(s lockState, j int8, to *steps[lockState]) {
	o := s.op[j]
	r := s.rec
	again := o.phase == 2 && o.token == r.tokenOf() && o.rev != r.rev
	if r.kind == held && r.client == 0 && (o.phase == 0 || again) {
		n := s
		ttl := r.ttl
		if c.rest {
			ttl = max(r.ttl-c.certain(r.age, c.weak), 1)
		}
		if c.weak == brokenTooShort {
			ttl = max(r.ttl-r.age-c.margin-1, 0)
		}
		early := c.weak == removedEarly && r.age+c.skew >= r.ttl
		if c.overdue(r) || early { // there is no holder to wait for
			ttl = 0
		}
		n.op[j] = operator{phase: 1, rev: r.rev, token: r.tokenOf(), ttl: ttl}
		to.do(fault, n, "operator %d: is shown revision %d, token %d, of age %d", j+1, r.rev, r.tokenOf(), r.age)
	}
	if o.phase == 1 {
		n := s
		n.op[j].phase = 2
		if c.send(&n, lockWrite{verb: breakLock, expect: o.rev, ttl: o.ttl}) {
			to.do(fault, n, "operator %d: breaks revision %d, for %d", j+1, o.rev, o.ttl)
		}
	}
}

func (c *lockScope) records(s lockState) string {
	show := func(r lockRecord) string {
		switch r.kind {
		case none:
			return "none"
		case tombstone:
			return fmt.Sprintf("#%d tombstone, age %d of %d", r.rev, r.age, r.ttl)
		}
		what := fmt.Sprintf("attempt %d.%d", r.claim, r.attempt)
		if r.renewal > 0 {
			what = fmt.Sprintf("renewal %d.%d", r.claim, r.renewal)
		}
		return fmt.Sprintf("#%d %c %s, %s, age %d of %d", r.rev, 'A'+r.client, what, [...]string{held: "held", broken: "broken"}[r.kind], r.age, r.ttl)
	}
	text := "lock: " + show(s.rec)
	if s.flight.verb != 0 {
		text += fmt.Sprintf("; in flight: %s of %c", lockVerbs[s.flight.verb], 'A'+s.flight.client)
	}
	if s.oldLast > 0 {
		text += fmt.Sprintf(" || deposed at #%d: %s", s.oldLast, show(s.old))
	}
	for i, x := range s.c {
		if x.inside() {
			text += fmt.Sprintf("; %c holds, %d left", 'A'+i, x.left)
		}
	}
	return text
}
