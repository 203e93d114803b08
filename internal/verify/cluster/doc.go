// Package cluster has the tests that need more than one server or more than one
// process. They stop, kill, cut off and restart the servers of clusters under load.
// They run holders and servers as processes of their own, and kill or stop these by
// signals. They make stores lose records. The package has no code.
//
// The test binary is its own helper: started with a role in its environment it
// is a holder of locks, a candidate of an election, or a nats-server.
package cluster
