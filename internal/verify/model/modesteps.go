package model

// The steps of runs that have modes.

type modeStep func(k kind, change func(n *modeState) string, words string, args ...any)

func (c *modeScope) steps(s modeState, to *steps[modeState]) {
	for i := range int8(3) {
		if c.goros[i] == 0 {
			continue
		}
		do := func(k kind, change func(n *modeState) string, words string, args ...any) {
			n := s
			switch did := change(&n); {
			case did == "":
			case to.inWords:
				to.do(k, n, "%c: "+words+": %s", append(append([]any{'A' + i}, args...), did)...)
			default:
				to.do(k, n, "")
			}
		}
		for slot := range int8(3) {
			c.stores(s, i, slot, do)
			c.operator(s, i, slot, do)
			if s.dead[i] == 1 {
				c.runsOut(s, i, slot, do)
			}
		}
		if s.dead[i] == 1 {
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
		}
		c.learns(s, i, do)
	}
	if s.gate == releasing {
		n := s
		n.gateGone()
		to.do(step, n, "server: the release of the gate is stored")
	}
	if s.leaving > 0 {
		n := s
		n.leaving = 0
		to.do(step, n, "server: the readers' deletions are stored")
	}
}

// stores are a client's first writes as the server stores them.
func (c *modeScope) stores(s modeState, i, slot int8, do modeStep) {
	r := s.runs[i][slot]
	switch r.phase {
	case claimSent:
		do(step, func(n *modeState) string {
			if n.gate != none || r.fresh == 0 && n.acts() {
				n.runs[i][slot].phase = claimRefused
				return "refused"
			}
			c.takes(n, i, slot, claimStored)
			return "stored"
		}, "run %d's claim is", r.born)
	case placeSent:
		for _, o := range s.runs[i] {
			if o.born < r.born && (o.phase == placeSent || o.firstWrite()) {
				return // that run's place is written first
			}
		}
		do(step, func(n *modeState) string { return c.queues(n, i, slot) }, "run %d's place is stored", r.born)
	}
}

// takes stores a claim of the gate, or a reader's join.
func (c *modeScope) takes(n *modeState, i, slot, phase int8) {
	r := &n.runs[i][slot]
	r.phase = phase
	if r.subscribed == 1 && phase == claimStored && c.weak != modeUnproven {
		n.subs[i] = max(n.subs[i], effective)
	}
	for k := range int8(3) {
		for l := range int8(3) {
			o := &n.runs[k][l]
			o.fresh = 0
			if k == i || !o.queued() || phase == attemptStored && o.ticket > r.ticket {
				continue
			}
			if phase == claimStored && o.news[i] == missed {
				o.news[i] = early
			}
			for _, j := range c.members(n, i, slot, waits) {
				n.g[j].knew &^= bit(k, l)
			}
		}
	}
	if r.writes == 0 {
		r.rec = held
		return
	}
	n.gate, n.owner, n.slot = held, i, slot
	for k := range int8(3) {
		if k != i {
			n.gateNews[k] = c.newsTo(n, k)
		}
	}
}

// newsTo is the notification of a write for client k.
func (c *modeScope) newsTo(n *modeState, k int8) int8 {
	if n.subs[k] >= effective {
		return underWay
	}
	for _, o := range n.runs[k] {
		if o.firstWrite() {
			return early
		}
	}
	return missed
}

// queues stores a place.
func (c *modeScope) queues(n *modeState, i, slot int8) string {
	r := &n.runs[i][slot]
	r.phase, r.ticket = placeStored, n.next
	n.next++
	if r.subscribed == 1 {
		n.subs[i] = max(n.subs[i], effective)
	}
	for k := range int8(3) {
		if k != i {
			r.news[k] = c.newsTo(n, k)
		}
	}
	return "behind the others"
}

// operator breaks a lease. Its client may have crashed.
func (c *modeScope) operator(s modeState, i, slot int8, do modeStep) {
	r := s.runs[i][slot]
	if s.breaks == 0 {
		return
	}
	if r.rec == held {
		do(fault, func(n *modeState) string {
			n.breaks--
			n.runs[i][slot].rec = broken
			return "broken"
		}, "run %d's record is", r.born)
	}
	if s.gate == held && s.owner == i && s.slot == slot {
		do(fault, func(n *modeState) string {
			n.breaks--
			n.gate = broken
			return "broken"
		}, "run %d's gate is", r.born)
	}
}

// runsOut ends the records of a client that has crashed.
func (c *modeScope) runsOut(s modeState, i, slot int8, do modeStep) {
	r := s.runs[i][slot]
	switch {
	case r.rec != none || r.queued() || r.phase == claimRefused:
		do(step, func(n *modeState) string { n.drop(i, slot); return "expires" }, "run %d's record", r.born)
	case (s.gate == held || s.gate == broken) && s.owner == i && s.slot == slot:
		do(step, func(n *modeState) string { n.gateGone(); n.drop(i, slot); return "expires" }, "its gate")
	}
}

