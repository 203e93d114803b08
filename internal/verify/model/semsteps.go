package model

// The steps of the clients in the queue of a semaphore.

type doSem func(k kind, change func(n *semState, w *semWaiter), words string, args ...any)

func (c *semScope) steps(s semState, to *steps[semState]) {
	c.server(s, to)
	for i := range int8(len(c.numbers)) {
		do := func(k kind, change func(n *semState, w *semWaiter), words string, args ...any) {
			n := s
			change(&n, &n.c[i])
			to.do(k, n, "%s: "+words, append([]any{c.who(i)}, args...)...)
		}
		c.trouble(s, i, do)
		if w := s.c[i]; w.claims != 0 && w.answer == 0 {
			do(step, c.checked(i), "the server checks its claim of slot %d", w.claims-1)
		}
		if s.c[i].paused == 0 {
			c.client(s, i, do)
		}
	}
}

// sends is a claim of slot k.
func sends(k int8, early int8) func(n *semState, w *semWaiter) {
	return func(_ *semState, w *semWaiter) {
		bit := int8(1) << k
		w.claims, w.early = k+1, early
		if w.late = 0; w.old&bit != 0 {
			w.late = 1
		}
		w.free, w.old = w.free&^bit, w.old&^bit
	}
}

// client takes what a client does by itself.
func (c *semScope) client(s semState, i int8, do doSem) {
	w := s.c[i]
	if w.claims != 0 {
		c.answered(s, i, do)
		return
	}
	switch w.phase {
	case newcomer:
		c.arrives(s, i, do)
	case queued:
		do(step, c.relist(i), "lists the queue")
		if c.weak == staleQueue {
			do(step, func(n *semState, w *semWaiter) { w.headAtOnce() }, "lists the queue as of a state without its ticket")
		}
	case following, heading:
		c.stands(s, i, do)
	case won:
		if w.evicts != 0 {
			do(step, c.evicts(i), "deletes the place that its slot belonged to")
		}
		do(step, func(n *semState, w *semWaiter) {
			note := wasLeft
			if w.early == 0 || c.weak == semShortcutAny {
				note = wasGranted
			}
			if w.place != 0 {
				n.end(i, note)
			}
			*w = semWaiter{phase: holds, rounds: w.rounds, holds: w.holds}
		}, "leaves its place")
	case holds:
		do(step, func(n *semState, w *semWaiter) {
			n.change(w.holds-1, tombstone)
			if *w = (semWaiter{phase: gone, rounds: w.rounds}); w.rounds > 0 {
				w.phase = newcomer
				w.rounds--
			}
		}, "releases slot %d", w.holds-1)
	}
}

// answered takes the answer to a claim. A refusal does not touch what a notification has
// said of the slot since the claim was sent.
func (c *semScope) answered(s semState, i int8, do doSem) {
	w := s.c[i]
	k := w.claims - 1
	if w.answer == 0 {
		c.givesUp(s, i, do)
	}
	switch {
	case w.answer == semGranted:
		do(step, func(_ *semState, w *semWaiter) {
			if w.claims, w.late, w.answer = 0, 0, 0; w.phase == arriving {
				*w = semWaiter{phase: holds, rounds: w.rounds, holds: w.holds}
				return
			}
			w.leaveSlots()
			w.phase = won
		}, "has slot %d", k)
	case w.answer == semRefused:
		do(step, func(_ *semState, w *semWaiter) {
			w.claims, w.late, w.answer, w.early = 0, 0, 0, 0
			w.evicts, w.read, w.wrongs = 0, 0, 0
			if w.phase == arriving {
				*w = semWaiter{phase: newcomer, rounds: w.rounds}
			}
			if c.weak == semRefusalForgets {
				w.free, w.old = w.free&^(1<<k), w.old&^(1<<k)
			}
		}, "is refused slot %d", k)
	}
	if w.notes&(1<<k) != 0 && w.answer != semGranted {
		c.notified(s, i, k, do)
	}
}

// givesUp is a waiter that leaves its place. Its claim may be on its way: the server stores
// it as a stray one, or never.
func (c *semScope) givesUp(s semState, i int8, do doSem) {
	if s.giveups > 0 && s.c[i].waits() {
		do(fault, func(n *semState, w *semWaiter) {
			n.giveups--
			if w.place != 0 {
				n.end(i, wasLeft)
			}
			*w = semWaiter{phase: gone}
		}, "gives up, and leaves its place")
	}
}

// notified takes the notification of a slot's tombstone.
func (c *semScope) notified(s semState, i, k int8, do doSem) {
	do(step, func(n *semState, w *semWaiter) {
		bit := int8(1) << k
		if w.notes &^= bit; c.able(i)&bit == 0 {
			return // of no use to it now
		}
		w.free |= bit
		if w.old &^= bit; !n.slots[k].isFree() {
			w.old |= bit
		}
	}, "is notified that slot %d is free", k)
}

