package model

// The rules of runs that have modes: when a goroutine joins one, when a client opens one,
// and when their members are inside.

// blocked says whether client i knows of a place that its run has to let in before it
// takes another member, or of a gate.
func (c *modeScope) blocked(s *modeState, i, slot int8) bool {
	me := s.runs[i][slot]
	claimed := me.phase >= attemptStored
	for k := range s.runs {
		for _, r := range s.runs[k] {
			if int8(k) == i || !r.queued() || r.news[i] != received || c.weak == modePassesPlace {
				continue
			}
			if r.ticket > me.ticket || claimed {
				return true
			}
		}
	}
	return claimed && me.writes == 0 && s.gate != none && s.owner != i && s.gateNews[i] == received && c.weak != modePassesGate
}

// mayJoin says whether a goroutine joins the last run of its client.
func (c *modeScope) mayJoin(s *modeState, i, j int8) (last int8, joins bool) {
	if last = s.last(i); last < 0 {
		return last, false
	}
	r := s.runs[i][last]
	switch {
	case r.phase == stoppingRun && c.weak != modeEndedServes:
		return last, false
	case r.writes != c.writes(j) && (c.weak != modeMixed || r.writes == 1):
		return last, false
	case r.firstWrite():
		return last, r.dirty == 0 || c.weak == modeDirtyJoined
	case r.phase == placeSent || r.phase == placeStored:
		return last, r.subscribed == 1 && r.dirty == 0
	case r.phase == idleRun:
		return last, !c.blocked(s, i, last)
	}
	return last, (s.subs[i] == confirmed || c.weak == modeUnlisted && s.subs[i] == effective) && !c.blocked(s, i, last)
}

// ask: goroutine j of client i asks for the lock. It returns "" where it cannot in that
// way.
func (c *modeScope) ask(s *modeState, i, j, way int8) string {
	last, joins := c.mayJoin(s, i, j)
	asks := modeGoroutine{phase: waits, run: last, order: c.lastOrder(s, i), knew: c.knows(s, i), rounds: s.g[j].rounds}
	if s.gate != none && s.owner != i && (s.gateNews[i] == received || s.gateNews[i] == missed) {
		asks.gate = 1
	}
	switch {
	case last >= 0 && s.runs[i][last].phase == idleRun && (joins || way == openRun):
		return c.asksIdle(s, i, j, way, joins, asks)
	case way == joinRun && joins:
		s.g[j] = asks
		if r := s.runs[i][last]; r.writes == 0 && (r.phase == grantedRun || r.phase == stoppingRun) {
			c.enters(s, i, last, j)
			return "joins the run, and reads"
		}
		return "joins the last run"
	case way == openRun:
		return c.opens(s, i, j, asks)
	}
	return ""
}

// asksIdle: goroutine j asks when the last run of its client is idle.
func (c *modeScope) asksIdle(s *modeState, i, j, way int8, joins bool, asks modeGoroutine) string {
	last := s.last(i)
	switch {
	case !joins:
		did := "it finds a lease idle"
		if c.weak != modeForeignOnly {
			if did = c.recalls(s, i, last); did == "" {
				return ""
			}
		}
		asks.order = c.lastOrder(s, i)
		if again := c.opens(s, i, j, asks); again != "" {
			return did + ", " + again
		}
	case way == joinRun && s.subs[i] == confirmed && len(c.members(s, i, last, waits)) == 0:
		s.g[j] = asks
		s.runs[i][last].phase = grantedRun
		c.enters(s, i, last, j)
		return "uses the idle lease"
	case way == joinRun || s.subs[i] == confirmed:
		s.g[j] = asks
		return "waits for a list, with the idle lease"
	}
	return ""
}

func (c *modeScope) opens(s *modeState, i, j int8, asks modeGoroutine) string {
	slot := c.open(s, i, c.writes(j))
	if slot < 0 {
		return ""
	}
	asks.run = slot
	s.g[j] = asks
	if s.runs[i][slot].phase == claimSent {
		return "opens a run and claims"
	}
	return "opens a run and queues"
}

// open opens a run. It claims the gate or joins at once where the client's other runs
// read. Any other run subscribes and then writes its place.
func (c *modeScope) open(s *modeState, i, writes int8) int8 {
	slot, last, reads := int8(-1), s.last(i), true
	for k, r := range s.runs[i] {
		if r.phase == noRun && slot < 0 {
			slot = int8(k)
		}
		reads = reads && (r.phase == noRun || r.granted() && r.writes == 0)
	}
	if slot < 0 {
		return -1
	}
	r := modeRun{phase: placeSent, born: 1, writes: writes}
	if last >= 0 {
		r.born = s.runs[i][last].born + 1
	}
	if last >= 0 || c.lingers[i] {
		r.subscribed = 1
		s.subs[i] = max(s.subs[i], subscribed)
	}
	if reads {
		r.phase = claimSent
		if s.gate == none && !s.acts() {
			r.fresh = 1
		}
	}
	s.runs[i][slot] = r
	return slot
}

// knows are the places that a goroutine of client i may not pass.
func (c *modeScope) knows(s *modeState, i int8) (knew int16) {
	for k := range s.runs {
		for slot, r := range s.runs[k] {
			if int8(k) != i && r.queued() && (r.news[i] == received || r.news[i] == missed) {
				knew |= bit(int8(k), int8(slot))
			}
		}
	}
	return knew
}

