// Package simulation makes clients contend for locks for hours of simulated time, while the
// network, the server and an operator interfere. Package history records what the clients do
// and judges it. The package has no code outside its tests.
//
// Most simulations keep their bucket in memory, where operations take a fraction of the time.
// Their clients meet lost, late and forged messages, cut links, and operators. Simulations
// whose names end in Server use a real server in the same bubble of fake time. That server
// restarts, forgets TTLs, and has its bucket re-created.
//
// A seed reproduces the plan and the fate of a client's n-th write, but not the order in which
// goroutines run. Two runs with the same seed therefore differ, so repeat a failed seed several
// times.
package simulation
