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
		sem("no timer, again", "122", func(c *semScope) { c.untimed, c.rounds = true, 1 }),
		sem("a crash, a loss", "122", func(c *semScope) { c.crashes, c.losses = 1, 1 }),
		sem("a pause, an ended place", "122", func(c *semScope) { c.pauses, c.expires = 1, 1 }),
		sem("a stray claim, a stale look, one gives up", "122", func(c *semScope) { c.strays, c.stale, c.giveups = 1, 1, 1 }),
		sem("overdue: a crash, a stray claim", "122", func(c *semScope) { c.forgets, c.crashes, c.strays = true, 1, 1 }),
		sem("overdue: a crash, nobody out of turn", "112", func(c *semScope) { c.forgets, c.crashes, c.prompt = true, 1, true }),
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
		w(semHeldUp, "122", wakeUps, plain),
		w(semFloorIgnored, "1222", fifo, plain),
		w(semFloorUnread, "1222", wakeUps, func(c *semScope) { c.giveups = 1 }),
		w(semShortcutAny, "1222", fifo, plain),
		w(semShortcutFar, "1222", fifo, plain),
		w(semReadFirst, "111", wakeUps, plain),
		w(semReadBehind, "111", wakeUps, plain),
		w(semReadForgets, "111", wakeUps, plain),
		w(semRefusalForgets, "111", wakeUps, plain),
		w(noBackstop, "111", stuck, func(c *semScope) { c.crashes = 1 }),
		w(noBackstop, "111", stuck, func(c *semScope) { c.losses = 1 }),
		w(keptForever, "111", stuck, func(c *semScope) { c.crashes, c.forgets = 1, true }),
		w(overduePlaceKept, "111", stuck, func(c *semScope) { c.crashes, c.forgets, c.prompt = 1, true, true }),
	}
}
