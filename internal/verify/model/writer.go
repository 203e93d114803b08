package model

// writer takes the steps that a writer can take on its own.
func (c *rwScope) writer(s rwState, i int8, to *steps[rwState]) {
	w := s.w[i]
	do := func(x rwWrite, change func(n *rwState, w *writer), words string) {
		n := s
		change(&n, &n.w[i])
		x.who = i
		if x.verb == 0 || put(n.ways[:c.ways], x, rwWrite.compare) {
			to.do(step, n, "W%d: %s (%d expecting %d)", i+1, words, x.n, x.expect)
		}
	}
	reset := func(n *rwState, w *writer) {
		*w = writer{phase: over}
		if c.again {
			w.phase = idle
		}
	}
	switch w.phase {
	case idle:
		if c.buriesGate(s, to); !s.gate.free() {
			return
		}
		do(rwWrite{verb: claimGate, expect: s.gate.rev}, func(n *rwState, w *writer) { *w = writer{phase: trying} }, "claims the gate")
	case trying:
		do(rwWrite{}, reset, "gives up")
	case draining, holding:
		if w.left <= 0 {
			do(rwWrite{}, reset, "its validity has ended: lost")
			return
		}
		if w.renewals < c.gateRenewals {
			do(rwWrite{verb: renewGate, expect: w.last, n: w.renewals + 1}, func(n *rwState, w *writer) {
				w.renewals++
				w.age[w.renewals] = 0
			}, "renews the gate")
		}
		if w.phase == draining {
			c.bury(s, i, to)
		}
		switch {
		case w.phase == holding:
			do(rwWrite{verb: deleteGate, expect: w.last}, func(n *rwState, w *writer) { w.phase = leaving }, "leaves")
		case w.asked == 0:
			do(rwWrite{}, func(n *rwState, w *writer) {
				w.asked, w.askedFor, w.askedRev = 1, w.confirmed, w.last
			}, "asks for the list of readers")
		case w.asked == 2:
			n := s
			did := c.drained(&n, &n.w[i])
			to.do(step, n, "W%d: gets the list of readers, as of revision %d: %s", i+1, w.answerRev, did)
		}
	case stopping:
		x := rwWrite{}
		if w.last != 0 {
			x = rwWrite{verb: deleteGate, expect: w.last}
		}
		do(x, reset, "has stopped")
	case leaving:
		do(rwWrite{}, reset, "no longer waits for its deletion")
	}
}

// drained judges the list of readers.
func (c *rwScope) drained(n *rwState, w *writer) string {
	w.asked = 0
	contains := w.answerRev >= w.askedRev || c.weak == proofOlderThanGate
	switch {
	case w.answerLive != 0:
		w.first = 0
		return "readers remain"
	case !contains:
		return "older than the gate"
	case w.answerHole != 0 && c.weak != proofWithHole:
		return "not from a leader, so readers may be missing"
	case !c.several, c.weak == proofAnyTime:
	case c.weak == proofByOwnMargin:
		if w.age[w.askedFor] >= c.window {
			return "too long after the gate write"
		}
	case w.first == 0 || w.askedFor <= w.firstRenewals || w.age[w.first-1] >= c.window:
		w.first, w.firstRenewals = 1+w.askedFor, w.renewals
		return "none, the first time: asks again after another gate write"
	}
	w.phase, w.holds = holding, 1
	if w.token <= n.token {
		n.wrong = 1
	}
	n.token = w.token
	return "proven that no client reads: writes"
}

func (c *rwScope) writerAnswered(n *rwState, a rwAnswer) string {
	w := &n.w[a.who]
	if a.verb == claimGate {
		left := c.gateTTL - c.gateMargin - w.age[0]
		if w.phase != trying {
			return "nothing to do"
		}
		if a.code != acked || left <= 0 {
			*w = writer{phase: over}
			if c.again {
				w.phase = idle
			}
			return "refused, or too late"
		}
		w.phase, w.left, w.last, w.token, w.confirmed = draining, left, a.rev, a.rev, 0
		return "has the gate"
	}
	if w.phase != draining && w.phase != holding {
		return "nothing to do"
	}
	number := a.n
	if a.code == refused {
		switch {
		case a.rev != 0 && a.rev <= w.last:
			return "old news"
		case a.kind == broken:
			w.phase, w.last = stopping, a.rev
			return "broken: its context ends"
		case a.kind != held || a.renewal == 0:
			w.phase, w.left = leaving, 0
			return "its gate no longer exists: lost"
		}
		number = a.renewal
	}
	if w.left <= 0 {
		w.phase = leaving
		return "too late: lost"
	}
	w.left = max(w.left, c.gateTTL-c.gateMargin-w.age[number])
	if a.rev > w.last {
		w.last, w.confirmed = a.rev, number
	}
	return "extended"
}
