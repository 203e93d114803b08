// Package call is how one call of Lock gets its lock at the server: by a claim at once, or from a place
// in the queue. internal/core decides the steps and judges what was read; this package performs them.
//
// A call does not know the other goroutines of its client. It reports what it does to its [Cohort].
//
// # The queue
//
// A lock that is not free has a queue: records in the order of their tickets, the
// revisions at which they were first written. The first waiter watches the lock,
// every other waiter watches its predecessor, so one release wakes one waiter
// however many there are. After subscribing the waiter sends a write that the
// stream's leader refuses: that answer proves that the subscription is in place.
// Timers back up every notification: losing one costs time, never the lock.
//
// # When somebody dies
//
// The holder: first.go, by the end of its TTL. The predecessor of a waiter: successor.go, by the end of
// its place. The first waiter, as those behind it see it: successor.go, by a lock that stays free
// (core/successor.go decides).
//
// # Where to find it
//
// request.go and call.go are the request of a caller, and what the call knows on the way. survey.go reads a
// lock and its queue before a claim. queue.go, successor.go and first.go are the wait,
// mailbox.go and longqueue.go what they share. drain.go is the reader-writer lock's own, slots.go the
// semaphore's. once.go confirms the answers of a one-shot call.
// adopt.go takes a lock that was handed over. failure.go says how a call has failed.
package call
