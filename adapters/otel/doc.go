// Package natslockotel exports OpenTelemetry spans and metrics for the locks of a client.
//
// An [Observer] is an observer of natslock clients. Each acquire is a span
// "natslock.acquire", and each hold a span "natslock.hold". Both are children of the
// span in the context of the acquire. The metrics are:
//
//   - natslock.acquire.duration: a histogram of the time from the call to the grant or to
//     giving up, by natslock.outcome.
//   - natslock.hold.duration: a histogram of the time from the grant to the end, by
//     natslock.end.
//   - natslock.held: locks held now.
//   - natslock.lost: locks that ended without an unlock, by error.type.
//   - natslock.waiting: acquires queued now, of the clients given to [Observer.Add].
//   - natslock.partition.owned and ten more: the counters of the workers given to
//     [Observer.AddGroup], by natslock.group and natslock.worker.id.
//
// The attribute natslock.lock of the other metrics stands for many names: see [Labels]. The
// spans have the full name.
//
// # Links
//
// An acquire that had to queue links to the hold that it found when it began to wait. With
// one waiter that is the hold that was handed over to it. With several waiters it is the hold
// at that moment and not that of the predecessor in the queue, whom no record or event names.
//
// The link to a hold that the same Observer has seen is to its own span. A hold of another
// process is linked if its record carries a trace, because the holder took its lock with
// [Trace], and if the waiter's Observer knows a client ([Observer.Add]). That link is to the
// span under which the holder asked, which is the parent of the hold. Other holds are not
// linked.
//
// # What it cannot know
//
// A one-shot acquire that finds the lock held is not an event, and has no span. Nor does an
// acquire that fails for a reason other than its context or MaxWait. The span of a hold is
// not in the lock's context, because the client creates that context, so spans of the work
// are its siblings. A process that is killed exports no spans for its holds.
package natslockotel
