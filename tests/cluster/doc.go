// Package cluster tests what a lock guarantees with several servers and processes. There are never
// two holders, and no lease is lost, while leaders step down, servers are killed, stopped, cut off
// and restarted, and stores lose records. The queue keeps its order throughout, even if signals
// kill or stop holders in other processes. Package topologies covers indirect routes to a bucket,
// and package versions covers released servers.
//
// The test binary is its own helper: started with a role in its environment, it acts as a holder of
// locks, an election candidate or a nats-server.
package cluster
