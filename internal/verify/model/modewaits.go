package model

// The steps of a client for a run with a mode that waits, and for one that is granted.

// queue takes the steps of a client for a run that waits.
func (c *modeScope) queue(s modeState, i, slot int8, do modeStep) {
	r := s.runs[i][slot]
	switch r.phase {
	case claimStored, attemptStored:
		do(step, func(n *modeState) string { return c.grants(n, i, slot) }, "run %d is granted", r.born)
		if s.ends > 0 {
			do(fault, func(n *modeState) string { n.ends--; return c.ended(n, i, slot, false) }, "run %d is granted too late", r.born)
		}
	case claimRefused:
		do(step, func(n *modeState) string {
			c.answered(n, i)
			all := len(c.members(n, i, slot, waits))
			if all == 0 {
				n.drop(i, slot)
				return "nobody waits"
			}
			r := &n.runs[i][slot]
			r.phase, r.dirty = placeSent, 0
			if all > 1 || n.subs[i] > 0 {
				r.subscribed = 1
				n.subs[i] = max(n.subs[i], subscribed)
			}
			return "queues"
		}, "run %d's claim is answered, refused", r.born)
	case placeStored:
		do(step, func(n *modeState) string {
			x := &n.runs[i][slot]
			x.phase = inQueue
			if x.subscribed == 1 {
				n.subs[i] = confirmed
			}
			c.sees(n, i)
			if len(c.members(n, i, slot, waits)) == 0 {
				n.drop(i, slot)
				return "nobody waits: it is deleted"
			}
			return "and the queue listed"
		}, "run %d's place is answered", r.born)
	case inQueue:
		c.claims(s, i, slot, do)
	}
}

// claims is a claim of the gate, or a join, from the queue. A reader waits for earlier
// writers only.
func (c *modeScope) claims(s modeState, i, slot int8, do modeStep) {
	r := s.runs[i][slot]
	if s.gate != none || len(c.members(&s, i, slot, waits)) == 0 {
		return
	}
	for k := range s.runs {
		for _, o := range s.runs[k] {
			if o.queued() && o.ticket < r.ticket && s.dead[k] == 0 && r.writes+o.writes > 0 {
				return
			}
		}
	}
	do(step, func(n *modeState) string { c.takes(n, i, slot, attemptStored); return "claims" }, "run %d", r.born)
}

// answered is the answer to the first write of client i: writes stored in the meantime
// may have been missed.
func (c *modeScope) answered(n *modeState, i int8) {
	for k := range n.runs {
		for l := range n.runs[k] {
			if r := &n.runs[k][l]; r.news[i] == early {
				r.news[i] = missed
			}
		}
	}
	if n.gateNews[i] == early {
		n.gateNews[i] = missed
	}
}

// grants is the answer to a claim. Readers are inside. A writer waits for readers.
func (c *modeScope) grants(n *modeState, i, slot int8) string {
	r := &n.runs[i][slot]
	if r.phase == claimStored {
		c.answered(n, i)
	}
	n.gone(i, slot)
	r.phase, r.ticket, r.news, r.served = grantedRun, 0, [3]int8{}, 0
	if c.weak == modeUnproven && r.subscribed == 1 {
		n.subs[i] = confirmed
	}
	if len(c.members(n, i, slot, waits)) == 0 {
		return c.releases(n, i, slot)
	}
	if r.writes == 1 {
		return "it waits for readers"
	}
	return c.serves(n, i, slot)
}

