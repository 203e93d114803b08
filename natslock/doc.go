// Package natslock provides distributed locks for services that share a NATS
// account. A lock has a name and lives in a JetStream key-value bucket. Waiters
// queue, the client renews leases in the background, and every grant has a fencing
// token. Packages rwlock and semaphore add reader-writer locks and semaphores on the same
// client, and package election adds elections. Package natslock/admin shows and breaks the
// locks of all clients.
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
// [Client.Do] runs a function under a lock, and unlocks when the function returns. The context of
// the function ends when the lock does. [Client.Lock] and [Client.TryLock] return a [Lock], and the
// caller unlocks it and runs the work with [Lock.Context]. Pass [Lock.Token] to the resource that
// the work changes.
//
// The context of an acquire bounds the waiting, and it is also the parent of the
// lock's context. A deadline on it therefore ends the work too. [MaxWait] bounds the
// waiting alone. [Detached] separates the lock's context from the end of its parent.
//
// The lock is held while [Lock.Remaining] is more than 0. Once that is 0, [Lock.Err] says why. If only the
// parent context has ended, Err returns its error: the lock is still held, so unlock it.
//
// # Outcomes
//
// An acquire returns a held lock, or an error and no lock. Errors match these
// sentinels with errors.Is:
//
//   - [ErrLocked]: the lock is held or has a queue. TryLock and TryDo return it.
//   - [ErrTimeout]: the context ended, or MaxWait passed. In an outage the error matches
//     [ErrUnavailable] too, so ask for ErrUnavailable before ErrTimeout.
//   - [ErrUnavailable]: the server gave no usable answer, the bucket is gone, or the
//     connection is closed.
//   - [ErrPermission]: the server refuses the user a subject that the lock needs.
//   - [ErrClosed]: the client is closed.
//   - [ErrInvalid]: a name, a TTL, an option or another argument. The client sent nothing.
//
// [Lock.Unlock] returns nil when the lock was held until the call and the server has freed it. Otherwise its
// error, [Lock.Err] and the cause of [Lock.Context] say how the lock has ended:
//
//   - [ErrLost]: without an Unlock. The work may not have been alone. [ErrBroken], by an operator,
//     matches ErrLost too.
//   - [ErrClosed]: [Client.Close] gave up waiting for the work, which may not have been alone since.
//   - [ErrUnavailable], of Unlock only: the work was alone, and the server has not confirmed the release.
//     The next holder may have to wait for the TTL.
//   - [ErrReleased], of Err and Context only: it was unlocked, or handed over ([ErrHandedOff]).
//   - [ErrEnded]: at the planned end of a lock taken with [Until]. Work after that was not protected.
//
// # Leases
//
// A lock has a TTL: 15 s by default, from 1 s to 24 h, rounded up to whole seconds. The
// client renews it every third of the TTL. [NoRenew] and [Until] take leases that the
// client does not renew, for up to a year.
//
// The holder's validity counts from the moment when the client sent the confirmed
// write. It ends a margin before the server's lease: a tenth of the TTL up to 1 s, or a
// thousandth of a TTL above 1000 s. [Lock.Context] ends with the validity.
//
// When a holder crashes, the lock stays taken until the TTL ends. When a holder loses
// the server, its context ends with the validity, and others can take the lock.
//
// # Why it excludes
//
//   - Only a compare-and-set grants. A lock is one record. The client takes it by one
//     conditional write, and the server accepts that write only if the record is as
//     the client expects. Reads, notifications and timers only hint when to try.
//   - No client takes over a live record. It waits until the server removes the record
//     at the end of its lease, or until the owner deletes it. If the server fails to
//     remove it, a waiter may replace it 300 ms after the end. A break by an operator marks
//     the record, and the mark stays until the holder unlocks or the lease ends.
//   - A holder trusts its lease for less time than the server does. A confirmation
//     that arrives after the end of the validity does not count.
//
// So at most one holder is inside its validity, under three conditions. The client's
// clock runs wrong by less than the margin: 10% for a TTL up to 10 s, 6.7% for 15 s,
// 0.1% for 24 h. The clocks of the servers that hold the bucket agree. No acknowledged
// write is lost.
//
// # Waiting
//
// Clients are served in the order in which they queue, goroutines of a client among
// themselves. Each client watches its predecessor, and the first one watches the lock, so
// a release wakes one client. The order holds while the lock is busy. A client can pass
// the queue after a crash or a pause, after a second without any change, or within 100 ms
// after it saw the queue empty.
//
// The goroutines of one client that want the same lock have one place in the queue, and
// hand the lease on without a message. Each has a token of its own. The lease serves those
// that asked before their client queued or, if it got the lock at once, before another
// client did. It serves later ones in the first millisecond after a grant by the server,
// and as long as no other client waits. A goroutine that it does not serve queues when the
// lease ends: behind a very long hold it waits for all clients that queue meanwhile. With a
// negative [Tuning].Turn each goroutine queues by itself, in the exact order. Goroutines
// that ask with another [TTL] than others have a place of their own, and each one with
// [NoRenew], [Until] or [MinHold].
//
// Locks are not reentrant: a client that takes a lock twice waits for itself.
//
// [Client.LockAll] and [Client.TryLockAll] take several mutexes, all or none. They take
// them in one order for all clients, so calls that want the same names in other orders do
// not wait for each other forever. [LockSet] has one context, which ends with the first loss.
//
// # Locks that linger
//
// A service that takes the same lock again and again can keep it in between: with
// [Linger], a lock stays with its client for a while after the last Unlock. The next Lock
// of that client costs no message, but for one renewal in 32 grants. Readers linger too: a
// lock that nobody writes is read without a message.
//
// Exclusion, order and tokens are those of other locks. The client gives an idle lock up at
// once when another client waits for it. A lost notification delays that by at most 5 s,
// and a topology without notifications by the linger time. To
// TryLock of another client an idle lock is held, and [LockedError] says that it is idle. The
// price is that of a crash: an idle lock of a client that has crashed keeps others out until
// its TTL ends, as a held lock does. See [Linger], [Tuning] and [Stats].
//
// # Locks that outlast their holder
//
// With [MinHold] a lock keeps others out for a while after the grant, however early its
// holder unlocks: replicas whose clocks differ run a short job once. [Lock.Handoff] leaves
// a lock in the bucket for another process, which takes it with [Client.Adopt] and keeps
// its token. A break of such a record waits until its TTL has passed, or frees the lock at once.
// [Lock.Contended] notifies a holder when a goroutine or another client waits.
//
// # What is not promised
//
// The library cannot stop work. A process that is paused past its validity learns of
// the loss when it wakes up. A resource that refuses tokens smaller than the greatest
// it has seen is safe even then.
//
// A lock is as durable as its bucket. Servers that lose acknowledged writes lose locks,
// and so does deleting the bucket. Never restore a lock bucket from a backup. Delete it:
// the library re-creates it with tokens higher than any it has issued. After a restore
// a client refuses tokens below those it has seen. A client that starts later has seen
// none, and can be granted a token that was used before.
//
// # Concurrency
//
// Clients and locks are safe for concurrent use. One goroutine keeps the leases of all
// locks of a client. A lock needs no goroutine, and a waiter only the caller's.
//
// # Limits
//
// A name has any bytes, and up to 512 of them: a letter, a digit, '-', '_', '/' and a dot between tokens count
// once, most others three times. [Join] makes a name from any parts. A TTL is 1 s to 24 h, [Until] and
// [NoRenew] leases last up to 366 days, a minimum hold 12 h, a lingering lease 1 h. [Client.LockAll] takes
// up to 256 names. Metadata and the name of the owner have up to 14 KiB together.
package natslock
