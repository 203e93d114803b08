package model

// The steps of a client for a run that waits, and for one that is granted. The
// wake-ups of the queue are ideal: a run claims when the lock is free and no client
// that runs is before it.

// queue takes the steps of a client for a run that waits.
func (c *runScope) queue(s runState, i, slot int8, do runStep) {
	r := s.runs[i][slot]
	switch r.phase {
	case claimStored, attemptStored:
		do(step, func(n *runState) string { return c.granted(n, i, slot) }, "run %d is granted", r.born)
		if s.ends > 0 {
			do(fault, func(n *runState) string { n.ends--; return c.ended(n, i, slot) }, "run %d is granted too late", r.born)
		}
	case claimRefused:
		do(step, func(n *runState) string {
			c.answered(n, i)
			c.refuses(n, i, slot)
			if c.head(n, i, slot) < 0 {
				n.drop(i, slot)
				return "nobody waits"
			}
			r := &n.runs[i][slot]
			r.phase, r.dirty = placeSent, 0
			c.subscribe(n, i, slot)
			return "queues"
		}, "run %d's claim is answered, refused", r.born)
	case placeStored:
		do(step, func(n *runState) string { return c.lists(n, i, slot) }, "run %d's place is answered", r.born)
	case inQueue:
		if s.expires > 0 {
			do(fault, func(n *runState) string {
				n.expires--
				n.gone(i, slot)
				c.asksAgain(n, i, slot)
				r := n.runs[i][slot]
				born := r.born
				if last := n.last(i); c.weak != runKeepsRank && last != slot {
					born = n.runs[i][last].born + 1
				}
				n.runs[i][slot] = aRun{phase: placeSent, born: born, own: r.own}
				c.subscribe(n, i, slot)
				return "queues again"
			}, "run %d's place expires", r.born)
		}
		c.claims(s, i, slot, do)
	}
}

// subscribe comes before the place of a run with two members. A run that has one
// member and no run behind it needs no subscription.
func (c *runScope) subscribe(n *runState, i, slot int8) {
	members := 0
	from, to := c.owns(i)
	for j := from; j < to; j++ {
		if n.g[j].phase == waits && n.g[j].run == slot {
			members++
		}
	}
	if members > 1 || n.subs[i] > 0 {
		n.runs[i][slot].subscribed = 1
		n.subs[i] = max(n.subs[i], subscribed)
	}
}

// answered is the answer to the first write of client i: places stored in the
// meantime may have been missed.
func (c *runScope) answered(n *runState, i int8) {
	for k := range n.runs {
		for l := range n.runs[k] {
			if r := &n.runs[k][l]; r.news[i] == early {
				r.news[i] = missed
			}
		}
	}
}

// granted is the answer to a claim: the first member is served.
func (c *runScope) granted(n *runState, i, slot int8) string {
	if n.runs[i][slot].phase == claimStored {
		c.answered(n, i)
	}
	n.gone(i, slot)
	r := &n.runs[i][slot]
	r.phase = grantedRun
	r.news, r.turns, r.one = [3]int8{}, 0, 0
	if c.weak != runGrowsBehind {
		r.ticket = 0
	}
	if c.turn {
		r.turn = 1
	}
	r.served = 0
	if c.weak == idleUnused && c.recalled(n, i, slot) {
		return c.recalls(n, i, slot)
	}
	if c.weak == runGrantKept && c.head(n, i, slot) < 0 {
		return "nobody waits, and it is kept"
	}
	return c.serve(n, i, slot)
}

// lists is the answer to a place, and the list of the queue that contains the
// ticket. It confirms a subscription that was sent before the place.
func (c *runScope) lists(n *runState, i, slot int8) string {
	x := &n.runs[i][slot]
	x.phase = inQueue
	if x.subscribed == 1 {
		n.subs[i] = confirmed
	}
	c.sees(n, i)
	if c.head(n, i, slot) < 0 && c.weak != runPlaceLeft {
		n.drop(i, slot)
		return "nobody waits: it is deleted"
	}
	return "and the queue listed"
}

// sees makes the places of other clients known, as a list shows them.
func (c *runScope) sees(n *runState, i int8) {
	for k := range n.runs {
		for l := range n.runs[k] {
			o := &n.runs[k][l]
			if int8(k) == i || !o.queued() && o.phase != tryStored || c.weak == runNotListed {
				continue
			}
			if o.news[i] != received && o.queued() && c.weak != runListUnheeded {
				n.soil(i)
			}
			o.news[i] = received
		}
	}
}

// soil marks the runs of client i whose first writes are unanswered: a stranger's place
// became known since they were opened.
func (s *runState) soil(i int8) {
	for m := range s.runs[i] {
		if r := &s.runs[i][m]; r.unanswered() {
			r.dirty = 1
		}
	}
}

