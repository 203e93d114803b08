package model

import (
	"fmt"
	"strings"
)

// queueScope limits how much of a queue is explored, and selects the rule to leave out, if any.
// Taking the lock is a single step, because the other models cover holders. Time is abstract: a
// running client acts within a second on what it knows.
type queueScope struct {
	name    string
	modes   string // one letter per client: M mutex, R reader, W writer
	crashes int8
	losses  int8 // lost notifications
	pauses  int8 // clients that are paused for a while
	expires int8 // places that end while their waiters live
	orphans int8 // places whose answer is lost, so that the waiter queues again
	rounds  int8 // how many times each client takes the lock again
	stale   int8 // lists of the queue that a lagging replica may return
	prompt  bool // no client takes the lock out of turn, yet all get in
	forgets bool // the server removes neither ended places nor a dead holder's lock
	revives int8 // restarts that bring back an ended place
	weak    weakness
}

// The phases of a waiter.
const (
	newcomer int8 = iota
	queued        // has a ticket but has not listed the queue
	following
	first
	won // has the lock, and still has its place
	holds
	gone
	dead
)

// The notifications to a waiter.
const (
	nothing     int8 = iota
	wasGranted       // the predecessor's tombstone says that it was granted the lock with no place at all ahead of it
	wasLeft          // the predecessor's place has ended in some other way
	lockChanged      // the lock has a tombstone
)

type waiter struct {
	phase, ticket, place int8
	follows              int8 // the client ahead of it; +4 for that client's orphan
	behind               int8 // the ticket of the place that it follows
	note                 int8
	key                  int8 // 1 if it left its last place voluntarily, and may queue again under the same key
	again                int8 // 1 if it has queued again under the same key
	paused               int8
	next                 int8 // 1 if there is no place at all between the followed place and its own, or none ahead of its own if it is first
	asFirst              int8 // 1 if there was no place at all ahead of it when it won
	holds                int8
	window               int8 // 1 if it saw the queue empty less than 100 ms ago
	seen                 int8 // the lock's tombstone when it saw the queue empty
	rounds               int8
	orphan               int8 // the ticket of the place whose answer was lost
	past                 int8 // the ticket of its last place to end, which a restart may bring back
	evicts, read         int8 // 1 + the place that it deletes (as in follows), and the ticket that it read there
	wrongs               int8 // 1 if that place's waiter was entitled to it when the lock was taken
	idle                 int8 // for a variant: it has seen the lock free once
}

type queueState struct {
	next                                             int8
	lock                                             int8 // none, held, tombstone or overdue
	freed                                            int8 // the tombstone's revision
	crashes, losses, pauses, expires, orphans, stale int8
	revives                                          int8
	c                                                [4]waiter
	wrong                                            int8
}

const fifo = "a running waiter is not passed"

func (c *queueScope) system() system[queueState] {
	s := queueState{next: 1, crashes: c.crashes, losses: c.losses, pauses: c.pauses, expires: c.expires, orphans: c.orphans, stale: c.stale, revives: c.revives}
	for i := range s.c {
		s.c[i].rounds = c.rounds
		if i >= len(c.modes) {
			s.c[i] = waiter{phase: gone}
		}
	}
	return system[queueState]{
		name: c.name, init: s, next: c.steps, records: c.records,
		broken: func(s queueState) string { return [...]string{"", fifo, exclusion, keepsPlace}[s.wrong] },
		goal: func(s queueState) bool {
			for _, w := range s.c {
				if w.phase != gone && w.phase != dead {
					return false
				}
			}
			return true
		},
		canon: func(s *queueState) {
			revs := []*int8{&s.freed}
			if s.lock != tombstone {
				s.freed = 0
			}
			for i := range s.c {
				w := &s.c[i]
				if w.window == 0 {
					w.seen = 0
				}
				if w.place == 0 && w.phase != queued && w.phase != following && w.phase != first {
					w.ticket = 0
				}
				if w.phase != following {
					if w.behind = 0; w.phase != first {
						w.next = 0
					}
				}
				if w.place == 0 || c.weak != placeBelieved {
					w.again = 0
				}
				if w.phase == gone || w.phase == dead {
					w.key = 0
				}
				if s.revives == 0 {
					w.past = 0
				}
				if w.evicts != 0 && c.settled(s, w) {
					w.evicts, w.read, w.wrongs = 0, 0, 0
				}
				revs = append(revs, &w.ticket, &w.orphan, &w.seen, &w.behind, &w.past, &w.read)
			}
			s.next = renumber(revs...)
		},
	}
}

