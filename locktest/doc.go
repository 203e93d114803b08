// Package locktest tests code that takes locks, without a server.
//
// A [Locker] keeps its locks in memory. It is a natslock.Locker, and its clients are real
// clients of package natslock on a bucket in memory. So its locks queue, are renewed, end and
// fail as those on a server do, with the same options, tokens and errors.
//
//	locks := locktest.New()
//	defer locks.Close()
//	service := NewService(locks) // takes a natslock.Locker
//
// Code that needs a *natslock.Client gets one from [Locker.Client]. Package rwlock makes its
// locks from that client.
//
// # What a test controls
//
//   - [Locker.Hold] has another client hold a lock.
//   - [Locker.Lose] and [Locker.Break] end the locks that are held under a name.
//   - [Locker.Delay] makes the bucket slow for a name, and [Locker.Fail] makes it fail.
//   - [Locker.Inspect] shows the holder and the queue. [Locker.Waiting] counts the goroutines
//     that wait, and [Locker.AwaitWaiting] waits for them.
//
// A Locker works inside a testing/synctest bubble, and its TTLs then pass in fake time. Make,
// use and close it on one side of the bubble. Package testutil has a real server, even in a
// bubble, and finer faults.
//
// # The contract
//
// [TestLocker] and [TestRLocker] test that a natslock.Locker of your own, such as one that
// counts or traces, keeps the contract. The Locker of this package, the client, and both sides
// of a reader-writer lock pass them.
package locktest
