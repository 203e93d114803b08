// Package natslockprom exports Prometheus metrics for a client's locks.
//
// A [Collector] is both an observer for natslock clients and a collector for a registry. It exports:
//
//   - natslock_held{lock}: locks currently held.
//   - natslock_waiting: acquires currently queued, over all names.
//   - natslock_renewal_lag_seconds: how late the most overdue renewal is, over all names.
//   - natslock_acquire_seconds{lock,outcome}: a histogram of the time from the call to the grant
//     ("granted") or to giving up ("gave_up").
//   - natslock_held_seconds{lock}: a histogram of the time from the grant to the end of the hold.
//   - natslock_lost_total{lock,cause}: locks that ended without an unlock: "expired", "broken" by an
//     operator, or "closed" with the client.
//
// [Partitions] returns a collector for the workers of package partition, which exports
// natslock_partition_owned{group,id} and ten more metrics.
//
// A lock label stands for many names, by default for all names with the same first token: see
// [Labels].
//
// # What it cannot know
//
// A client knows only its own locks. The command natslock-exporter in this module counts all locks in
// a bucket.
//
// A one-shot acquire that finds the lock held produces no event, so no metric counts it. The same
// goes for an acquire that fails for a reason other than its context or MaxWait. A lock that lingers
// counts as held only while a goroutine is inside.
//
// The client calls its observer on a separate goroutine, so a metric can lag behind the lock by a few
// microseconds. natslock.Stats never lags.
package natslockprom