// arrives takes what a client does that is not queued yet.
func (c *semScope) arrives(s semState, i int8, do doSem) {
	claim := func(k int8, as kind, words string) {
		do(as, func(n *semState, w *semWaiter) {
			if sends(k, 0)(n, w); as == fault {
				n.stale--
			}
			w.phase = arriving
		}, words, k)
	}
	first, _ := c.last(&s, i, everything)
	for k := c.number(i) - 1; k >= 0 && (first < 0 || c.weak == semBlind); k-- {
		if s.slots[k].isFree() {
			claim(k, step, "sees no waiter for slot %d, and claims it")
			break
		}
	}
	for k := range c.number(i) {
		upTo := s.slots[k].freed // as of a state that contains the tombstone
		if s.slots[k].kind != tombstone {
			upTo = 1
		}
		first, _ := c.last(&s, i, upTo)
		if x := s.slots[k]; s.stale > 0 && x.isFree() && first < 0 && (x.kind == tombstone || c.weak == semBehind) {
			claim(k, fault, "sees no waiter for slot %d, by a replica behind, and claims it")
		}
	}
	if c.weak == semBeyond && c.number(i) < maxSlots && s.slots[c.number(i)].isFree() {
		claim(c.number(i), step, "claims slot %d, which its number does not have")
	}
	do(step, func(n *semState, w *semWaiter) {
		w.phase, w.ticket, w.place = queued, n.next, 1
		n.next++
	}, "queues")
}

// claimable are the slots that a read shows as free or overdue.
func (c *semScope) claimable(s *semState) (slots int8) {
	for k, x := range s.slots {
		if x.isFree() || x.kind == overdueLock && c.weak != keptForever {
			slots |= 1 << k
		}
	}
	return slots
}

// reads is a read of all slots, from a state that the leader has named since the
// subscription.
func (c *semScope) reads(i int8) func(n *semState, w *semWaiter) {
	return func(n *semState, w *semWaiter) {
		w.hasRead, w.old, w.lost = 1, 0, 0
		w.free = c.claimable(n) & c.able(i)
		if c.weak == semReadForgets {
			w.free, w.notes = w.free&^w.notes, 0
		}
	}
}

// stands takes what a waiter does at its place.
func (c *semScope) stands(s semState, i int8, do doSem) {
	w := s.c[i]
	if w.place != 1 {
		do(step, func(n *semState, w *semWaiter) {
			*w = semWaiter{phase: queued, ticket: n.next, place: 1, rounds: w.rounds}
			n.next++
		}, "sees that its place has ended, and queues again")
		return
	}
	c.givesUp(s, i, do)
	switch {
	case w.note == wasGranted:
		do(step, func(_ *semState, w *semWaiter) { w.headAtOnce() }, "sees that the waiter before it was granted as the first: is first")
	case w.note != nothing:
		do(step, c.relist(i), "lists the queue again, its predecessor has gone")
		if c.weak == semPlaceBehind {
			do(step, func(_ *semState, w *semWaiter) { w.note = nothing }, "reads the place before it as it was before the notification")
		}
	}
	if w.phase == heading {
		c.heads(s, i, do)
	}
	if c.weak == noBackstop || c.untimed {
		return
	}
	if w.follows != 0 && w.note == nothing {
		switch p := s.c[w.follows-1]; {
		case p.place == 0 || p.ticket != w.behind:
			do(step, c.relist(i), "lists the queue again, by its timer")
		case p.place == latePlace && c.weak != overduePlaceKept:
			do(step, func(n *semState, w *semWaiter) {
				n.end(w.follows-1, wasLeft)
				n.c[w.follows-1].place = 0
			}, "deletes the overdue place before it, by its timer")
		}
	}
	if w.phase == heading && w.hasRead == 1 && c.claimable(&s)&c.able(i)&^(w.free&^w.old) != 0 {
		do(step, c.reads(i), "reads the slots again, by its timer")
	}
	c.passing(s, i, do)
}

// heads takes what the first waiter does.
func (c *semScope) heads(s semState, i int8, do doSem) {
	w := s.c[i]
	for k := range int8(maxSlots) {
		if bit := int8(1) << k; w.notes&bit != 0 {
			c.notified(s, i, k, do)
		}
	}
	if w.subscribed == 0 {
		if c.weak == semReadFirst && w.hasRead == 0 {
			do(step, c.reads(i), "reads the slots")
			return
		}
		do(step, func(_ *semState, w *semWaiter) { w.subscribed = 1 }, "subscribes to the slots")
		return
	}
	if w.hasRead == 0 {
		do(step, c.reads(i), "reads the slots")
		if c.weak == semReadBehind {
			do(step, func(_ *semState, w *semWaiter) { w.hasRead = 1 }, "reads the slots as they were before its subscription")
		}
		return
	}
	for k := range int8(maxSlots) {
		if w.free&c.able(i)&(1<<k) != 0 {
			do(step, sends(k, 0), "claims slot %d", k)
		}
	}
}
