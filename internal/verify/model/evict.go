package model

// A waiter that gets the lock out of turn deletes the place of the waiter at the head of the
// queue, which was entitled to the free lock but did not take it. The deleting waiter's own
// grant proves that the head was not about to take the lock: while a running client is about
// to do so, no other waiter sees the lock free for 1.2 s.
//
// The deletion is a separate step after the grant. The waiter reads the place before it claims
// the lock, and the deletion expects the revision that it read, which in this model is the
// ticket. A place that its owner has written since that read is therefore kept. Between the
// grant and the deletion, the head may carry on and consider itself first until it looks for
// its place, so for a moment two waiters can be first.
//
// A head whose read and claim take longer than those 1.2 s is modeled as paused, because only
// running waiters are entitled to their places.

const keepsPlace = "a running waiter that is not passed keeps its place"

// entitled reports whether client i is waiting and running, and will act when its turn comes.
func (c *queueScope) entitled(s *queueState, i int8) bool {
	w := s.c[i]
	if w.paused == 1 || w.place != 1 || w.phase < queued || w.phase > first {
		return false
	}
	// The waiter may not have noticed that the place it follows has ended.
	return w.phase != following || w.note != nothing || c.there(s, w)
}

// head returns the client with the earliest place ahead of i's ticket, and that place's ticket.
func (c *queueScope) head(s *queueState, i int8) (who, ticket int8) {
	who, ticket = -1, s.c[i].ticket
	for j := range int8(len(c.modes)) {
		w := s.c[j]
		if w.orphan > 0 && w.orphan < ticket { // even i's own orphan
			who, ticket = j+4, w.orphan
		}
		if j != i && w.place != 0 && w.ticket < ticket {
			who, ticket = j, w.ticket
		}
	}
	return who, ticket
}

// outOfTurn gives i the lock, and marks the head's place for deletion.
func (c *queueScope) outOfTurn(i int8) func(n *queueState, w *waiter) {
	return func(n *queueState, w *waiter) {
		c.marks(n, i)
		c.win(i, false)(n, w)
	}
}

// marks records which place i is going to delete.
func (c *queueScope) marks(n *queueState, i int8) {
	w := &n.c[i]
	who, ticket := c.head(n, i)
	if c.weak == evictsBehind {
		if who = w.follows; who >= 0 {
			ticket = w.behind
		}
	}
	if who < 0 {
		return
	}
	w.evicts, w.read, w.wrongs = who+1, ticket, 0
	if who < 4 && c.entitled(n, who) {
		w.wrongs = 1
	}
}

// evicts makes i delete the place that it has marked.
func (c *queueScope) evicts(i int8) func(n *queueState, w *waiter) {
	return func(n *queueState, w *waiter) {
		who, ticket, wrong := w.evicts-1, w.read, w.wrongs
		w.evicts, w.read, w.wrongs = 0, 0, 0
		p := &n.c[who%4]
		if who >= 4 {
			if p.orphan == ticket {
				p.orphan = 0
				n.end(who, wasLeft)
			}
			return
		}
		if p.place == 0 || p.ticket != ticket && c.weak != evictsAnyRevision {
			return // refused
		}
		if p.ticket != ticket && c.entitled(n, who) {
			wrong = 1
		}
		if n.end(who, wasLeft); wrong == 1 {
			n.wrong = 3
		}
		p.place, p.key = 0, 0
	}
}

// passing takes the steps of a waiter that sees a free lock without being first, and of a
// client that got the lock that way.
func (c *queueScope) passing(s queueState, i int8, do doStep) {
	w := s.c[i]
	free := s.lock == none || s.lock == tombstone
	if c.weak == evictsUngranted && w.evicts == 0 {
		do(step, func(n *queueState, w *waiter) { c.marks(n, i) }, "takes the lock for free, from an old read")
	}
	if c.weak == windowOverGap && free && w.idle == 0 {
		do(step, func(_ *queueState, w *waiter) { w.idle = 1 }, "reads that the lock is free")
	}
	switch {
	case !free:
	case !c.acts(&s) && !c.prompt:
		do(step, c.outOfTurn(i), "takes the lock out of turn, having seen it free for 1.2 s")
	case c.weak == evictsAtOnce:
		do(step, c.outOfTurn(i), "takes the lock out of turn, having read it once")
	case c.weak == windowOverGap && w.idle == 1:
		do(step, c.outOfTurn(i), "takes the lock out of turn, having read it twice, a long time apart")
	}
}

// settled reports whether the place that w has marked has ended for good.
func (c *queueScope) settled(s *queueState, w *waiter) bool {
	p := &s.c[(w.evicts-1)%4]
	if w.evicts > 4 {
		return p.orphan != w.read
	}
	return c.weak != evictsAnyRevision && (p.place == 0 || p.ticket != w.read) && s.revives == 0
}
