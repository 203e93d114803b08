package model

import "slices"

// The rule "Overdue" is the same for both locks: a client deletes a record that the server has
// failed to remove in time, and continues as if the record had ended. The deletion expects
// exactly the record's revision.

// servers determines how servers treat ended records.
type servers struct {
	forgets bool // a server may remove an ended record at any time, or never
	revives int8 // restarts that bring back an ended record if no live one exists
	// A record is overdue once a server's clock is past the record's timestamp plus its TTL and
	// the slack. Any two servers' clocks differ by at most the skew.
	slack, skew int8
}

// past reports whether a record is overdue by the clock that is furthest ahead.
func (c *servers) past(age, ttl int8) bool { return age >= ttl+c.slack-c.skew }

// older returns a record's age after a tick. If servers forget records, the age stops growing
// once the record is overdue, because how long it has been overdue makes no difference.
func (c *servers) older(age, ttl int8) int8 {
	if c.forgets {
		return min(age+1, ttl+max(c.slack-c.skew, 0))
	}
	return age + 1
}

// removal returns the kind of step by which a server removes a record. The step is a fault for
// a server that forgets, because liveness must not rely on that server.
func (c *servers) removal() kind {
	if c.forgets {
		return fault
	}
	return step
}

// certain returns a lower bound on a record's age, as seen by the clock that is furthest ahead.
// An operator subtracts it from the TTL of a fixed lease.
func (c *servers) certain(age int8, weak weakness) int8 {
	if weak == brokenForTheRest {
		return age + c.skew
	}
	return max(age+c.skew-c.slack, 0)
}

// overdue reports whether a client that reads the record considers it overdue.
func (c *lockScope) overdue(r lockRecord) bool {
	ttl := r.ttl
	switch c.weak {
	case keptForever:
		return false
	case overdueByOtherTTL:
		ttl = c.shorter
	}
	return r.live() && c.past(r.age+r.since, ttl)
}

// since returns the age that a record inherits from its predecessor under the given variant,
// or 0 under any other.
func (c *lockScope) since(old lockRecord, variant weakness) int8 {
	if c.weak == variant {
		return min(old.age+old.since, old.ttl+c.slack)
	}
	return 0
}

// expects returns the revisions that an attempt may expect, given the servers' answers.
func (c *lockScope) expects(s *lockState) []int8 {
	if s.rec.kind == tombstone || s.rec.live() && c.weak == claimedOnNotification {
		return []int8{0, s.rec.rev}
	}
	return []int8{0}
}

// buries makes client i delete an overdue record at the revision it has read.
func (c *lockScope) buries(s lockState, i int8, to *steps[lockState]) {
	var revs []int8
	if c.overdue(s.rec) {
		revs = append(revs, s.rec.rev)
	}
	if s.oldLast > 0 && c.overdue(s.old) {
		revs = append(revs, s.old.rev)
		if s.rec.live() && c.weak == overdueKey {
			revs = append(revs, s.rec.rev)
		}
	}
	slices.Sort(revs)
	for _, rev := range slices.Compact(revs) {
		n, w := s, lockWrite{verb: deleteLock, client: i, expect: rev}
		if !slices.Contains(s.ways[:], w) && c.send(&n, w) {
			to.do(step, n, "%c: deletes the overdue record at revision %d", 'A'+i, rev)
		}
	}
}

// ended remembers the record that a write or a removal is about to end, because a restart may
// bring it back.
func (c *lockScope) ended(n *lockState) {
	if n.revives > 0 && (n.rec.live() || c.tombs && n.rec.kind == tombstone) {
		n.past = n.rec
	}
}

// buriesGate deletes an overdue gate at its revision.
func (c *rwScope) buriesGate(s rwState, to *steps[rwState]) {
	w := rwWrite{verb: buryGate, who: s.gate.writer, expect: s.gate.rev}
	if s.gate.free() || !c.past(s.gate.age, c.gateTTL) || c.weak == keptForever || slices.Contains(s.ways[:], w) {
		return
	}
	n := s
	if put(n.ways[:c.ways], w, rwWrite.compare) {
		to.do(step, n, "a client: deletes the overdue gate at revision %d", w.expect)
	}
}

// listed reports whether a writer treats the record under key j as a reader. Only a reader's
// own tombstone proves that the reader is dead.
func (c *rwScope) listed(s *rwState, j int8, k readKey) bool {
	old := s.cut[0].keys[j]
	switch {
	case k.kind == broken:
		return c.weak != brokenReaderDead
	case c.weak == overdueByReplica && old.kind != none && c.past(old.age, c.readTTL),
		c.weak == overdueAsReadOnce && c.past(k.age+k.since, c.readTTL):
		return false
	}
	return k.kind == held
}

