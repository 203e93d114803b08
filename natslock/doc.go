// Package natslock locks by name among all services of a NATS account: mutual
// exclusion kept in a JetStream key-value bucket, with leases, first-in
// first-out waiting and fencing tokens. Clients and NATS, nothing between.
//
// # Usage
//
// A [Client] stands for a process on one connection. [Client.Do] runs a function
// under a lock; [Client.Lock] and [Client.TryLock] return a [Lock] to unlock.
// What runs under a lock should run under [Lock.Context], which ends when the
// lock does, and should hand [Lock.Token] to the resource it works on.
//
// The lock's context is a child of the context given to Lock or Do. A deadline on
// that context is therefore the deadline of the work too, not only of the wait. Use
// [MaxWait] to bound the wait alone, or [Detached] to free the work from the deadline.
//
// # Why it excludes
//
// Three sentences carry the protocol:
//
//   - Only a compare-and-set grants. A lock is one record; taking it is one
//     conditional write, which the server accepts only while there is no such
//     record. Reads, notifications and timers are hints about when to try.
//   - A live record is never overwritten by anybody but its owner. Others wait
//     until the server has removed it at the end of its lease, or until its
//     owner or an operator has deleted it.
//   - A holder believes less than the server does. Its validity is counted from
//     the sending of a write, ends a margin before the server's lease, and a
//     confirmation that comes after that end counts for nothing.
//
// So at most one holder is inside its validity, provided the client's clock
// runs no more than the margin wrong (10% for leases of 10 s and below), the
// clocks of the servers that hold the bucket agree, and no acknowledged write
// is lost. A process that is paused past its validity learns of it late, as
// with every lease: that is what [Lock.Token] is for. A resource that refuses
// tokens smaller than the greatest it has seen stays safe even then.
//
// # Waiting
//
// Waiters queue in the order in which they asked. Each watches the one before
// it, the first watches the lock: a release wakes one waiter. The order is
// exact while the lock is busy; out of turn a lock is taken only after a crash
// or a pause, after a second of idleness, or by a client that releases and takes
// again within 100 ms of having seen the queue empty. Locks are not reentrant:
// taking one twice in a process waits like taking it in two.
//
// # What is not promised
//
// A lock is as durable as its bucket. Servers that lose acknowledged writes, a
// bucket that is deleted, or a restore from a backup lose locks; tokens then
// still tell old holders from new ones, unless the backup brings back old
// sequences. A client refuses those when it has seen higher ones; one that starts
// after the restore cannot know, and is granted tokens that others have had. A
// bucket that is deleted and re-created has tokens above all before it.
//
// # Concurrency
//
// Clients and locks are safe for concurrent use. One goroutine keeps the leases
// of all locks of a client; there is none per lock, and none per waiter beyond
// the caller's own.
package natslock
