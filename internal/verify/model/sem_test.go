package model

// sem is a scope of the queue of a semaphore, with a digit for the number of each client.
func sem(name, numbers string, change func(c *semScope)) run {
	c := semScope{name: "semaphore " + numbers + ": " + name, numbers: numbers}
	change(&c)
	return of(c.system(), "")
}

// slot is a scope of the slots of a semaphore, in time.
func slot(name string, change func(c *slotScope)) run {
	c := slotScope{
		name: "slots: " + name, slots: 2, ttl: 3, margin: 1, claims: [3]int8{1, 1, 1}, attempts: 1,
		ways: 2, answers: 1, servers: servers{slack: 1},
	}
	change(&c)
	return of(c.system(), "")
}

// twoSlots are two clients, of which A claims again.
func twoSlots(c *slotScope) { c.claims = [3]int8{2, 1, 0} }

// lateSlots have servers that may never remove a record.
func lateSlots(c *slotScope) { c.forgets, c.skew = true, 2 }

func smallSlots() []run {
	return []run{
		slot("two claims", func(c *slotScope) { twoSlots(c); c.ways, c.ttl = 1, 2 }),
		slot("three clients", func(c *slotScope) { c.ways, c.ttl = 1, 2 }),
		slot("lost answers", func(c *slotScope) { c.claims[2], c.losses = 0, true }),
		slot("a crash, a renewal", func(c *slotScope) { c.claims[2], c.crashes, c.renewals[0] = 0, 1, 1 }),
		slot("servers early by the margin", func(c *slotScope) { c.claims[2], c.early = 0, 1 }),
		slot("a clock behind by the margin", func(c *slotScope) { c.claims[2], c.ways, c.slow = 0, 1, 1 }),
		slot("a break", func(c *slotScope) { c.claims[2], c.ways, c.breaks = 0, 1, 1 }),
		slot("a deposed leader", func(c *slotScope) { c.claims[2], c.ways, c.cuts, c.ttl = 0, 1, 1, 2 }),
		slot("overdue: a renewal", func(c *slotScope) { lateSlots(c); c.claims[2], c.renewals[0] = 0, 1 }),
	}
}

func largeSlots() []run {
	return []run{
		slot("two claims, lost answers", func(c *slotScope) { twoSlots(c); c.losses = true }),
		slot("two attempts, lost answers", func(c *slotScope) { c.claims[2], c.attempts, c.losses = 0, 2, true }),
		slot("three clients", func(c *slotScope) {}),
		slot("three clients, a crash", func(c *slotScope) { c.ways, c.crashes = 1, 1 }),
		slot("three clients, lost answers", func(c *slotScope) { c.ways, c.losses = 1, true }),
		slot("two claims, a renewal", func(c *slotScope) { twoSlots(c); c.renewals[0] = 1 }),
		slot("two claims, a clock behind", func(c *slotScope) { twoSlots(c); c.ways, c.slow = 1, 1 }),
		slot("two claims, servers early", func(c *slotScope) { twoSlots(c); c.early = 1 }),
		slot("a break, a renewal", func(c *slotScope) { c.claims[2], c.breaks, c.renewals[0] = 0, 1, 1 }),
		slot("two claims, a break", func(c *slotScope) { twoSlots(c); c.ways, c.breaks = 1, 1 }),
		slot("a deposed leader, a renewal", func(c *slotScope) { c.claims[2], c.cuts, c.renewals[0] = 0, 1, 1 }),
		slot("two claims, a deposed leader", func(c *slotScope) { twoSlots(c); c.ways, c.cuts = 1, 1 }),
		slot("overdue: two claims", func(c *slotScope) { lateSlots(c); twoSlots(c) }),
		slot("overdue: three clients", func(c *slotScope) { lateSlots(c); c.ways = 1 }),
		slot("overdue: a deposed leader", func(c *slotScope) { lateSlots(c); c.claims[2], c.ways, c.cuts = 0, 1, 1 }),
		slot("overdue: a break, a renewal", func(c *slotScope) { lateSlots(c); c.claims[2], c.breaks, c.renewals[0] = 0, 1, 1 }),
	}
}

func smallSem() []run {
	return []run{
		sem("no timer", "2222", func(c *semScope) { c.untimed = true }),
		sem("no timer", "233", func(c *semScope) { c.untimed = true }),
		sem("no timer, again", "112", func(c *semScope) { c.untimed, c.rounds = true, 1 }),
		sem("a crash, a loss", "122", func(c *semScope) { c.crashes, c.losses = 1, 1 }),
		sem("a pause", "122", func(c *semScope) { c.pauses = 1 }),
		sem("an ended place", "122", func(c *semScope) { c.expires = 1 }),
		sem("a stray claim, a stale read, one gives up", "112", func(c *semScope) { c.strays, c.stale, c.giveups = 1, 1, 1 }),
		sem("overdue: a crash, nobody out of turn", "112", func(c *semScope) { c.forgets, c.crashes, c.prompt = true, 1, true }),
	}
}

