package model

import (
	"fmt"
	"slices"
	"strings"
)

// canon sorts the runs of each client by their age. It sorts the goroutines that are
// alike, forgets the fields that no step reads again, and renumbers the tickets.
func (c *runScope) canon(s *runState) {
	c.forget(s)
	moved := c.sortRuns(s)
	swap := func(places int16) (now int16) {
		for i := range int8(3) {
			for slot := range int8(3) {
				if places&bit(i, slot) != 0 {
					now |= bit(i, moved[i][slot])
				}
			}
		}
		return now
	}
	var tickets []*int8
	for i := range s.runs {
		for slot := range s.runs[i] {
			s.runs[i][slot].passed = swap(s.runs[i][slot].passed)
			tickets = append(tickets, &s.runs[i][slot].ticket)
		}
	}
	for j := range s.g {
		g := &s.g[j]
		g.knew = swap(g.knew)
		if i := c.clientOf(int8(j)); i >= 0 && g.run >= 0 {
			g.run = moved[i][g.run]
		}
		if g.phase == finished {
			g.rounds = 0
		}
	}
	for i := range int8(3) {
		c.sortGoroutines(s, i)
	}
	if s.lock == none || s.lock == releasing && c.weak != runReleasedJoined {
		s.owner, s.slot = 0, 0
	}
	s.next = renumber(tickets...)
}

// forget clears what only a goroutine that asks would read, where none will ask.
func (c *runScope) forget(s *runState) {
	turns := false
	for i := range int8(3) {
		if c.asks(s, i) {
			turns = true
			continue
		}
		heeds := c.heeds(s, i)
		if !heeds {
			s.subs[i] = 0
		}
		for k := range s.runs {
			for slot := range s.runs[k] {
				r := &s.runs[k][slot]
				if !heeds {
					r.news[i] = 0
				}
				if k != int(i) {
					continue
				}
				if r.dirty = 0; !heeds {
					r.subscribed = 0
				}
				if !c.turns(s, i, int8(slot)) {
					r.turn, r.passed = 0, 0
				} else {
					turns = true
				}
			}
		}
	}
	c.forgetNews(s)
	if turns && c.turn {
		return
	}
	for k := range s.runs {
		for slot := range s.runs[k] {
			s.runs[k][slot].turns, s.runs[k][slot].one = 0, 0
		}
	}
}

// forgetNews clears the places that a goroutine cannot pass: its run queues behind
// them, or a claim past them is no fault. A lost notification that a list repairs is
// a late one.
func (c *runScope) forgetNews(s *runState) {
	if c.weak == runClaimsBlindly || c.weak == runNoList {
		return
	}
	for j := range s.g {
		g := &s.g[j]
		if g.phase != waits || g.knew == 0 || c.isTry(int8(j)) {
			continue
		}
		mine := s.runs[c.clientOf(int8(j))][g.run]
		switch mine.phase {
		case claimSent, claimRefused, placeSent:
			g.knew = 0
		}
		for k := range s.runs {
			for slot, r := range s.runs[k] {
				if !r.queued() || mine.queued() && r.ticket < mine.ticket {
					g.knew &^= bit(int8(k), int8(slot))
				}
			}
		}
	}
	for k := range s.runs {
		for slot := range s.runs[k] {
			r := &s.runs[k][slot]
			for i := range r.news {
				if r.news[i] == lostNews && s.losses == 0 {
					r.news[i] = underWay
				}
			}
			if r.turn == 0 {
				r.passed = 0
			}
		}
	}
}

// asks says whether a goroutine of client i will ask.
func (c *runScope) asks(s *runState, i int8) bool {
	if s.dead[i] == 1 || s.closed[i] == 1 {
		return false
	}
	from, to := c.owns(i)
	for j := from; j < to; j++ {
		if g := s.g[j]; g.phase == outside || g.phase != finished && (g.rounds > 0 || i < c.greedy) {
			return true
		}
	}
	return false
}

// turns says whether a member of a run has joined in its turn.
func (c *runScope) turns(s *runState, i, slot int8) bool {
	from, to := c.owns(i)
	for j := from; j < to; j++ {
		if g := s.g[j]; g.phase == waits && g.run == slot && g.turn == 1 {
			return true
		}
	}
	return false
}

