// Package testutil runs real NATS servers for tests, and makes them fail on command. It
// provides an embedded server, a JetStream cluster, a server in a bubble of fake time, and
// connections that a test can cut.
//
// Nothing imitates the server, so code under test sees what it would see in production. A
// helper that fails ends the test with the reason. Everything that a test starts here stops
// when the test ends.
//
// # Usage
//
// One server over TCP:
//
//	s := testutil.RunServer(t)
//	nc := s.Connect()
//	...
//	s.Restart() // same port, same data
//
// A cluster of three, for leader changes and servers that are killed or cut off:
//
//	c := testutil.RunCluster(t, 3)
//	nc := c.Connect()
//	...
//	c.StepDown(t, "KV_natslock")
//	c.Kill(0)
//	c.Restart(0)
//
// A server and its clients under fake time (see [Bubble]):
//
//	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
//		nc, link := s.ConnectLink()
//		...
//		link.Cut()
//		time.Sleep(24 * time.Hour) // takes 3 s
//		link.Heal()
//	})
//
// # Which one to use
//
// Use [Bubble] to test anything about time on a single server: no timer is late, and an
// hour with a held lock takes a second or two. Events at the same instant can still happen
// in any order. Use [RunServer] where TCP, users and permissions, or a second process
// matter, and [RunCluster] where replication does. A [Link] disrupts the traffic between
// one client and the server. To inject faults into individual locks without a server, use
// package locktest.
//
// # Concurrency
//
// Any goroutine may use a [Link], or query a [Server] or a [Cluster]. Stop, restart, kill
// and connect only on the test's own goroutine, because these calls end the test if they
// fail.
//
// # Debugging
//
// If a server does not start, the test fails with the server's own error lines. [WithLog]
// copies the server's log to the test's log.
package testutil
