package model

// minimum is a scope of the mutex with a minimum hold, which the validity covers.
func minimum(name string, change func(c *lockScope)) *lockScope {
	return lock("minimum hold: "+name, func(c *lockScope) {
		c.least, c.attempts[0] = 2, 1
		change(c)
	})
}

func smallResting() []run {
	return []run{
		of(minimum("a renewal in flight, lost answers", func(c *lockScope) {}).system(), ""),
		of(minimum("a crash, Close", func(c *lockScope) { c.crashes, c.closes, c.losses = 1, 1, false }).system(), ""),
		of(minimum("a break", func(c *lockScope) { c.operators, c.losses = 1, false }).system(), ""),
		of(minimum("a clock behind by the margin", func(c *lockScope) { c.slow, c.losses = 1, false }).system(), ""),
	}
}

func largeResting() []run {
	return []run{
		of(minimum("two attempts, two renewals, TTL 4", func(c *lockScope) { c.ttl, c.least, c.attempts[0], c.renewals[0], c.ways = 4, 3, 2, 2, 3 }).system(), ""),
		of(minimum("a deposed leader", func(c *lockScope) { c.cuts, c.losses = 1, false }).system(), ""),
		of(minimum("overdue", func(c *lockScope) { c.forgets, c.skew, c.losses = true, 1, false }).system(), ""),
		of(minimum("two claims each", func(c *lockScope) { c.claims, c.losses = 2, false }).system(), ""),
	}
}

func weakenedResting() []run {
	w := func(rule weakness, change func(c *lockScope)) run {
		return of(minimum(string(rule), func(c *lockScope) { c.weak, c.losses = rule, false; change(c) }).system(), keptOut)
	}
	return []run{
		w(restForgotten, func(c *lockScope) {}),
		w(restDiscarded, func(c *lockScope) { c.answers = 2 }),
		w(restUncovered, func(c *lockScope) { c.ttl, c.least, c.crashes = 3, 4, 1 }),
	}
}
