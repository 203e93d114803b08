// Package natslockprom makes Prometheus metrics of the locks of a client.
//
// A [Collector] is an observer of natslock clients and a collector for a registry:
//
//   - natslock_held{lock}: locks held now.
//   - natslock_waiting: acquires queued now, of all names.
//   - natslock_renewal_lag_seconds: the delay of the latest renewal, of all names.
//   - natslock_acquire_seconds{lock,outcome}: a histogram of the time from the call to the
//     grant ("granted") or to giving up ("gave_up").
//   - natslock_held_seconds{lock}: a histogram of the time from the grant to the end.
//   - natslock_lost_total{lock,cause}: locks that ended without an unlock: "expired",
//     "broken" by an operator, or "closed" with the client.
//
// [Partitions] is a collector of the workers of package partition: natslock_partition_owned{group,id} and
// ten more.
//
// The label stands for many names: by default it is their first token. See [Labels].
//
// # What it cannot know
//
// A client knows its own locks alone. The command natslock-exporter in this module counts
// all locks of a bucket.
//
// A one-shot acquire that finds the lock held is no event, and so in no metric. Nor is an acquire that
// fails for any reason other than its context or its MaxWait. A lock that lingers counts while a
// goroutine is inside.
//
// The client calls its observer on a goroutine of its own: a metric can be some
// microseconds behind the lock. natslock.Stats never is.
package natslockprom
