package model

// The rules of runs: when a goroutine joins one, when a client opens one, and the
// order in which members are served.

// blocked says whether client i knows of a place that its run has to let in before
// it takes another member. That is a place behind its own, and any place at all once
// it has claimed.
func (c *runScope) blocked(s *runState, i, slot int8) bool {
	me := s.runs[i][slot]
	for k := range int8(3) {
		for _, r := range s.runs[k] {
			if k == i || !r.queued() || r.news[i] != received {
				continue
			}
			if r.ticket > me.ticket || me.phase >= attemptStored && c.weak != runGrowsBehind {
				return true
			}
		}
	}
	return false
}

// ways to ask
const (
	joinRun int8 = iota
	joinTurn
	openRun
)

// mayJoin says whether a goroutine that asks may join a run of its client, by what
// the client knows of the queue, or in the run's turn.
func (c *runScope) mayJoin(s *runState, i, slot int8) (known, turn bool) {
	r := s.runs[i][slot]
	if r.own == 1 && c.weak != runOwnJoined || r.phase == taintedRun || r.stalled == 1 {
		return false, false
	}
	turn = r.phase == grantedRun && r.turn == 1
	switch {
	case r.phase == idleRun:
		return !c.blocked(s, i, slot) || c.weak == idlePasses, false
	case r.firstWrite():
		return r.dirty == 0 || c.weak == idleDirtyJoined, false
	case r.phase == placeSent || r.phase == placeStored:
		return (r.subscribed == 1 || c.weak == runNotSubscribed) && (r.dirty == 0 || c.weak == runDirtyJoined), false
	}
	return (s.subs[i] == confirmed || c.weak == runUnconfirmed) && !c.blocked(s, i, slot), turn
}

// mayAsk says which run a goroutine may join, and how.
func (c *runScope) mayAsk(s *runState, i, j int8) (last int8, known, turn bool) {
	if last = s.last(i); c.weak == runNotLast {
		last = s.firstRun(i)
	}
	if last < 0 || c.special(i, j) {
		return last, false, false
	}
	known, turn = c.mayJoin(s, i, last)
	return last, known, turn
}

func (c *runScope) special(i, j int8) bool { return c.own && i == 0 && j == c.goros[0]-1 }

// ask: goroutine j of client i asks for the lock. It returns "" where it cannot in
// that way.
func (c *runScope) ask(s *runState, i, j, way int8) string {
	last, known, turn := c.mayAsk(s, i, j)
	g := &s.g[j]
	asks := goroutine{phase: waits, run: last, order: s.lastOrder(c, i), knew: c.knows(s, i), rounds: g.rounds}
	switch {
	case last >= 0 && s.runs[i][last].phase == idleRun && (known || way == openRun):
		return c.asksIdle(s, i, j, last, way, known, asks)
	case way == joinRun && known:
		*g = asks
		if s.runs[i][last].own == 1 {
			s.wrong = 7
		}
		return "joins the last run"
	case way == joinTurn && turn:
		*g = asks
		g.turn = 1
		return "joins the granted run in its turn"
	case way == openRun && !turn:
		return c.opens(s, i, j, asks)
	}
	return ""
}

// opens has goroutine j open a run.
func (c *runScope) opens(s *runState, i, j int8, asks goroutine) string {
	last, g := s.last(i), &s.g[j]
	inTurn := last >= 0 && s.runs[i][last].turn == 1 && c.weak != runTurnPassed
	if inTurn && c.endsTurn(s, i, last) == "" { // its members have asked before
		return ""
	}
	slot := c.open(s, i)
	if slot < 0 {
		return ""
	}
	*g = asks
	g.run = slot
	if c.special(i, j) {
		s.runs[i][slot].own = 1
	}
	if s.runs[i][slot].phase == claimSent {
		return "opens a run and claims the lock"
	}
	return "opens a run and queues"
}

// firstRun is the client's first run, for a variant.
func (s *runState) firstRun(i int8) int8 {
	first := int8(-1)
	for slot, r := range s.runs[i] {
		if r.phase != noRun && (first < 0 || r.born < s.runs[i][first].born) {
			first = int8(slot)
		}
	}
	return first
}

// knows are the places that a goroutine of client i may not pass: those that its
// client knows. Silence is not knowledge, so they include those that it missed.
func (c *runScope) knows(s *runState, i int8) (knew int16) {
	for k := range int8(3) {
		for slot, r := range s.runs[k] {
			if k != i && r.queued() && (r.news[i] == received || r.news[i] == missed) {
				knew |= bit(k, int8(slot))
			}
		}
	}
	return knew
}

// lastOrder is the order of a goroutine that asks now.
func (s *runState) lastOrder(c *runScope, i int8) int8 {
	last := int8(0)
	from, to := c.owns(i)
	for j := from; j < to; j++ {
		if s.g[j].phase == waits {
			last = max(last, s.g[j].order, s.g[j].again)
		}
	}
	return last + 1
}

