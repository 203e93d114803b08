package model

// The steps of runs: the servers', the clients' troubles, and the goroutines'.

type runStep func(k kind, change func(n *runState) string, words string, args ...any)

func (c *runScope) steps(s runState, to *steps[runState]) {
	for i := range int8(3) {
		if c.goros[i] == 0 {
			continue
		}
		do := func(k kind, change func(n *runState) string, words string, args ...any) {
			n := s
			did := change(&n)
			c.witness(&n)
			switch {
			case did == "":
			case to.inWords:
				to.do(k, n, "%c: "+words+": %s", append(append([]any{'A' + i}, args...), did)...)
			default:
				to.do(k, n, "")
			}
		}
		for slot := range int8(3) {
			c.stores(s, i, slot, do)
			if s.dead[i] == 1 {
				c.runsOut(s, i, slot, do)
			}
			c.operator(s, i, slot, do)
		}
		if s.dead[i] == 1 && s.lock == brokenKnown && s.owner == i {
			do(step, func(n *runState) string { n.lock = none; return "expires" }, "its broken record")
		}
		if s.paused[i] == 1 {
			do(step, func(n *runState) string { n.paused[i] = 0; return "goes on" }, "paused")
		}
		if !s.up(i) {
			continue
		}
		c.trouble(s, i, do)
		from, end := c.owns(i)
		for j := from; j < end; j++ {
			c.goroutine(s, i, j, do)
		}
		for slot := range int8(3) {
			c.queue(s, i, slot, do)
			c.holder(s, i, slot, do)
			c.idle(s, i, slot, do)
		}
		c.learns(s, i, do)
	}
	if s.lock == releasing {
		n := s
		n.lock = none
		c.left(&n)
		to.do(step, n, "server: the release is stored")
	}
}

// left ends the run that took members after its release, a variant.
func (c *runScope) left(n *runState) {
	if c.weak == runReleasedJoined && n.runs[n.owner][n.slot].phase == grantedRun {
		n.drop(n.owner, n.slot)
	}
}

// stores are a client's writes as the server stores them. They may be stored when
// the client has crashed.
func (c *runScope) stores(s runState, i, slot int8, do runStep) {
	born := s.runs[i][slot].born
	switch s.runs[i][slot].phase {
	case claimSent:
		if f := s.firstRun(i); f != slot && s.runs[i][f].phase == claimSent {
			return // it is sent after the claim of that run
		}
		do(step, func(n *runState) string {
			heeds := n.runs[i][slot].fresh == 0 && c.weak != runClaimsBlindly
			if n.lock != none || heeds && n.acts() {
				n.runs[i][slot].phase = claimRefused
				return "refused"
			}
			c.takes(n, i, slot, claimStored)
			return "stored"
		}, "run %d's claim is", born)
	case trySent:
		do(step, func(n *runState) string {
			n.runs[i][slot].phase = tryStored
			c.notifies(n, i, slot)
			return "stored"
		}, "the place of a TryLock is")
	case placeSent:
		for _, r := range s.runs[i] {
			before := r.born < born && (r.phase == placeSent || r.firstWrite() && c.weak != runOvertakes)
			if before {
				return // that run's place is written first
			}
		}
		do(step, func(n *runState) string { return c.queues(n, i, slot) }, "run %d's place is stored", born)
	}
}

// takes stores a claim of the lock. It passes the places of clients that do not run. A
// first claim also passes those stored since it was sent, and its client learns of no
// place before the answer.
func (c *runScope) takes(n *runState, i, slot, phase int8) {
	n.lock, n.owner, n.slot = held, i, slot
	n.runs[i][slot].phase = phase
	if phase == claimStored && n.subs[i] == subscribed && c.lingers[i] {
		n.subs[i] = effective
	}
	n.mark = 0
	for k := range int8(3) {
		for l := range int8(3) {
			o := &n.runs[k][l]
			o.fresh = 0
			if o.phase == tryStored {
				o.reaction = c.reactionToGrant(*o)
			}
			if k == i || !o.queued() || phase == attemptStored && o.ticket > n.runs[i][slot].ticket {
				continue
			}
			o.turns = min(o.turns+1, mostTurns)
			if c.weak == runClaimsBlindly {
				continue
			}
			if phase == claimStored && o.news[i] == missed {
				o.news[i] = early
			}
			for j := range n.g {
				if g := &n.g[j]; g.phase == waits && c.clientOf(int8(j)) == i && g.run == slot && !c.isTry(int8(j)) {
					g.knew &^= bit(k, l)
				}
			}
		}
	}
}

// queues stores a place.
func (c *runScope) queues(n *runState, i, slot int8) string {
	r := &n.runs[i][slot]
	r.phase, r.ticket = placeStored, n.next
	n.next++
	if r.subscribed == 1 {
		n.subs[i] = max(n.subs[i], effective)
	}
	c.notifies(n, i, slot)
	for k := range int8(3) {
		for _, o := range n.runs[k] {
			if k == i {
				continue
			}
			if o.queued() || o.phase == claimStored || o.phase == attemptStored || o.phase == grantedRun {
				r.turns = min(r.turns+1, mostTurns)
			}
		}
	}
	return "behind the others"
}

// notifies sends the notifications of a place.
func (c *runScope) notifies(n *runState, i, slot int8) {
	r := &n.runs[i][slot]
	for k := range int8(3) {
		if k == i {
			continue
		}
		r.news[k] = missed
		if n.subs[k] >= effective {
			r.news[k] = underWay
		}
		for _, o := range n.runs[k] {
			if r.news[k] == missed && o.firstWrite() && c.weak != runNoInstant {
				r.news[k] = early
			}
		}
	}
}