// trouble is a crash or Close.
func (c *modeScope) trouble(s modeState, i int8, do modeStep) {
	if s.last(i) < 0 {
		return
	}
	from, to := c.owns(i)
	if i == 0 && s.crashes > 0 {
		do(fault, func(n *modeState) string {
			n.crashes--
			n.dead[i] = 1
			for j := from; j < to; j++ {
				n.g[j] = modeGoroutine{phase: finished, run: -1}
			}
			return "its goroutines are gone"
		}, "crashes")
	}
	if s.closes > 0 && s.closed[i] == 0 {
		do(fault, func(n *modeState) string {
			n.closes--
			n.closed[i] = 1
			for j := from; j < to; j++ {
				switch n.g[j].phase {
				case waits:
					c.givesUp(n, i, j)
				case outside:
					n.g[j] = modeGoroutine{phase: finished, run: -1}
				}
			}
			for slot, r := range n.runs[i] {
				if r.phase == idleRun {
					c.releases(n, i, int8(slot))
				}
			}
			return "no goroutine of it waits"
		}, "closes")
	}
}

// goroutine takes the steps of a goroutine.
func (c *modeScope) goroutine(s modeState, i, j int8, do modeStep) {
	asks := func(from *modeState, words string, before func(n *modeState) string) {
		_, joins := c.mayJoin(from, i, j)
		for _, way := range [...]int8{joinRun, openRun} {
			k := step
			if joins && way == openRun { // a list that is too old
				k = fault
			}
			do(k, func(n *modeState) string {
				did := before(n)
				if again := c.ask(n, i, j, way); again != "" {
					return did + again
				}
				return ""
			}, words, j+1)
		}
	}
	switch s.g[j].phase {
	case outside:
		asks(&s, "goroutine %d asks", func(*modeState) string { return "" })
	case waits:
		if s.giveups > 0 {
			do(fault, func(n *modeState) string { n.giveups--; return c.givesUp(n, i, j) }, "goroutine %d gives up", j+1)
		}
	case inside:
		if i >= c.greedy || s.closed[i] == 1 {
			do(step, func(n *modeState) string { return c.unlock(n, i, j) }, "goroutine %d unlocks", j+1)
			return
		}
		after := s
		c.unlock(&after, i, j)
		asks(&after, "goroutine %d unlocks and asks again", func(n *modeState) string { return c.unlock(n, i, j) + ", " })
	}
}

// givesUp ends a wait. The last member takes the place, or a gate that still waits for
// readers, along.
func (c *modeScope) givesUp(n *modeState, i, j int8) string {
	slot := n.g[j].run
	n.g[j] = modeGoroutine{phase: finished, run: -1}
	if len(c.members(n, i, slot, waits)) > 0 {
		return "and leaves its run"
	}
	switch r := n.runs[i][slot]; {
	case r.phase == inQueue:
		n.drop(i, slot)
	case r.phase == grantedRun && r.served == 0:
		return c.releases(n, i, slot)
	}
	return "and its run has no member"
}

// unlock ends the part of goroutine j only.
func (c *modeScope) unlock(n *modeState, i, j int8) string {
	g := n.g[j]
	n.g[j] = modeGoroutine{phase: outside, run: -1, rounds: g.rounds}
	switch {
	case n.closed[i] == 1:
		n.g[j].phase = finished
	case i < c.greedy:
	case g.rounds > 0:
		n.g[j].rounds--
	default:
		n.g[j].phase = finished
	}
	if g.run < 0 {
		return "its lease had ended"
	}
	r := n.runs[i][g.run]
	others := len(c.members(n, i, g.run, inside))
	switch {
	case r.phase == stoppingRun && (others == 0 || c.weak == modeBrokenOut):
		c.forgetsBroken(n, i, g.run)
		return "deletes the broken record"
	case others > 0 && c.weak != modeFirstOut:
		return "others still read"
	case r.phase == stoppingRun:
		return "others still stop"
	case others > 0:
		for _, k := range c.members(n, i, g.run, inside) {
			n.g[k].run = -1
		}
	}
	return c.serves(n, i, g.run)
}

// forgetsBroken deletes the broken record of a run.
func (c *modeScope) forgetsBroken(n *modeState, i, slot int8) {
	if n.runs[i][slot].writes == 1 {
		n.gateGone()
	}
	for _, k := range c.members(n, i, slot, inside) {
		n.g[k].run = -1
	}
	n.drop(i, slot)
}
