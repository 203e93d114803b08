package model

// lateLock, lateRW and lateQueue are scopes with servers that may never remove a record.
// The servers' clocks are as far apart as the margin and the slack allow.
func lateLock(name string, change func(c *lockScope)) *lockScope {
	return lock("overdue: "+name, func(c *lockScope) {
		c.forgets, c.skew, c.attempts, c.losses = true, 2, [2]int8{1, 1}, false
		change(c)
	})
}

func lateRW(name string, change func(c *rwScope)) *rwScope {
	return rw("overdue: "+name, func(c *rwScope) {
		c.forgets, c.skew, c.losses = true, 2, false
		change(c)
	})
}

func lateQueue(name, modes string, change func(c *queueScope)) *queueScope {
	return queue("overdue: "+name, modes, func(c *queueScope) { c.forgets = true; change(c) })
}

// lateFixed is a lease that is not renewed and is broken for its remaining time. The
// operator, the server and the holder have three different clocks.
func lateFixed(c *lockScope) {
	c.operators, c.rest, c.fixed, c.renewals[0], c.skew, c.slow = 1, true, true, 0, 1, 1
}

// lateIn is a mutex whose first client crashes and whose second client must get in.
func lateIn(c *lockScope) { c.claims, c.crashes, c.renewals[0], c.ways = 0, 1, 0, 1 }

func smallOverdue() []run {
	return []run{
		of(lateLock("a renewal", func(c *lockScope) {}).system(), ""),
		of(lateLock("a clock behind", func(c *lockScope) { c.slow, c.skew = 1, 1 }).system(), ""),
		of(lateLock("break of a fixed lease", func(c *lockScope) { lateFixed(c); c.ways = 1 }).system(), ""),
		of(lateLock("an operator removes", func(c *lockScope) { c.operators = 1 }).system(), ""),
		of(lateLock("a deposed leader", func(c *lockScope) { c.cuts, c.renewals[0], c.ways = 1, 0, 1 }).system(), ""),
		of(lateLock("a record comes back", func(c *lockScope) { c.revives = 1 }).system(), ""),
		of(lateLock("the second client gets in", lateIn).system(), ""),
		of(lateRW("one replica", func(c *rwScope) {}).system(), ""),
		of(lateRW("a deposed leader", func(c *rwScope) { c.readTTL, c.gateTTL, c.ways = 2, 2, 1; cut(c) }).system(), ""),
		of(lateRW("a record comes back", func(c *rwScope) { c.revives, c.readTTL, c.gateTTL, c.gateRenewals = 1, 3, 3, 0 }).system(), ""),
		of(lateRW("writers get in", func(c *rwScope) { c.again, c.gateRenewals, c.readRenewals = true, 0, 0 }).system(), ""),
		of(lateQueue("a crash, an ended place", "MMM", func(c *queueScope) { c.crashes, c.expires, c.prompt = 1, 1, true }).system(), ""),
		of(lateQueue("a place comes back", "MMM", func(c *queueScope) { c.pauses, c.revives = 1, 1 }).system(), ""),
		of(lateQueue("a pause", "WRW", func(c *queueScope) { c.crashes, c.pauses = 1, 1 }).system(), ""),
	}
}

