package model

import "slices"

// The clients of the slots of a semaphore, in time.

// send puts a write on its way; false: too many are.
func (c *slotScope) send(n *slotState, w slotWrite) bool {
	return put(n.ways[:c.ways], w, slotWrite.compare)
}

// discard deletes the record of a slot at exactly the revision rev. It is a courtesy: the
// deletion may also not happen.
func (c *slotScope) discard(n *slotState, i, slot, rev int8) {
	w := slotWrite{verb: deleteLock, client: i, slot: slot, expect: rev}
	if !slices.Contains(n.ways[:], w) {
		c.send(n, w)
	}
}

// end ends the claim or the lease: only messages and records are left of it.
func (x *slotClient) end() {
	*x = slotClient{phase: idle, claim: x.claim, behind: x.behind}
}

func (c *slotScope) grant(n *slotState, i, slot, number, rev, age int8) string {
	x := &n.c[i]
	if c.weak == validityFromAnswer {
		age = 0
	}
	x.phase, x.slot, x.granted, x.token, x.last, x.left = holding, slot, number, rev, rev, c.ttl-c.margin-age
	x.renewals, x.reads = 0, 0
	if rev <= n.tokens[slot] {
		n.wrong = 1
	}
	n.tokens[slot] = max(n.tokens[slot], rev)
	return "holds"
}

// answered takes an answer to a write.
func (c *slotScope) answered(n *slotState, a slotAnswer) string {
	x := &n.c[a.client]
	switch a.verb {
	case claimLock:
		switch {
		case x.phase == trying && x.claim == a.claim:
			return c.judged(n, a)
		case a.code != acked || x.phase >= holding && x.claim == a.claim && a.n == x.granted:
			return "nothing new"
		}
		c.discard(n, a.client, a.slot, a.rev)
		return "an orphan record: deletes exactly that record"
	case renewLock:
		switch {
		case x.phase != holding || x.claim != a.claim:
			return "nothing to do"
		case a.code == acked:
			return c.confirmed(n, a.client, a.rev)
		case x.reads == 0 && (a.rev == 0 || a.rev > x.last):
			x.reads, x.least = 1, max(a.rev, x.last)
			return "reads the record"
		}
		return "old news"
	}
	switch {
	case x.phase != leaving || x.claim != a.claim:
		return "nothing to do"
	case a.code == acked:
		x.end()
		return "released"
	}
	x.reads, x.least = 1, max(a.rev, x.last)
	return "reads the record"
}

// judged takes the answer to an attempt of the current claim.
func (c *slotScope) judged(n *slotState, a slotAnswer) string {
	x := &n.c[a.client]
	at := &x.attempts[a.n-1]
	at.open = 0
	switch {
	case a.code == acked && (at.age < c.ttl-c.margin || c.weak == lateAnswer):
		return c.grant(n, a.client, a.slot, a.n, a.rev, at.age)
	case a.code == acked:
		c.discard(n, a.client, a.slot, a.rev)
		x.end()
		return "too late: deletes it, the claim is over"
	case a.n != x.n:
		return "refused, but not the newest: no news"
	case a.rev != 0:
		x.reads, x.least = 1, a.rev
		return "reads the record"
	}
	return "may try again, or another slot"
}

