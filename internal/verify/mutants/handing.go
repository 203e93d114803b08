package main

// handMutants weaken how a lock stays in the bucket when its holder has left it.
var handMutants = []mutant{
	{label: "rest-kept", operator: "always", test: "natslock.TestMinHoldOnce/replicas",
		weak: "an Unlock before the end of the minimum hold frees the lock"},
	{label: "rest-kept", operator: "never 2", test: "natslock.TestMinHoldBroken",
		weak: "a lock that an operator has broken rests"},
	{label: "rest-margin", operator: "keep 1 of +", test: "natslock.TestMinHoldOver",
		weak: "the minimum hold ends early by what the client's clock is fast"},
	{label: "rest-covered", operator: "always 3", test: "natslock.TestMinHoldCrash",
		weak: "an Extend makes the TTL shorter than the minimum hold"},
	{label: "min-hold-crash", operator: "plus -4000000000", test: "natslock.TestMinHoldCrash",
		weak: "a lock whose holder crashes is free before its minimum hold is over"},
	{label: "rest-private", operator: "keep 1", test: "natslock.TestMinHoldWaitTogether",
		weak: "goroutines of a client hand on a lock that is to rest"},
	{label: "contended-asked", operator: "never 1", test: "natslock.TestContended/lock,_stranger_after",
		weak: "a holder is not notified of the clients that wait"},
	{label: "contended-asked", operator: "never 2", test: "natslock.TestContended/lock,_sibling_after",
		weak: "a holder is not notified of the goroutines of its client that wait"},
	{label: "break-waits", operator: "never 3", test: "natslock.TestMinHoldBroken",
		weak: "a break does not free a lock that rests"},
}
