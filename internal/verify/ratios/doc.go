// Package ratios compares the cost of a lock with the cost of the bare conditional publishes
// that it needs. Both use the same bucket, on the same server, in the same run, because
// absolute times mean little on a shared machine. The benchmarks report the ratios. The tests
// guard them, along with the allocations and the memory of a held lock.
//
// The server is a separate process, so that only the client's allocations and CPU time are
// counted. BenchmarkNow and BenchmarkRecord need no server: they measure the clock, and a
// record's codec compared with reflection.
//
// The package has no code outside its tests. The module bench compares natslock with other
// locks.
package ratios
