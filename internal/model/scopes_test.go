package model

// run is one exploration and what is expected of it.
type run struct {
	name    string
	explore func(limits) result
	want    string // the invariant that has to be violated; "": none
}

func of[S comparable](m system[S], want string) run {
	return run{name: m.name, explore: func(l limits) result { return explore(m, l) }, want: want}
}

// lock is a scope of the mutex; all that is not said is small.
func lock(name string, change func(c *lockScope)) *lockScope {
	c := lockScope{
		name: "mutex: " + name, ttl: 3, margin: 1, claims: 1, attempts: [2]int8{2, 1}, renewals: [2]int8{1, 0},
		ways: 2, answers: 1, losses: true,
	}
	change(&c)
	return &c
}

func rw(name string, change func(c *rwScope)) *rwScope {
	c := rwScope{
		name: "rw: " + name, readers: 1, writers: 1, readTTL: 4, readMargin: 1, gateTTL: 4, gateMargin: 1,
		joins: 1, readRenewals: 1, gateRenewals: 1, ways: 2, answers: 1, losses: true,
	}
	change(&c)
	return &c
}

// cut is what it takes for a leader to be deposed and not know it. The window is
// less than the reader's TTL, by what a server may be early.
func cut(c *rwScope) {
	c.several, c.cuts, c.losses, c.window = true, 1, false, c.readTTL-c.early
}

func queue(name, modes string, change func(c *queueScope)) *queueScope {
	c := queueScope{name: "queue " + modes + ": " + name, modes: modes}
	change(&c)
	return &c
}

func share(name string, change func(c *shareScope)) *shareScope {
	c := shareScope{name: "sharing: " + name, renew: 4, ttl: 12, reads: 2, deaf: true}
	change(&c)
	return &c
}

// small are the scopes that every test run explores.
func small() []run {
	return []run{
		of(lock("lost answers, ghosts", func(c *lockScope) {}).system(), ""),
		of(lock("close, crash", func(c *lockScope) { c.closes, c.crashes, c.attempts[0] = 1, 1, 1 }).system(), ""),
		of(lock("a shorter TTL", func(c *lockScope) { c.ttl, c.shorter, c.renewals[0], c.attempts[0] = 4, 2, 2, 1 }).system(), ""),
		of(lock("a clock behind by the margin", func(c *lockScope) { c.slow = 1; c.attempts[0] = 1 }).system(), ""),
		of(lock("servers early by the margin", func(c *lockScope) { c.early, c.late = 1, 1; c.attempts[0] = 1 }).system(), ""),
		of(lock("break", func(c *lockScope) { c.operators, c.attempts[0] = 1, 1 }).system(), ""),
		of(lock("break of a fixed lease", func(c *lockScope) { c.operators, c.rest, c.fixed, c.renewals[0], c.attempts[0] = 1, true, true, 0, 1 }).system(), ""),
		of(lock("break with now", func(c *lockScope) { c.operators, c.now, c.attempts[0] = 1, true, 1 }).system(), ""),
		of(lock("replicas", func(c *lockScope) { c.proposals, c.attempts[0] = true, 1 }).system(), ""),
		of(lock("a deposed leader", func(c *lockScope) { c.cuts, c.losses, c.attempts[0] = 1, false, 1 }).system(), ""),
		of(lock("somebody gets in", func(c *lockScope) { c.claims, c.crashes, c.attempts[0], c.renewals[0], c.ways = 0, 1, 1, 0, 1 }).system(), ""),
		of(rw("one replica", func(c *rwScope) {}).system(), ""),
		of(rw("a reader is broken", func(c *rwScope) { c.breaks, c.losses = 1, false }).system(), ""),
		of(rw("a gate is broken", func(c *rwScope) { c.gateBreaks, c.readers, c.writers, c.losses, c.gateTTL = 1, 0, 2, false, 3 }).system(), ""),
		of(rw("joins repeated", func(c *rwScope) { c.joins, c.readRenewals, c.losses, c.readTTL = 2, 0, false, 3 }).system(), ""),
		of(rw("two readers", func(c *rwScope) { c.readTTL, c.readers, c.readRenewals, c.gateRenewals, c.losses = 3, 2, 0, 0, false }).system(), ""),
		of(rw("a deposed leader, TTLs of 2 and 4", func(c *rwScope) { c.readTTL = 2; cut(c) }).system(), ""),
		of(rw("writers get in", func(c *rwScope) { c.again, c.gateRenewals, c.readRenewals, c.losses = true, 0, 0, false }).system(), ""),
		of(queue("nothing goes wrong", "MMMM", func(c *queueScope) {}).system(), ""),
		of(queue("taken again and again", "MMM", func(c *queueScope) { c.rounds = 1 }).system(), ""),
		of(queue("a crash, a lost notification", "MMMM", func(c *queueScope) { c.crashes, c.losses = 1, 1 }).system(), ""),
		of(queue("a pause, a ghost, an ended place, a stale look", "MMM", func(c *queueScope) { c.pauses, c.expires, c.ghosts, c.stale = 1, 1, 1, 1 }).system(), ""),
		of(queue("a crash, a lost notification", "WRRW", func(c *queueScope) { c.crashes, c.losses = 1, 1 }).system(), ""),
		of(queue("a stale look, a pause", "RWRW", func(c *queueScope) { c.stale, c.pauses = 1, 1 }).system(), ""),
		of(share("the gate is not seen", func(c *shareScope) {}).system(), ""),
		of(share("a lease that is never renewed", func(c *shareScope) { c.fixed = true }).system(), ""),
		of(share("the gate is seen", func(c *shareScope) { c.deaf = false }).system(), ""),
	}
}

