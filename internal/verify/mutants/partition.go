package main

// partitionMutants weaken what a worker in a group decides. A partition's lock always keeps
// others out.
var partitionMutants = []mutant{
	{label: "partition-fresh-plan", operator: "never", test: "partition.TestGivesWay",
		weak: "a holder gives way based on a plan that is older than the request"},
	{label: "partition-kept-meanwhile", operator: "is true", test: "partition.TestKeeps",
		weak: "a holder gives up a partition that no other worker has asked for yet"},
	{label: "partition-granted-late", operator: "never", test: "partition.TestClaims",
		weak: "a worker keeps a partition that belongs to another worker by the time of the grant"},
	{label: "partition-one-count", operator: "never", test: "partition.TestRefusesAnotherCount",
		weak: "a worker uses a different number of partitions than the first worker does"},
	{label: "partition-quota", operator: "drop", test: "partition.TestPlanBalances",
		weak: "a member keeps more than its quota"},
}
