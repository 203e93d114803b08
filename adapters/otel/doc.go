// Package natslockotel exports OpenTelemetry spans and metrics for a client's locks.
//
// An [Observer] observes natslock clients. Each acquire is a span "natslock.acquire", and
// each hold is a span "natslock.hold". Both are children of the span in the acquire's
// context. The metrics are:
//
//   - natslock.acquire.duration: a histogram of the time from the call to the grant or to
//     giving up, by natslock.outcome.
//   - natslock.hold.duration: a histogram of the time from the grant to the end of the
//     hold, by natslock.end.
//   - natslock.held: locks currently held.
//   - natslock.lost: locks that ended without an unlock, by error.type.
//   - natslock.waiting: acquires currently queued, for the clients passed to
//     [Observer.Add].
//   - natslock.partition.owned and ten more: the statistics of the workers passed to
//     [Observer.AddGroup], by natslock.group and natslock.worker.id.
//
// The first four have the attribute natslock.lock, which stands for many lock names: see
// [Labels]. Spans carry the full name.
//
// # Links
//
// An acquire that had to queue links to the hold that was in place when it began to wait.
// With a single waiter, that is the hold that the acquire took over from. With several
// waiters, it may be an earlier hold, because no record or event names a waiter's
// predecessor in the queue.
//
// If the same Observer has seen the hold, the link is to the hold's own span. A hold in
// another process is linked only if its holder acquired the lock with [Trace], so that the
// record carries a trace, and if the waiter's Observer has a client: see [Observer.Add].
// That link is to the span in the context of the holder's acquire, which is the parent of
// the hold's span. Other holds are not linked.
//
// # What it cannot know
//
// A one-shot acquire that finds the lock held produces no event, so it has no span. The
// same goes for an acquire that fails for a reason other than its context or MaxWait.
// Because the client creates the lock's context, that context does not carry the hold's
// span, so the spans of the work are siblings of the hold's span. A process that is killed
// exports no spans for its holds.
package natslockotel