// large are the scopes of make model.
func large() []run {
	both := func(c *lockScope) { c.ways, c.answers = 3, 2 }
	return []run{
		of(lock("lost answers, ghosts", both).system(), ""),
		of(lock("both try twice", func(c *lockScope) { both(c); c.attempts[1] = 2 }).system(), ""),
		of(lock("two claims each", func(c *lockScope) { c.claims, c.attempts[0] = 2, 1 }).system(), ""),
		of(lock("two renewals, TTL 4", func(c *lockScope) { both(c); c.ttl, c.renewals[0], c.attempts[0] = 4, 2, 1 }).system(), ""),
		of(lock("close, crash", func(c *lockScope) { both(c); c.closes, c.crashes = 1, 1 }).system(), ""),
		of(lock("a shorter TTL", func(c *lockScope) { c.ttl, c.shorter, c.renewals[0], c.ways = 4, 2, 2, 3 }).system(), ""),
		of(lock("a clock behind by the margin", func(c *lockScope) { both(c); c.slow = 1 }).system(), ""),
		of(lock("servers early by the margin, and late", func(c *lockScope) { both(c); c.early, c.late = 1, 1 }).system(), ""),
		of(lock("margin 2: a clock behind by 1, servers early by 1", func(c *lockScope) { c.ttl, c.margin, c.slow, c.early = 4, 2, 1, 1 }).system(), ""),
		of(lock("break", func(c *lockScope) { c.operators, c.ways, c.answers = 1, 3, 1 }).system(), ""),
		of(lock("break by two operators", func(c *lockScope) { c.operators, c.attempts[0] = 2, 1 }).system(), ""),
		of(lock("break of a fixed lease", func(c *lockScope) { c.operators, c.rest, c.fixed, c.renewals[0], c.ttl = 1, true, true, 0, 4 }).system(), ""),
		of(lock("break of a fixed lease, servers early", func(c *lockScope) {
			c.operators, c.rest, c.fixed, c.renewals[0], c.ttl, c.early = 1, true, true, 0, 4, 1
		}).system(), ""),
		of(lock("break with now", func(c *lockScope) { c.operators, c.now = 1, true }).system(), ""),
		of(lock("replicas, two attempts", func(c *lockScope) { c.proposals = true }).system(), ""),
		of(lock("replicas, a deposed leader, Close", func(c *lockScope) { c.proposals, c.cuts, c.closes, c.attempts[0] = true, 1, 1, 1 }).system(), ""),
		of(lock("a deposed leader, two attempts", func(c *lockScope) { c.cuts, c.renewals[0], c.losses = 1, 0, false }).system(), ""),
		of(lock("replicas, a break", func(c *lockScope) { c.proposals, c.operators, c.attempts[0] = true, 1, 1 }).system(), ""),
		of(lock("somebody gets in: a crash, a renewal", func(c *lockScope) { c.claims, c.crashes, c.attempts[0], c.losses = 0, 1, 1, false }).system(), ""),
		of(lock("somebody gets in: lost answers, two attempts", func(c *lockScope) { c.claims, c.crashes, c.renewals[0], c.ways = 0, 1, 0, 1 }).system(), ""),
		of(lock("somebody gets in: a break", func(c *lockScope) { c.claims, c.operators, c.attempts[0], c.ways, c.losses = 0, 1, 1, 1, false }).system(), ""),

		of(rw("one replica", func(c *rwScope) { c.ways, c.late = 3, 1 }).system(), ""),
		of(rw("two renewals each", func(c *rwScope) { c.readRenewals, c.gateRenewals = 2, 2 }).system(), ""),
		of(rw("a reader is broken, Close", func(c *rwScope) { c.breaks, c.closes = 1, 1 }).system(), ""),
		of(rw("a broken reader lives for the rest", func(c *rwScope) { c.breaks, c.rest = 1, true }).system(), ""),
		of(rw("a gate is broken, two writers", func(c *rwScope) {
			c.gateBreaks, c.writers, c.readRenewals, c.gateRenewals, c.losses = 1, 2, 0, 0, false
		}).system(), ""),
		of(rw("joins repeated, lost answers", func(c *rwScope) { c.joins = 2 }).system(), ""),
		of(rw("two readers", func(c *rwScope) { c.readers, c.gateRenewals, c.losses = 2, 0, false }).system(), ""),
		of(rw("a deposed leader, TTLs of 4 and 6", func(c *rwScope) { c.gateTTL = 6; cut(c) }).system(), ""),
		of(rw("a deposed leader, TTLs of 6 and 3", func(c *rwScope) { c.readTTL, c.gateTTL = 6, 3; cut(c) }).system(), ""),
		of(rw("a deposed leader, lost answers", func(c *rwScope) { c.readTTL = 3; cut(c); c.losses = true }).system(), ""),
		of(rw("a deposed leader, a broken reader", func(c *rwScope) { c.readTTL, c.breaks = 3, 1; cut(c) }).system(), ""),
		of(rw("a deposed leader, servers early by the margin", func(c *rwScope) { c.early = 1; cut(c) }).system(), ""),
		of(rw("two deposed leaders, two renewals", func(c *rwScope) { c.readTTL, c.readRenewals = 3, 2; cut(c); c.cuts = 2 }).system(), ""),
		of(rw("writers get in, lost answers", func(c *rwScope) { c.again, c.readRenewals = true, 0 }).system(), ""),
		of(rw("writers get in, replicas", func(c *rwScope) { c.again, c.readRenewals = true, 0; cut(c); c.cuts, c.gateTTL = 0, 4 }).system(), ""),

		of(queue("everything at once", "MMMM", func(c *queueScope) { c.crashes, c.losses, c.pauses, c.expires, c.stale = 1, 1, 1, 1, 1 }).system(), ""),
		of(queue("a ghost, a pause, an ended place", "MMMM", func(c *queueScope) { c.ghosts, c.pauses, c.expires = 1, 1, 1 }).system(), ""),
		of(queue("taken again, a crash, a loss", "MMM", func(c *queueScope) { c.rounds, c.crashes, c.losses, c.stale = 2, 1, 1, 1 }).system(), ""),
		of(queue("everything at once", "WRRW", func(c *queueScope) { c.crashes, c.losses, c.pauses, c.expires, c.stale = 1, 1, 1, 1, 1 }).system(), ""),
		of(queue("everything at once", "RWRW", func(c *queueScope) { c.crashes, c.losses, c.pauses, c.expires, c.stale = 1, 1, 1, 1, 1 }).system(), ""),
		of(queue("taken again, a crash", "RWR", func(c *queueScope) { c.rounds, c.crashes, c.stale = 1, 1, 1 }).system(), ""),
	}
}

