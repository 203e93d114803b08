package main

// semaphoreMutants weaken how a client gets a permit of a semaphore.
var semaphoreMutants = []mutant{
	{label: "slot-held", operator: "never", test: "semaphore.TestPermits",
		weak: "a newcomer claims a slot at the revision of a live record"},
	{label: "slot-release-verified", operator: "never", test: "semaphore.TestForged",
		weak: "a waiter claims a slot on a forged notification of its release"},
	{label: "slot-claim-closed", operator: "never", test: "semaphore.TestLateClaim",
		weak: "a claim of one slot goes on when its client has turned to another"},
	{label: "slots-left-by-newcomer", operator: "is 0", test: "semaphore.TestNumbersLeft",
		weak: "a newcomer takes a slot that an earlier waiter is to have"},
	{label: "slots-left-by-waiter", operator: "zero low", test: "semaphore.TestNumbersLeft",
		weak: "a waiter takes a slot that an earlier one is to have"},
	{label: "slot-bypass", operator: "never 3", test: "semaphore.TestNewcomerQueues",
		weak: "a newcomer goes on claiming a slot after others may have queued"},
	{label: "slot-newcomer", operator: "never", test: "semaphore.TestNewcomerOnReplica",
		weak: "a newcomer that reads a replica claims what the server names, past those that queued"},
	{label: "slot-longest", operator: "never", test: "semaphore.TestIdleSlotBesideUsedOne",
		weak: "a waiter stays with a slot that others use, and another one stays free"},
	{label: "slots-subscribed", operator: "always", test: "semaphore.TestHeadProves",
		weak: "the first waiter reads the slots before its subscription is proven"},
	{label: "slots-first", operator: "arg 3 is 0", test: "semaphore.TestReadApart",
		weak: "the queue that is read apart may be older than the slots"},
	{label: "slot-queue-rule", operator: "is true", test: "semaphore.TestNumbersPass",
		weak: "a waiter that knows of fewer slots holds up the others"},
	{label: "no-shortcut", operator: "always 5", test: "semaphore.TestNumbersBetween",
		weak: "a waiter takes itself for the first although another is between it and its predecessor"},
}
