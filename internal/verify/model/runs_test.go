package model

// runsOf is a scope of runs. The parameters that change leaves alone are small.
func runsOf(name string, change func(c *runScope)) *runScope {
	c := runScope{name: "runs: " + name, rounds: [3]int8{1, 1, 0}}
	c.goros = [3]int8{2, 1, 0}
	change(&c)
	return &c
}

// goroutines of the three clients
var (
	oneOne    = [3]int8{1, 1, 0}
	oneOneOne = [3]int8{1, 1, 1}
	oneTwo    = [3]int8{1, 2, 0}
	twoOne    = [3]int8{2, 1, 0}
	twoTwo    = [3]int8{2, 2, 0}
	threeOne  = [3]int8{3, 1, 0}
	threeTwo  = [3]int8{3, 2, 0}
	twoOneOne = [3]int8{2, 1, 1}
	twoTwoOne = [3]int8{2, 2, 1}
)

// once: nobody asks again. firstAgain: the goroutines of the first client do. bothAgain: so do
// those of the second.
var (
	once       = [3]int8{}
	firstAgain = [3]int8{1, 0, 0}
	bothAgain  = [3]int8{1, 1, 0}
)

func runsWith(name string, goros, rounds [3]int8, change func(c *runScope)) run {
	return of(runsOf(name, func(c *runScope) { c.goros, c.rounds = goros, rounds; change(c) }).system(), "")
}

func smallRuns() []run {
	return []run{
		runsWith("2+1, again, a turn, a loss", twoOne, bothAgain, func(c *runScope) { c.turn, c.losses = true, 1 }),
		runsWith("2+1, again, another TTL, a place ends", twoOne, bothAgain, func(c *runScope) { c.own, c.expires = true, 1 }),
		runsWith("2+1, a turn, everything at once", twoOne, once, func(c *runScope) { c.turn = true; trouble(c) }),
		runsWith("2+1+1, greedy, a loss", twoOneOne, once, func(c *runScope) { c.greedy, c.losses = 1, 1 }),
		runsWith("2+2+1, a turn", twoTwoOne, once, func(c *runScope) { c.turn = true }),
		runsWith("2+1+1, A again", twoOneOne, firstAgain, func(c *runScope) {}),
		runsWith("3+1, a turn, a loss, one gives up", threeOne, once, func(c *runScope) { c.turn, c.losses, c.giveups = true, 1, 1 }),
	}
}

// trouble is one of each.
func trouble(c *runScope) {
	c.losses, c.crashes, c.pauses, c.ends, c.breaks, c.drops, c.expires, c.giveups = 1, 1, 1, 1, 1, 1, 1, 1
}

func largeRuns() []run {
	return []run{
		runsWith("2+1, again and again, a turn, a loss", twoOne, [3]int8{2, 2, 0}, func(c *runScope) { c.turn, c.losses = true, 1 }),
		runsWith("2+2, again, a turn, a loss", twoTwo, bothAgain, func(c *runScope) { c.turn, c.losses = true, 1 }),
		runsWith("2+2, again, a turn, members give up", twoTwo, bothAgain, func(c *runScope) { c.turn, c.giveups = true, 2 }),
		runsWith("2+2, again, a turn, another TTL", twoTwo, bothAgain, func(c *runScope) { c.turn, c.own = true, true }),
		runsWith("2+2, again, a turn, a crash, a pause", twoTwo, bothAgain, func(c *runScope) { c.turn, c.crashes, c.pauses = true, 1, 1 }),
		runsWith("2+2, again, a turn, a break, a dropped handle", twoTwo, bothAgain, func(c *runScope) { c.turn, c.breaks, c.drops = true, 1, 1 }),
		runsWith("2+2, again, a lease is lost", twoTwo, bothAgain, func(c *runScope) { c.ends = 1 }),
		runsWith("2+2, again, a place ends", twoTwo, bothAgain, func(c *runScope) { c.expires = 1 }),
		runsWith("2+2, A again, a turn, a lease is lost, a place ends", twoTwo, firstAgain, func(c *runScope) { c.turn, c.ends, c.expires = true, 1, 1 }),
		runsWith("2+2, a turn, everything at once", twoTwo, once, func(c *runScope) { c.turn = true; trouble(c) }),
		runsWith("2+2, greedy, a turn, a crash, a loss, a pause", twoTwo, [3]int8{0, 1, 0}, func(c *runScope) { c.greedy, c.turn, c.crashes, c.losses, c.pauses = 1, true, 1, 1, 1 }),
		runsWith("3+1, again, a turn, a loss", threeOne, bothAgain, func(c *runScope) { c.turn, c.losses = true, 1 }),
		runsWith("3+2, A again, a turn", threeTwo, firstAgain, func(c *runScope) { c.turn = true }),
		runsWith("3+2, a turn, another TTL, a loss, one gives up", threeTwo, once, func(c *runScope) { c.turn, c.own, c.losses, c.giveups = true, true, 1, 1 }),
		runsWith("2+1+1, A again, a turn, a loss, a lease is lost, one gives up", twoOneOne, firstAgain, func(c *runScope) { c.turn, c.losses, c.ends, c.giveups = true, 1, 1, 1 }),
		runsWith("2+1+1, A again, a turn, a loss, a break, a dropped handle, a place ends", twoOneOne, firstAgain, func(c *runScope) { c.turn, c.losses, c.breaks, c.drops, c.expires = true, 1, 1, 1, 1 }),
		runsWith("2+2+1, A again", twoTwoOne, firstAgain, func(c *runScope) {}),
		runsWith("2+2+1, A again, a turn, a loss", twoTwoOne, firstAgain, func(c *runScope) { c.turn, c.losses = true, 1 }),
		runsWith("2+2+1, A again, a crash, a pause", twoTwoOne, firstAgain, func(c *runScope) { c.crashes, c.pauses = 1, 1 }),
		runsWith("2+2+1, A again, a break, a dropped handle", twoTwoOne, firstAgain, func(c *runScope) { c.breaks, c.drops = 1, 1 }),
		runsWith("2+2+1, A again, a turn, another TTL", twoTwoOne, firstAgain, func(c *runScope) { c.turn, c.own = true, true }),
		runsWith("2+2+1, A again, a place ends", twoTwoOne, firstAgain, func(c *runScope) { c.expires = 1 }),
		runsWith("2+2+1, A again, a lease is lost", twoTwoOne, firstAgain, func(c *runScope) { c.ends = 1 }),
		runsWith("2+2+1, a turn, a lease is lost, one gives up", twoTwoOne, once, func(c *runScope) { c.turn, c.ends, c.giveups = true, 1, 1 }),
		runsWith("2+2+1, a turn, another TTL, a place ends", twoTwoOne, once, func(c *runScope) { c.turn, c.own, c.expires = true, true, 1 }),
		runsWith("2+2+1, greedy, a turn, a loss", twoTwoOne, once, func(c *runScope) { c.greedy, c.turn, c.losses = 1, true, 1 }),
		runsWith("2+2+1, greedy, a turn, a pause", twoTwoOne, once, func(c *runScope) { c.greedy, c.turn, c.pauses = 1, true, 1 }),
	}
}