func (c *modeScope) lastOrder(s *modeState, i int8) int8 {
	last := int8(0)
	from, to := c.owns(i)
	for j := from; j < to; j++ {
		if s.g[j].phase == waits {
			last = max(last, s.g[j].order, s.g[j].again)
		}
	}
	return last + 1
}

// enters: goroutine j is inside, with the lease of its run.
func (c *modeScope) enters(s *modeState, i, slot, j int8) {
	me, r := s.g[j], &s.runs[i][slot]
	from, to := c.owns(i)
	for k := from; k < to; k++ {
		o := s.g[k]
		if o.phase == waits && o.order < me.order && r.writes+c.writes(k) > 0 && o.again < me.order {
			s.wrong = 4
		}
	}
	for k := range int8(3) {
		for l, o := range s.runs[k] {
			conflict := r.writes+o.writes > 0
			if k != i && conflict && s.dead[k] == 0 && o.queued() && me.knew&bit(k, int8(l)) != 0 && len(c.members(s, k, int8(l), waits)) > 0 {
				s.wrong = 2
			}
		}
	}
	if r.writes == 0 && me.gate == 1 {
		s.wrong = 3
	}
	if r.writes == 0 && r.rec == none || r.writes == 1 && (s.gate == none || s.gate == releasing || s.owner != i || s.slot != slot) {
		s.wrong = 1
	}
	r.served = 1
	s.g[j] = modeGoroutine{phase: inside, run: slot, rounds: s.g[j].rounds, valid: 1}
}

// serves lets the waiting members of a granted run in: all readers, or the next writer.
func (c *modeScope) serves(s *modeState, i, slot int8) string {
	all := c.members(s, i, slot, waits)
	if len(all) == 0 {
		return c.rests(s, i, slot)
	}
	s.runs[i][slot].phase = grantedRun
	if s.runs[i][slot].writes == 1 {
		c.enters(s, i, slot, all[0])
		return "the next writer is inside"
	}
	for _, j := range all {
		c.enters(s, i, slot, j)
	}
	return "its readers are inside"
}

// rests: no member of a granted run is left.
func (c *modeScope) rests(s *modeState, i, slot int8) string {
	r := &s.runs[i][slot]
	if !c.lingers[i] || r.served == 0 || s.closed[i] == 1 || c.recalled(s, i, slot) {
		return c.releases(s, i, slot)
	}
	r.phase = idleRun
	return "its lease stays, idle"
}

// recalled says whether a place, a gate or another run of the client ends an idle lease.
func (c *modeScope) recalled(s *modeState, i, slot int8) bool {
	if c.weak == modeIdleKept && s.runs[i][slot].writes == 0 {
		return false
	}
	if c.blocked(s, i, slot) {
		return true
	}
	for k, r := range s.runs[i] {
		if int8(k) != slot && r.phase != noRun && c.weak != modeForeignOnly {
			return true
		}
	}
	return false
}

// recalls gives a lease up. Goroutines that wait for a list open a new run.
func (c *modeScope) recalls(s *modeState, i, slot int8) string {
	did := ""
	if len(c.members(s, i, slot, waits)) > 0 {
		if did = c.later(s, i, slot); did == "" {
			return ""
		}
		did += ", "
	}
	return did + c.releases(s, i, slot)
}

func (c *modeScope) releases(s *modeState, i, slot int8) string {
	if r := &s.runs[i][slot]; r.writes == 1 {
		s.gate = releasing
	} else {
		s.leaving = 1
		if r.rec = none; c.weak == modeReleased {
			return "its deletion is sent, and it takes members"
		}
	}
	s.drop(i, slot)
	return "its release is sent"
}

// later sends the waiting members of a run to a new run at the back.
func (c *modeScope) later(s *modeState, i, slot int8) string {
	all := c.members(s, i, slot, waits)
	if len(all) == 0 {
		return "nobody waits"
	}
	n := c.open(s, i, s.runs[i][slot].writes)
	if n < 0 {
		return ""
	}
	again := c.lastOrder(s, i)
	for _, j := range all {
		s.g[j].run, s.g[j].again = n, again
	}
	return "the members behind open a new run"
}

// gone forgets a place in the knowledge of the others.
func (s *modeState) gone(i, slot int8) {
	for j := range s.g {
		s.g[j].knew &^= bit(i, slot)
	}
}

// gateGone: no gate stands any more.
func (s *modeState) gateGone() {
	s.gate, s.owner, s.slot, s.gateNews = none, 0, 0, [3]int8{}
	for j := range s.g {
		s.g[j].gate = 0
	}
}

// drop ends a run. With its last run a client ends its subscriptions.
func (s *modeState) drop(i, slot int8) {
	s.gone(i, slot)
	s.runs[i][slot] = modeRun{}
	if s.last(i) >= 0 {
		return
	}
	s.subs[i] = 0
	if s.gateNews[i] != noNews {
		s.gateNews[i] = missed
	}
	for k := range s.runs {
		for l := range s.runs[k] {
			if r := &s.runs[k][l]; r.news[i] != noNews {
				r.news[i] = missed
			}
		}
	}
}
