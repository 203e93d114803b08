// Package natslock provides distributed locks for services that share a NATS account. A lock
// has a name and lives in a JetStream key-value bucket. Waiters queue, the client renews leases
// in the background, and every grant has a fencing token. Packages rwlock, semaphore and
// election build on the same client, and package natslock/admin shows and breaks the locks of
// all clients.
//
// # Usage
//
//	locks, err := natslock.New(ctx, nc) // one for each connection
//	...
//	defer locks.Close(context.Background()) // before nc.Close: it waits until all locks are unlocked
//
//	err = locks.Do(ctx, "orders.42", func(ctx context.Context, l *natslock.Lock) error {
//		return update(ctx, l.Token())
//	}, natslock.MaxWait(time.Minute))
//
// [Client.Do] runs a function under a lock and unlocks when it returns. The function's context
// ends when the lock does. [Client.Lock] and [Client.TryLock] return a [Lock], which the caller
// unlocks. Run the work with [Lock.Context], and pass [Lock.Token] to the resource that it
// changes.
//
// The context of an acquire limits the wait, and is also the parent of the lock's context, so a
// deadline on it ends the work too. [MaxWait] limits only the wait, and [Detached] separates
// the two contexts.
//
// # Outcomes
//
// An acquire returns a held lock, or an error and no lock. Errors match these sentinels with
// errors.Is:
//
//   - [ErrLocked]: the lock is held or has a queue. Only one-shot acquires return it.
//   - [ErrTimeout]: the context ended, or MaxWait passed. During an outage the error also
//     matches [ErrUnavailable], so check for that first.
//   - [ErrUnavailable]: the server gave no usable answer, the bucket no longer exists, or the
//     connection is closed.
//   - [ErrPermission]: the server refuses this user a subject that the lock needs.
//   - [ErrClosed]: the client is closed.
//   - [ErrInvalid]: an argument is invalid, and nothing was sent.
//
// [Lock.Unlock] returns nil if the lock was held until the call and the server has freed it.
// Otherwise its error, [Lock.Err] and the cause of [Lock.Context] say how the lock ended:
//
//   - [ErrLost]: without an Unlock. The work may have overlapped another holder's. [ErrBroken],
//     for a break by an operator, also matches ErrLost.
//   - [ErrClosed]: [Client.Close] gave up waiting for the work, which may have overlapped since
//     then.
//   - [ErrUnavailable], from Unlock only: the work did not overlap, but the server has not
//     confirmed the release. The next holder may have to wait for the TTL.
//   - [ErrReleased], from Err and Context only: the lock was unlocked, or handed over
//     ([ErrHandedOff]).
//   - [ErrEnded]: at the planned end of an [Until] lock. Any later work was unprotected.
//
// # Leases
//
// A TTL is 15 s by default, and can be any number of whole seconds from 1 s to 24 h. The client
// renews a lock every third of its TTL. It does not renew leases taken with [NoRenew] or
// [Until].
//
// A holder's validity starts when the client sends the write that the server then confirms. It
// ends a margin before the server's lease does: a tenth of the TTL up to 1 s, or a thousandth
// of a TTL above 1000 s. [Lock.Context] ends with the validity. A crashed holder keeps others
// out until its TTL ends. If a holder loses the server, its context ends before others can get
// the lock.
//
// # Why it excludes
//
// A lock is one record. The server accepts the write that takes it only if the record is as the
// client expects, and no client takes over a live record. Reads, notifications and timers are
// only hints to try. If the server fails to remove a record at the end of its lease, a waiter
// may replace it 300 ms later. A holder trusts its lease for less time than the server does,
// and ignores a confirmation that arrives after the validity.
//
// So at most one holder is inside its validity, under three conditions. The client's clock
// drifts by less than the margin: 10% for a TTL up to 10 s, 6.7% for 15 s, 0.1% for 24 h. The
// clocks of the servers that store the bucket agree. No acknowledged write is lost.
//
// # Waiting
//
// Clients are served in the order in which they queue, and so are the goroutines of one client.
// Each client watches its predecessor, so a release wakes one client. A client can pass the
// queue after a crash or a pause, after a second without any change, or within 100 ms of seeing
// the queue empty.
//
// Goroutines of a client that want the same lock share one place in the queue and pass the
// lease on without a message, each with its own token. The lease serves goroutines that asked
// before their client queued, any others in the first millisecond after a grant
// ([Tuning].Turn), and all of them while no other client waits. The rest queue when the lease
// ends. A goroutine that uses a different [TTL], or [NoRenew], [Until] or [MinHold], queues by
// itself.
//
// Locks are not reentrant: a client that takes a lock twice waits for itself. [Client.LockAll]
// takes several mutexes, in the same order in every client, so calls do not deadlock.
//
// # What is not promised
//
// The library cannot stop work. A process that is paused past its validity learns of the loss
// when it wakes up. A resource that refuses tokens below the highest it has seen is safe even
// then.
//
// A lock is as durable as its bucket: it is lost if the servers lose acknowledged writes or the
// bucket is deleted. Never restore a lock bucket from a backup: delete it, and the library
// creates it again with higher tokens. After a restore a client refuses tokens below those it
// has seen, but a client that starts later can be granted a used token.
//
// # Concurrency and limits
//
// Clients and locks are safe for concurrent use. One goroutine renews all locks of a client.
//
// A name has 1 to 512 bytes: letters, digits, '-', '_', '/' and a dot between tokens count
// once, most others three times. [Join] builds a name from arbitrary parts. Metadata and the
// owner's name may take 14 KiB together.
package natslock