func weakenedRuns() []run {
	w := func(rule weakness, want string, change func(c *runScope)) run {
		return of(runsOf(string(rule), func(c *runScope) { c.weak = rule; change(c) }).system(), want)
	}
	return []run{
		w(runUnconfirmed, inOrder, func(c *runScope) {}),
		w(runNotSubscribed, inOrder, func(c *runScope) {}),
		w(runDirtyJoined, inOrder, func(c *runScope) {}),
		w(runListUnheeded, inOrder, func(c *runScope) {}),
		w(runNotListed, inOrder, func(c *runScope) { c.goros, c.rounds, c.giveups = [3]int8{3, 1, 0}, [3]int8{}, 1 }),
		w(runNoInstant, inOrder, func(c *runScope) {}),
		w(runGrowsBehind, stuck, func(c *runScope) { c.greedy, c.pauses = 1, 1 }),
		w(runNoList, stuck, func(c *runScope) { c.greedy, c.losses = 1, 1 }),
		w(runNotLast, ownOrder, func(c *runScope) { c.goros, c.rounds = [3]int8{3, 0, 0}, [3]int8{} }),
		w(runOwnJoined, ownTerms, func(c *runScope) { c.own = true }),
		w(runClaimsBlindly, inOrder, func(c *runScope) {}),
		w(runOvertakes, ownOrder, func(c *runScope) {}),
		w(runTurnTaken, turnOver, func(c *runScope) { c.turn = true }),
		w(runTurnLazy, ownOrder, func(c *runScope) { c.goros, c.turn, c.rounds = [3]int8{3, 0, 0}, true, [3]int8{} }),
		w(runTurnPassed, ownOrder, func(c *runScope) { c.goros, c.turn, c.own, c.rounds = [3]int8{3, 0, 0}, true, true, [3]int8{} }),
		w(runTurnAgain, turnsPassed, func(c *runScope) { c.turn = true }),
		w(runEndedServes, exclusion, func(c *runScope) { c.ends = 1 }),
		w(runKeepsRank, ownOrder, func(c *runScope) { c.goros, c.rounds, c.expires = [3]int8{4, 0, 0}, [3]int8{}, 1 }),
		w(runReleasedJoined, stuck, func(c *runScope) {}),
		w(runGrantKept, stuck, func(c *runScope) { c.giveups = 1 }),
		w(runPlaceLeft, stuck, func(c *runScope) { c.giveups = 1 }),
		w(runFirstDrives, stuck, func(c *runScope) { c.giveups = 1 }),
		w(runOldHandle, exclusion, func(c *runScope) { c.ends = 1 }),
		w(runTaintedKeeps, stuck, func(c *runScope) { c.drops = 1 }),
		w(runClaimsAgain, ownOrder, func(c *runScope) { c.own = true }),
		w(runTaintedRenewed, stuck, func(c *runScope) { c.drops = 1 }),
		of(runsOf("one turn only", func(c *runScope) { c.goros, c.turn, c.single, c.rounds = [3]int8{2, 2, 1}, true, true, [3]int8{} }).system(), oneTurn),
	}
}