// open opens a run: it claims the lock at once when it is the client's only one. Any
// other subscribes to the queue and then writes its place.
func (c *runScope) open(s *runState, i int8) int8 {
	slot, last := int8(-1), s.last(i)
	for k, r := range s.runs[i] {
		if r.phase == noRun && slot < 0 {
			slot = int8(k)
		}
	}
	if slot < 0 {
		return -1
	}
	if last < 0 || c.weak == runClaimsAgain {
		s.runs[i][slot] = aRun{phase: claimSent, born: 1}
		if last >= 0 {
			s.runs[i][slot].born = s.runs[i][last].born + 1
		}
		if s.lock == none && !s.acts() {
			s.runs[i][slot].fresh = 1
		}
		if c.lingers[i] && c.weak != idleUnsubscribed {
			s.subs[i] = max(s.subs[i], subscribed)
		}
		return slot
	}
	s.runs[i][slot] = aRun{phase: placeSent, born: s.runs[i][last].born + 1, subscribed: 1}
	s.subs[i] = max(s.subs[i], subscribed)
	return slot
}

// gone forgets a place in the knowledge and the counts of the others.
func (s *runState) gone(i, slot int8) {
	for j := range s.g {
		s.g[j].knew &^= bit(i, slot)
	}
	for k := range s.runs {
		for l := range s.runs[k] {
			s.runs[k][l].passed &^= bit(i, slot)
		}
	}
}

// drop ends a run. With its last run a client ends its subscription and forgets the
// places that it knew.
func (s *runState) drop(i, slot int8) {
	s.gone(i, slot)
	s.runs[i][slot] = aRun{}
	if s.last(i) >= 0 {
		return
	}
	s.subs[i] = 0
	for k := range s.runs {
		for l := range s.runs[k] {
			if r := &s.runs[k][l]; r.news[i] != noNews {
				r.news[i] = missed
			}
		}
	}
}

// serve lets the next member in, or releases the lease.
func (c *runScope) serve(s *runState, i, slot int8) string {
	r := &s.runs[i][slot]
	j := c.head(s, i, slot)
	if j >= 0 && s.g[j].turn == 1 && r.turn == 0 && c.weak == runTurnLazy {
		if c.later(s, i, slot, s.g[j].order) != "" {
			j = c.head(s, i, slot)
		}
	}
	if j < 0 {
		return c.rests(s, i, slot)
	}
	if (s.lock != held && s.lock != broken) || s.owner != i || s.slot != slot {
		s.wrong = 1
	}
	if c.weak == runTurnAgain {
		r.turn, r.passed = 1, 0
	}
	c.passes(s, i, slot, j)
	r.served = 1
	s.g[j] = goroutine{phase: inside, run: slot, rounds: s.g[j].rounds, valid: 1}
	return "the next member is inside"
}

// releases sends the release of a lease.
func (c *runScope) releases(s *runState, i, slot int8) string {
	if s.runs[i][slot].served == 0 && c.head(s, i, slot) >= 0 {
		s.wrong = 8
	}
	s.lock = releasing
	if c.weak == runReleasedJoined || c.weak == idleReleased && s.runs[i][slot].phase == idleRun {
		return "its release is sent, and it takes members"
	}
	s.drop(i, slot)
	return "its release is sent"
}

// later sends the members of a run from that order on to a new run at the back. A
// TryLock is refused instead.
func (c *runScope) later(s *runState, i, slot, order int8) string {
	c.refuses(s, i, slot)
	if c.head(s, i, slot) < 0 {
		return "nobody is behind"
	}
	n := c.open(s, i)
	if n < 0 {
		return ""
	}
	from, to := c.owns(i)
	for j := from; j < to; j++ {
		if g := &s.g[j]; g.phase == waits && g.run == slot && g.order >= order {
			g.run, g.turn = n, 0
		}
	}
	return "the members behind open a new run"
}

// asksAgain: the members of a run queue again. The other goroutines that wait may pass
// them, and no goroutine that asks later.
func (c *runScope) asksAgain(s *runState, i, slot int8) {
	last := s.lastOrder(c, i)
	from, to := c.owns(i)
	for j := from; j < to; j++ {
		if g := &s.g[j]; g.phase == waits && g.run == slot {
			g.again = last
		}
	}
}

// passes checks that goroutine j passes only the goroutines and places that it may.
func (c *runScope) passes(s *runState, i, slot, j int8) {
	me, r := s.g[j], &s.runs[i][slot]
	from, to := c.owns(i)
	for k := from; k < to; k++ {
		if c.isTry(j) || c.isTry(k) {
			continue
		}
		if o := s.g[k]; o.phase == waits && o.order < me.order && o.again < me.order {
			s.wrong = 6
		}
	}
	for k := range int8(3) {
		for l := range int8(3) {
			o := &s.runs[k][l]
			if k == i || !s.up(k) || !o.queued() || c.head(s, k, l) < 0 || me.knew&bit(k, l) == 0 {
				continue
			}
			switch {
			case me.turn == 0:
				s.wrong = 2
			case r.turn == 0:
				s.wrong = 3
			case r.passed&bit(k, l) == 0:
				r.passed |= bit(k, l)
				if o.turns--; o.turns < 0 {
					s.wrong = 4
				} else if c.single {
					if o.one == 1 {
						s.wrong = 5
					}
					o.one = 1
				}
			}
		}
	}
}