// found judges the record under the key of the slot.
func (c *slotScope) found(n *slotState, i int8, r slotRecord) string {
	x := &n.c[i]
	x.reads = 0
	own := r.live() && r.client == i && r.claim == x.claim
	switch {
	case x.phase == trying && !own:
		return "not its own"
	case x.phase == trying && r.kind == broken:
		c.discard(n, i, x.slot, r.rev)
		x.end()
		return "its own and broken: deletes it, the claim is over"
	case x.phase == trying:
		at := x.attempts[max(r.attempt-1, 0)]
		if r.attempt == 0 || at.open == 0 {
			return "of an attempt that was answered: not its own"
		}
		if c.weak == adoptedAsNewest {
			at = x.attempts[x.n-1]
		}
		if at.age < c.ttl-c.margin {
			return "its own, adopted as of its sending: " + c.grant(n, i, x.slot, r.attempt, r.rev, at.age)
		}
		c.discard(n, i, x.slot, r.rev)
		x.end()
		return "its own, too late: deletes it, the claim is over"
	case x.phase == holding && own && r.kind == broken:
		x.phase, x.last = stopping, r.rev
		return "broken: its context ends"
	case x.phase == holding && own && r.rev <= x.last:
		return "as it should be"
	case x.phase == holding && own && r.renewal > 0 && r.renewal == x.renewals:
		return "its own renewal: " + c.confirmed(n, i, r.rev)
	case x.phase == leaving && own:
		x.last = r.rev
		c.send(n, slotWrite{verb: deleteLock, client: i, claim: x.claim, slot: x.slot, expect: r.rev})
		return "still its own: deletes it"
	case x.phase == holding && own:
		c.discard(n, i, x.slot, r.rev)
		x.end()
		return "an acquisition of its own: lost, deletes it"
	}
	x.end()
	return "gone"
}

// confirmed extends the lease by its renewal, stored at rev.
func (c *slotScope) confirmed(n *slotState, i, rev int8) string {
	x := &n.c[i]
	if x.left <= 0 && c.weak != lateAnswer {
		c.discard(n, i, x.slot, rev)
		x.end()
		return "too late: lost, deletes it"
	}
	x.last = max(x.last, rev)
	x.left = max(x.left, c.ttl-c.margin-x.renewed)
	return "extended"
}

// expects are the revisions that an attempt at a slot may expect, by the servers' answers.
func (c *slotScope) expects(s *slotState, slot int8) []int8 {
	r, old := s.recs[slot], s.old[slot]
	revs := []int8{0}
	if r.kind == tombstone || c.overdue(r) {
		revs = append(revs, r.rev)
	}
	believed := s.oldLast > 0 && (c.overdue(old) || old.kind == tombstone)
	if believed && old.rev != r.rev {
		revs = append(revs, old.rev)
	}
	if r.live() && !c.overdue(r) && (c.weak == claimedOnNotification || c.weak == overdueKey && believed) {
		revs = append(revs, r.rev)
	}
	return revs
}

// client takes what a client does by itself.
func (c *slotScope) client(s slotState, i int8, to *steps[slotState]) {
	x := s.c[i]
	if x.phase == over {
		return
	}
	do := func(w slotWrite, change func(n *slotState, x *slotClient), words string) {
		n := s
		change(&n, &n.c[i])
		w.client = i
		if w.verb == 0 {
			to.do(step, n, "%c: %s", 'A'+i, words)
		} else if c.send(&n, w) {
			to.do(step, n, "%c: %s: %s %d.%d of slot %d expecting %d", 'A'+i, words, lockVerbs[w.verb], w.claim, w.n, w.slot, w.expect)
		}
	}
	if i == 0 && s.crashes > 0 && x.phase != idle {
		n := s
		n.crashes--
		n.c[i] = slotClient{phase: over}
		to.do(fault, n, "A: crashes")
	}
	for k := range c.slots {
		r := s.recs[k]
		lease := x.phase >= trying && r.claim == x.claim && (x.phase == trying || k == x.slot && r.attempt == x.granted)
		if r.kind == held && r.client == i && r.renewal == 0 && !lease && !slices.Contains(s.ways[:], slotWrite{verb: deleteLock, client: i, slot: k, expect: r.rev}) {
			do(slotWrite{verb: deleteLock, slot: k, expect: r.rev}, func(*slotState, *slotClient) {}, "is notified of a record of its own, from an attempt that is over")
		}
	}
	attempts := func(claim, slot int8, words string) {
		for _, e := range c.expects(&s, slot) {
			do(slotWrite{verb: claimLock, claim: claim, n: x.n + 1, slot: slot, expect: e}, func(_ *slotState, x *slotClient) {
				x.phase, x.claim, x.slot, x.reads = trying, claim, slot, 0
				x.attempts[x.n] = slotAttempt{slot: slot, expect: e, open: 1}
				x.n++
			}, words)
		}
	}
	switch x.phase {
	case idle:
		for k := range c.slots {
			if x.claim < c.claims[i] {
				attempts(x.claim+1, k, "claims")
			}
		}
	case trying:
		for k := range c.slots {
			if x.n < c.attempts && (k == x.slot || c.weak == slotShared || c.weak == grantedWhenOver) {
				attempts(x.claim, k, "tries again")
			}
		}
		do(slotWrite{}, func(n *slotState, x *slotClient) {
			for _, a := range x.attempts {
				if a.open == 1 { // the server refuses it after this deletion
					c.discard(n, i, a.slot, a.expect)
				}
			}
			x.end()
		}, "gives up the slot, and puts tombstones where open attempts expect none")
	case holding:
		c.holder(x, i, do)
	case stopping:
		do(slotWrite{verb: deleteLock, claim: x.claim, slot: x.slot, expect: x.last}, func(_ *slotState, x *slotClient) { x.end() }, "has stopped")
	case leaving:
		do(slotWrite{}, func(_ *slotState, x *slotClient) { x.end() }, "waits for its deletion no more")
	}
}

