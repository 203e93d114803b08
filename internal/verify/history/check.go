package history

import (
	"fmt"
	"slices"
	"time"
)

// Violation describes how a history breaks a rule.
type Violation struct {
	Check int // the number of the rule; see the package comment
	Lock  string
	At    time.Duration
	What  string

	picture func(path string) error // may be nil
}

func (v Violation) String() string {
	return fmt.Sprintf("check %d, %v, %s: %s", v.Check, v.At, v.Lock, v.What)
}

// Options configures a [Check].
type Options struct {
	// Least maps names from [History.Counts] to the minimum counts below which a history proves
	// nothing.
	Least map[string]int
	// Patience limits how long check 4 searches each stretch of operations. The default is a
	// minute. A stretch that is still undecided by then is a violation.
	Patience time.Duration
}

// Check judges a history. It must not be called in a synctest bubble, because check 4 needs
// real time.
func Check(h *History, o Options) []Violation {
	x := newIndex(h)
	found := x.fouls
	for lock := range x.ops {
		found = append(found, x.overlaps(x.holds[lock])...)
		found = append(found, alone(x.holds[lock])...)
		found = append(found, x.tokens(x.holds[lock])...)
		found = append(found, x.resource(lock)...)
		found = append(found, x.linear(lock, o)...)
	}
	if h.Tapped {
		for _, hold := range h.Holds {
			found = append(found, x.backed(hold)...)
			found = append(found, x.numbered(hold)...)
		}
		found = append(found, x.joins()...)
		found = append(found, x.semaphores()...)
		for lock := range x.ops {
			if semaphoreOf(lock) != "" {
				continue
			}
			found = append(found, x.writersOverReaders(lock)...)
			found = append(found, x.order(lock)...)
			found = append(found, x.bound(lock, lock)...)
			found = append(found, x.fifo(lock, x.ops[lock])...)
			found = append(found, x.exact(lock)...)
			found = append(found, x.outOfLine(lock, x.ops[lock], lock)...)
			found = append(found, x.shown(lock)...)
		}
		found = append(found, x.waits()...)
	}
	for _, what := range h.Left {
		found = append(found, Violation{Check: 7, At: h.Ended, What: "left: " + what})
	}
	counts := h.Counts()
	for what, least := range o.Least {
		if counts[what] < least {
			found = append(found, Violation{Check: 8, At: h.Ended, What: fmt.Sprintf("vacuous: %d %s, want at least %d", counts[what], what, least)})
		}
	}
	slices.SortStableFunc(found, func(a, b Violation) int {
		if a.At != b.At {
			return int(min(max(a.At-b.At, -1), 1))
		}
		return a.Check - b.Check
	})
	return found
}

// Counts reports how much happened: "grants", "reads", "writes", "readers at once", "joins",
// "queued", "expired" and "superseded". It includes a count for each outcome, such as "lock
// ok", and for each kind of fault. "expired" counts the holders whose lease expired, and
// "superseded" counts the uses that a resource refused.
func (h *History) Counts() map[string]int {
	n := map[string]int{}
	for what, k := range h.Faults {
		n[what] = k
	}
	for _, op := range h.Ops {
		out := op.Outcome
		if out == Pending {
			out = "pending"
		}
		n[string(op.Do)+" "+string(out)]++
		n["operations"]++
		n["queued"] += len(op.Tickets)
		if op.Outcome == Unknown || op.acquires() && op.Outcome == GaveUp {
			n["unknown outcomes"]++
		}
		if op.Do == Use && op.Outcome == Refused {
			n["superseded"]++
		}
	}
	type edge struct {
		at Moment
		d  int
	}
	edges := map[string][]edge{}
	for _, hold := range h.Holds {
		n["grants"]++
		if hold.local() {
			n["local grants"]++
		}
		if hold.Shared {
			n["reads"]++
			edges[hold.Lock] = append(edges[hold.Lock], edge{hold.From, 1}, edge{hold.end(), -1})
		} else {
			n["writes"]++
		}
		if hold.Unlock.zero() || hold.Until < hold.Unlock.At {
			n["expired"]++
		}
	}
	for _, list := range edges {
		slices.SortStableFunc(list, func(a, b edge) int { return a.at.compare(b.at) })
		readers := 0
		for _, e := range list {
			readers += e.d
			n["readers at once"] = max(n["readers at once"], readers)
		}
	}
	seen := map[string]bool{}
	for _, e := range h.Stream {
		if _, role := lockOf(e.Key); role == "read" && !e.Deleted && !seen[e.Key] {
			seen[e.Key] = true
			n["joins"]++
		}
	}
	return n
}
