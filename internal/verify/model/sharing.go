package model

// shareScope is one reader lease that goroutines of a client share, against a
// writer whose gate stands at some time. Each goroutine reads for a while; the
// writer has to wait no longer than if there were one reader, and a bit.
type shareScope struct {
	name  string
	renew int8 // when the first renewal is sent, and a third of the TTL
	ttl   int8
	reads int8 // how long a goroutine reads at most
	fixed bool // never renewed
	deaf  bool // the gate is not seen: the notification may be lost
	weak  weakness
}

type shareState struct {
	age, gate, ended, released, done, waited int8
	left                                     [3]int8 // of each goroutine's reading; 0: it does not read
	wrong                                    int8
}

const (
	boundedWait = "a writer waits for many readers no longer than for one"
	neverAgain  = "nobody shares a lease whose release was sent"
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
		broken:  func(s shareState) string { return [...]string{"", boundedWait, neverAgain}[s.wrong] },
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
		if n.age >= c.renew && c.weak != sharedTillSeen {
			n.ended = 1
		}
		if n.age == c.ttl && !c.fixed {
			n.age = c.renew // renewed on and on
		}
		if n.gate == 1 && n.released == 0 {
			if n.waited++; n.waited > c.renew+c.reads {
				n.waited, n.wrong = c.renew+c.reads, 1
			}
		}
		to.do(tick, n, "time passes")
	}
	if s.gate == 0 {
		n := s
		n.gate = 1
		to.do(step, n, "writer: its gate stands")
	} else if s.ended == 0 && !c.deaf {
		n := s
		n.ended = 1
		to.do(step, n, "client: sees the gate, and shares no more")
	}
	for i, l := range s.left {
		switch {
		case l > 0:
			n := s
			if n.left[i] = 0; readers == 1 {
				n.released = 1
			}
			to.do(step, n, "goroutine: leaves, %d still read", readers-1)
		case s.ended == 0 && !expired && (s.released == 0 || c.weak == sharingRestarted):
			n := s
			n.left[i] = c.reads
			if s.released == 1 {
				n.wrong = 2
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