func (c *queueScope) rw() bool          { return c.modes[0] != 'M' }
func (c *queueScope) reads(i int8) bool { return c.modes[i] == 'R' }

// acts reports whether some running client is about to take the lock.
func (c *queueScope) acts(s *queueState) bool {
	for _, w := range s.c {
		if w.paused == 0 && (w.phase == queued || w.phase == first || w.phase == won && w.place == 1 || w.phase == following && (w.note != nothing || w.place != 1)) {
			return true
		}
	}
	return false
}

// predecessor returns the client that i has to follow, or -1, in a queue that contains only
// tickets below upTo. next is true if there is no place at all between the two.
func (c *queueScope) predecessor(s *queueState, i, upTo int8) (follows int8, next bool) {
	follows = c.last(s, i, upTo, true)
	return follows, follows == c.last(s, i, upTo, false)
}

// last returns the last place ahead of i, counting only the places that i has to wait for if
// blocking is true.
func (c *queueScope) last(s *queueState, i, upTo int8, blocking bool) (follows int8) {
	follows, latest := int8(-1), int8(0)
	me := s.c[i]
	for j := range int8(len(c.modes)) {
		w := s.c[j]
		if blocking && c.rw() && c.reads(i) && c.reads(j) && me.ticket != 0 {
			continue // a reader waits only for earlier writers
		}
		before := func(ticket int8) bool {
			return ticket > latest && ticket < upTo && (me.ticket == 0 || ticket < me.ticket)
		}
		if w.orphan > 0 && before(w.orphan) && j != i {
			follows, latest = j+4, w.orphan
		}
		if j != i && w.place != 0 && before(w.ticket) {
			follows, latest = j, w.ticket
		}
	}
	return follows
}

// passes reports whether i overtakes a running waiter. A newcomer, which has no place,
// overtakes a waiter whose place is older than the lock's tombstone.
func (c *queueScope) passes(s *queueState, i int8) bool {
	me := s.c[i]
	for j := range int8(len(c.modes)) {
		w := s.c[j]
		if j == i || w.place != 1 || w.paused == 1 || w.phase < queued || w.phase > first || c.rw() && c.reads(i) && c.reads(j) {
			continue
		}
		if me.phase == newcomer && w.ticket < me.seen || me.phase != newcomer && w.ticket < me.ticket {
			return true
		}
	}
	return false
}

func (c *queueScope) steps(s queueState, to *steps[queueState]) {
	if (s.lock == tombstone || s.lock == overdueLock) && !c.acts(&s) {
		n := s
		n.lock = none
		removal := step
		if c.forgets {
			removal = fault
		}
		to.do(removal, n, "server: removes the lock's record: no client has acted for a second")
	}
	for i := range int8(len(c.modes)) {
		do := func(k kind, change func(n *queueState, w *waiter), words string, args ...any) {
			n := s
			change(&n, &n.c[i])
			to.do(k, n, "%s: "+words, append([]any{c.who(i)}, args...)...)
		}
		c.trouble(s, i, do)
		if s.c[i].paused == 0 {
			c.waiter(s, i, do)
		}
	}
}

type doStep func(k kind, change func(n *queueState, w *waiter), words string, args ...any)

// trouble takes the steps that happen to a client.
func (c *queueScope) trouble(s queueState, i int8, do doStep) {
	w := s.c[i]
	waits := w.phase >= queued && w.phase <= first
	if w.orphan > 0 && !c.forgets {
		do(step, func(n *queueState, w *waiter) { n.end(i+4, nothing); w.orphan = 0 }, "its orphan expires, without a notification")
	}
	if w.paused == 1 {
		do(step, func(_ *queueState, w *waiter) { w.paused = 0 }, "resumes")
	}
	if w.place == 1 && waits && (w.paused == 1 || s.expires > 0) {
		do(fault, func(n *queueState, w *waiter) {
			if w.paused == 0 {
				n.expires--
			}
			w.place, w.key = c.ended(), 0
		}, "its place expires while it lives, without a notification")
	}
	if s.crashes > 0 && w.phase > newcomer && w.phase < gone {
		do(fault, func(n *queueState, w *waiter) {
			n.crashes--
			*w = waiter{phase: dead, ticket: w.ticket, place: w.place, holds: w.holds, orphan: w.orphan, past: w.past}
		}, "crashes")
	}
	if s.pauses > 0 && w.paused == 0 && waits {
		do(fault, func(n *queueState, w *waiter) { n.pauses--; w.paused = 1 }, "is paused")
	}
	if s.losses > 0 && w.note != nothing {
		do(fault, func(n *queueState, w *waiter) { n.losses--; w.note = nothing }, "does not get a notification")
	}
	c.comesBack(s, i, do)
	if w.phase == dead && w.place == 1 {
		do(step, func(n *queueState, w *waiter) { w.place = c.ended() }, "its place expires, without a notification")
	}
	if w.phase == dead && w.holds == 1 {
		do(step, func(n *queueState, w *waiter) {
			if w.holds = 0; !c.reads(i) {
				if n.lock = none; c.forgets {
					n.lock = overdueLock
				}
			}
		}, "its lock expires, without a notification")
	}
}

