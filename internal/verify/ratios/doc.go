// Package ratios compares the cost of a lock with that of the bare conditional publishes
// that it cannot do without. Both go to the same bucket, on the same server, in the same
// run.
// Absolute times mean little on a shared machine. The benchmarks report the ratios,
// and the tests guard them, with the allocations and the memory of a held lock.
//
// The server is a process of its own, so that the allocations and the CPU time that
// are counted are the client's alone. BenchmarkNow and BenchmarkRecord have no server:
// they measure the clock, and the codec of a record beside reflection.
//
// The package has no code outside its tests. The module bench compares natslock with
// other locks.
package ratios