// claims is a claim from the queue.
func (c *runScope) claims(s runState, i, slot int8, do runStep) {
	r := s.runs[i][slot]
	if s.lock != none || c.head(&s, i, slot) < 0 || r.stalled == 1 {
		return
	}
	words := "claims, being first"
	for k := range int8(3) {
		for _, o := range s.runs[k] {
			if !o.queued() || o.ticket >= r.ticket {
				continue
			}
			if s.up(k) {
				return
			}
			words = "claims out of turn"
		}
	}
	do(step, func(n *runState) string { c.takes(n, i, slot, attemptStored); return words }, "run %d", r.born)
}

// holder takes the steps of a granted run.
func (c *runScope) holder(s runState, i, slot int8, do runStep) {
	r := s.runs[i][slot]
	mine := s.owner == i && s.slot == slot
	if r.phase == taintedRun && c.weak != runTaintedRenewed {
		do(step, func(n *runState) string {
			n.lock = none
			c.leave(n, i, slot, finished)
			n.drop(i, slot)
			return "runs out"
		}, "run %d's lease", r.born)
	}
	if r.phase != grantedRun && r.phase != idleRun {
		return
	}
	if s.lock == broken && mine {
		do(step, func(n *runState) string { return c.ended(n, i, slot) }, "run %d is notified of the break", r.born)
	}
	if s.ends > 0 {
		do(fault, func(n *runState) string { n.ends--; n.lock = none; return c.ended(n, i, slot) }, "run %d's lease is lost", r.born)
	}
	if r.turn == 1 {
		do(tick, func(n *runState) string { return c.endsTurn(n, i, slot) }, "run %d's turn ends", r.born)
	}
}

// endsTurn sends the members that joined in the turn to a new run, and the members
// behind them.
func (c *runScope) endsTurn(n *runState, i, slot int8) string {
	n.runs[i][slot].turn = 0
	first := int8(-1)
	from, to := c.owns(i)
	for j := from; j < to; j++ {
		if g := n.g[j]; g.phase == waits && g.run == slot && g.turn == 1 && (first < 0 || g.order < first) {
			first = g.order
		}
	}
	switch {
	case first < 0:
		return "no member has joined in it"
	case c.weak == runTurnTaken || c.weak == runTurnLazy:
		return "the members that joined in it stay"
	}
	return c.later(n, i, slot, first)
}

// leave gives the goroutine inside the run another phase.
func (c *runScope) leave(n *runState, i, slot, phase int8) (who int8) {
	from, to := c.owns(i)
	for j := from; j < to; j++ {
		if g := &n.g[j]; g.phase == inside && g.run == slot && g.valid == 1 {
			*g = goroutine{phase: phase, run: -1, rounds: g.rounds}
			return j
		}
	}
	return -1
}

// ended is the loss or the break of a lease: the goroutine inside is notified. The
// members behind open a new run.
func (c *runScope) ended(n *runState, i, slot int8) string {
	if c.weak == runEndedServes {
		return "and goes on"
	}
	if n.runs[i][slot].firstWrite() {
		c.answered(n, i)
	}
	if n.runs[i][slot].phase == idleRun && n.lock == broken && c.weak == idleBrokenUsed {
		n.lock = none
		return "its record is deleted, and it is used again"
	}
	in := c.leave(n, i, slot, inside)
	if n.lock == broken && in >= 0 {
		n.lock, n.slot = brokenKnown, in
	} else {
		n.lock = none
	}
	c.asksAgain(n, i, slot)
	did := c.later(n, i, slot, 0)
	n.drop(i, slot)
	return did
}

// learns takes the notifications and lists of the other clients' places.
func (c *runScope) learns(s runState, i int8, do runStep) {
	for k := range int8(3) {
		for l := range int8(3) {
			r := s.runs[k][l]
			if k == i || !r.queued() && r.phase != tryStored {
				continue
			}
			learn := func(n *runState) string {
				n.runs[k][l].news[i] = received
				if r.queued() { // a TryLock ends no run
					n.soil(i)
				}
				return "known"
			}
			switch r.news[i] {
			case underWay:
				do(step, learn, "is notified of %c's #%d", 'A'+k, r.ticket)
				if s.losses > 0 {
					do(fault, func(n *runState) string { n.losses--; n.runs[k][l].news[i] = lostNews; return "lost" }, "is not notified of %c's #%d", 'A'+k, r.ticket)
				}
			case lostNews:
				if c.weak != runNoList {
					do(step, learn, "lists the queue again, with %c's #%d", 'A'+k, r.ticket)
				}
			}
		}
	}
}
