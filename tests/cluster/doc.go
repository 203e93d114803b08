// Package cluster guards what a lock promises on several servers and over several processes: no two
// holders and no lost lease while leaders step down, servers are killed, stopped, cut off and
// restarted, and stores lose records; the order of the queue meanwhile; holders that are
// processes of their own, killed or stopped by signals. Package topologies has the ways to a bucket
// that are no straight line, package versions the released servers.
//
// The test binary is its own helper: started with a role in its environment it
// is a holder of locks, a candidate of an election, or a nats-server.
package cluster
