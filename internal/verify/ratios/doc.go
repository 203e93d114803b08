// Package ratios compares the cost of a lock with that of the bare conditional publishes
// that it cannot do without. Both go to the same bucket, on the same server, in the same
// run. Absolute times mean little on a shared machine. The benchmarks report the ratios,
// and the tests guard them, together with the allocations and the memory of a held lock.
//
// The server is a separate process, so that only the client's allocations and CPU time
// are counted. BenchmarkNow and BenchmarkRecord have no server: they measure the clock,
// and the codec of a record compared with reflection.
//
// The package has no code outside its tests. The module bench compares natslock with
// other locks.
package ratios
