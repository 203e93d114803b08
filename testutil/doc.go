// Package testutil runs real NATS servers for tests, and makes them fail on command. It
// provides an embedded server, a JetStream cluster, a server in a bubble of fake time, and
// connections that a test can cut.
//
// Nothing imitates the server: code under test sees what it would see in production. A
// helper that fails ends the test with the reason. Everything that a test starts here
// stops with the test.
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
// The server and its clients under fake time, see [Bubble]:
//
//	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
//		nc, link := s.ConnectLink()
//		...
//		link.Cut()
//		time.Sleep(24 * time.Hour) // takes 3 s
//		link.Heal()
//	})
//
// # Which one
//
// Use [Bubble] for everything about time on one server: no timer is late, and an hour with
// a held lock takes a second or two. Events at the same instant still happen in any order.
// Use [RunServer] where TCP, users and permissions or a second process matter, and
// [RunCluster] where replication does. A [Link] disturbs the bytes between one client and
// the server. For faults in individual locks, without a server, use package locktest.
//
// # Concurrency
//
// Any goroutine may use a [Link], or query a [Server] or a [Cluster]. Stop, restart, kill
// and connect on the test's own goroutine, because these calls end the test if they fail.
//
// # Debugging
//
// A server that does not start fails the test with the server's own error lines.
// [WithLog] copies the server's log to the log of the test.
package testutil
