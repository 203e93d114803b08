// Package gocronlock coordinates gocron schedulers so that only one of them runs each job.
// It implements the Locker and Elector interfaces of github.com/go-co-op/gocron/v2 with
// natslock locks.
//
// # Locker or Elector
//
// A [Locker] takes a lock for each run, so the runs are spread across the schedulers. An
// [Elector] lets one scheduler run all jobs until it stops. If a scheduler has both, gocron
// ignores the Locker.
//
//	locker := gocronlock.NewLocker(locks)
//	s, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker))
//
// # Once per tick
//
// gocron unlocks as soon as the job returns. Clocks and tickers differ between schedulers,
// so by the time a late scheduler ticks, a short job may already have released its lock,
// and the late scheduler would run it again. The Locker therefore holds each lock for at
// least [DefaultMinHold] after the grant: see [MinHold]. It never waits for a lock. A
// scheduler that finds the lock taken, or gets no reply from the server, skips the run.
//
// Set the minimum hold longer than the clock skew between replicas, and shorter than the
// interval between ticks by at least 2 s plus that skew. Each tick then runs at most once.
// It does not run at all if the server cannot be reached, or while a crashed scheduler
// still holds the lock, for up to one TTL.
//
// The ticks of a gocron.DurationJob are counted from the start of its scheduler, so
// schedulers do not agree on them. Use gocron.CronJob, or align the first tick with
// gocron.WithStartAt.
//
// # When the lock is lost
//
// gocron cannot stop a run, and discards the error from Unlock. A job that has to stop when
// its lock is lost should use the context of the lock that [Locker.Held] returns. [OnError]
// reports each loss. With an Elector, use [Elector.Term] in the same way. Pass the token of
// the lock or term to the resource that the job changes: see package fence.
package gocronlock