func largeOverdue() []run {
	return []run{
		of(lateLock("lost answers, orphans", func(c *lockScope) { c.attempts, c.losses = [2]int8{2, 2}, true }).system(), ""),
		of(lateLock("two renewals, TTL 4", func(c *lockScope) { c.ttl, c.renewals[0], c.attempts[1], c.losses = 4, 2, 2, true }).system(), ""),
		of(lateLock("two claims each", func(c *lockScope) { c.claims, c.losses = 2, true }).system(), ""),
		of(lateLock("close, crash", func(c *lockScope) { c.closes, c.crashes, c.attempts[1], c.losses = 1, 1, 2, true }).system(), ""),
		of(lateLock("a shorter TTL", func(c *lockScope) { c.ttl, c.shorter, c.renewals[0], c.losses = 4, 2, 2, true }).system(), ""),
		of(lateLock("a clock behind, lost answers", func(c *lockScope) { c.slow, c.skew, c.attempts[1], c.losses = 1, 1, 2, true }).system(), ""),
		of(lateLock("break", func(c *lockScope) { c.operators, c.attempts[1] = 1, 2 }).system(), ""),
		of(lateLock("break of a fixed lease, lost answers", func(c *lockScope) { lateFixed(c); c.ttl, c.losses = 4, true }).system(), ""),
		of(lateLock("replicas, a deposed leader", func(c *lockScope) { c.proposals, c.cuts, c.losses = true, 1, true }).system(), ""),
		of(lateLock("a deposed leader, two attempts", func(c *lockScope) { c.cuts, c.attempts[1] = 1, 2 }).system(), ""),
		of(lateLock("a record comes back, two claims each", func(c *lockScope) { c.revives, c.claims = 1, 2 }).system(), ""),
		of(lateLock("a record comes back twice, lost answers", func(c *lockScope) { c.revives, c.attempts, c.losses = 2, [2]int8{2, 2}, true }).system(), ""),
		of(lateLock("a record comes back, a break", func(c *lockScope) { c.revives, c.operators = 1, 1 }).system(), ""),
		of(lateLock("a record comes back, a deposed leader", func(c *lockScope) { c.revives, c.cuts, c.renewals[0] = 1, 1, 0 }).system(), ""),
		of(lateLock("a tombstone comes back, two claims each", func(c *lockScope) { c.revives, c.tombs, c.claims, c.renewals[0] = 1, true, 2, 0 }).system(), ""),
		of(lateLock("the second client gets in: a renewal", func(c *lockScope) { lateIn(c); c.renewals[0], c.ways = 1, 2 }).system(), ""),
		of(lateLock("the second client gets in: lost answers", func(c *lockScope) { lateIn(c); c.losses = true }).system(), ""),
		of(lateLock("the second client gets in: a break, a record comes back", func(c *lockScope) { lateIn(c); c.operators, c.revives = 1, 1 }).system(), ""),

		of(lateRW("one replica, lost answers", func(c *rwScope) { c.losses = true }).system(), ""),
		of(lateRW("three writes on their way", func(c *rwScope) { c.ways = 3 }).system(), ""),
		of(lateRW("two renewals each", func(c *rwScope) { c.readRenewals, c.gateRenewals = 2, 2 }).system(), ""),
		of(lateRW("a reader is broken, Close", func(c *rwScope) { c.breaks, c.closes = 1, 1 }).system(), ""),
		of(lateRW("a broken reader lives for the rest", func(c *rwScope) { c.breaks, c.rest, c.skew = 1, true, 1 }).system(), ""),
		of(lateRW("a gate is broken, two writers", func(c *rwScope) {
			c.gateBreaks, c.writers, c.readRenewals, c.gateRenewals, c.gateTTL = 1, 2, 0, 0, 3
		}).system(), ""),
		of(lateRW("joins repeated", func(c *rwScope) { c.joins, c.readRenewals, c.readTTL = 2, 0, 3 }).system(), ""),
		of(lateRW("two readers", func(c *rwScope) { c.readTTL, c.readers, c.readRenewals, c.gateRenewals = 3, 2, 0, 0 }).system(), ""),
		of(lateRW("a deposed leader, servers early", func(c *rwScope) { c.early = 1; cut(c) }).system(), ""),
		of(lateRW("a deposed leader, TTLs of 2 and 4", func(c *rwScope) { c.readTTL = 2; cut(c) }).system(), ""),
		of(lateRW("a record comes back", func(c *rwScope) { c.revives = 1 }).system(), ""),
		of(lateRW("a record comes back twice, joins repeated", func(c *rwScope) {
			c.revives, c.joins, c.readRenewals, c.readTTL = 2, 2, 0, 3
		}).system(), ""),
		of(lateRW("a record comes back, a deposed leader", func(c *rwScope) { c.revives, c.readTTL = 1, 3; cut(c) }).system(), ""),
		of(lateRW("writers get in, lost answers", func(c *rwScope) { c.again, c.readRenewals, c.losses = true, 0, true }).system(), ""),
		of(lateRW("writers get in, a reader renews", func(c *rwScope) { c.again, c.gateRenewals = true, 0 }).system(), ""),
		of(lateRW("writers get in, replicas", func(c *rwScope) { c.again, c.readRenewals = true, 0; cut(c); c.cuts = 0 }).system(), ""),

		of(lateQueue("a crash, a loss, a pause, an ended place", "MMM", func(c *queueScope) { c.crashes, c.losses, c.pauses, c.expires = 1, 1, 1, 1 }).system(), ""),
		of(lateQueue("taken again, a crash, an ended place", "MMM", func(c *queueScope) { c.rounds, c.crashes, c.expires = 1, 1, 1 }).system(), ""),
		of(lateQueue("a crash, a pause", "WRRW", func(c *queueScope) { c.crashes, c.pauses = 1, 1 }).system(), ""),
		of(lateQueue("places come back", "MMM", func(c *queueScope) { c.crashes, c.pauses, c.expires, c.revives = 1, 1, 1, 2 }).system(), ""),
		of(lateQueue("a place comes back, nobody out of turn", "MMM", func(c *queueScope) { c.rounds, c.crashes, c.revives, c.prompt = 1, 1, 1, true }).system(), ""),
		of(lateQueue("a place comes back", "WRRW", func(c *queueScope) { c.pauses, c.revives = 1, 1 }).system(), ""),
	}
}

