package model

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// partScope is a queue that waiters read in parts. A part may start anywhere and have any length,
// so the scope covers more parts than clients request. The actors are places in ticket order: a
// waiter whose place has ended comes back as a later place.
type partScope struct {
	name     string
	modes    string // one letter per place: M mutex, R reader, W writer
	renewals int8   // renewals of places, each of which raises a place's revision
	writes   int8   // writes to other keys, each of which uses up a ticket
	quits    int8   // waiters that delete their places
	crashes  int8
	losses   int8 // lost notifications
	lags     int8 // how many times a replica stops applying writes, so that its lists become stale
	weak     weakness
}

// The states of a place in a queue that is read in parts.
const (
	unwritten int8 = iota
	inQueue
	grantedFirst // its tombstone says that it was granted the lock with no place at all ahead of it
	ended        // it has some other tombstone, or no longer has one
)

type partWaiter struct {
	phase, place int8
	ticket, rev  int8 // the revisions of its first and last writes
	follows      int8 // 1 + the place that it waits for
	sure         int8 // 1 if no place between the followed one and its own blocks it
	next         int8 // 1 if there is no place at all between the two, or none ahead of its own if it is first
	known        int8 // a bit set of the places that it rereads
	all          int8 // 1 if no other place is left ahead of its own
	note         int8
	passing      int8 // 1 if it takes the lock out of turn
}

type partState struct {
	next                                           int8
	renewals, writes, quits, crashes, losses, lags int8
	lagging                                        int8    // 1 if a replica has stopped applying writes
	old                                            [5]int8 // the places' revisions when the replica stopped; 0 if none
	c                                              [5]partWaiter
	wrong                                          int8
}

func (c *partScope) system() system[partState] {
	return system[partState]{
		name:    c.name,
		init:    partState{next: 1, renewals: c.renewals, writes: c.writes, quits: c.quits, crashes: c.crashes, losses: c.losses, lags: c.lags},
		next:    c.steps,
		records: c.records,
		broken:  func(s partState) string { return [...]string{"", fifo}[s.wrong] },
		goal: func(s partState) bool {
			for _, w := range s.c[:len(c.modes)] {
				if w.phase != gone && w.phase != dead {
					return false
				}
			}
			return true
		},
		canon: func(s *partState) {
			if !slices.ContainsFunc(s.c[:len(c.modes)], func(w partWaiter) bool { return w.phase <= following }) {
				s.lagging, s.old = 0, [5]int8{} // no waiter will read again
			}
			for i := range s.c {
				if w := &s.c[i]; w.place != inQueue {
					if w.rev = 0; s.old[i] == 0 {
						w.ticket = 0
					}
				}
			}
		},
	}
}

func (c *partScope) reads(i int) bool { return c.modes[i] == 'R' }

// blocks reports whether place i waits for place j, which is ahead of it.
func (c *partScope) blocks(j, i int) bool { return !c.reads(i) || !c.reads(j) }

// free reports whether a waiter finds the lock free. Readers share the lock, and a writer waits for
// the readers later.
func (c *partScope) free(s *partState) bool {
	for i, w := range s.c[:len(c.modes)] {
		if (w.phase == won || w.phase == holds) && !c.reads(i) {
			return false
		}
	}
	return true
}

func (w *partWaiter) runs() bool { return w.phase >= queued && w.phase <= first }

type doPart func(k kind, change func(n *partState, w *partWaiter), words string, args ...any)

func (c *partScope) steps(s partState, to *steps[partState]) {
	if s.writes > 0 {
		n := s
		n.writes--
		n.next++
		to.do(step, n, "another client: writes to another key")
	}
	if s.lags > 0 {
		n := s
		n.lags--
		n.lagging, n.old = 1, s.revisions()
		to.do(fault, n, "a replica: stops applying writes")
	}
	for i := range c.modes {
		w := s.c[i]
		do := func(k kind, change func(n *partState, w *partWaiter), words string, args ...any) {
			n := s
			change(&n, &n.c[i])
			to.do(k, n, "%s: "+words, append([]any{c.who(i)}, args...)...)
		}
		c.trouble(&s, i, do)
		switch w.phase {
		case newcomer:
			if i == 0 || s.c[i-1].phase != newcomer {
				do(step, func(n *partState, w *partWaiter) {
					w.phase, w.place, w.ticket, w.rev = queued, inQueue, n.next, n.next
					n.next++
				}, "queues")
			}
		case queued:
			c.lists(&s, i, s.revisions(), "", do)
			if s.lagging == 1 {
				c.lists(&s, i, s.old, ", from the lagging replica", do)
			}
		case following:
			c.waits(&s, i, do)
		case first:
			if c.free(&s) {
				do(step, func(n *partState, w *partWaiter) {
					for j := range i {
						if o := &n.c[j]; o.place == inQueue && o.runs() && c.blocks(j, i) {
							n.wrong = 1
						}
					}
					w.phase = won
				}, "takes the lock, being first")
			}
		case won:
			do(step, func(n *partState, w *partWaiter) {
				w.phase, w.place = holds, ended
				if w.next == 1 || w.passing == 0 && c.weak == readersBefore {
					w.place = grantedFirst
				}
				n.notify(i)
				w.next, w.passing = 0, 0
			}, "leaves its place")
		case holds:
			s.c[i].phase = gone
			if c.reads(i) || !slices.ContainsFunc(s.c[:], func(w partWaiter) bool { return w.phase == won || w.phase == holds }) {
				do(step, func(_ *partState, w *partWaiter) { w.phase = gone }, "leaves")
			}
		}
	}
}

