package model

// runScope is how much of the runs of a mutex is explored, and which of their rules
// is left out. There are three clients, each with some goroutines. A run is
// goroutines of a client that wait together: it has one record at the server.
type runScope struct {
	crowd
	name    string
	rounds  [3]int8 // how often each of them asks again
	losses  int8    // notifications that are lost
	crashes int8    // of the first client
	pauses  int8    // of the other clients
	ends    int8    // leases that are lost
	breaks  int8    // leases that an operator breaks
	drops   int8    // handles that are dropped without an Unlock
	expires int8    // places that end while their runs wait
	giveups int8    // waits that end
	turn    bool    // a granted run has a turn
	own     bool    // the first client's last goroutine asks with another TTL
	greedy  int8    // the goroutines of the first clients ask again at once, for ever
	lingers [3]bool // a client's idle lease stays with it
	closes  int8    // clients that close
	tries   [3]int8 // how many of a client's goroutines, the last ones, ask with TryLock
	persist bool    // such a goroutine asks until it gets in
	single  bool    // checks a promise that is too strong: one turn at most passes a place
	weak    weakness
}

// phases of a run
const (
	noRun         int8 = iota
	claimSent          // its first write is a claim of the lock, on its way
	claimStored        // the claim is stored, and not answered
	claimRefused       // the claim is refused, and not answered
	placeSent          // its place in the queue is on its way
	placeStored        // the place is stored, and not answered
	inQueue            // the place is answered
	attemptStored      // its claim from the queue is stored, and not answered
	grantedRun
	idleRun    // its last member has left, and its lease stays
	taintedRun // a handle was dropped: the lease runs out
	trySent    // the place of a TryLock is on its way
	tryStored  // it is stored, and may be answered
)

// phases of a goroutine
const (
	outside int8 = iota
	waits
	inside
	finished
)

// states of the lock, besides none, held and broken
const (
	brokenKnown = tombstone + iota // broken, and its holder knows it
	releasing                      // the release is on its way
)

// states of a client's subscription to the queue
const (
	subscribed int8 = 1 + iota // sent
	effective                  // a place written after it is stored
	confirmed                  // that place is answered
)

// news of a place at another client
const (
	noNews   int8 = iota
	underWay      // its notification will arrive
	received      // it has arrived, or a list has shown the place
	missed        // the client had no subscription
	lostNews
	early // missed, and stored since the client sent its claim
)

// aRun is a run as its client has it, and its record.
type aRun struct {
	phase, born, ticket int8
	fresh               int8 // 1: its claim was sent to a free lock without a queue
	subscribed          int8 // 1: the subscription was sent before the place
	dirty               int8 // 1: a stranger's place became known since the run was opened
	turn                int8 // 1: its turn lasts
	own                 int8 // 1: it has a TTL of its own, and nobody joins it
	stalled             int8 // 1: the member that drove it has given up (a variant)
	served              int8 // 1: a member has been inside since the grant
	news                [3]int8
	reaction            int8  // the holder's reaction to this place of a TryLock
	met                 int8  // 1: the lock was in use since that TryLock was called
	turns, one          int8  // turns that may pass its place; 1: one has
	passed              int16 // the places that its turn has passed
}

func (r aRun) queued() bool { return r.phase == placeStored || r.phase == inQueue }

// firstWrite says whether the run's first write is a claim without an answer.
func (r aRun) firstWrite() bool { return r.phase >= claimSent && r.phase <= claimRefused }

// unanswered says whether the run's first claim or its place has no answer.
func (r aRun) unanswered() bool {
	return r.firstWrite() || r.phase == placeSent || r.phase == placeStored
}

type goroutine struct {
	phase, run, order int8
	knew              int16 // the places known to its client when it asked
	turn              int8  // 1: joined in a turn
	rounds            int8
	valid             int8 // 1: it is inside, and its lease is valid
	again             int8 // when its run has last queued again, in the order of asking; 0: never
}

type runState struct {
	next                                  int8
	lock                                  int8
	owner, slot                           int8 // the holder's run; of brokenKnown the goroutine that is still inside, or -1
	losses, crashes, pauses, ends, breaks int8
	drops, expires, giveups, closes       int8
	subs, paused, dead, closed            [3]int8
	mark                                  int8 // the mark in the holder's record, in variants
	runs                                  [3][3]aRun
	g                                     [5]goroutine
	wrong                                 int8 // a step has violated an invariant: its number in runWrongs
}