// weakenedOverdue returns variants of the rule that must not be implemented.
func weakenedOverdue() []run {
	w := func(rule weakness, change func(c *lockScope)) run {
		return of(lateLock(string(rule), func(c *lockScope) { c.weak = rule; change(c) }).system(), exclusion)
	}
	r := func(rule weakness, want string, change func(c *rwScope)) run {
		return of(lateRW(string(rule), func(c *rwScope) { c.weak = rule; change(c) }).system(), want)
	}
	q := func(rule weakness, want string, change func(c *queueScope)) run {
		return of(lateQueue(string(rule), "MMM", func(c *queueScope) { c.weak = rule; change(c) }).system(), want)
	}
	return []run{
		w(overdueByOtherTTL, func(c *lockScope) { c.ttl, c.shorter, c.renewals[0] = 4, 2, 0 }),
		w(overdueByAcquisition, func(c *lockScope) { c.ttl = 4 }),
		w(overdueByReplaced, func(c *lockScope) { lateFixed(c); c.ttl, c.slow = 4, 0 }),
		w(overdueKey, func(c *lockScope) { c.cuts = 1 }),
		w(claimedOnNotification, func(c *lockScope) {}),
		w(brokenForTheRest, lateFixed),
		w(removedEarly, func(c *lockScope) { c.operators = 1 }),
		of(lateLock("servers' clocks apart by more than margin and slack", func(c *lockScope) { c.skew = 3 }).system(), exclusion),
		of(lateLock("a clock behind, and servers' clocks apart by margin and slack", func(c *lockScope) { c.slow = 1 }).system(), exclusion),
		of(lateLock("no slack, and servers' clocks apart by more than the margin", func(c *lockScope) { c.slack = 0 }).system(), exclusion),
		of(lateLock(string(keptForever), func(c *lockScope) { lateIn(c); c.weak = keptForever }).system(), stuck),

		r(overdueByReplica, exclusion, func(c *rwScope) { c.readTTL, c.gateTTL, c.ways = 3, 2, 1; cut(c) }),
		r(overdueAsReadOnce, exclusion, func(c *rwScope) {}),
		r(brokenForTheRest, exclusion, func(c *rwScope) { c.breaks, c.rest, c.slack = 1, true, 0 }),
		of(lateRW("servers' clocks apart by more than margin and slack", func(c *rwScope) { c.skew = 3 }).system(), exclusion),
		r(keptForever, stuck, func(c *rwScope) { c.again, c.readRenewals, c.gateRenewals = true, 0, 0 }),

		q(overduePlaceKept, stuck, func(c *queueScope) { c.crashes, c.prompt = 1, true }),
		q(overduePlaceRenewed, fifo, func(c *queueScope) { c.pauses, c.revives = 1, 1 }),
	}
}
