// Package gocronlock lets one of several gocron schedulers run each job. It implements the
// Locker and the Elector of github.com/go-co-op/gocron/v2 on locks of natslock.
//
// # Which of the two
//
// A [Locker] takes a lock for each run, so the runs spread over the schedulers. An [Elector]
// lets one scheduler run all jobs until it stops. If a scheduler has both, gocron does not
// use the Locker.
//
//	locker := gocronlock.NewLocker(locks)
//	s, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker))
//
// # Once per tick
//
// gocron unlocks as soon as the job returns. Clocks and tickers of schedulers differ, so a
// late scheduler would find the lock of a short job free, and run the job again. The Locker
// therefore keeps each lock for at least [DefaultMinHold] from the grant: see [MinHold]. It
// never waits for a lock. A scheduler that finds the lock taken, or gets no answer from the
// server, skips the run.
//
// Set the minimum hold longer than the clock skew between replicas, and shorter than the
// interval between ticks by at least 2 s plus that skew. The promise is at most one run per
// tick. A tick passes without a run if the server cannot be reached, or while the lock of a
// crashed scheduler lasts: up to its TTL.
//
// The ticks of a gocron.DurationJob count from the start of its scheduler, so schedulers do
// not agree on them. Use gocron.CronJob, or align the first tick with gocron.WithStartAt.
//
// # When the lock is lost
//
// gocron cannot stop a run, and drops the unlock's error. A job that has to stop with its
// lock should work with the context of [Locker.Held]. [OnError] reports each loss. With an
// Elector, use [Elector.Term] in the same way. Pass the token of the lock or the term to
// the resource that the job changes: see package fence.
package gocronlock
