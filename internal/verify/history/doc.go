// Package history records what clients do with their locks and judges it. Only tests
// use it.
//
// # Usage
//
// A [Recorder] wraps clients, using only their public methods, and taps the stream
// alongside them:
//
//	rec := history.NewRecorder()
//	rec.Tap(t, s.Connect())
//	c, err := natslock.New(ctx, nc, rec.Option())
//	a := rec.Client("a", c)
//	held, err := a.Acquire(ctx, history.Want{Kind: admin.KindMutex, Name: "x"})
//	...
//	held.Unlock(ctx)
//	history.Verify(t, rec.History(), history.Options{})
//
// In memory, [kit.InMemory] creates the bubble and the bucket, [Recorder.TapMemory] the
// tap, and a [kit.Line] connects clients. All checks judge such a history like that of a
// server. Only a client with a connection has subscriptions; in memory check 7 wants its
// store closed instead.
//
// A test that does not need all this reports only its grants to the recorder, with
// [Recorder.Granted], right after the acquire returns.
//
// # What is checked
//
// [Check] checks a [History] by these numbered rules:
//
//  1. Beliefs of conflicting holders do not overlap, and no belief outlives the
//     record that it rests on. Only its owner overwrites or deletes a live record. No
//     reader joins behind a gate, and no writer is granted the lock while a reader's
//     record is alive.
//  2. Tokens rise in the order of grants, and each rests on a record of its claim.
//  3. A resource that refuses smaller tokens accepts nothing from a superseded
//     holder, and refuses no holder inside its validity.
//  4. The operations are linearizable against a model of a lease.
//  5. Clients are served in the order in which they queue, and the goroutines of a
//     client in the order in which they asked: see Order below.
//  6. No waiter stays out for longer than the TTL and a second while the lock is free,
//     or while its client has neither a place in the queue nor a lease.
//  7. The library leaves nothing behind: no key, goroutine or subscription.
//  8. The history is not vacuous.
//
// The rules about the stream do not apply to a history without a tap, nor those about
// waiting to a history without operations.
//
// # Order
//
// The goroutines of a client that want one lock in one mode, with the same options, are
// a cohort. They share a place in the queue and a lease. The id of each holder begins
// with that of the claim, see [claimOf]. A grant that the client makes by itself has no
// record, and its token may share the revision of the previous token. Check 5 wants:
//
//   - A claim passes no place that was written before its own.
//   - While a foreign place waits, the cohort serves the goroutines that asked before the
//     place could be known, and others for one turn, see [History]. Only the first goroutine
//     of a lease may have asked later: it has the place of its cohort. Every place except
//     that of the cohort is foreign, even one of the same client in the other mode.
//   - A goroutine passes no other one of its cohort that asked earlier and is waiting.
//   - Without turns, goroutines that ask when a place is known are granted the lock after it.
//
// The recorder has to see [admin.EventQueued], with the context of the acquire, for each
// goroutine that starts to wait at a place. [Want] names the options that define a
// cohort.
//
// # Semaphores
//
// Each slot of a semaphore is judged as a lock of its own, so there are never more
// holders than slots. Check 1 wants each holder in a slot below its number of permits.
// Checks 5 and 6 cover all slots. A slot goes to the earliest place, or to a goroutine
// of the cohort that gives it back. A waiter may stay out only while all slots known to
// all clients are taken.
//
// # Exceptions
//
// An immediate break, a deletion by hand and a re-created bucket are exceptions to
// mutual exclusion and to the order of tokens. They excuse only the claim whose record
// they removed, and only against claims behind it that were granted the lock afterwards.
// The stream shows whose record that was. The history must have the operation that
// removed it.
//
// # Time
//
// A history has one clock, the recorder's. Servers share it in a bubble and on one
// machine. Events at the same time of a bubble are ordered as they were recorded, and by
// their revisions.
package history