// runsOut ends the records of a client that has crashed.
func (c *runScope) runsOut(s runState, i, slot int8, do runStep) {
	r := s.runs[i][slot]
	switch {
	case (s.lock == held || s.lock == broken) && s.owner == i && s.slot == slot:
		do(step, func(n *runState) string { n.lock = none; n.drop(i, slot); return "expires" }, "its lease")
	case r.queued() || r.phase == claimRefused || r.phase == tryStored:
		do(step, func(n *runState) string { n.drop(i, slot); return "expires" }, "its place")
	}
}

// operator breaks a lease. Its client may have crashed.
func (c *runScope) operator(s runState, i, slot int8, do runStep) {
	r := s.runs[i][slot]
	if s.breaks == 0 || s.lock != held || s.owner != i || s.slot != slot || r.phase == taintedRun {
		return
	}
	do(fault, func(n *runState) string {
		n.breaks--
		if n.mark == saysIdle {
			n.lock = none
			return "free at once"
		}
		n.lock = broken
		return "broken"
	}, "run %d's lease is", r.born)
}

// trouble takes the faults of a client.
func (c *runScope) trouble(s runState, i int8, do runStep) {
	if s.last(i) < 0 {
		return
	}
	if i == 0 && s.crashes > 0 {
		do(fault, func(n *runState) string {
			n.crashes--
			n.dead[i] = 1
			from, to := c.owns(i)
			for j := from; j < to; j++ {
				n.g[j] = goroutine{phase: finished, run: -1}
			}
			return "its goroutines are gone"
		}, "crashes")
	}
	if s.closes > 0 && s.closed[i] == 0 {
		do(fault, func(n *runState) string { n.closes--; return c.closesClient(n, i) }, "closes")
	}
	if i > 0 && s.pauses > 0 {
		do(fault, func(n *runState) string { n.pauses--; n.paused[i] = 1; return "paused" }, "is stopped")
	}
}

// goroutine takes the steps of a goroutine.
func (c *runScope) goroutine(s runState, i, j int8, do runStep) {
	g := s.g[j]
	// A list that is too old may be the reason not to join. Liveness may not rest on
	// that.
	asks := func(from *runState, words string, before func(n *runState) string) {
		_, known, _ := c.mayAsk(from, i, j)
		for way := range openRun + 1 {
			k := step
			if known && way != joinRun {
				k = fault
			}
			do(k, func(n *runState) string {
				did := before(n)
				if again := c.ask(n, i, j, way); again != "" {
					return did + again
				}
				return ""
			}, words, j+1)
		}
	}
	switch {
	case c.isTry(j) && g.phase == outside:
		do(step, func(n *runState) string { return c.tryAsks(n, i, j) }, "goroutine %d tries", j+1)
		return
	case c.isTry(j) && g.phase == waits:
		c.tryWaits(s, i, j, do)
		return
	}
	switch g.phase {
	case outside:
		asks(&s, "goroutine %d asks", func(*runState) string { return "" })
	case waits:
		if s.giveups > 0 {
			do(fault, func(n *runState) string { n.giveups--; return c.givesUp(n, i, j) }, "goroutine %d gives up", j+1)
		}
	case inside:
		if g.run >= 0 && s.runs[i][g.run].phase == taintedRun {
			return
		}
		if s.drops > 0 && g.valid == 1 {
			do(fault, func(n *runState) string { n.drops--; return c.taints(n, i, g.run) }, "goroutine %d drops its handle", j+1)
		}
		if i >= c.greedy || s.closed[i] == 1 {
			do(step, func(n *runState) string { return c.unlock(n, i, j) }, "goroutine %d unlocks", j+1)
			return
		}
		after := s
		c.unlock(&after, i, j)
		asks(&after, "goroutine %d unlocks and asks again", func(n *runState) string { return c.unlock(n, i, j) + ", " })
	}
}

// givesUp ends a wait. The last member takes the place along. A write that is not
// answered yet is undone at its answer.
func (c *runScope) givesUp(n *runState, i, j int8) string {
	slot := n.g[j].run
	r := &n.runs[i][slot]
	if c.weak == runFirstDrives && c.head(n, i, slot) == j {
		r.stalled = 1
	}
	n.g[j] = goroutine{phase: finished, run: -1}
	if r.phase == inQueue && c.head(n, i, slot) < 0 && c.weak != runPlaceLeft {
		n.drop(i, slot)
		return "and takes the place along"
	}
	return "and leaves its run"
}

// unlock ends the lease of goroutine j only.
func (c *runScope) unlock(n *runState, i, j int8) string {
	g := n.g[j]
	n.g[j] = goroutine{phase: outside, run: -1, rounds: g.rounds}
	switch {
	case n.closed[i] == 1:
		n.g[j].phase = finished
	case i < c.greedy:
	case g.rounds > 0:
		n.g[j].rounds--
	default:
		n.g[j].phase = finished
	}
	switch {
	case n.lock == brokenKnown && n.owner == i && n.slot == j:
		n.lock = none
		return "deletes the broken record"
	case g.valid == 1:
		return c.serve(n, i, g.run)
	case c.weak == runOldHandle && n.lock == held && n.owner == i:
		n.lock = none
		return "ends the client's next lease"
	}
	return "its lease had ended"
}

// taints gives a lease up whose handle was dropped. It is not renewed.
func (c *runScope) taints(n *runState, i, slot int8) string {
	did := "the members behind stay"
	if c.weak != runTaintedKeeps {
		c.asksAgain(n, i, slot)
		did = c.later(n, i, slot, 0)
	}
	n.runs[i][slot].phase = taintedRun
	return did
}