// sinceJoin returns the age of a reader's first record when it is renewed, for the variant that
// reads only that record.
func (c *rwScope) sinceJoin(old readKey) int8 {
	if c.weak == overdueAsReadOnce {
		return min(old.age+old.since, c.readTTL+c.slack)
	}
	return 0
}

// bury deletes the overdue readers that hold up writer i, each at its revision.
func (c *rwScope) bury(s rwState, i int8, to *steps[rwState]) {
	for j, k := range s.keys {
		w := rwWrite{verb: buryRead, who: int8(j / 2), id: int8(j % 2), expect: k.rev}
		if k.kind == none || k.kind == tombstone || !c.past(k.age, c.readTTL) || c.weak == keptForever || slices.Contains(s.ways[:], w) {
			continue
		}
		n := s
		if put(n.ways[:c.ways], w, rwWrite.compare) {
			to.do(step, n, "W%d: deletes the overdue R%d.%d at revision %d", i+1, j/2+1, j%2, k.rev)
		}
	}
}

// endedGate and endedKey remember the record that a write or a removal is about to end.
func (c *rwScope) endedGate(n *rwState) {
	if n.revives > 0 && !n.gate.free() {
		n.pastGate = n.gate
	}
}

func (c *rwScope) endedKey(n *rwState, j int8) {
	if k := n.keys[j]; n.revives > 0 && (k.kind == held || k.kind == broken) {
		n.pastKey, n.pastOf = k, j
	}
}

// restarts brings an ended record back.
func (c *rwScope) restarts(s rwState, to *steps[rwState]) {
	if s.revives == 0 {
		return
	}
	if s.pastGate.kind != none && s.gate.free() {
		n := s
		n.revives--
		n.gate, n.pastGate = s.pastGate, gateKey{}
		to.do(fault, n, "server: restarts and brings the gate's revision %d back", n.gate.rev)
	}
	if j := s.pastOf; s.pastKey.kind != none && (s.keys[j].kind == none || s.keys[j].kind == tombstone) {
		n := s
		n.revives--
		n.keys[j], n.pastKey, n.pastOf = s.pastKey, readKey{}, 0
		to.do(fault, n, "server: restarts and brings R%d.%d's revision %d back", j/2+1, j%2, n.keys[j].rev)
	}
}

const (
	latePlace   int8 = 2 // a place that has ended but is still stored
	overdueLock      = tombstone + 1
)

// ended returns the state of a place that has ended.
func (c *queueScope) ended() int8 {
	if c.forgets {
		return latePlace
	}
	return 0
}

// bury makes w delete the overdue place that it follows, at that place's revision. The
// tombstone notifies every waiter that follows the place.
func (c *queueScope) bury(s queueState, w waiter, do doStep) {
	p := s.c[w.follows%4]
	place := w.follows < 4 && p.place == latePlace && p.ticket == w.behind
	orphan := w.follows >= 4 && c.forgets && p.orphan == w.behind
	if c.weak == overduePlaceKept || !place && !orphan {
		return
	}
	do(step, func(n *queueState, _ *waiter) {
		p := &n.c[w.follows%4]
		if p.past = w.behind; place {
			p.place = 0
		} else {
			p.orphan = 0
		}
		n.end(w.follows, wasLeft)
	}, "deletes the overdue place ahead of it, by its timer")
}

// buryLock makes a waiter that reads an overdue lock delete it.
func (c *queueScope) buryLock(s queueState, do doStep) {
	if s.lock != overdueLock {
		return
	}
	do(step, func(n *queueState, _ *waiter) {
		n.lock, n.freed = tombstone, n.next
		n.next++
	}, "deletes the overdue lock")
}

// comesBack brings back an ended place after the server restarts or a late renewal of the
// overdue place is stored. The waiter never trusts that place again, so it becomes an orphan,
// like a place whose answer was lost.
func (c *queueScope) comesBack(s queueState, i int8, do doStep) {
	w := s.c[i]
	waits := w.phase >= queued && w.phase <= first
	if s.revives > 0 && w.past > 0 {
		same := waits && w.place == 0 && w.ticket == w.past
		if same || w.orphan == 0 {
			do(fault, func(n *queueState, w *waiter) {
				n.revives--
				if same {
					w.place = latePlace
				} else {
					w.orphan = w.past
				}
				w.past = 0
			}, "its place comes back in a restart of the server")
		}
	}
	if w.place == latePlace && (waits || w.phase == dead) && (w.orphan == 0 || c.weak == overduePlaceRenewed) {
		do(fault, func(_ *queueState, w *waiter) {
			if c.weak == overduePlaceRenewed {
				w.place = 1
				return
			}
			w.orphan, w.place = w.ticket, 0
		}, "a late renewal of its overdue place is stored")
	}
}