// trouble takes the steps that happen to a place or its waiter.
func (c *partScope) trouble(s *partState, i int, do doPart) {
	w := s.c[i]
	if w.runs() {
		if s.renewals > 0 {
			do(step, func(n *partState, w *partWaiter) {
				n.renewals--
				w.rev = n.next
				n.next++
			}, "renews its place")
		}
		if s.quits > 0 {
			do(fault, func(n *partState, w *partWaiter) {
				n.quits--
				*w = partWaiter{phase: gone, place: ended, ticket: w.ticket}
				n.notify(i)
			}, "gives up")
		}
	}
	if s.crashes > 0 && w.phase >= queued && w.phase < gone {
		do(fault, func(n *partState, w *partWaiter) {
			n.crashes--
			*w = partWaiter{phase: dead, place: w.place, ticket: w.ticket, rev: w.rev}
		}, "crashes, and its lock ends")
	}
	if w.phase == dead && w.place == inQueue {
		do(step, func(_ *partState, w *partWaiter) { w.place = ended }, "its place expires, without a notification")
	}
	if w.place == grantedFirst {
		do(step, func(_ *partState, w *partWaiter) { w.place = ended }, "its tombstone is removed, or the key is used again")
	}
	if s.losses > 0 && w.note != nothing {
		do(fault, func(n *partState, w *partWaiter) { n.losses--; w.note = nothing }, "does not get a notification")
	}
}

// notify tells the waiters that follow place i how it ended.
func (s *partState) notify(i int) {
	for j := range s.c {
		if w := &s.c[j]; w.phase == following && int(w.follows) == i+1 {
			w.note = wasLeft
			if s.c[i].place == grantedFirst {
				w.note = wasGranted
			}
		}
	}
}

// revisions returns the revisions of the places in the queue.
func (s *partState) revisions() (revs [5]int8) {
	for j, w := range s.c {
		if w.place == inQueue {
			revs[j] = w.rev
		}
	}
	return revs
}

// part returns the first n places in revision order, starting at revision from. cut reports whether
// more places follow.
func part(revs [5]int8, from int8, n int) (shown []int, cut bool) {
	for j, rev := range revs {
		if rev >= from {
			shown = append(shown, j)
		}
	}
	slices.SortFunc(shown, func(a, b int) int { return cmp.Compare(revs[a], revs[b]) })
	if cut = n < len(shown); cut {
		shown = shown[:n]
	}
	slices.Sort(shown)
	return shown, cut
}

// lists reads every list that a waiter could get from a state. A list that was not cut off shows
// the waiter's own place. A part that shows no place to wait for changes nothing, so the waiter
// reads again.
func (c *partScope) lists(s *partState, i int, revs [5]int8, where string, do doPart) {
	for from := int8(1); from <= s.c[i].ticket; from++ {
		for n := 1; n <= len(c.modes); n++ {
			shown, cut := part(revs, from, n)
			if cut || revs[i] != 0 {
				c.readsPart(s, i, shown, from, cut, fmt.Sprintf("reads %d places from #%d on%s", n, from, where), do)
			}
			if !cut {
				break
			}
		}
	}
	if revs[i] != 0 {
		do(step, func(n *partState, w *partWaiter) {
			for j, rev := range revs[:i] {
				if rev != 0 {
					w.known |= 1 << j
				}
			}
			w.all = 1
			c.judge(n, i)
		}, "lists the whole queue%s", where)
	}
}

