package model

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// canon clears the fields that no step reads again, renumbers the revisions and sorts the
// readers, which are interchangeable.
func (c *rwScope) canon(s *rwState) {
	forget(s.answers[:], func(a rwAnswer) bool {
		switch a.verb {
		case join:
			r := &s.r[a.who]
			return a.code != acked || r.phase != trying && s.keys[2*a.who+a.id].rev != a.rev
		case renewRead:
			return s.r[a.who].phase != holding
		case claimGate:
			return s.w[a.who].phase != trying
		case renewGate:
			return s.w[a.who].phase != draining && s.w[a.who].phase != holding
		}
		return true
	})
	for i := range s.r {
		r, w := &s.r[i], &s.w[i]
		switch r.phase {
		case idle, over:
			*r = reader{phase: r.phase, ids: r.ids}
		case trying:
			r.left, r.last, r.renewals, r.renewed = 0, 0, 0, [2]int8{}
		case holding:
			r.joined = [2]int8{}
		case stopping, leaving:
			r.joined, r.renewed = [2]int8{}, [2]int8{}
			if c.weak != sharingRestarted {
				if r.renewals = 0; r.phase == leaving {
					r.left, r.last = 0, 0
				}
			}
		}
		for j := range r.joined {
			if int8(j) >= r.ids {
				r.joined[j] = 0
			}
			if int8(j) >= r.renewals {
				r.renewed[j] = 0
			}
		}
		switch w.phase {
		case idle, over, leaving:
			*w = writer{phase: w.phase}
		case stopping:
			*w = writer{phase: w.phase, left: w.left, last: w.last, holds: w.holds}
		case holding:
			w.asked, w.first, w.firstRenewals, w.confirmed, w.token = 0, 0, 0, 0, 0
		}
		if w.first == 0 {
			w.firstRenewals = 0
		}
		if w.asked == 0 {
			w.askedFor, w.askedRev = 0, 0
		}
		switch {
		case w.asked != 2:
			w.answerRev, w.answerLive, w.answerHole = 0, 0, 0
		case w.answerRev >= w.askedRev: // it only matters that the answer is new enough, not by how much
			w.answerRev = w.askedRev
		default:
			w.answerRev = 0
		}
		for j := range w.age {
			if int8(j) > w.renewals || w.phase != trying && w.phase != draining && w.phase != holding {
				w.age[j] = 0
			}
		}
	}
	for j := range s.cut {
		for i := range s.cut[j].keys {
			s.cut[j].keys[i].rev, s.cut[j].keys[i].renewal = 0, 0
		}
	}
	if s.revives == 0 {
		s.pastGate, s.pastKey, s.pastOf = gateKey{}, readKey{}, 0
	}
	revs := [...]*int8{
		&s.pastGate.rev, &s.pastKey.rev, &s.gate.rev, &s.token, &s.cut[0].last, &s.cut[1].last,
		&s.keys[0].rev, &s.keys[1].rev, &s.keys[2].rev, &s.keys[3].rev,
		&s.ways[0].expect, &s.ways[1].expect, &s.ways[2].expect, &s.ways[3].expect,
		&s.answers[0].rev, &s.answers[1].rev, &s.answers[2].rev,
		&s.r[0].last, &s.r[1].last,
		&s.w[0].last, &s.w[0].token, &s.w[0].askedRev, &s.w[0].answerRev,
		&s.w[1].last, &s.w[1].token, &s.w[1].askedRev, &s.w[1].answerRev,
	}
	s.next = renumber(revs[:]...)
	if c.readers == 2 && s.r[0].less(s.r[1]) {
		s.swapReaders()
	}
}

func (r reader) less(x reader) bool {
	return compareAll([]int8{r.phase, r.left, r.last, r.renewals, r.ids, r.id}, []int8{x.phase, x.left, x.last, x.renewals, x.ids, x.id}) < 0
}

func (s *rwState) swapReaders() {
	s.r[0], s.r[1] = s.r[1], s.r[0]
	swap := func(k *[4]readKey) { k[0], k[1], k[2], k[3] = k[2], k[3], k[0], k[1] }
	swap(&s.keys)
	if s.pastKey.kind != none {
		s.pastOf ^= 2
	}
	for i := range s.cut {
		swap(&s.cut[i].keys)
	}
	for i := range s.ways {
		if v := s.ways[i].verb; v != 0 && v < claimGate {
			s.ways[i].who = 1 - s.ways[i].who
		}
	}
	for i := range s.answers {
		if v := s.answers[i].verb; v != 0 && v < claimGate {
			s.answers[i].who = 1 - s.answers[i].who
		}
	}
	full := func(v int8) int { return cmp.Compare(v, 0) }
	slices.SortFunc(s.ways[:], func(a, b rwWrite) int { return cmp.Or(full(b.verb)-full(a.verb), a.compare(b)) })
	slices.SortFunc(s.answers[:], func(a, b rwAnswer) int { return cmp.Or(full(b.verb)-full(a.verb), a.compare(b)) })
}

func (c *rwScope) records(s rwState) string {
	names := [...]string{"", "held", "broken", "tombstone"}
	var b strings.Builder
	if g := s.gate; g.kind == none {
		b.WriteString("gate: none")
	} else {
		fmt.Fprintf(&b, "gate: #%d W%d %s, age %d of %d", g.rev, g.writer+1, names[g.kind], g.age, c.gateLife(g.kind))
	}
	keys := func(ks [4]readKey) {
		for i, k := range ks {
			if k.kind != none {
				fmt.Fprintf(&b, "; R%d.%d: #%d %s, age %d of %d", i/2+1, i%2, k.rev, names[k.kind], k.age, c.readLife(k.kind))
			}
		}
	}
	keys(s.keys)
	for i := range s.r {
		if r := &s.r[i]; r.inside() {
			fmt.Fprintf(&b, "; R%d reads, %d left", i+1, r.left)
		}
		if w := &s.w[i]; w.inside() {
			fmt.Fprintf(&b, "; W%d writes, %d left", i+1, w.left)
		}
	}
	for i, cut := range s.cut {
		if cut.last > 0 {
			fmt.Fprintf(&b, " || deposed %d at #%d", i+1, cut.last)
			keys(cut.keys)
		}
	}
	return b.String()
}
