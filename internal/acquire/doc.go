// Package acquire is the goroutines of one client that want locks. Those that want one lock wait
// together, in runs: internal/core decides about them. One goroutine drives a run, by its call (package
// call), and the lease goes from one to the next.
//
// acquire.go is the way of one Lock, from the request to the lease. runs.go has the state, and performs
// what the core decides. runqueue.go and member.go report to the core, and watch.go tells it of other
// clients. idle.go has the leases that linger.
package acquire
