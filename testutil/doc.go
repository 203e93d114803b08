// Package testutil starts real things for tests, ours and our users': an
// embedded NATS server, a JetStream cluster, a server inside a bubble of fake
// time, connections whose link can be cut, and a fault injector for the store.
//
// The server is never imitated. What is written against it here behaves as in
// production, only faster and on command.
//
// # Usage
//
// One server over TCP, gone when the test ends:
//
//	s := testutil.RunServer(t)
//	nc := s.Connect()
//	...
//	s.Restart() // same port, same data
//
// A cluster of three, for leader changes, killed and cut-off servers:
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
//		time.Sleep(24 * time.Hour) // takes a moment
//		link.Heal()
//	})
//
// Lost and late answers between a client and its store, see [Faults]:
//
//	var f *testutil.Faults
//	c, err := natslock.New(ctx, nc, testutil.WrapStore(func(kv kvstore.KV) kvstore.KV {
//		f = testutil.NewFaults(kv, seed)
//		return f
//	}))
//	...
//	f.OnSend(func(n int, w kvstore.Write) testutil.Fate {
//		if n == 1 {
//			return testutil.LoseAnswer
//		}
//		return testutil.Pass
//	})
//
// # Which one
//
// Take the bubble for everything that is about time on one server: it is
// deterministic as far as the server is, and free. Take [RunServer] where TCP
// itself, users and permissions or a second process matter, [RunCluster] where
// replication does. A [Link] disturbs bytes between one client and the server;
// [Faults] disturbs single writes, answers and notifications, so it can say
// exactly which ones.
//
// # Concurrency
//
// [Link] and [Faults] may be used from any goroutine. [Server] and [Cluster]
// can be asked from any goroutine; stop, restart, kill and connect from the
// test's own, since they end the test when they fail.
//
// # Debugging
//
// A server that does not start fails the test with the server's own error
// lines. [WithLog] writes the server's log to the test's.
package testutil
