package model

// reader takes the steps that a reader can take on its own.
func (c *rwScope) reader(s rwState, i int8, to *steps[rwState]) {
	r := s.r[i]
	do := func(w rwWrite, change func(n *rwState, r *reader), words string) {
		n := s
		change(&n, &n.r[i])
		w.who = i
		if w.verb == 0 || put(n.ways[:c.ways], w, rwWrite.compare) {
			to.do(step, n, "R%d: %s (%d.%d expecting %d)", i+1, words, w.id, w.n, w.expect)
		}
	}
	joins := func() {
		if c.buriesGate(s, to); !s.gate.free() && c.weak != joinAtLiveGate {
			return
		}
		id := r.ids
		expects := []int8{s.gate.rev, 0}
		if s.gate.rev == 0 {
			expects = expects[:1]
		}
		for _, e := range expects {
			do(rwWrite{verb: join, id: id, expect: e}, func(n *rwState, r *reader) {
				r.phase, r.joined[id] = trying, 0
				r.ids++
			}, "joins")
		}
	}
	switch r.phase {
	case idle:
		if r.ids == 0 {
			joins()
		}
	case trying:
		if r.ids < c.joins {
			joins()
		}
		do(rwWrite{}, func(n *rwState, r *reader) { r.phase = over }, "gives up")
	case holding:
		if r.left <= 0 {
			do(rwWrite{}, func(n *rwState, r *reader) { r.phase = over }, "its validity has ended: lost")
			return
		}
		if r.renewals < c.readRenewals {
			do(rwWrite{verb: renewRead, id: r.id, expect: r.last, n: r.renewals + 1}, func(n *rwState, r *reader) {
				r.renewed[r.renewals] = 0
				r.renewals++
			}, "renews")
		}
		do(rwWrite{verb: deleteRead, id: r.id, expect: r.last}, func(n *rwState, r *reader) { r.phase = leaving }, "leaves")
		if s.cl > 0 {
			w := rwWrite{}
			if c.weak == closeDeletes {
				w = rwWrite{verb: deleteRead, id: r.id, expect: r.last}
			}
			do(w, func(n *rwState, r *reader) {
				n.cl--
				r.phase, r.last = stopping, 0
			}, "closes: its context ends, but its work is still stopping")
		}
	case stopping:
		w := rwWrite{}
		if r.last != 0 {
			w = rwWrite{verb: deleteRead, id: r.id, expect: r.last}
		}
		do(w, func(n *rwState, r *reader) { r.phase = over }, "has stopped")
	case leaving:
		if c.weak == sharingRestarted && r.left > 0 {
			do(rwWrite{}, func(n *rwState, r *reader) { r.phase = holding }, "another goroutine shares its lease")
		}
		do(rwWrite{}, func(n *rwState, r *reader) { r.phase = over }, "no longer waits for its deletion")
	}
}

// readerAnswered handles the answer to a reader's write.
func (c *rwScope) readerAnswered(n *rwState, a rwAnswer) string {
	r := &n.r[a.who]
	if a.verb == join {
		switch {
		case a.code != acked:
			return "refused"
		case r.phase == trying && r.joined[a.id] < c.readTTL-c.readMargin:
			r.phase, r.id, r.last, r.left = holding, a.id, a.rev, c.readTTL-c.readMargin-r.joined[a.id]
			if a.rev <= n.token {
				n.wrong = 1
			}
			return "reads"
		}
		put(n.ways[:c.ways], rwWrite{verb: deleteRead, who: a.who, id: a.id, expect: a.rev}, rwWrite.compare)
		return "late, or no longer wanted: deletes exactly that record"
	}
	if r.phase != holding {
		return "nothing to do"
	}
	number := a.n
	if a.code == refused {
		switch {
		case a.rev != 0 && a.rev <= r.last:
			return "old news"
		case a.kind == broken:
			r.phase, r.last = stopping, a.rev
			return "broken: its context ends"
		case a.kind != held || a.renewal == 0:
			r.phase = over
			return "its record no longer exists: lost"
		}
		number = a.renewal
	}
	if r.left <= 0 {
		r.phase = over
		return "too late: lost"
	}
	r.last = max(r.last, a.rev)
	r.left = max(r.left, c.readTTL-c.readMargin-r.renewed[number-1])
	return "extended"
}
