// Package natslock provides distributed locks that are stored in a NATS JetStream key-value
// bucket. Waiters queue, the client renews leases in the background, and every grant comes with
// a fencing token. Packages rwlock, semaphore and election build on the same client, and package
// natslock/admin shows and breaks the locks of all clients.
//
// # Usage
//
//	locks, err := natslock.New(ctx, nc) // one per connection
//	...
//	defer locks.Close(context.Background()) // before nc.Close; waits until all locks are unlocked
//
//	err = locks.Do(ctx, "orders.42", func(ctx context.Context, l *natslock.Lock) error {
//		return update(ctx, l.Token())
//	}, natslock.MaxWait(time.Minute))
//
// [Client.Do] runs a function under a lock and unlocks when the function returns. The function's
// context ends when the lock does. [Client.Lock] and [Client.TryLock] return a [Lock], which the
// caller must unlock. Run the work with [Lock.Context], and pass [Lock.Token] to the resource
// that the work changes.
//
// The context of an acquire limits the wait and is also the parent of the lock's context, so a
// deadline on it ends the work too. [MaxWait] limits only the wait, and [Detached] separates the
// two contexts.
//
// # Outcomes
//
// An acquire returns a held lock, or an error and no lock. In an outage a timeout matches both
// [ErrTimeout] and [ErrUnavailable], so check for ErrUnavailable first. Invalid arguments,
// including a nil context or function, are refused with [ErrInvalid], and nothing is sent.
//
// [Lock.Unlock] returns nil if the lock was held until the call and has been released. Otherwise
// its error, like [Lock.Err] and the cause of [Lock.Context], tells how the lock ended. After
// [ErrLost], [ErrClosed] or [ErrEnded] the work may have overlapped another holder's.
//
// # Leases
//
// The TTL of a lock is 15 s by default, and the client renews the lock three times per TTL. It
// does not renew leases taken with [NoRenew] or [Until].
//
// A lock is valid from the moment the client sends the write that the server then confirms,
// until a margin before the server's lease ends: a tenth of the TTL up to 1 s, or a thousandth
// of a TTL above 1000 s. [Lock.Context] ends no later than the validity, so if the holder loses
// contact with the server, its context ends before another client can get the lock. A crashed
// holder keeps others out until its TTL ends.
//
// At most one holder is inside its validity, provided that the client's clock drifts by less
// than the margin (10% for a TTL up to 10 s, 6.7% for 15 s, 0.1% for 24 h), the clocks of the
// servers that store the bucket agree, no acknowledged write is lost, and no operator breaks a
// lock immediately. See docs/guide/leases.md.
//
// # Waiting
//
// Clients are served in the order in which they queue, and so are the goroutines of one client.
// A client can jump the queue after a crash or a pause, after a second without any change, or
// within 100 ms of seeing the queue empty. Goroutines of one client share a place in the queue
// and pass the lease on without a message, each with its own token. A goroutine that uses a
// different [TTL], or [NoRenew], [Until] or [MinHold], queues by itself. See
// docs/guide/waiting.md.
//
// Locks are not reentrant: a client that takes a lock twice waits for itself. To take several
// mutexes without the risk of a deadlock, use [Client.LockAll].
//
// # What is not promised
//
// The library cannot stop your work. A process paused past its lock's validity learns of the
// loss only when it wakes up. Even then a resource is safe if it refuses tokens below the
// highest it has seen: see docs/guide/fencing.md.
//
// A lock is as durable as its bucket: it is lost if the bucket is deleted or the servers lose
// acknowledged writes. Never restore a lock bucket from a backup, because tokens can then be
// granted twice. Delete it instead, and the library re-creates it with higher tokens.
//
// # Concurrency and limits
//
// Clients and locks are safe for concurrent use. A name has 1 to 512 bytes: letters, digits,
// '-', '_', '/' and a dot between tokens count once, most others three times. [Join] builds a
// name from arbitrary parts.
package natslock
