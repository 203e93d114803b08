package main

const (
	guardGo     = "cmd/lockctl/guard_unix.go"
	superviseGo = "cmd/lockctl/supervise.go"
	connectGo   = "cmd/lockctl/connect.go"
)

// lockctlMutants weaken how lockctl ends a command whose lock it loses, and which
// bucket it takes.
var lockctlMutants = []mutant{
	{"guard-only-death", "the guard of a stopped lockctl does nothing", "A lease and its validity",
		guardGo, one(`		w.act(now())
`, ``),
		"cmd/lockctl.TestRunStopped"},
	{"guard-after-the-lease", "the guard of a stopped lockctl acts when the next holder may be in", "A lease and its validity",
		superviseGo, one(`kill := end.add(-c.margin())`, `kill := end.add(3 * c.margin())`),
		"cmd/lockctl.TestRunStopped"},
	{"guard-late-orders", "orders that arrive late are not carried out", "A lease and its validity",
		guardGo, one(`err == nil && pid > 1 {`, `err == nil && pid > 1 && o.kill > now() {`),
		"cmd/lockctl.TestGuardLateOrders"},
	{"guard-old-orders", "the guard acts before it has read all orders", "A lease and its validity",
		guardGo, one(`for buf := make([]byte, 4096); ; wait = 0 {
`, `for buf := make([]byte, 16); ; wait = 0 {
		if w.group.pid != 0 {
			return true
		}
`),
		"cmd/lockctl.TestGuardNewerOrders"},
	{"guard-not-replaced", "a guard that was killed has no successor", "A lease and its validity",
		guardGo, one(`		j.guard.dismiss()
		j.guard = nil
	}
`, `		break
	}
`),
		"cmd/lockctl.TestGuardKilled"},
	{"guard-interferes", "the guard acts before a lockctl that runs", "A lease and its validity",
		superviseGo, one(`term.sub(at) < 2*c.tick()`, `false`),
		"cmd/lockctl.TestRunOutageOneSignal"},
	{"lockctl-makes-any-bucket", "a mistyped bucket is made", "The bucket",
		connectGo, one(`WithCreate(g.create || s.srv != nil)`, `WithCreate(true)`),
		"cmd/lockctl.TestNoBucket"},
	{"lockctl-one-replica", "a bucket that is made on a cluster has one replica", "The bucket",
		connectGo, one(`	return 3
`, `	return 1
`),
		"cmd/lockctl.TestReplicasOnCluster"},
}