// holder takes the steps of a granted run.
func (c *modeScope) holder(s modeState, i, slot int8, do modeStep) {
	r := s.runs[i][slot]
	if !r.granted() {
		return
	}
	gate := s.gate == broken && s.owner == i && s.slot == slot
	if r.rec == broken || gate {
		do(step, func(n *modeState) string { return c.ended(n, i, slot, true) }, "run %d is notified of the break", r.born)
	}
	if s.ends > 0 {
		do(fault, func(n *modeState) string { n.ends--; return c.ended(n, i, slot, false) }, "run %d's lease is lost", r.born)
	}
	waiting := len(c.members(&s, i, slot, waits)) > 0
	except := int8(-1)
	if c.weak == modeUndrained {
		except = i
	}
	if r.writes == 1 && r.served == 0 && waiting && !c.reads(&s, except) {
		do(step, func(n *modeState) string { return c.serves(n, i, slot) }, "run %d is proven that nobody reads", r.born)
	}
	waiting = waiting && r.phase == idleRun
	if s.subs[i] == effective || waiting {
		do(step, func(n *modeState) string {
			n.subs[i] = confirmed
			c.sees(n, i)
			switch {
			case !waiting:
				return "read"
			case c.recalled(n, i, slot):
				return c.recalls(n, i, slot)
			}
			return c.serves(n, i, slot)
		}, "the queue and the gate are")
	}
	if r.phase != idleRun {
		return
	}
	if c.recalled(&s, i, slot) {
		do(step, func(n *modeState) string { return c.recalls(n, i, slot) }, "run %d's lease is recalled", r.born)
	}
	if !waiting {
		do(fault, func(n *modeState) string { return c.releases(n, i, slot) }, "run %d's lease is idle for long", r.born)
	}
}

// ended is the loss or the break of a lease. All goroutines inside are notified. A broken
// record stays until the last of them has stopped.
func (c *modeScope) ended(n *modeState, i, slot int8, isBroken bool) string {
	r := &n.runs[i][slot]
	if r.firstWrite() {
		c.answered(n, i)
	}
	in := c.members(n, i, slot, inside)
	for _, j := range in {
		if n.g[j].valid = stillStops; !isBroken {
			n.g[j].valid, n.g[j].run = 0, -1
		}
	}
	if did := c.later(n, i, slot); did == "" {
		return ""
	}
	switch {
	case isBroken && len(in) > 0:
		r.phase = stoppingRun
		return "its goroutines stop"
	case c.weak == modeEndedServes && len(in) > 0 && r.writes == 0:
		r.phase, r.rec = stoppingRun, none
		for _, j := range in {
			n.g[j].run = slot
		}
		return "and takes members"
	case r.writes == 1:
		n.gateGone()
	}
	n.drop(i, slot)
	return "it is over"
}

// sees makes the places of other clients and their gate known, as a list and a read show
// them.
func (c *modeScope) sees(n *modeState, i int8) {
	for k := range n.runs {
		for l := range n.runs[k] {
			o := &n.runs[k][l]
			if int8(k) == i || !o.queued() {
				continue
			}
			if o.news[i] != received {
				n.soil(i)
			}
			o.news[i] = received
		}
	}
	if n.gate != none && n.owner != i {
		if n.gateNews[i] != received {
			n.soil(i)
		}
		n.gateNews[i] = received
	}
}

// soil marks the runs of client i whose first writes are unanswered: a stranger's place
// or gate became known since they were opened.
func (s *modeState) soil(i int8) {
	for m := range s.runs[i] {
		if r := &s.runs[i][m]; r.unanswered() {
			r.dirty = 1
		}
	}
}

// learns takes the notifications, lists and reads of the other clients' places and of their
// gate.
func (c *modeScope) learns(s modeState, i int8, do modeStep) {
	if s.subs[i] == 0 {
		return
	}
	for k := range int8(3) {
		for l := range int8(3) {
			if r := s.runs[k][l]; k != i && r.queued() {
				c.learn(s, i, r.news[i], func(n *modeState) *int8 { return &n.runs[k][l].news[i] }, false, do)
			}
		}
	}
	if s.gate != none && s.owner != i {
		c.learn(s, i, s.gateNews[i], func(n *modeState) *int8 { return &n.gateNews[i] }, true, do)
	}
}

// learn is one notification, or the list or the read that repairs it.
func (c *modeScope) learn(s modeState, i, news int8, at func(n *modeState) *int8, gate bool, do modeStep) {
	name := "a place"
	if gate {
		name = "a gate"
	}
	known := func(n *modeState) string {
		*at(n) = received
		n.soil(i)
		return "known"
	}
	switch news {
	case underWay:
		do(step, known, "is notified of %s", name)
		if s.losses > 0 {
			do(fault, func(n *modeState) string { n.losses--; *at(n) = lostNews; return "lost" }, "is not notified of %s", name)
		}
	case lostNews:
		if !gate || c.weak != modeNoRead {
			do(step, known, "lists or reads again, and finds %s", name)
		}
	}
}
