package model

// sem is a scope of the queue of a semaphore, with a digit for the number of each client.
func sem(name, numbers string, change func(c *semScope)) run {
	c := semScope{name: "semaphore " + numbers + ": " + name, numbers: numbers}
	change(&c)
	return of(c.system(), "")
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
