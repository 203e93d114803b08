// Package history records what clients do with their locks, and judges the result. Only tests
// use it.
//
// # Usage
//
// A [Recorder] wraps clients, using only their public methods, and taps the stream at the same
// time:
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
// In memory, [kit.InMemory] creates the bubble and the bucket, [Recorder.TapMemory] installs
// the tap, and a [kit.Line] connects clients. Such a history is judged like one from a server,
// with one difference: only clients with a connection have subscriptions, so in memory check 7
// requires the client's store to be closed instead.
//
// A test that does not need all this can report just its grants to the recorder, by calling
// [Recorder.Granted] right after each acquire returns.
//
// # What is checked
//
// [Check] applies these numbered rules to a [History]:
//
//  1. Beliefs of conflicting holders do not overlap, and no belief outlives the record that
//     it rests on. Only its owner overwrites or deletes a live record. No reader joins behind a
//     gate, and no writer is granted the lock while a reader's record is alive.
//  2. Tokens increase in the order of the grants, and each rests on a record of its claim.
//  3. A resource that refuses smaller tokens accepts nothing from a superseded holder, and
//     never refuses a holder during its validity.
//  4. The operations are linearizable against a model of a lease.
//  5. Clients are served in the order in which they queue, and a client's goroutines in the
//     order in which they asked. See Order below.
//  6. No waiter stays out for longer than the TTL plus a second while the lock is free, or
//     while its client has neither a place in the queue nor a lease.
//  7. The library leaves nothing behind: no key, goroutine or subscription.
//  8. The history is not vacuous.
//
// The rules about the stream do not apply to a history without a tap, and the rules about
// waiting do not apply to a history without operations.
//
// # Order
//
// The goroutines of a client that want one lock in the same mode, with the same options, are a
// cohort. They share a place in the queue and a lease. Each holder's id begins with the id of
// its claim; see [claimOf]. A grant that the client makes on its own has no record, and its
// token may share the previous token's revision. Check 5 requires the following:
//
//   - No claim passes a place that was written before its own.
//   - While a foreign place is waiting, the cohort serves the goroutines that asked before the
//     place could be known, and others for one turn; see [History]. Only a lease's first
//     goroutine may have asked later, because it uses its cohort's place. Every place except
//     the cohort's own is foreign, even a place of the same client in the other mode.
//   - No goroutine passes another one of its cohort that asked earlier and is still waiting.
//   - Without turns, goroutines that ask once a place is known are granted the lock after that
//     place.
//
// The recorder has to see [admin.EventQueued], with the acquire's context, for each goroutine
// that starts to wait at a place. [Want] names the options that define a cohort.
//
// # Semaphores
//
// Each slot of a semaphore is judged as a separate lock, so there are never more holders than
// slots. Check 1 requires each holder's slot to be below the holder's number of permits. Checks
// 5 and 6 cover all slots together. A slot goes to the earliest place, or to a goroutine of the
// cohort that gives the slot back. A waiter may stay out only while every slot known to all
// clients is taken.
//
// # Exceptions
//
// An immediate break, a deletion by hand and a re-created bucket are exceptions to mutual
// exclusion and to the order of tokens. An exception excuses only the claim whose record it
// removed, and only against later claims that were granted the lock after the removal. The
// stream shows whose record that was, and the history must contain the operation that removed
// it.
//
// # Time
//
// A history has a single clock, the recorder's. Servers share it, both in a bubble and on one
// machine. Within a bubble, events at the same time are ordered by their revisions and by the
// order in which they were recorded.
package history