// end notifies a place's followers that the place has ended.
func (s *queueState) end(who, note int8) {
	for j := range s.c {
		if w := &s.c[j]; w.phase == following && w.follows == who && note != nothing {
			w.note = note
		}
	}
}

// win gives i the lock.
func (c *queueScope) win(i int8, ordinary bool) func(n *queueState, w *waiter) {
	return func(n *queueState, w *waiter) {
		if ordinary && c.passes(n, i) {
			n.wrong = 1
		}
		w.asFirst = 0
		if w.phase == first && (w.next == 1 || c.weak == readersBefore) {
			w.asFirst = 1
		}
		if !c.reads(i) {
			if n.lock == held {
				n.wrong = 2
			}
			n.lock = held
		}
		w.phase, w.note, w.holds = won, nothing, 1
	}
}

// relist makes a waiter list the queue and follow the place ahead of its own.
func (c *queueScope) relist(i, upTo int8) func(n *queueState, w *waiter) {
	return func(n *queueState, w *waiter) {
		w.note, w.orphan = nothing, 0 // the list shows the waiter's own orphan, which it deletes
		follows, next := c.predecessor(n, i, upTo)
		if w.next = 0; next {
			w.next = 1
		}
		if w.follows = follows; follows >= 0 {
			w.phase = following
			if w.behind = n.c[w.follows%4].ticket; w.follows >= 4 {
				w.behind = n.c[w.follows-4].orphan
			}
			return
		}
		w.phase, w.follows = first, 0
	}
}

const everything = 127

func enqueue(n *queueState, w *waiter) {
	if w.place == latePlace && w.orphan == 0 {
		w.orphan = w.ticket // it is still stored under its own key
	}
	w.phase, w.ticket, w.place, w.note, w.window, w.key, w.again = queued, n.next, 1, nothing, 0, 0, 0
	n.next++
}

// enqueueAgain queues under the key of the client's last place. A waiter that still follows the
// old place is notified of the new place, but not of any earlier change.
func (c *queueScope) enqueueAgain(i int8) func(n *queueState, w *waiter) {
	return func(n *queueState, w *waiter) {
		enqueue(n, w)
		w.again = 1
		note := wasLeft
		if c.weak == placeBelieved {
			note = nothing
		}
		for j := range n.c {
			if f := &n.c[j]; f.phase == following && f.follows == i {
				f.note = note
			}
		}
	}
}

// there reports whether a waiter whose timer fires still finds the place that it follows.
func (c *queueScope) there(s *queueState, w waiter) bool {
	if w.follows >= 4 {
		return s.c[w.follows-4].orphan == w.behind
	}
	p := s.c[w.follows]
	return p.place == 1 && (p.ticket == w.behind || p.again == 1 && c.weak == placeBelieved)
}

// waiter takes every step that client i can take on its own.
func (c *queueScope) waiter(s queueState, i int8, do doStep) {
	w := s.c[i]
	switch w.phase {
	case newcomer:
		c.arrives(s, i, do)
	case queued:
		do(step, c.relist(i, everything), "lists the queue")
		if c.weak == staleQueue {
			do(step, c.relist(i, 1), "lists the queue as of a state without its ticket")
		}
	case following, first:
		if w.place != 1 {
			do(step, enqueue, "sees that its place has ended, and queues again")
		}
		if c.weak == evictsUngranted && w.evicts != 0 {
			do(step, c.evicts(i), "deletes the head's place without a grant")
		}
		if w.phase == first {
			c.buryLock(s, do)
			if s.lock == none || s.lock == tombstone {
				do(step, c.win(i, true), "takes the lock, being first")
			}
			return
		}
		switch {
		case w.note == wasGranted:
			do(step, func(n *queueState, w *waiter) { w.phase, w.note, w.follows = first, nothing, 0 }, "sees that the waiter ahead of it was granted: is first")
		case w.note != nothing:
			do(step, c.relist(i, everything), "lists the queue again: the place ahead of its own has ended")
		}
		if c.weak != noBackstop {
			if !c.there(&s, w) {
				do(step, c.relist(i, everything), "lists the queue again, by its timer")
			}
			c.bury(s, w, do)
			c.buryLock(s, do)
			c.passing(s, i, do)
		}
	case won:
		if w.evicts != 0 {
			do(step, c.evicts(i), "deletes the place of the head, which left the lock free")
		}
		do(step, func(n *queueState, w *waiter) {
			note := wasLeft
			if w.asFirst == 1 {
				note = wasGranted
			}
			if w.place != 0 {
				n.end(i, note)
				w.past = w.ticket
			}
			w.phase, w.key, w.place, w.asFirst = holds, w.place%latePlace, 0, 0
			w.evicts, w.read, w.wrongs, w.idle = 0, 0, 0, 0
		}, "leaves its place")
	case holds:
		c.leaves(s, i, do)
	}
}

