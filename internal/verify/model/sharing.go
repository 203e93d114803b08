package model

// shareScope is one reader lease that goroutines of a client share, against a
// writer whose gate stands at some time. Each goroutine reads for a while. The
// writer has to wait for them no longer than for one reader, and a little more.
type shareScope struct {
	name   string
	renew  int8 // when the first renewal is sent, and a third of the TTL
	ttl    int8
	reads  int8 // how long a goroutine reads at most
	fixed  bool // never renewed
	unseen bool // the client does not see the gate: its notification may be lost
	run    bool // a readers' run: shared until its client sees the gate
	quiet  int8 // for how long nobody reads the gate before a goroutine shares the lease of a run
	idle   bool // the lease of a run stays when nobody reads
	weak   weakness
}

type shareState struct {
	age, gate, ended, released, done, waited int8
	seen                                     int8    // how long ago the client has read the gate
	left                                     [3]int8 // of each goroutine's reading; 0: it does not read
	wrong                                    int8
}

const (
	boundedWait = "a writer waits for many readers no longer than for one"
	neverAgain  = "nobody shares a lease whose release was sent"
	gateHeeded  = "nobody shares a lease once its client has seen the gate"
)

func (c *shareScope) system() system[shareState] {
	var s shareState
	s.left[0] = c.reads
	return system[shareState]{
		name: c.name, init: s, next: c.next,
		canon: func(s *shareState) { // the goroutines are alike
			l := &s.left
			for _, p := range [...][2]int{{0, 1}, {1, 2}, {0, 1}} {
				if l[p[0]] < l[p[1]] {
					l[p[0]], l[p[1]] = l[p[1]], l[p[0]]
				}
			}
		},
		broken:  func(s shareState) string { return [...]string{"", boundedWait, neverAgain, gateHeeded}[s.wrong] },
		goal:    func(s shareState) bool { return s.done == 1 },
		records: func(s shareState) string { return [...]string{"gate: none", "gate: held"}[s.gate] },
	}
}

func (c *shareScope) next(s shareState, to *steps[shareState]) {
	if s.done == 1 {
		return
	}
	readers, due := 0, false
	for _, l := range s.left {
		if l > 0 {
			readers++
		}
		due = due || l == 1
	}
	expired := c.fixed && s.age == c.ttl
	if !due && s.released == 0 && !expired {
		n := s
		n.age++
		for i := range n.left {
			down(&n.left[i])
		}
		if n.age >= c.renew && c.weak != sharedTillSeen && !c.run {
			n.ended = 1
		}
		c.readsGate(&n)
		if n.age == c.ttl && !c.fixed {
			n.age = c.renew // renewed on and on
		}
		if n.gate == 1 && n.released == 0 {
			if n.waited++; n.waited > c.longest() {
				n.waited, n.wrong = c.longest(), 1
			}
		}
		to.do(tick, n, "time passes")
	}
	if s.gate == 0 {
		n := s
		n.gate = 1
		to.do(step, n, "writer: its gate stands")
	} else if s.ended == 0 && !c.unseen {
		n := s
		n.seesGate()
		to.do(step, n, "client: sees the gate, and shares no more")
	}
	for i, l := range s.left {
		switch {
		case l > 0:
			n := s
			if n.left[i] = 0; readers == 1 && !(c.idle && n.ended == 0) {
				n.released = 1
			}
			to.do(step, n, "goroutine: leaves, %d still read", readers-1)
		case (s.ended == 0 || c.weak == readersPassGate) && !expired && (s.released == 0 || c.weak == sharingRestarted):
			n := s
			if c.run && n.seen >= c.quiet && c.weak != readersSilent {
				n.seen = 0
				if n.gate == 1 {
					n.seesGate()
					to.do(step, n, "client: reads the gate first, and shares no more")
					continue
				}
			}
			n.left[i] = c.reads
			if s.released == 1 {
				n.wrong = 2
			}
			if s.ended == 1 {
				n.wrong = 3
			}
			to.do(step, n, "goroutine: shares the lease of age %d", s.age)
		}
	}
	if s.released == 1 || expired {
		n := s
		n.done = 1
		to.do(step, n, "server: the reader's record is gone")
	}
}

// longest is the longest wait of a writer. A goroutine that shares the lease at the last
// moment is the reason, or an idle lease.
func (c *shareScope) longest() int8 {
	if c.run {
		return max(c.renew, c.quiet+c.reads)
	}
	return c.renew + c.reads
}

// readsGate has the client of a run read the gate before each renewal. Where the client
// does not renew the lease, it reads the gate as often.
func (c *shareScope) readsGate(n *shareState) {
	if !c.run {
		return
	}
	if n.seen++; n.seen < c.renew {
		return
	}
	n.seen = 0
	switch {
	case n.gate == 0 || c.weak == readersUnread:
	case c.weak == readersIdleKept:
		n.ended = 1
	default:
		n.seesGate()
	}
}

// seesGate ends the sharing, and releases an idle lease.
func (s *shareState) seesGate() {
	if s.ended = 1; s.left == [3]int8{} {
		s.released = 1
	}
}
