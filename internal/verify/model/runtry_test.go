package model

// tryWith is a scope in which the last goroutine of the last client asks with TryLock.
func tryWith(name string, goros, rounds [3]int8, lingers [3]bool, change func(c *runScope)) run {
	return runsWith("try: "+name, goros, rounds, func(c *runScope) {
		for i, n := range goros {
			if n > 0 {
				c.tries = [3]int8{}
				c.tries[i] = 1
			}
		}
		c.lingers = lingers
		change(c)
	})
}

func smallTry() []run {
	return []run{
		tryWith("1+1, again, both, a loss", oneOne, bothAgain, bothAB, func(c *runScope) { c.losses = 1 }),
		tryWith("1+1, again, until it gets in, a lease is lost", oneOne, bothAgain, onlyA, func(c *runScope) { c.persist, c.ends = true, 1 }),
		tryWith("2+0, again, a sibling, a loss", [3]int8{2, 0, 0}, firstAgain, onlyA, func(c *runScope) { c.losses = 1 }),
		tryWith("1+1+1, a loss", oneOneOne, once, onlyA, func(c *runScope) { c.losses = 1 }),
		tryWith("1+1, again, A tries and crashes", oneOne, bothAgain, bothAB, func(c *runScope) { c.tries, c.crashes = [3]int8{1, 0, 0}, 1 }),
	}
}

func largeTry() []run {
	return []run{
		tryWith("1+1, again and again, both, losses, a break, a lease is lost, a crash", oneOne, [3]int8{2, 2, 0}, bothAB, func(c *runScope) { c.losses, c.breaks, c.ends, c.crashes = 2, 1, 1, 1 }),
		tryWith("1+1, again and again, A tries, both, everything at once", oneOne, [3]int8{2, 2, 0}, bothAB, func(c *runScope) { c.tries = [3]int8{1, 0, 0}; trouble(c); c.closes = 1 }),
		tryWith("2+1, again, until it gets in, a turn, a loss, a break", twoOne, bothAgain, onlyA, func(c *runScope) { c.persist, c.turn, c.losses, c.breaks = true, true, 1, 1 }),
		tryWith("2+1, greedy, again, both, a turn, a loss", twoOne, bothAgain, bothAB, func(c *runScope) { c.greedy, c.turn, c.losses = 1, true, 1 }),
		tryWith("2+1, again, a sibling tries, both, a loss, a lease is lost", twoOne, bothAgain, bothAB, func(c *runScope) { c.tries = [3]int8{1, 0, 0}; c.losses, c.ends = 1, 1 }),
		tryWith("1+2, again, both, a loss, one gives up", oneTwo, bothAgain, bothAB, func(c *runScope) { c.losses, c.giveups = 1, 1 }),
		tryWith("1+1+1, again, both, two tries, a loss", oneOneOne, [3]int8{1, 1, 1}, bothAB, func(c *runScope) { c.tries, c.losses = [3]int8{0, 1, 1}, 1 }),
		tryWith("1+1+1, again, both, a loss, a Close", oneOneOne, [3]int8{1, 1, 1}, bothAB, func(c *runScope) { c.losses, c.closes = 1, 1 }),
		tryWith("1+1+1, all greedy, a loss", oneOneOne, once, bothAB, func(c *runScope) { c.greedy, c.losses = 2, 1; c.persist = true }),
		tryWith("2+1+1, both, a turn, a loss, a pause", twoOneOne, once, bothAB, func(c *runScope) { c.turn, c.losses, c.pauses = true, 1, 1 }),
	}
}

func weakenedTry() []run {
	w := func(rule weakness, want string, change func(c *runScope)) run {
		return tryWith(string(rule), oneOne, bothAgain, onlyA, func(c *runScope) { c.weak = rule; change(c) }).wants(want)
	}
	return []run{
		w(tryIgnored, stuck, func(c *runScope) { c.persist = true }),
		w(tryPasses, inOrder, func(c *runScope) { c.goros, c.tries = oneOneOne, [3]int8{0, 0, 1} }),
		w(tryStale, metInUse, func(c *runScope) {}),
		w(tryRecalled, recallsOnce, func(c *runScope) {}),
	}
}
