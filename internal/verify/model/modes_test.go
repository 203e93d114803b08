package model

import "strings"

// modesOf is a scope of runs that have modes. A client's goroutines are letters: R reads,
// W writes.
func modesOf(name, clients string, rounds [3]int8, change func(c *modeScope)) run {
	c := modeScope{name: "modes " + clients + ": " + name, modes: strings.ReplaceAll(clients, "+", ""), rounds: rounds}
	for i, g := range strings.Split(clients, "+") {
		c.goros[i] = int8(len(g))
	}
	change(&c)
	return of(c.system(), "")
}

func smallModes() []run {
	return []run{
		modesOf("greedy, a loss", "RR+W", bothAgain, func(c *modeScope) { c.greedy, c.losses = 1, 1 }),
		modesOf("idle, greedy, a loss", "RR+W", bothAgain, func(c *modeScope) { c.greedy, c.losses, c.lingers = 1, 1, bothAB }),
		modesOf("idle, a break, a lease is lost", "RR+W", once, func(c *modeScope) { c.breaks, c.ends, c.lingers = 1, 1, bothAB }),
		modesOf("idle, a crash, a Close, one gives up", "RW+R", once, func(c *modeScope) { c.crashes, c.closes, c.giveups, c.lingers = 1, 1, 1, bothAB }),
	}
}

func weakenedModes() []run {
	w := func(rule weakness, want, clients string, change func(c *modeScope)) run {
		return modesOf(string(rule), clients, bothAgain, func(c *modeScope) { c.weak = rule; change(c) }).wants(want)
	}
	lingers := func(c *modeScope) { c.lingers = onlyA }
	return []run{
		w(modeMixed, exclusion, "RW", func(c *modeScope) {}),
		w(modePassesGate, gateKept, "RR+W", lingers),
		w(modePassesPlace, modeOrder, "RRR+W", func(c *modeScope) {}),
		w(modeDirtyJoined, gateKept, "RR+W", lingers),
		w(modeUnproven, gateKept, "RR+W", lingers),
		w(modeUnlisted, modeOrder, "RR+W", lingers),
		w(modeNoRead, stuck, "RR+W", func(c *modeScope) { c.greedy, c.losses, c.lingers = 1, 1, onlyA }),
		w(modeFirstOut, exclusion, "RR+W", func(c *modeScope) {}),
		w(modeReleased, exclusion, "RR+W", func(c *modeScope) { c.lingers = onlyA }),
		w(modeIdleKept, stuck, "RR+W", lingers),
		w(modeForeignOnly, stuck, "RW+R", lingers),
		w(modeBrokenOut, exclusion, "RR+W", func(c *modeScope) { c.breaks = 1 }),
		w(modeUndrained, exclusion, "RW+R", func(c *modeScope) {}),
		w(modeEndedServes, exclusion, "RR+W", func(c *modeScope) { c.ends = 1 }),
	}
}

func largeModes() []run {
	all := func(c *modeScope) { c.losses, c.crashes, c.ends, c.breaks, c.giveups, c.closes = 1, 1, 1, 1, 1, 1 }
	return []run{
		modesOf("again, a loss, a break, a lease is lost", "RR+W", bothAgain, func(c *modeScope) { c.losses, c.breaks, c.ends = 1, 1, 1 }),
		modesOf("idle, everything at once", "RR+W", once, func(c *modeScope) { all(c); c.lingers = bothAB }),
		modesOf("idle, everything at once", "RW+R", once, func(c *modeScope) { all(c); c.lingers = bothAB }),
		modesOf("idle, everything at once", "RW+W", once, func(c *modeScope) { all(c); c.lingers = bothAB }),
		modesOf("idle, again, a loss, a crash, a Close", "RR+W", bothAgain, func(c *modeScope) { c.losses, c.crashes, c.closes, c.lingers = 1, 1, 1, bothAB }),
		modesOf("idle, again, two losses, a lease is lost", "RR+W", bothAgain, func(c *modeScope) { c.losses, c.ends, c.lingers = 2, 1, bothAB }),
		modesOf("idle, again, a loss, a break", "RW+R", bothAgain, func(c *modeScope) { c.losses, c.breaks, c.lingers = 1, 1, bothAB }),
		modesOf("idle, again, a loss, a break", "WW+R", bothAgain, func(c *modeScope) { c.losses, c.breaks, c.lingers = 1, 1, bothAB }),
		modesOf("idle, A again, a loss", "RR+RW", firstAgain, func(c *modeScope) { c.losses, c.lingers = 1, bothAB }),
		modesOf("idle, A again, a loss", "RW+RW", firstAgain, func(c *modeScope) { c.losses, c.lingers = 1, bothAB }),
		modesOf("idle, a loss, a lease is lost", "RRW+W", once, func(c *modeScope) { c.losses, c.ends, c.lingers = 1, 1, bothAB }),
		modesOf("idle, again, a loss", "RRR+W", bothAgain, func(c *modeScope) { c.losses, c.lingers = 1, bothAB }),
		modesOf("idle, again, a loss", "R+R+W", [3]int8{1, 1, 1}, func(c *modeScope) { c.losses, c.lingers = 1, allABC }),
		modesOf("idle, a loss, a lease is lost", "RR+R+W", once, func(c *modeScope) { c.losses, c.ends, c.lingers = 1, 1, allABC }),
		modesOf("idle, greedy, a loss, a break", "RR+RW", once, func(c *modeScope) { c.greedy, c.losses, c.breaks, c.lingers = 1, 1, 1, bothAB }),
		modesOf("idle, both greedy, a loss, a break", "RR+W", once, func(c *modeScope) { c.greedy, c.losses, c.breaks, c.lingers = 2, 1, 1, bothAB }),
		modesOf("idle, both greedy, a loss, a crash", "W+RR", once, func(c *modeScope) { c.greedy, c.losses, c.crashes, c.lingers = 2, 1, 1, bothAB }),
		modesOf("idle, both greedy, a loss", "RW+RW", once, func(c *modeScope) { c.greedy, c.losses, c.lingers = 2, 1, bothAB }),
		modesOf("idle, two greedy, a loss, a break", "R+R+W", once, func(c *modeScope) { c.greedy, c.losses, c.breaks, c.lingers = 2, 1, 1, allABC }),
	}
}