func (c *partScope) readsPart(s *partState, i int, shown []int, from int8, cut bool, words string, do doPart) {
	own := slices.Contains(shown, i)
	shown = slices.DeleteFunc(shown, func(j int) bool { return j >= i })
	if c.weak == partFromBeginning && !slices.ContainsFunc(shown, func(j int) bool { return c.blocks(j, i) }) {
		do(step, func(_ *partState, w *partWaiter) { w.phase = first }, "%s, and sees no waiter ahead of it", words)
	}
	for at := len(shown) - 1; at >= 0; at-- {
		j, right := shown[at], at == len(shown)-1
		if s.c[j].ticket < from || !right && !c.blocks(j, i) {
			continue
		}
		do(step, func(n *partState, w *partWaiter) {
			if w.known = c.kept(n, i, shown, from, cut && !(own && c.weak == partWithGaps)); w.known>>j&1 == 0 {
				w.known = 0
			}
			w.follow(j, w.known != 0, right)
		}, "%s, and follows %s", words, c.who(j))
		if c.blocks(j, i) { // otherwise a reader follows the reader directly ahead of it, or the nearest writer
			break
		}
	}
}

// kept returns the places of a part that a waiter rereads by their keys. No other place lies
// between any of them, or between them and the waiter's own.
func (c *partScope) kept(s *partState, i int, shown []int, from int8, cut bool) (set int8) {
	for at, j := range shown {
		switch ticket := s.c[j].ticket; {
		case ticket < from && c.weak != partBeginBefore:
		case cut && int(s.c[i].ticket-ticket) != len(shown)-at:
		default:
			set |= 1 << j
		}
	}
	return set
}

func (w *partWaiter) follow(j int, sure, next bool) {
	w.phase, w.follows, w.sure, w.next, w.note = following, int8(j)+1, 0, 0, nothing
	if sure {
		w.sure = 1
		if next {
			w.next = 1
		}
	}
}

// judge makes a waiter follow the last place that it knows and has to wait for. If there is none,
// the waiter either is first or has to list the queue.
func (c *partScope) judge(s *partState, i int) {
	w := &s.c[i]
	last := true
	for j := i - 1; j >= 0; j-- {
		switch {
		case w.known>>j&1 == 0:
		case c.blocks(j, i):
			w.follow(j, true, last)
			return
		default:
			last = false
		}
	}
	*w = partWaiter{phase: queued, place: w.place, ticket: w.ticket, rev: w.rev, all: w.all}
	if w.all == 1 || c.weak == knownOnly {
		if w.phase = first; last {
			w.next = 1
		}
	}
	w.all = 0
}

// waits takes the steps of a waiter that follows a place.
func (c *partScope) waits(s *partState, i int, do doPart) {
	w := s.c[i]
	followed := &s.c[w.follows-1]
	if w.note == wasGranted && w.sure == 1 {
		do(step, func(_ *partState, w *partWaiter) {
			*w = partWaiter{phase: first, place: w.place, ticket: w.ticket, rev: w.rev, next: w.next}
		}, "sees that %s was granted, with no place ahead of it: is first", c.who(int(w.follows)-1))
	}
	if w.note != nothing || followed.place != inQueue {
		if w.known != 0 {
			do(step, func(n *partState, w *partWaiter) {
				for j := range i {
					switch place := n.c[j].place; {
					case w.known>>j&1 == 0 || place == inQueue:
					case place == grantedFirst:
						w.all, w.known = 1, w.known>>(j+1)<<(j+1)
					default:
						w.known &^= 1 << j
					}
				}
				c.judge(n, i)
			}, "reads the places that it knows")
		}
		do(step, func(_ *partState, w *partWaiter) {
			*w = partWaiter{phase: queued, place: w.place, ticket: w.ticket, rev: w.rev}
		}, "will list the queue: the place ahead of its own has ended")
	}
	if head := slices.IndexFunc(s.c[:i], func(w partWaiter) bool { return w.place == inQueue }); head >= 0 && s.c[head].phase == dead && c.free(s) {
		do(step, func(_ *partState, w *partWaiter) {
			*w = partWaiter{phase: won, place: w.place, ticket: w.ticket, rev: w.rev, passing: 1}
		}, "takes the lock out of turn: %s left it free", c.who(head))
	}
}

func (c *partScope) who(i int) string { return fmt.Sprintf("%c%d", c.modes[i], i+1) }

func (c *partScope) records(s partState) string {
	var b strings.Builder
	b.WriteString("queue:")
	for i, w := range s.c[:len(c.modes)] {
		switch {
		case w.place == inQueue && w.rev != w.ticket:
			fmt.Fprintf(&b, " %s#%d at %d", c.who(i), w.ticket, w.rev)
		case w.place == inQueue:
			fmt.Fprintf(&b, " %s#%d", c.who(i), w.ticket)
		case w.place == grantedFirst:
			fmt.Fprintf(&b, " (%s granted)", c.who(i))
		}
	}
	return b.String()
}
