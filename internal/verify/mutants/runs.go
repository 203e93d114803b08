package main

// runMutants weaken how the goroutines of a client wait together, and how a client grants
// a lock by itself. The simulator catches these.
var runMutants = []mutant{
	{label: "run-unanswered", operator: "always", test: sim + "in_turns", beside: "TestRunAtItsPlace",
		weak: "a goroutine joins any run whatever is known of other clients"},
	{label: "turn-cut", operator: "always", test: sim + "in_turns", beside: "TestTurnCut",
		weak: "goroutines that joined in the turn are served after it"},
	{label: "one-at-a-time", operator: "is m.Holder.Release(ctx)", test: sim + "in_turns",
		weak: "the Unlock of one holder ends the lease of all"},
}

const sim = "internal/verify/simulation.TestSimRunsBrief/"