// weakened leave out one rule each. They are the smallest scopes that show why
// it is needed.
func weakened() []run {
	w := func(rule weakness, change func(c *lockScope)) *lockScope {
		return lock(string(rule), func(c *lockScope) { c.weak = rule; change(c) })
	}
	r := func(rule weakness, change func(c *rwScope)) *rwScope {
		return rw(string(rule), func(c *rwScope) { c.weak = rule; change(c) })
	}
	q := func(rule weakness, modes string, change func(c *queueScope)) *queueScope {
		return queue(string(rule), modes, func(c *queueScope) { c.weak = rule; change(c) })
	}
	s := func(rule weakness) *shareScope {
		return share(string(rule), func(c *shareScope) { c.weak = rule })
	}
	return []run{
		of(w(validityFromAnswer, func(c *lockScope) { c.ttl = 4; c.attempts[0] = 1 }).system(), exclusion),
		of(w(lateAnswer, func(c *lockScope) { c.ways, c.answers = 3, 2 }).system(), tokensGrow),
		of(w(unconditionalDelete, func(c *lockScope) {}).system(), strangers),
		of(w(grantedWhenOver, func(c *lockScope) {}).system(), ownDeletion),
		of(w(adoptedAsNewest, func(c *lockScope) {}).system(), exclusion),
		of(w(brokenAdopted, func(c *lockScope) { c.operators = 1 }).system(), breakKept),
		of(w(renewalAtZero, func(c *lockScope) { c.attempts[0], c.operators, c.now = 1, 1, true }).system(), superseded),
		of(w(brokenTooShort, func(c *lockScope) { c.operators, c.ttl, c.attempts[0] = 1, 4, 1 }).system(), exclusion),
		of(w(closeDeletes, func(c *lockScope) { c.closes, c.attempts[0] = 1, 1 }).system(), exclusion),
		of(w(shorterNotHeeded, func(c *lockScope) { c.ttl, c.shorter, c.attempts[0] = 4, 2, 1 }).system(), exclusion),
		of(w(sightingBelieved, func(c *lockScope) {}).system(), strangers),
		of(lock("servers early by more than the margin", func(c *lockScope) { c.early, c.attempts[0] = 2, 1 }).system(), exclusion),
		of(lock("a clock behind by more than the margin", func(c *lockScope) { c.slow, c.attempts[0] = 2, 1 }).system(), exclusion),
		of(lock("a clock behind and servers early", func(c *lockScope) { c.slow, c.early, c.attempts[0] = 1, 1, 1 }).system(), exclusion),

		of(r(proofOlderThanGate, func(c *rwScope) { cut(c); c.several = false }).system(), exclusion),
		of(r(proofAnyTime, func(c *rwScope) { cut(c) }).system(), exclusion),
		of(r(proofByOwnMargin, func(c *rwScope) { c.gateTTL, c.gateMargin = 8, 5; cut(c); c.window = 3 }).system(), exclusion),
		of(r(unguardedJoin, func(c *rwScope) {}).system(), exclusion),
		of(r(joinAtLiveGate, func(c *rwScope) {}).system(), exclusion),
		of(r(brokenReaderDead, func(c *rwScope) { c.breaks = 1 }).system(), exclusion),
		of(r(sharingRestarted, func(c *rwScope) {}).system(), exclusion),
		of(r(closeDeletes, func(c *rwScope) { c.closes = 1 }).system(), exclusion),

		of(q(noBackstop, "MMM", func(c *queueScope) { c.losses = 1 }).system(), stuck),
		of(q(noBackstop, "MMM", func(c *queueScope) { c.crashes = 1 }).system(), stuck),
		of(q(staleQueue, "MMM", func(c *queueScope) {}).system(), fifo),
		of(q(shortcutInRW, "WRRW", func(c *queueScope) {}).system(), fifo),
		of(q(newcomerJoins, "WRW", func(c *queueScope) {}).system(), fifo),
		of(q(newcomerSeesOld, "MMM", func(c *queueScope) { c.stale = 1 }).system(), fifo),
		of(s(sharingRestarted).system(), neverAgain),
		of(s(sharedTillSeen).system(), boundedWait),
	}
}
