// Package cluster guards what a lock promises with several servers and processes. There are never
// two holders, and no lease is lost, while leaders step down, servers are killed, stopped, cut off
// and restarted, and stores lose records. The order of the queue is kept throughout, even if
// signals kill or stop holders in other processes. Package topologies covers indirect routes to a
// bucket, and package versions covers released servers.
//
// The test binary is its own helper: when started with a role in its environment, it is a holder
// of locks, an election candidate, or a nats-server.
package cluster
