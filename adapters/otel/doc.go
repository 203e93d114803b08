// Package natslockotel makes OpenTelemetry spans and metrics of the locks of a client.
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
//   - natslock.partition.owned, and ten more: what the workers given to [Observer.AddGroup] count, by
//     natslock.group and natslock.worker.id.
//
// The attribute natslock.lock of the others stands for many names: see [Labels]. The spans have the whole
// name.
//
// # Links
//
// An acquire that had to queue links to the hold that was in its way when it began to wait.
// With one waiter that is the hold whose release was handed over. With several waiters it is
// the holder at that moment, and not the predecessor in the queue: no record and no event
// names the predecessor.
//
// A hold that the same Observer has seen is linked by its own span. For a hold of another
// process the record has to carry a trace: the holder takes its lock with [Trace], and the
// waiter's Observer knows a client ([Observer.Add]). The link is then to the span under which
// the holder asked, which is the parent of the hold. A holder that does neither has no link.
//
// # What it cannot know
//
// A one-shot acquire that finds the lock held is no event, and has no span. Neither has an
// acquire that fails for a reason other than its context or MaxWait. The span of a hold is
// not in the lock's context, since the client makes that context. Spans of the work are its
// siblings. A process that is killed exports no span of its holds.
package natslockotel
