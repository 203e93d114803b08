// Package locktest helps you test code that takes locks, with no need for a server.
//
// A [Locker] keeps its locks in memory. It is a natslock.Locker, and its clients are real
// natslock clients on an in-memory bucket, so its locks queue, renew, end and fail like those on
// a server, with the same options, tokens and errors.
//
//	locks := locktest.New()
//	defer locks.Close()
//	service := NewService(locks) // takes a natslock.Locker
//
// Code that needs a *natslock.Client, such as package rwlock, gets one from [Locker.Client].
//
// # What a test controls
//
//   - [Locker.Hold] makes another client hold a lock.
//   - [Locker.Lose] and [Locker.Break] end the locks held under a name.
//   - [Locker.Delay] makes the bucket slow for a name, and [Locker.Fail] makes all requests fail.
//   - [Locker.Inspect] shows the holder and the queue. [Locker.Waiting] counts waiting
//     goroutines, and [Locker.AwaitWaiting] waits until there are enough of them.
//
// A Locker works inside a testing/synctest bubble, where its TTLs pass in fake time. Create, use
// and close it either all inside the bubble or all outside. For a real server, even in a bubble,
// and for finer-grained faults, use package testutil.
//
// # The contract
//
// [TestLocker] and [TestRLocker] check that your own natslock.Locker, such as one that counts or
// traces, keeps the contract. The Locker in this package, the client, and both sides of a
// reader-writer lock all pass.
package locktest
