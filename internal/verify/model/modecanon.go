package model

import (
	"fmt"
	"strings"
)

// canon sorts the runs of each client by their age, and its goroutines that are alike. It
// forgets the fields that no step reads again, and renumbers the tickets.
func (c *modeScope) canon(s *modeState) {
	c.forget(s)
	moved := c.sortRuns(s)
	for j := range s.g {
		g := &s.g[j]
		knew := int16(0)
		for i := range int8(3) {
			for slot := range int8(3) {
				if g.knew&bit(i, slot) != 0 {
					knew |= bit(i, moved[i][slot])
				}
			}
		}
		g.knew = knew
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
	if s.gate == none {
		s.owner, s.slot = 0, 0
	}
	if s.gate == releasing {
		s.slot = 0
	}
	var tickets []*int8
	for i := range s.runs {
		for slot := range s.runs[i] {
			tickets = append(tickets, &s.runs[i][slot].ticket)
		}
	}
	s.next = renumber(tickets...)
}

// forget clears the fields that only a goroutine that asks would read, or a client with
// an idle lease, where there is none. It clears the places that a goroutine cannot pass.
func (c *modeScope) forget(s *modeState) {
	for i := range int8(3) {
		if c.asks(s, i) || c.lingers[i] && s.dead[i] == 0 && s.last(i) >= 0 {
			continue
		}
		s.subs[i], s.gateNews[i] = 0, 0
		for k := range s.runs {
			for slot := range s.runs[k] {
				r := &s.runs[k][slot]
				if r.news[i] = 0; k == int(i) {
					r.dirty, r.subscribed = 0, 0
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
		}
		if s.gateNews[k] == lostNews && s.losses == 0 && c.weak != modeNoRead {
			s.gateNews[k] = underWay
		}
	}
	for j := range s.g {
		g := &s.g[j]
		if g.phase != waits {
			continue
		}
		mine := s.runs[c.clientOf(int8(j))][g.run]
		if mine.phase == claimSent || mine.phase == claimRefused || mine.phase == placeSent {
			g.knew = 0
		}
		if mine.writes == 1 {
			g.gate = 0
		}
		for k := range s.runs {
			for slot, r := range s.runs[k] {
				if !r.queued() || mine.queued() && r.ticket < mine.ticket || mine.writes+r.writes == 0 {
					g.knew &^= bit(int8(k), int8(slot))
				}
			}
		}
	}
}

// asks says whether a goroutine of client i will ask.
func (c *modeScope) asks(s *modeState, i int8) bool {
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

// sortRuns sorts the runs of each client by their age, and returns where each has gone.
func (c *modeScope) sortRuns(s *modeState) (moved [3][3]int8) {
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
			if !r.queued() {
				r.news = [3]int8{}
			}
			s.runs[i][to] = r
			moved[i][from] = int8(to)
		}
		if (s.gate == held || s.gate == broken) && s.owner == int8(i) {
			s.slot = moved[i][s.slot]
		}
	}
	return moved
}

// sortGoroutines sorts the goroutines of a client that have the same mode.
func (c *modeScope) sortGoroutines(s *modeState, i int8) {
	from, to := c.owns(i)
	var orders, agains []*int8
	for j := from; j < to; j++ {
		if s.g[j].phase == waits {
			orders, agains = append(orders, &s.g[j].order), append(agains, &s.g[j].again)
		}
	}
	renumberOrders(orders, agains)
	row := func(g modeGoroutine) []int8 {
		return []int8{g.phase, g.run, g.order, int8(g.knew & 127), int8(g.knew >> 7), g.gate, g.rounds, g.valid, g.again}
	}
	for n := from + 1; n < to; n++ {
		for j := n; j > from && c.modes[j] == c.modes[j-1] && compareAll(row(s.g[j]), row(s.g[j-1])) < 0; j-- {
			s.g[j], s.g[j-1] = s.g[j-1], s.g[j]
		}
	}
}

func (c *modeScope) records(s modeState) string {
	var b strings.Builder
	b.WriteString("gate: " + [...]string{none: "none", held: "held", broken: "broken", releasing: "about to be released"}[s.gate])
	if s.gate == held || s.gate == broken {
		fmt.Fprintf(&b, " (%c)", 'A'+s.owner)
	}
	b.WriteString("; readers:")
	for i := range s.runs {
		for _, r := range s.runs[i] {
			if r.rec != none {
				fmt.Fprintf(&b, " %c%d%s", 'A'+i, r.born, [...]string{held: "", broken: " (broken)"}[r.rec])
			}
		}
	}
	b.WriteString("; queue:")
	for i := range s.runs {
		for _, r := range s.runs[i] {
			if r.queued() {
				fmt.Fprintf(&b, " %c%d#%d", 'A'+i, r.born, r.ticket)
			}
		}
	}
	b.WriteString("; inside:")
	for j, g := range s.g {
		if g.phase == inside {
			fmt.Fprintf(&b, " %c%d", c.modes[j], j+1)
			if g.valid == 0 {
				b.WriteString(" (ended)")
			}
		}
	}
	return b.String()
}
