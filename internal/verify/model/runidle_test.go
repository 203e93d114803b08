package model

// onlyA, bothAB and allABC are the clients whose idle leases stay.
var (
	onlyA  = [3]bool{true, false, false}
	bothAB = [3]bool{true, true, false}
	allABC = [3]bool{true, true, true}
)

func idleWith(name string, goros, rounds [3]int8, lingers [3]bool, change func(c *runScope)) run {
	return runsWith("idle: "+name, goros, rounds, func(c *runScope) { c.lingers = lingers; change(c) })
}

func smallIdle() []run {
	return []run{
		idleWith("2+1, again, greedy, a turn, a loss", twoOne, bothAgain, onlyA, func(c *runScope) { c.greedy, c.turn, c.losses = 1, true, 1 }),
		idleWith("2+1, again, another TTL, greedy, a loss", twoOne, bothAgain, onlyA, func(c *runScope) { c.greedy, c.own, c.losses = 1, true, 1 }),
		idleWith("1+1, again, both, a break, a lease is lost, a crash", oneOne, bothAgain, bothAB, func(c *runScope) { c.breaks, c.ends, c.crashes = 1, 1, 1 }),
		idleWith("1+1, again, both, a Close, a pause, one gives up", oneOne, bothAgain, bothAB, func(c *runScope) { c.closes, c.pauses, c.giveups = 1, 1, 1 }),
		idleWith("2+1, both greedy, a loss", twoOne, once, bothAB, func(c *runScope) { c.greedy, c.losses = 2, 1 }),
		idleWith("1+2, both greedy, a loss", oneTwo, once, bothAB, func(c *runScope) { c.greedy, c.losses = 2, 1 }),
	}
}

func largeIdle() []run {
	return []run{
		idleWith("1+1, again, both, everything at once", oneOne, bothAgain, bothAB, func(c *runScope) { trouble(c); c.closes = 1 }),
		idleWith("1+1, again and again, both, two losses, a break, a lease is lost", oneOne, [3]int8{2, 2, 0}, bothAB, func(c *runScope) { c.losses, c.breaks, c.ends = 2, 1, 1 }),
		idleWith("2+1, again, both, a turn, a loss", twoOne, bothAgain, bothAB, func(c *runScope) { c.turn, c.losses = true, 1 }),
		idleWith("2+1, again, both, a crash, a pause, a loss", twoOne, bothAgain, bothAB, func(c *runScope) { c.crashes, c.pauses, c.losses = 1, 1, 1 }),
		idleWith("2+1, again, both, a break, a dropped handle, a place ends", twoOne, bothAgain, bothAB, func(c *runScope) { c.breaks, c.drops, c.expires = 1, 1, 1 }),
		idleWith("2+1, again, both, a lease is lost, one gives up, a Close", twoOne, bothAgain, bothAB, func(c *runScope) { c.ends, c.giveups, c.closes = 1, 1, 1 }),
		idleWith("2+1, again, both, another TTL, a loss", twoOne, bothAgain, bothAB, func(c *runScope) { c.own, c.losses = true, 1 }),
		idleWith("2+1, both greedy, a turn, a break, a lease is lost, a loss", twoOne, once, bothAB, func(c *runScope) { c.greedy, c.turn, c.breaks, c.ends, c.losses = 2, true, 1, 1, 1 }),
		idleWith("1+2, both greedy, a crash, a pause, a loss", oneTwo, once, bothAB, func(c *runScope) { c.greedy, c.crashes, c.pauses, c.losses = 2, 1, 1, 1 }),
		idleWith("2+2, both greedy, a turn, a loss", twoTwo, once, bothAB, func(c *runScope) { c.greedy, c.turn, c.losses = 2, true, 1 }),
		idleWith("2+2, both, a turn, a loss", twoTwo, once, bothAB, func(c *runScope) { c.turn, c.losses = true, 1 }),
		idleWith("2+2, greedy, another TTL, a break, a loss", twoTwo, once, onlyA, func(c *runScope) { c.greedy, c.own, c.breaks, c.losses = 1, true, 1, 1 }),
		idleWith("2+1, both, a turn, everything at once", twoOne, once, bothAB, func(c *runScope) { c.turn = true; trouble(c); c.closes = 1 }),
		idleWith("2+2, again, both, a turn, a loss", twoTwo, bothAgain, bothAB, func(c *runScope) { c.turn, c.losses = true, 1 }),
		idleWith("2+2+1, both, a turn, a loss", twoTwoOne, once, bothAB, func(c *runScope) { c.turn, c.losses = true, 1 }),
		idleWith("2+1+1, both greedy, a loss", twoOneOne, once, bothAB, func(c *runScope) { c.greedy, c.losses = 2, 1 }),
		idleWith("2+1+1, greedy, both, a crash, a pause, a loss", twoOneOne, once, bothAB, func(c *runScope) { c.greedy, c.crashes, c.pauses, c.losses = 1, 1, 1, 1 }),
		idleWith("1+1+1, all greedy, a break, a lease is lost, a loss", [3]int8{1, 1, 1}, once, allABC, func(c *runScope) { c.greedy, c.breaks, c.ends, c.losses = 3, 1, 1, 1 }),
	}
}

func weakenedIdle() []run {
	w := func(rule weakness, want string, change func(c *runScope)) run {
		return idleWith(string(rule), oneOne, bothAgain, onlyA, func(c *runScope) { c.weak = rule; change(c) }).wants(want)
	}
	return []run{
		w(idleUnsubscribed, stuck, func(c *runScope) {}),
		w(idleListedEarly, stuck, func(c *runScope) {}),
		w(runNoList, stuck, func(c *runScope) { c.losses = 1 }),
		w(idleDirtyJoined, inOrder, func(c *runScope) { c.goros = twoOne }),
		w(idleUnlisted, inOrder, func(c *runScope) {}),
		w(idlePasses, inOrder, func(c *runScope) {}),
		w(idleKept, stuck, func(c *runScope) {}),
		w(idleForeignOnly, stuck, func(c *runScope) { c.goros, c.rounds, c.own = twoOne, once, true }),
		w(idleReleased, exclusion, func(c *runScope) {}),
		w(idleUnused, usedOnce, func(c *runScope) { c.lingers = bothAB }),
		w(idleFreed, exclusion, func(c *runScope) { c.breaks = 1 }),
		w(idleBrokenUsed, exclusion, func(c *runScope) { c.breaks = 1 }),
		w(idleClosed, stuck, func(c *runScope) { c.closes = 1 }),
	}
}
