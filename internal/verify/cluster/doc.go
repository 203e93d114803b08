// Package cluster has the tests that need more than one server or more than one
// process: clusters whose servers stop, die, are cut off and are restarted under
// load; holders and servers as processes of their own, killed and stopped by
// signals; stores that lose what they had. It has no code.
//
// The test binary is its own helper: started with a role in its environment it
// is a holder of locks, or a nats-server.
package cluster