// mostTurns is how many turns are counted for a place.
const mostTurns = 4

const (
	inOrder     = "a goroutine that asked when a stranger's place was known is served after it, except in a turn"
	turnOver    = "a goroutine that joined in a turn passes no stranger after it"
	turnsPassed = "a place is passed by one turn of each run before it"
	oneTurn     = "a place is passed by one turn at most"
	ownOrder    = "the goroutines of a client are served in the order in which they asked"
	ownTerms    = "a goroutine is served under the TTL that it asked for"
	usedOnce    = "a lease that the server has granted is used before it is given up"
	metInUse    = "a TryLock that is refused by an answer has met the lock in use"
	recallsOnce = "the place of a TryLock ends one idle lease at most"
)

var runWrongs = [...]string{"", exclusion, inOrder, turnOver, turnsPassed, oneTurn, ownOrder, ownTerms, usedOnce, metInUse, recallsOnce}

func (c *runScope) system() system[runState] {
	s := runState{
		next: 1, losses: c.losses, crashes: c.crashes, pauses: c.pauses, ends: c.ends, breaks: c.breaks,
		drops: c.drops, expires: c.expires, giveups: c.giveups, closes: c.closes,
	}
	for j := range s.g {
		s.g[j] = goroutine{phase: finished, run: -1}
		if i := c.clientOf(int8(j)); i >= 0 {
			s.g[j] = goroutine{rounds: c.rounds[i], run: -1}
		}
	}
	return system[runState]{
		name: c.name, init: s, next: c.steps, canon: c.canon, broken: c.broken, records: c.records,
		goal: c.goal,
	}
}

func (c *runScope) goal(s runState) bool {
	return c.reached(c.greedy, len(s.g), func(j int8) (int8, bool) { return s.g[j].phase, s.g[j].valid == 1 })
}

func (c *runScope) broken(s runState) string {
	holders := 0
	for _, g := range s.g {
		if g.phase == inside && g.valid == 1 {
			holders++
		}
	}
	if holders > 1 {
		return exclusion
	}
	return runWrongs[s.wrong]
}

// crowd is the goroutines of each client.
type crowd struct{ goros [3]int8 }

// owns are the goroutines of client i.
func (c *crowd) owns(i int8) (from, to int8) {
	for j := range i {
		from += c.goros[j]
	}
	return from, from + c.goros[i]
}

// reached is the goal: every goroutine that does not ask for ever has finished. The
// goroutines of the first, greedy clients do. Where there are several, one of the last of
// them is inside.
func (c *crowd) reached(greedy int8, goroutines int, at func(j int8) (phase int8, valid bool)) bool {
	in := greedy < 2
	for j := range int8(goroutines) {
		phase, valid := at(j)
		switch i := c.clientOf(j); {
		case phase == finished:
			in = in || i == greedy-1
		case i >= greedy:
			return false
		default:
			in = in || i == greedy-1 && phase == inside && valid
		}
	}
	return in
}

func (c *crowd) clientOf(j int8) int8 {
	for i := range int8(3) {
		if from, to := c.owns(i); j >= from && j < to {
			return i
		}
	}
	return -1
}

// bit names the place of a run.
func bit(i, slot int8) int16 { return 1 << (3*i + slot) }

// head is the member of a run that is served next; -1: nobody waits in it.
func (c *runScope) head(s *runState, i, slot int8) int8 {
	next := int8(-1)
	from, to := c.owns(i)
	for j := from; j < to; j++ {
		if g := s.g[j]; g.phase == waits && g.run == slot && (next < 0 || g.order < s.g[next].order) {
			next = j
		}
	}
	return next
}

// last is the client's last run; -1: it has none.
func (s *runState) last(i int8) int8 {
	last := int8(-1)
	for slot, r := range s.runs[i] {
		if r.phase != noRun && (last < 0 || r.born > s.runs[i][last].born) {
			last = int8(slot)
		}
	}
	return last
}

// up says whether a client runs.
func (s *runState) up(i int8) bool { return s.dead[i] == 0 && s.paused[i] == 0 }

// acts says whether a client is about to claim a free lock from the queue.
func (s *runState) acts() bool {
	for i := range int8(3) {
		for _, r := range s.runs[i] {
			if r.queued() && s.up(i) {
				return true
			}
		}
	}
	return false
}