// holder takes what a client does while it holds.
func (c *slotScope) holder(x slotClient, i int8, do func(slotWrite, func(*slotState, *slotClient), string)) {
	if x.left <= 0 {
		do(slotWrite{}, func(_ *slotState, x *slotClient) { x.end() }, "its validity has ended: lost")
		return
	}
	if c.breaks > 0 && x.reads == 0 {
		do(slotWrite{}, func(_ *slotState, x *slotClient) { x.reads, x.least = 1, x.last }, "is given a hint, and reads the record")
	}
	if x.renewals < c.renewals[i] && x.reads == 0 {
		do(slotWrite{verb: renewLock, claim: x.claim, n: 1, slot: x.slot, expect: x.last, token: x.token}, func(_ *slotState, x *slotClient) {
			x.renewals, x.renewed = 1, 0
		}, "renews")
	}
	do(slotWrite{verb: deleteLock, claim: x.claim, slot: x.slot, expect: x.last}, func(_ *slotState, x *slotClient) {
		x.phase, x.reads = leaving, 0
	}, "releases")
}

// canon clears the fields that no step reads again, and renumbers the revisions.
func (c *slotScope) canon(s *slotState) {
	forget(s.answers[:], func(a slotAnswer) bool {
		x := &s.c[a.client]
		bids := x.phase == trying && x.claim == a.claim
		switch {
		case x.phase == over:
			return true
		case a.verb == renewLock:
			return x.phase != holding || x.claim != a.claim
		case a.verb == deleteLock:
			return x.phase != leaving || x.claim != a.claim
		case a.code == acked:
			return !bids && s.recs[a.slot].rev != a.rev
		}
		return !bids || a.n != x.n
	})
	var revs []*int8
	for i := range s.c {
		x := &s.c[i]
		if x.phase >= stopping {
			x.token, x.renewals, x.renewed = 0, 0, 0
		}
		if x.phase == leaving {
			x.left = 0
		}
		if x.phase >= holding {
			x.n, x.attempts = 0, [2]slotAttempt{}
		}
		if x.reads == 0 {
			x.least = 0
		}
		if x.renewals == 0 {
			x.renewed = 0
		}
		for j := range x.attempts {
			if int8(j) >= x.n {
				x.attempts[j] = slotAttempt{}
			}
			revs = append(revs, &x.attempts[j].expect)
		}
		revs = append(revs, &x.token, &x.last, &x.least)
	}
	for k := range s.recs {
		revs = append(revs, &s.recs[k].rev, &s.recs[k].token, &s.old[k].rev, &s.old[k].token, &s.tokens[k])
	}
	for i := range s.ways {
		revs = append(revs, &s.ways[i].expect, &s.ways[i].token)
	}
	for i := range s.answers {
		revs = append(revs, &s.answers[i].rev)
	}
	revs = append(revs, &s.oldLast)
	s.next = renumber(revs...)
}
