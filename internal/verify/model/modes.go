package model

// modeScope is how much of the runs of a reader-writer lock is explored, and which of
// their rules is left out. A run has one mode. The members of a readers' run are inside
// together and share one record. A writers' run has the gate, and serves its members one
// after the other.
type modeScope struct {
	crowd
	name    string
	modes   string  // of the goroutines: R or W
	rounds  [3]int8 // how often each client's goroutines ask again
	losses  int8    // notifications that are lost
	crashes int8    // of the first client
	ends    int8    // leases that are lost
	breaks  int8    // leases that an operator breaks
	giveups int8    // waits that end
	closes  int8    // clients that close
	greedy  int8    // the goroutines of the first clients ask again at once, for ever
	lingers [3]bool // a client's idle lease stays with it
	weak    weakness
}

// stillStops is the validity of a goroutine that was notified of a break, and is at work.
const stillStops = 2

// stoppingRun is the phase of a run whose broken lease its members still leave.
const stoppingRun = tryStored + 1

type modeRun struct {
	phase, born, ticket      int8
	writes                   int8 // 1: its members write
	rec                      int8 // the record of its readers: none, held or broken
	fresh, subscribed, dirty int8 // as in aRun
	served                   int8
	news                     [3]int8
}

func (r modeRun) queued() bool { return r.phase == placeStored || r.phase == inQueue }

func (r modeRun) firstWrite() bool { return r.phase >= claimSent && r.phase <= claimRefused }

func (r modeRun) unanswered() bool {
	return r.firstWrite() || r.phase == placeSent || r.phase == placeStored
}

func (r modeRun) granted() bool { return r.phase == grantedRun || r.phase == idleRun }

type modeGoroutine struct {
	phase, run, order int8
	knew              int16 // the places known to its client when it asked
	gate              int8  // 1: so was a stranger's gate, which still stands
	rounds, valid     int8
	again             int8 // as in goroutine
}

type modeState struct {
	next                          int8
	gate, owner, slot             int8 // none, held, broken, releasing; whose
	gateNews                      [3]int8
	leaving                       int8 // 1: deletions of readers' records are on their way
	losses, crashes, ends, breaks int8
	giveups, closes               int8
	subs, dead, closed            [3]int8
	runs                          [3][3]modeRun
	g                             [5]modeGoroutine
	wrong                         int8
}

const (
	modeOrder  = "a goroutine passes no conflicting place that was known when it asked"
	gateKept   = "a goroutine that asked when a stranger's gate was known reads after it"
	conflicted = "the goroutines of a client that conflict are served in the order in which they asked"
)

var modeWrongs = [...]string{"", exclusion, modeOrder, gateKept, conflicted}

func (c *modeScope) system() system[modeState] {
	s := modeState{
		next: 1, losses: c.losses, crashes: c.crashes, ends: c.ends, breaks: c.breaks, giveups: c.giveups,
		closes: c.closes,
	}
	for j := range s.g {
		s.g[j] = modeGoroutine{phase: finished, run: -1}
		if i := c.clientOf(int8(j)); i >= 0 {
			s.g[j] = modeGoroutine{rounds: c.rounds[i], run: -1}
		}
	}
	return system[modeState]{
		name: c.name, init: s, next: c.steps, canon: c.canon, broken: c.broken, records: c.records, goal: c.goal,
	}
}

func (c *modeScope) goal(s modeState) bool {
	return c.reached(c.greedy, len(s.g), func(j int8) (int8, bool) { return s.g[j].phase, s.g[j].valid == 1 })
}

func (c *modeScope) writes(j int8) int8 {
	if c.modes[j] == 'W' {
		return 1
	}
	return 0
}

func (c *modeScope) broken(s modeState) string {
	readers, writers := 0, 0
	for j, g := range s.g {
		if g.phase != inside || g.valid == 0 {
			continue
		}
		if c.writes(int8(j)) == 1 {
			writers++
		} else {
			readers++
		}
	}
	if writers > 1 || writers > 0 && readers > 0 {
		return exclusion
	}
	return modeWrongs[s.wrong]
}

// members are the goroutines in a phase that belong to a run, in the order in which they
// asked.
func (c *modeScope) members(s *modeState, i, slot, phase int8) (all []int8) {
	from, to := c.owns(i)
	for j := from; j < to; j++ {
		if g := s.g[j]; g.phase != phase || g.run != slot {
			continue
		}
		n := len(all)
		all = append(all, j)
		for ; n > 0 && s.g[all[n-1]].order > s.g[j].order; n-- {
			all[n], all[n-1] = all[n-1], all[n]
		}
	}
	return all
}

// last is the client's last run; -1: it has none.
func (s *modeState) last(i int8) int8 {
	last := int8(-1)
	for slot, r := range s.runs[i] {
		if r.phase != noRun && (last < 0 || r.born > s.runs[i][last].born) {
			last = int8(slot)
		}
	}
	return last
}

// acts says whether a client is about to claim a free lock from the queue.
func (s *modeState) acts() bool {
	for i := range s.runs {
		for _, r := range s.runs[i] {
			if r.queued() && s.dead[i] == 0 {
				return true
			}
		}
	}
	return false
}

// reads says whether a reader's record is live. A writer waits until none is.
func (c *modeScope) reads(s *modeState, except int8) bool {
	for i := range s.runs {
		for _, r := range s.runs[i] {
			if r.rec != none && int8(i) != except {
				return true
			}
		}
	}
	return s.leaving > 0
}
