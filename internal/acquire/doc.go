// Package acquire is how a client gets a lock: by one conditional write that the
// server acknowledges in time, at once or from a place in the queue.
//
// # From an attempt to a lease
//
//	         send                 acknowledged, or found, in time
//	claim ----------> attempt -----------------------------------> lease
//	  ^                  |
//	  |   refused, or    |
//	  |   no answer      |
//	  +------------------+
//
// A claim is one acquisition under one id. It makes attempts, each a conditional
// write with its own number, expectation and sending time, until one is granted or
// the claim is given up. Any answer may be lost or late, so every attempt is judged
// by itself. Acknowledged before its own validity would have ended, it is a grant.
// Acknowledged later, it is lost: the record is deleted, and a new claim begins.
// Found in the bucket under its own number, it is a grant as of its own sending.
// Acknowledged when the claim is over, it leads to the deletion of exactly its own
// record.
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
// The holder: first.go, by the end of its TTL. The predecessor of a waiter: follow.go, by the end of
// its place. The head of the queue: core/follow.go, by a lock that stays free.
//
// # Where to find it
//
// acquire.go is the way of one Lock, from the request (request.go) to the lease. claim.go
// sends the attempts of a claim and has internal/core judge the answers, orphan.go cleans up after
// claims that are over. internal/core
// decides about the runs of a lock: runs.go performs that, runqueue.go and member.go report to
// it, and watch.go has it know other clients. idle.go has the leases that linger. survey.go reads a
// lock and its queue before a claim. queue.go, follow.go and first.go are the wait,
// mailbox.go and longqueue.go what they share. drain.go is the reader-writer lock's own.
// once.go confirms the answers of a one-shot acquire.
package acquire
