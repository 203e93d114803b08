package model

// The server in the queue of a semaphore, and the faults of clients and messages.

// server removes records, without a notification, and stores claims late.
func (c *semScope) server(s semState, to *steps[semState]) {
	for k := range int8(maxSlots) {
		do := func(as kind, becomes int8, words string) {
			n := s
			n.change(k, becomes)
			if becomes != tombstone && becomes != strayed {
				n.slots[k].quiet = 1
			}
			to.do(as, n, "server: "+words, k)
		}
		removal := step
		if c.forgets {
			removal = fault
		}
		x := s.slots[k]
		if s.strays > 0 && x.isFree() {
			n := s
			n.strays--
			n.change(k, strayed)
			to.do(fault, n, "server: stores a claim of slot %d that its client has given up", k)
		}
		if x.kind == strayed {
			do(fault, tombstone, "stores the deletion of the claim of slot %d that was given up")
		}
		if c.acts(&s) {
			continue
		}
		switch x.kind {
		case tombstone:
			n := s
			n.change(k, none)
			n.slots[k].freed, n.slots[k].quiet = 0, x.quiet // no client has acted for a second
			to.do(removal, n, "server: removes the tombstone of slot %d: no client has acted for a second", k)
		case overdueLock:
			do(removal, none, "removes the overdue record of slot %d")
		case strayed:
			do(step, c.over(), "the claim of slot %d that was given up has ended")
		}
	}
}

// over is the state of a slot when the TTL of its record has ended.
func (c *semScope) over() int8 {
	if c.forgets {
		return overdueLock
	}
	return none
}

// trouble takes the faults of a client.
func (c *semScope) trouble(s semState, i int8, do doSem) {
	w := s.c[i]
	if w.paused == 1 {
		do(step, func(_ *semState, w *semWaiter) { w.paused = 0 }, "goes on")
	}
	if w.place == 1 && w.waits() && (w.paused == 1 || s.expires > 0) {
		do(fault, func(n *semState, w *semWaiter) {
			if w.paused == 0 {
				n.expires--
			}
			n.end(i, nothing)
			w.place = 0
		}, "its place expires while it lives, without a notification")
	}
	if s.crashes > 0 && w.phase > newcomer && w.phase != gone && w.phase != dead {
		do(fault, func(n *semState, w *semWaiter) {
			n.crashes--
			*w = semWaiter{phase: dead, ticket: w.ticket, place: w.place, holds: w.holds}
		}, "crashes")
	}
	if s.pauses > 0 && w.paused == 0 && w.waits() {
		do(fault, func(n *semState, w *semWaiter) { n.pauses--; w.paused = 1 }, "is paused")
	}
	if s.losses > 0 && w.note != nothing {
		do(fault, func(n *semState, w *semWaiter) { n.losses--; w.note, w.unnotified = nothing, 1 }, "does not get a notification of the queue")
	}
	for k := range int8(maxSlots) {
		if s.losses > 0 && w.notes&(1<<k) != 0 {
			do(fault, func(n *semState, w *semWaiter) { n.losses--; w.notes &^= 1 << k; w.lost |= 1 << k }, "does not get the notification of slot %d", k)
		}
	}
	if w.phase != dead {
		return
	}
	if w.place == 1 {
		do(step, func(n *semState, w *semWaiter) {
			n.end(i, nothing)
			if w.place = 0; c.forgets {
				w.place = latePlace
			}
		}, "its place expires, without a notification")
	}
	if w.holds != 0 && !c.acts(&s) {
		do(step, func(n *semState, w *semWaiter) {
			n.change(w.holds-1, c.over())
			n.slots[w.holds-1].quiet = 1
			w.holds = 0
		}, "its lease expires, without a notification")
	}
}

// checked has the server check the claim of i, and store it or refuse it.
func (c *semScope) checked(i int8) func(n *semState, w *semWaiter) {
	return func(n *semState, w *semWaiter) {
		k := w.claims - 1
		bit := int8(1) << k
		if w.late == 1 && c.weak != semUnconditional {
			if w.answer = semRefused; n.slots[k].isFree() { // the refusal says so
				w.free, w.old = w.free|bit, w.old&^bit
			}
			return
		}
		if w.early == 0 && c.passes(n, i, k) {
			n.wrong = 1
		}
		if n.slots[k].kind == held {
			n.wrong = 2
		}
		w.answer = semGranted
		n.change(k, held)
		w.holds = k + 1
	}
}