// byAge returns the places of a client's runs, in the order in which the runs were opened.
func byAge(at func(slot int8) (born int8, is bool)) [3]int8 {
	order := [3]int8{0, 1, 2}
	age := func(slot int8) int8 {
		if born, is := at(slot); is {
			return born
		}
		return 100
	}
	slices.SortStableFunc(order[:], func(a, b int8) int { return int(age(a) - age(b)) })
	return order
}

// sortRuns sorts the runs of each client by their age, and returns where each has
// gone.
func (c *runScope) sortRuns(s *runState) (moved [3][3]int8) {
	for i := range s.runs {
		order := byAge(func(slot int8) (int8, bool) { return s.runs[i][slot].born, s.runs[i][slot].phase != noRun })
		old := s.runs[i]
		for to, from := range order {
			r := old[from]
			if r.phase != noRun {
				r.born = int8(to) + 1
			}
			if r.phase != claimSent {
				r.fresh = 0
			}
			if !r.unanswered() {
				r.dirty, r.subscribed = 0, 0
			}
			if r.phase != trySent && r.phase != tryStored {
				r.reaction, r.met = 0, 0
			}
			if !r.queued() && r.phase != tryStored {
				r.news, r.turns, r.one = [3]int8{}, 0, 0
			}
			s.runs[i][to] = r
			moved[i][from] = int8(to)
		}
		if s.lock != none && s.lock != brokenKnown && s.owner == int8(i) {
			s.slot = moved[i][s.slot]
		}
	}
	return moved
}

// renumberOrders renumbers the orders in which the goroutines of a client have asked, and
// have queued again. It forgets the second where it lets none pass.
func renumberOrders(orders, agains []*int8) {
	for i, again := range agains {
		if !slices.ContainsFunc(orders, func(o *int8) bool { return *orders[i] < *o && *o <= *again }) {
			*again = 0
		}
	}
	renumber(append(orders, agains...)...)
}

// sortGoroutines sorts the goroutines of a client, but not one with a TTL of its own.
func (c *runScope) sortGoroutines(s *runState, i int8) {
	from, to := c.owns(i)
	var orders, agains []*int8
	for j := from; j < to; j++ {
		if s.g[j].phase == waits {
			orders, agains = append(orders, &s.g[j].order), append(agains, &s.g[j].again)
		}
	}
	renumberOrders(orders, agains)
	if c.own && i == 0 {
		to--
	}
	to -= c.tries[i]
	row := func(g goroutine) []int8 {
		return []int8{g.phase, g.run, g.order, int8(g.knew & 127), int8(g.knew >> 7), g.turn, g.rounds, g.valid, g.again}
	}
	for n := from + 1; n < to; n++ {
		for j := n; j > from && compareAll(row(s.g[j]), row(s.g[j-1])) < 0; j-- {
			s.g[j], s.g[j-1] = s.g[j-1], s.g[j]
			if s.lock == brokenKnown && s.owner == i {
				switch s.slot {
				case j:
					s.slot = j - 1
				case j - 1:
					s.slot = j
				}
			}
		}
	}
}

func (c *runScope) records(s runState) string {
	var b strings.Builder
	b.WriteString("lock: " + [...]string{
		none: "none", held: "held", broken: "broken", brokenKnown: "broken", releasing: "about to be released",
	}[s.lock])
	if s.lock != none && s.lock != releasing {
		fmt.Fprintf(&b, " (%c)", 'A'+s.owner)
	}
	b.WriteString("; queue:")
	for i := range s.runs {
		for _, r := range s.runs[i] {
			if r.queued() {
				fmt.Fprintf(&b, " %c%d#%d", 'A'+i, r.born, r.ticket)
			}
			if r.phase == tryStored {
				fmt.Fprintf(&b, " %c's try", 'A'+i)
			}
		}
	}
	b.WriteString("; inside:")
	for j, g := range s.g {
		if g.phase == inside {
			fmt.Fprintf(&b, " %d", j+1)
			if g.valid == 0 {
				b.WriteString(" (ended)")
			}
		}
	}
	return b.String()
}
