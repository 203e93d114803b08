package model

// counted is a scope of the mutex in which clients hold for runs and count their grants.
func counted(name string, change func(c *lockScope)) *lockScope {
	return lock("tokens: "+name, func(c *lockScope) {
		c.ttl, c.grants, c.attempts, c.renewals, c.answers = 4, 3, [2]int8{1, 1}, [2]int8{2, 0}, 2
		change(c)
	})
}

func smallTokens() []run {
	return []run{
		of(counted("both renew", func(c *lockScope) { c.renewals, c.ttl, c.losses = [2]int8{1, 1}, 3, false }).system(), ""),
		of(counted("two renewals", func(c *lockScope) { c.ttl, c.answers, c.losses = 3, 1, false }).system(), ""),
	}
}

func largeTokens() []run {
	return []run{
		of(counted("two renewals, answers late or lost", func(c *lockScope) {}).system(), ""),
		of(counted("two claims each, a renewal", func(c *lockScope) { c.ttl, c.claims, c.grants, c.renewals, c.losses = 3, 2, 2, [2]int8{1, 0}, false }).system(), ""),
		of(counted("two renewals, and reads of them", func(c *lockScope) { c.fixed = true }).system(), ""),
		of(counted("both renew, answers lost", func(c *lockScope) { c.renewals, c.ttl = [2]int8{1, 1}, 3 }).system(), ""),
		of(counted("lost answers, two attempts", func(c *lockScope) { c.attempts, c.renewals, c.ttl = [2]int8{2, 1}, [2]int8{1, 0}, 3 }).system(), ""),
		of(counted("a break", func(c *lockScope) { c.operators, c.renewals, c.losses = 1, [2]int8{1, 0}, false }).system(), ""),
		of(counted("close, crash", func(c *lockScope) { c.closes, c.crashes, c.renewals = 1, 1, [2]int8{1, 0} }).system(), ""),
		of(counted("replicas, a deposed leader", func(c *lockScope) { c.proposals, c.cuts, c.renewals, c.answers = true, 1, [2]int8{1, 0}, 1 }).system(), ""),
		of(counted("overdue records", func(c *lockScope) { c.forgets, c.skew, c.losses = true, 2, false }).system(), ""),
		of(counted("a clock behind by the margin", func(c *lockScope) { c.slow, c.renewals, c.losses = 1, [2]int8{1, 0}, false }).system(), ""),
	}
}

func weakenedTokens() []run {
	w := func(rule weakness, want string, change func(c *lockScope)) run {
		return of(counted(string(rule), func(c *lockScope) { c.weak, c.losses = rule, false; change(c) }).system(), want)
	}
	return []run{
		w(tokenLatest, tokensGrow, func(c *lockScope) { c.fixed, c.grants = true, 2 }),
		w(tokenRepeated, tokensGrow, func(c *lockScope) {}),
		w(tokenSent, tokensGrow, func(c *lockScope) {}),
		w(tokenWraps, tokensGrow, func(c *lockScope) {}),
		w(servedAfterEnd, servedInTime, func(c *lockScope) {}),
	}
}
