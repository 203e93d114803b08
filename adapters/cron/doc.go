// Package cronlock runs each tick of a cron job on only one of several replicas. It guards
// jobs of github.com/robfig/cron/v3 with natslock locks.
//
//	c := cron.New()
//	_, err := c.AddJob("0 * * * *", cronlock.OnceFunc(locks, "billing.report", report))
//
// Use [OnceFunc] for a function that takes a context, and [Once], a cron.JobWrapper, for
// any other job.
//
// # Once per tick
//
// Clocks differ between replicas, so by the time a late replica ticks, a short job may
// already have released its lock, and the late replica would run it again. Each lock is
// therefore held for at least [DefaultMinHold] after the grant: see [MinHold]. A replica
// that finds the lock taken leaves the tick to the holder instead of waiting.
//
// Set the minimum hold longer than the clock skew between replicas, and shorter than the
// interval between ticks by at least 2 s plus that skew. Each tick then runs at most once.
// It does not run at all if the server cannot be reached, or while a crashed replica still
// holds the lock, for up to one TTL.
//
// The ticks of "@every 1h" are counted from the start of the process, so replicas do not
// agree on them. Use "@hourly" or "0 * * * *", and the same time zone on all replicas.
//
// # When the lock is lost
//
// cron cannot stop a job. The context that OnceFunc passes to its function ends with the
// lock, so the function can stop by itself. With both OnceFunc and Once, [OnError] reports
// the loss immediately. Pass the lock's token to the resource that the job changes: see
// package fence.
package cronlock
