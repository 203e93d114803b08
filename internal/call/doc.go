// Package call gets the lock from the server for one call to Lock, either by claiming it at once or from a place in
// the queue. internal/core decides the steps and judges what was read; this package does the I/O.
//
// A call does not know the other goroutines of its client. It reports what it does to its [Cohort].
//
// # The queue
//
// A lock that is not free has a queue: records in the order of their tickets, the revisions at which they were first
// written. The first waiter watches the lock, and every other waiter watches its predecessor. So one release wakes one
// waiter, however many there are. After subscribing the waiter sends a write that the stream's leader refuses. That
// answer proves that the subscription is in place. Timers back up every notification: losing a notification costs
// time, never the lock.
//
// # When a client dies
//
// If the holder dies, first.go sees the end of its TTL. If a waiter's predecessor dies, successor.go sees the end of
// the predecessor's place. If the first waiter dies, the waiters behind it see a lock that stays free: successor.go
// reads it, and core/successor.go decides.
//
// # Where to find it
//
// request.go has the caller's request, and call.go what the call learns on the way. survey.go reads a lock and its
// queue before a claim. queue.go, successor.go and first.go are the wait, with the mailbox in mailbox.go. drain.go
// serves only the reader-writer lock, and slots.go only the semaphore. once.go confirms the answers to a one-shot
// call. adopt.go takes over a lock that was handed over. failure.go has the errors that a call returns.
package call
