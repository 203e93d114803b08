package model

// Lingering: the lease of a run whose last member has left stays with its client, idle.
// The client's next goroutine uses it without a message. Any place in the queue recalls
// it: the client sends the release, and never uses the lease again.

// rests: no member of a granted run is left.
func (c *runScope) rests(s *runState, i, slot int8) string {
	r := &s.runs[i][slot]
	keeps := c.lingers[i] && r.served == 1 && (s.closed[i] == 0 || c.weak == idleClosed)
	if !keeps || c.recalled(s, i, slot) {
		return c.releases(s, i, slot)
	}
	r.phase, r.turn, r.passed = idleRun, 0, 0
	return "its lease stays, idle"
}

// recalled says whether client i knows of a place that a lease of its own keeps waiting:
// a stranger's, or that of another run of the client.
func (c *runScope) recalled(s *runState, i, slot int8) bool {
	if c.weak == idleKept || c.weak == idleClosed && s.closed[i] == 1 {
		return false
	}
	if c.blocked(s, i, slot) {
		return true
	}
	for k, r := range s.runs[i] {
		if int8(k) != slot && r.phase != noRun && c.weak != idleForeignOnly {
			return true
		}
	}
	return false
}

// recalls gives a lease up. Goroutines that wait for a list of the queue open a new run.
func (c *runScope) recalls(s *runState, i, slot int8) string {
	did := ""
	if s.runs[i][slot].served == 0 && c.head(s, i, slot) >= 0 {
		s.wrong = 8
	}
	if c.head(s, i, slot) >= 0 {
		c.asksAgain(s, i, slot)
		if did = c.later(s, i, slot, 0); did == "" {
			return ""
		}
		did += ", "
	}
	return did + c.releases(s, i, slot)
}

// asksIdle: goroutine j asks when the last run of its client is idle. It uses the lease
// where a list has shown that nobody is queued, or waits for a list. Where it may not,
// it gives the lease up first.
func (c *runScope) asksIdle(s *runState, i, j, last, way int8, known bool, asks goroutine) string {
	switch {
	case !known:
		did := "it finds the lease idle"
		if c.weak != idleForeignOnly {
			if did = c.recalls(s, i, last); did == "" {
				return ""
			}
		}
		asks.order = s.lastOrder(c, i)
		if again := c.opens(s, i, j, asks); again != "" {
			return did + ", " + again
		}
	case way == joinRun && (s.subs[i] == confirmed || c.weak == idleUnlisted) && c.head(s, i, last) < 0:
		s.g[j] = asks
		s.runs[i][last].phase = grantedRun
		c.serve(s, i, last)
		return "uses the idle lease"
	case way == joinRun || way == openRun && s.subs[i] == confirmed:
		s.g[j] = asks
		return "waits for a list, with the idle lease"
	}
	return ""
}

// idle takes the steps of a granted run of a client whose leases stay.
func (c *runScope) idle(s runState, i, slot int8, do runStep) {
	r := s.runs[i][slot]
	if !c.lingers[i] || r.phase != grantedRun && r.phase != idleRun {
		return
	}
	waits := r.phase == idleRun && c.head(&s, i, slot) >= 0
	if s.subs[i] == effective || waits {
		do(step, func(n *runState) string {
			n.subs[i] = confirmed
			if c.weak != idleListedEarly {
				c.sees(n, i)
			}
			switch {
			case !waits:
				return "listed"
			case c.recalled(n, i, slot):
				return c.recalls(n, i, slot)
			}
			n.runs[i][slot].phase = grantedRun
			return c.serve(n, i, slot)
		}, "the queue is")
	}
	c.answers(s, i, slot, r.phase == idleRun && !waits, do)
	if r.phase != idleRun {
		return
	}
	if c.recalled(&s, i, slot) && c.weak != idlePasses {
		do(step, func(n *runState) string { return c.recalls(n, i, slot) }, "run %d's lease is recalled", r.born)
	}
	if !waits { // its time is over, or the client has too many idle leases
		do(fault, func(n *runState) string { return c.releases(n, i, slot) }, "run %d's lease is idle for long", r.born)
	}
	if c.weak == idleFreed && s.mark == 0 && s.lock == held {
		do(step, func(n *runState) string { n.mark = saysIdle; return "idle" }, "run %d's record says", r.born)
	}
}

// closesClient ends the waits of a client. It takes no new locks, and releases an idle
// lease.
func (c *runScope) closesClient(n *runState, i int8) string {
	n.closed[i] = 1
	from, to := c.owns(i)
	for j := from; j < to; j++ {
		switch n.g[j].phase {
		case waits:
			c.givesUp(n, i, j)
		case outside:
			n.g[j] = goroutine{phase: finished, run: -1}
		}
	}
	for slot, r := range n.runs[i] {
		if r.phase == idleRun && c.weak != idleClosed {
			return c.releases(n, i, int8(slot))
		}
	}
	return "no goroutine of it waits"
}

// heeds says whether a client still reads what it knows of the queue, to give an idle
// lease up.
func (c *runScope) heeds(s *runState, i int8) bool {
	return c.lingers[i] && s.dead[i] == 0 && s.last(i) >= 0
}
