package main

// semaphoreMutants weaken how a client gets a semaphore's permit.
var semaphoreMutants = []mutant{
	{label: "release-verified", operator: "always 1", test: "semaphore.TestForged", beside: "TestFirstForged",
		weak: "a waiter claims a slot because of a forged notification of the slot's release"},
	{label: "slot-claim-closed", operator: "never", test: "semaphore.TestLateClaim",
		weak: "a claim for one slot continues after its client has turned to another slot"},
	{label: "slot-bypass-empty", operator: "never", test: "semaphore.TestNumbersLost", beside: "TestBidPasses/of_a_slot_without_a_record",
		weak: "a newcomer repeats its claim for a slot without a record long after other clients may have queued"},
	{label: "slot-bypass", operator: "never", test: "semaphore.TestNewcomerQueues",
		weak: "a newcomer keeps claiming a slot after other clients may have queued"},
	{label: "slot-newcomer", operator: "never", test: "semaphore.TestNewcomerOnReplica",
		weak: "a newcomer that reads from a replica claims at the revision that the server names, ahead of clients that have queued"},
	{label: "slot-longest", operator: "never", test: "semaphore.TestIdleSlotBesideUsedOne", beside: "TestSuccessorSlots",
		weak: "a waiter stays with a slot that other clients use while another slot stays free"},
	{label: "slots-subscribed", operator: "always", test: "semaphore.TestHeadProves", beside: "TestFirstSlots",
		weak: "the first waiter reads the slots before its subscription has been proven"},
	{label: "slots-first", operator: "arg 3 is 0", test: "semaphore.TestReadApart",
		weak: "a queue that is read separately may be older than the slots"},
}
