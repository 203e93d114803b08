// Package call acquires the lock from the server for a single call to Lock, either by claiming it immediately or by
// waiting in the queue. internal/core decides each step and judges what was read; this package does the I/O.
//
// A call knows nothing about its client's other goroutines. It reports its progress to its [Cohort].
//
// # The queue
//
// A lock that is not free has a queue of records, ordered by ticket: the revision at which a record was first written.
// The first waiter watches the lock and every other waiter watches its predecessor, so a release wakes only one waiter,
// no matter how many there are. After subscribing, a waiter sends a write that the stream's leader is bound to refuse,
// and the refusal proves that the subscription is in place. Timers back up every notification, so a lost notification
// costs time but never the lock.
//
// # When a client dies
//
// If the holder dies, first.go notices that the holder's TTL has run out. If a waiter's predecessor dies, successor.go
// notices that the predecessor's place has expired. If the first waiter dies, the waiters behind it find that the lock
// stays free: successor.go reads the lock, and core/successor.go decides what to do.
//
// # Where to find things
//
// request.go defines what the caller asks for, and call.go tracks what the call learns along the way. survey.go reads a
// lock and its queue before a claim. queue.go, successor.go and first.go implement the wait, and mailbox.go collects
// its notifications. drain.go serves only reader-writer locks, and slots.go only semaphores. once.go confirms the
// result of a one-shot call, adopt.go takes over a lock that was handed over, and failure.go builds the errors that a
// call returns.
package call