// arrives takes the steps of a client that has not queued yet.
func (c *queueScope) arrives(s queueState, i int8, do doStep) {
	w := s.c[i]
	if w.window == 1 {
		do(step, func(_ *queueState, w *waiter) { w.window = 0 }, "100 ms have passed since it saw the queue empty")
	}
	switch {
	case s.lock == none:
		do(step, c.win(i, false), "takes the lock at once: there is no record")
		return
	case s.lock == tombstone && w.window == 1:
		do(step, c.win(i, true), "takes the lock at its tombstone")
		return
	case s.lock == tombstone && c.weak == newcomerJoins && c.reads(i):
		do(step, func(n *queueState, w *waiter) { w.seen = everything; c.win(i, true)(n, w) }, "joins at the tombstone without listing the queue")
		return
	case s.lock == tombstone:
		sees := func(k kind, upTo int8, words string) {
			n := s
			if follows, _ := c.predecessor(&n, i, upTo); follows < 0 {
				do(k, func(n *queueState, w *waiter) {
					w.window, w.seen = 1, n.freed
					if k == fault {
						n.stale--
					}
				}, words)
			}
		}
		sees(step, everything, "sees an empty queue")
		if s.stale > 0 {
			upTo := s.freed // a state that contains the tombstone
			if c.weak == newcomerSeesOld {
				upTo = 1
			}
			sees(fault, upTo, "sees an empty queue, from a lagging replica")
		}
	}
	do(step, enqueue, "queues")
	if w.key == 1 {
		do(step, c.enqueueAgain(i), "queues under the key of its last place")
	}
	if s.orphans > 0 && w.orphan == 0 {
		do(fault, func(n *queueState, w *waiter) {
			n.orphans--
			w.orphan, w.key = n.next, 0
			n.next++
		}, "queues, gets no answer, and will queue under another id")
	}
}

func (c *queueScope) leaves(s queueState, i int8, do doStep) {
	if !c.reads(i) {
		for j := range s.c {
			if int8(j) != i && s.c[j].holds == 1 && c.modes[j] == 'R' {
				return // the lock still has readers to drain
			}
		}
	}
	do(step, func(n *queueState, w *waiter) {
		if !c.reads(i) {
			n.lock, n.freed = tombstone, n.next
			n.next++
			for j := range n.c {
				if n.c[j].phase == first {
					n.c[j].note = lockChanged
				}
			}
		}
		*w = waiter{phase: gone, rounds: w.rounds, orphan: w.orphan, window: w.window, seen: w.seen, key: w.key, past: w.past}
		if w.rounds > 0 {
			w.phase = newcomer
			w.rounds--
		} else {
			w.window = 0
		}
	}, "leaves")
}

func (c *queueScope) who(i int8) string {
	return fmt.Sprintf("%c%d", c.modes[i], i+1)
}

func (c *queueScope) records(s queueState) string {
	var b strings.Builder
	b.WriteString("lock: " + [...]string{none: "none", held: "held", tombstone: fmt.Sprintf("tombstone #%d", s.freed), overdueLock: "overdue"}[s.lock] + "; queue:")
	for i, w := range s.c {
		if w.place != 0 {
			fmt.Fprintf(&b, " %s#%d%s", c.who(int8(i)), w.ticket, [...]string{"", "", " overdue"}[w.place])
		}
		if w.orphan > 0 {
			fmt.Fprintf(&b, " orphan of %s#%d", c.who(int8(i)), w.orphan)
		}
	}
	return b.String()
}