func largeSem() []run {
	return []run{
		sem("a crash, a loss", "1222", func(c *semScope) { c.crashes, c.losses = 1, 1 }),
		sem("a crash, a loss", "2222", func(c *semScope) { c.crashes, c.losses = 1, 1 }),
		sem("a loss, one gives up", "1223", func(c *semScope) { c.losses, c.giveups = 1, 1 }),
		sem("an ended place, a stale read", "1222", func(c *semScope) { c.expires, c.stale = 1, 1 }),
		sem("a pause", "1122", func(c *semScope) { c.pauses = 1 }),
		sem("a pause, an ended place", "122", func(c *semScope) { c.pauses, c.expires = 1, 1 }),
		sem("a stray claim, one gives up", "1222", func(c *semScope) { c.strays, c.giveups = 1, 1 }),
		sem("a crash, a loss, a pause, one gives up", "122", func(c *semScope) { c.crashes, c.losses, c.pauses, c.giveups = 1, 1, 1, 1 }),
		sem("a loss, an ended place, a stray claim, a stale read", "122", func(c *semScope) { c.losses, c.expires, c.strays, c.stale = 1, 1, 1, 1 }),
		sem("again, a crash, a loss", "122", func(c *semScope) { c.rounds, c.crashes, c.losses = 1, 1, 1 }),
		sem("no timer, again", "122", func(c *semScope) { c.untimed, c.rounds = true, 1 }),
		sem("no timer, again", "222", func(c *semScope) { c.untimed, c.rounds = true, 1 }),
		sem("no timer, again, again", "112", func(c *semScope) { c.untimed, c.rounds = true, 2 }),
		sem("no timer, one gives up", "1223", func(c *semScope) { c.untimed, c.giveups = true, 1 }),
		sem("overdue: a crash", "1222", func(c *semScope) { c.forgets, c.crashes, c.prompt = true, 1, true }),
		sem("overdue: a crash, a stray claim", "112", func(c *semScope) { c.forgets, c.crashes, c.strays = true, 1, 1 }),
		sem("overdue: two crashes, a loss", "122", func(c *semScope) { c.forgets, c.crashes, c.losses = true, 2, 1 }),
	}
}

// weakenedSem leave out one rule each.
func weakenedSem() []run {
	w := func(rule weakness, numbers, want string, change func(c *semScope)) run {
		return sem(string(rule), numbers, func(c *semScope) { c.weak = rule; change(c) }).wants(want)
	}
	plain := func(*semScope) {}
	return []run{
		w(semUnconditional, "11", exclusion, plain),
		w(semBeyond, "12", below, plain),
		w(semBlind, "122", fifo, plain),
		w(semBehind, "112", fifo, func(c *semScope) { c.crashes, c.stale = 1, 1 }),
		w(staleQueue, "111", fifo, plain),
		w(semByNumber, "12", fifo, plain),
		w(semShortcutAny, "1111", fifo, func(c *semScope) { c.crashes = 1 }),
		w(semReadFirst, "111", wakeUps, plain),
		w(semReadBehind, "111", wakeUps, plain),
		w(semPlaceBehind, "111", wakeUps, func(c *semScope) { c.giveups = 1 }),
		w(semReadForgets, "111", wakeUps, plain),
		w(semRefusalForgets, "111", wakeUps, plain),
		w(evictsAtOnce, "111", keepsPlace, plain),
		w(evictsBehind, "1111", keepsPlace, func(c *semScope) { c.crashes = 1 }),
		w(evictsStranger, "1222", keepsPlace, func(c *semScope) { c.crashes = 1 }),
		w(noBackstop, "111", stuck, func(c *semScope) { c.crashes = 1 }),
		w(noBackstop, "111", stuck, func(c *semScope) { c.losses = 1 }),
		w(keptForever, "111", stuck, func(c *semScope) { c.crashes, c.forgets = 1, true }),
		w(overduePlaceKept, "111", stuck, func(c *semScope) { c.crashes, c.forgets, c.prompt = 1, true, true }),
	}
}

func weakenedSlots() []run {
	w := func(rule weakness, want string, change func(c *slotScope)) run {
		return slot(string(rule), func(c *slotScope) { c.weak = rule; c.claims = [3]int8{1, 1, 0}; change(c) }).wants(want)
	}
	plain := func(*slotScope) {}
	return []run{
		w(semUnconditional, strangers, plain),
		w(semUnconditional, tooMany, func(c *slotScope) { c.claims[2] = 1 }),
		w(claimedOnNotification, exclusion, lateSlots),
		w(claimedOnNotification, tooMany, func(c *slotScope) { lateSlots(c); c.claims[2] = 1 }),
		w(overdueKey, exclusion, func(c *slotScope) { lateSlots(c); c.cuts, c.ways, c.renewals[0] = 1, 1, 1 }),
		w(validityFromAnswer, tooMany, func(c *slotScope) { c.ttl = 4; c.slots = 1 }),
		w(lateAnswer, tokensGrow, func(c *slotScope) { c.answers, c.slots = 2, 1 }),
		w(adoptedAsNewest, tooMany, func(c *slotScope) { c.attempts, c.slots, c.losses = 2, 1, true }),
		w(unconditionalDelete, strangers, plain),
		w(slotShared, oneRecord, func(c *slotScope) { c.attempts = 2 }),
		slot("servers' clocks apart by more than margin and slack", func(c *slotScope) { c.forgets, c.skew, c.renewals[0] = true, 3, 1 }).wants(exclusion),
		slot("servers early by more than the margin", func(c *slotScope) { c.claims[2], c.early = 0, 2 }).wants(exclusion),
		slot("a clock behind by more than the margin", func(c *slotScope) { c.claims[2], c.slow = 0, 2 }).wants(exclusion),
	}
}
