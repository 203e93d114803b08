package model

// TryLock meets leases that linger. Where the holder's record may linger, it writes a
// place of its own kind. Such a place ends no run and no wait. An idle holder gives way,
// a holder in use answers, and silence is a no.

// reactions of a holder to the place of a TryLock
const (
	noReaction int8 = iota
	gaveWay         // the lease was given up for it, or granted after it
	answerSent      // an answer is on its way: the lock is in use
	grantAfter      // the lease was granted after it (a variant)
)

// marks in a record, in variants
const (
	saysIdle  int8 = 1 + iota
	saysInUse      // in an answer to a TryLock
)

// isTry says whether goroutine j asks with TryLock.
func (c *runScope) isTry(j int8) bool {
	i := c.clientOf(j)
	if i < 0 {
		return false
	}
	_, to := c.owns(i)
	return j >= to-c.tries[i]
}

// inUse says whether an idle lease is not all that is in the way.
func (c *runScope) inUse(s *runState) bool {
	switch s.lock {
	case none, releasing:
		return false
	case held:
		return s.runs[s.owner][s.slot].phase != idleRun || c.head(s, s.owner, s.slot) >= 0
	}
	return true
}

// witness notes which calls of TryLock have met the lock in use.
func (c *runScope) witness(s *runState) {
	if c.tries == [3]int8{} || !c.inUse(s) {
		return
	}
	for i := range s.runs {
		for slot := range s.runs[i] {
			if r := &s.runs[i][slot]; r.phase == trySent || r.phase == tryStored {
				r.met = 1
			}
		}
	}
}

// tryAsks: goroutine j calls TryLock. It uses an idle lease of its own client, or claims
// a free lock that nobody is queued for.
func (c *runScope) tryAsks(s *runState, i, j int8) string {
	last, known, _ := c.mayAsk(s, i, j)
	asks := goroutine{phase: waits, order: s.lastOrder(c, i), rounds: s.g[j].rounds}
	if last >= 0 {
		if s.runs[i][last].phase == idleRun && known {
			asks.run, asks.knew = last, c.knows(s, i)
			return c.asksIdle(s, i, j, last, joinRun, true, asks)
		}
		return c.refused(s, j)
	}
	for k := range int8(3) {
		for slot, r := range s.runs[k] {
			if k != i && r.queued() {
				asks.knew |= bit(k, int8(slot))
			}
		}
	}
	if asks.knew != 0 && c.weak != tryPasses {
		return c.refused(s, j)
	}
	lingers := s.lock == releasing || s.lock == held && c.lingers[s.owner]
	if s.lock != none && !lingers {
		return c.refused(s, j)
	}
	slot := c.open(s, i)
	asks.run = slot
	r := &s.runs[i][slot]
	r.own = 1
	s.g[j] = asks
	if s.lock == none {
		return "claims the lock"
	}
	r.phase, r.fresh = trySent, 0
	return "writes a place"
}

// tryWaits is a goroutine in TryLock.
func (c *runScope) tryWaits(s runState, i, j int8, do runStep) {
	slot := s.g[j].run
	r := s.runs[i][slot]
	if r.phase != tryStored && r.phase != idleRun {
		return
	}
	do(step, func(n *runState) string {
		did := c.refused(n, j)
		if r.phase == tryStored {
			n.drop(i, slot)
		}
		return did
	}, "goroutine %d gets no answer", j+1)
	if r.phase == idleRun {
		return
	}
	if s.lock == none {
		do(step, func(n *runState) string {
			n.gone(i, slot)
			n.runs[i][slot] = aRun{phase: claimSent, born: r.born, own: 1, fresh: 1}
			return "claims it"
		}, "goroutine %d finds the lock free", j+1)
	}
	if r.reaction == answerSent || c.weak == tryStale && s.mark == saysInUse {
		do(step, func(n *runState) string {
			if r.met == 0 {
				n.wrong = 9
			}
			n.drop(i, slot)
			return c.refused(n, j)
		}, "goroutine %d reads that the lock is in use", j+1)
	}
}

// refused ends a TryLock.
func (c *runScope) refused(s *runState, j int8) string {
	g := s.g[j]
	s.g[j] = goroutine{phase: finished, run: -1}
	if g.rounds > 0 || c.persist {
		s.g[j] = goroutine{run: -1, rounds: g.rounds}
		if !c.persist {
			s.g[j].rounds--
		}
	}
	return "no"
}

// refuses ends the calls of TryLock that wait in a run.
func (c *runScope) refuses(s *runState, i, slot int8) {
	from, to := c.owns(i)
	for j := from; j < to; j++ {
		if g := s.g[j]; g.phase == waits && g.run == slot && c.isTry(j) {
			c.refused(s, j)
		}
	}
}

// reactionToGrant is the reaction that the place of a TryLock has got when the lock is
// granted after it. The place keeps no later lease from lingering.
func (c *runScope) reactionToGrant(r aRun) int8 {
	if c.weak == tryRecalled && r.reaction != noReaction {
		return grantAfter
	}
	return gaveWay
}

// answers has a holder react to the places of TryLock that it knows.
func (c *runScope) answers(s runState, i, slot int8, idle bool, do runStep) {
	for k := range int8(3) {
		for l, r := range s.runs[k] {
			if k == i || r.phase != tryStored || r.news[i] != received || r.reaction != noReaction && r.reaction != grantAfter {
				continue
			}
			if !idle {
				do(step, func(n *runState) string {
					n.runs[k][l].reaction = answerSent
					if c.weak == tryStale {
						n.mark = saysInUse
					}
					return "in use"
				}, "answers %c's TryLock", 'A'+k)
				continue
			}
			if c.weak == tryIgnored {
				continue
			}
			do(step, func(n *runState) string {
				if r.reaction == grantAfter {
					n.wrong = 10
				}
				n.runs[k][l].reaction = gaveWay
				return c.recalls(n, i, slot)
			}, "gives way to %c's TryLock", 'A'+k)
		}
	}
}
