// Package natslockprom exports Prometheus metrics for the locks of a client.
//
// A [Collector] is an observer of natslock clients and a collector for a registry:
//
//   - natslock_held{lock}: locks held now.
//   - natslock_waiting: acquires queued now, of all names.
//   - natslock_renewal_lag_seconds: the delay of the most overdue renewal, of all names.
//   - natslock_acquire_seconds{lock,outcome}: a histogram of the time from the call to the
//     grant ("granted") or to giving up ("gave_up").
//   - natslock_held_seconds{lock}: a histogram of the time from the grant to the end.
//   - natslock_lost_total{lock,cause}: locks that ended without an unlock: "expired",
//     "broken" by an operator, or "closed" with the client.
//
// [Partitions] is a collector for the workers of package partition: natslock_partition_owned{group,id}
// and ten more.
//
// A lock label stands for many names: by default it is their first token. See [Labels].
//
// # What it cannot know
//
// A client knows only its own locks. The command natslock-exporter in this module counts all locks of
// a bucket.
//
// A one-shot acquire that finds the lock held is not an event, so no metric counts it. The same holds
// for an acquire that fails for any reason other than its context or its MaxWait. A lock that lingers
// counts while a goroutine is inside.
//
// The client calls its observer on a goroutine of its own, so a metric can lag the lock by some
// microseconds. natslock.Stats never does.
package natslockprom
