package main

// semaphoreMutants weaken how a client gets a semaphore's permit.
var semaphoreMutants = []mutant{
	{label: "release-verified", operator: "always 1", test: "semaphore.TestForged", beside: "TestFirstForged",
		weak: "a waiter claims a slot on a forged notification of its release"},
	{label: "slot-claim-closed", operator: "never", test: "semaphore.TestLateClaim",
		weak: "a claim of one slot goes on when its client has turned to another"},
	{label: "slot-bypass-empty", operator: "never", test: "semaphore.TestNumbersLost", beside: "TestBidPasses/of_a_slot_without_a_record",
		weak: "a newcomer repeats its claim of a slot without a record long after others may have queued"},
	{label: "slot-bypass", operator: "never", test: "semaphore.TestNewcomerQueues",
		weak: "a newcomer goes on claiming a slot after others may have queued"},
	{label: "slot-newcomer", operator: "never", test: "semaphore.TestNewcomerOnReplica",
		weak: "a newcomer that reads a replica claims what the server names, past those that queued"},
	{label: "slot-longest", operator: "never", test: "semaphore.TestIdleSlotBesideUsedOne", beside: "TestSuccessorSlots",
		weak: "a waiter stays with a slot that others use, and another one stays free"},
	{label: "slots-subscribed", operator: "always", test: "semaphore.TestHeadProves", beside: "TestFirstSlots",
		weak: "the first waiter reads the slots before its subscription is proven"},
	{label: "slots-first", operator: "arg 3 is 0", test: "semaphore.TestReadApart",
		weak: "the queue that is read apart may be older than the slots"},
}
