// Package simulation lets clients contend for locks for hours of simulated time, while
// the network, the server and an operator get in their way. Package history records what
// the clients do and judges it. The package has no code outside its tests.
//
// Most simulations have their bucket in memory, where operations take a fraction of the
// time. Clients there meet lost, late and forged messages, links that are cut, and
// operators. Those whose names end in Server have a real server, in the same bubble of fake
// time. It starts again, forgets TTLs, and has its bucket re-created.
//
// A seed repeats the plan and the fate of a client's n-th write. It does not repeat the
// order in which goroutines run, so two runs of a seed differ: repeat a seed that has failed
// some times.
package simulation
