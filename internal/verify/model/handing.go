package model

// A lock that travels. The first client hands its lock over: its context ends, and then the
// record says so. Clients with the handle adopt the record by a claim of their own, which
// expects exactly that revision and keeps the token. The clients know the handle from the
// grant on: a handle is text, and proves nothing.

// handed is the kind of record that nobody holds and that can be adopted.
const handed int8 = 10

// handsOver ends the holder's context and sends the write.
func (c *lockScope) handsOver(x client, do func(kind, lockWrite, func(*lockState, *client), string)) {
	do(step, lockWrite{verb: handLock, claim: x.claim, expect: x.last, token: x.token, ttl: c.ttl}, func(n *lockState, x *client) {
		n.hands--
		x.phase, x.reads = handing, 0
		if c.weak != handedEarly {
			x.left = 0
		}
	}, "hands its lock over: its context ends")
}

// handedOver takes the answer to that write.
func (c *lockScope) handedOver(n *lockState, a lockAnswer) string {
	x := &n.c[a.client]
	if x.phase != handing || x.claim != a.claim {
		return "nothing to do"
	}
	switch a.code {
	case acked:
		x.end()
		return "has handed its lock over"
	case refused:
		x.reads, x.least = 1, max(a.rev, x.last)
		return "reads the record"
	}
	return "to be sent again"
}

// foundHanding judges by the record after a refusal. A renewal that was on its way has
// another revision, which the next write expects.
func (c *lockScope) foundHanding(n *lockState, i int8, r lockRecord, own bool) string {
	x := &n.c[i]
	switch {
	case own && r.kind == handed:
		x.end()
		return "handed over already"
	case own && r.kind == held:
		x.last = r.rev
		c.send(n, lockWrite{verb: handLock, client: i, claim: x.claim, expect: r.rev, token: x.token, ttl: c.ttl})
		return "still its own: hands it over"
	case own:
		c.discard(n, i, r.rev)
		x.end()
		return "broken: deletes it"
	}
	x.end()
	return "gone: not handed over"
}

// adopts has an idle client with the handle read the record and claim it.
func (c *lockScope) adopts(s lockState, i, claim int8, do func(kind, lockWrite, func(*lockState, *client), string)) {
	if s.handle == 0 {
		return
	}
	tries := func(r lockRecord) {
		named := r.client == 0 && r.claim == s.handle
		if !(r.kind == handed && named || c.weak == adoptedKept && r.kind == held && named || c.weak == adoptedBlindly && r.live()) {
			return
		}
		do(step, lockWrite{verb: claimLock, claim: claim, n: 1, expect: r.rev, token: s.token, ttl: c.ttl}, func(n *lockState, x *client) {
			*x = client{phase: trying, claim: claim, made: x.made + 1, n: 1, behind: x.behind}
			x.attempts[0] = attempt{expect: r.rev, open: 1, token: s.token}
		}, "adopts")
	}
	tries(s.rec)
	if s.oldLast > 0 && s.old != s.rec {
		tries(s.old)
	}
}

// adoptsAgain repeats an attempt without an answer. It expects what the first one does.
func (c *lockScope) adoptsAgain(x client, do func(kind, lockWrite, func(*lockState, *client), string)) {
	first := x.attempts[0]
	do(step, lockWrite{verb: claimLock, claim: x.claim, n: x.n + 1, expect: first.expect, token: first.token, ttl: c.ttl}, func(_ *lockState, x *client) {
		x.attempts[x.n] = attempt{expect: first.expect, open: 1, token: first.token}
		x.n++
		x.reads = 0
	}, "adopts again")
}
