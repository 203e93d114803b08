package model

// traveling is a scope of the mutex in which the first client hands its lock over, and both
// may adopt it.
func traveling(name string, change func(c *lockScope)) *lockScope {
	return lock("handed over: "+name, func(c *lockScope) {
		c.hands, c.claims, c.attempts, c.renewals = 1, 2, [2]int8{1, 1}, [2]int8{1, 0}
		change(c)
	})
}

func smallHanded() []run {
	return []run{
		of(traveling("a renewal in flight, two adopters", func(c *lockScope) { c.losses = false }).system(), ""),
		of(traveling("lost answers", func(c *lockScope) { c.renewals[0], c.answers = 0, 2 }).system(), ""),
		of(traveling("a crash", func(c *lockScope) { c.crashes, c.losses, c.renewals[0] = 1, false, 0 }).system(), ""),
		of(traveling("overdue", func(c *lockScope) { c.forgets, c.skew, c.losses, c.renewals[0] = true, 2, false, 0 }).system(), ""),
	}
}

func largeHanded() []run {
	return []run{
		of(traveling("a renewal in flight, lost answers", func(c *lockScope) {}).system(), ""),
		of(traveling("the adoption tried twice", func(c *lockScope) { c.claims, c.attempts, c.renewals[0] = 1, [2]int8{1, 2}, 0 }).system(), ""),
		of(traveling("a crash, a renewal, lost answers", func(c *lockScope) { c.crashes = 1 }).system(), ""),
		of(traveling("a break", func(c *lockScope) { c.operators, c.losses = 1, false }).system(), ""),
		of(traveling("a deposed leader", func(c *lockScope) { c.claims, c.cuts, c.losses = 1, 1, false }).system(), ""),
		of(traveling("replicas, a deposed leader", func(c *lockScope) { c.claims, c.proposals, c.cuts, c.losses, c.renewals[0] = 1, true, 1, false, 0 }).system(), ""),
		of(traveling("overdue, a renewal", func(c *lockScope) { c.forgets, c.skew, c.losses = true, 2, false }).system(), ""),
		of(traveling("a clock behind by the margin", func(c *lockScope) { c.slow, c.losses = 1, false }).system(), ""),
	}
}

func weakenedHanded() []run {
	w := func(rule weakness, want string, change func(c *lockScope)) run {
		return of(traveling(string(rule), func(c *lockScope) { c.weak, c.losses = rule, false; change(c) }).system(), want)
	}
	return []run{
		w(handedEarly, exclusion, func(c *lockScope) { c.answers, c.renewals[0] = 2, 0 }),
		w(adoptedKept, strangers, func(c *lockScope) {}),
		w(adoptionShared, exclusion, func(c *lockScope) { c.attempts[1], c.renewals[0], c.losses = 2, 0, true }),
		w(adoptedBlindly, strangers, func(c *lockScope) {}),
	}
}
