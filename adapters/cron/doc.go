// Package cronlock makes one of several replicas run each tick of a job. It wraps the jobs of
// github.com/robfig/cron/v3 with locks of natslock.
//
//	c := cron.New()
//	_, err := c.AddJob("0 * * * *", cronlock.OnceFunc(locks, "billing.report", report))
//
// Use [OnceFunc] for a function that takes a context, and [Once], a cron.JobWrapper, for
// any other job.
//
// # Once per tick
//
// The clocks of replicas differ, so a late replica would find the lock of a short job free,
// and run the job again. Each lock is therefore kept for at least [DefaultMinHold] from the
// grant: see [MinHold]. A replica that finds the lock taken leaves the tick to the holder
// and does not wait.
//
// Set the minimum hold longer than the clock skew between replicas, and shorter than the
// interval between ticks by at least 2 s plus that skew. The promise is at most one run per
// tick. A tick passes without a run if the server cannot be reached, or while the lock of a
// crashed replica lasts: up to its TTL.
//
// The ticks of "@every 1h" count from the start of the process, so replicas do not agree on
// them. Use "@hourly" or "0 * * * *", and the same time zone in all replicas.
//
// # When the lock is lost
//
// cron cannot stop a job. The context of OnceFunc's function ends with the lock. With Once
// too, [OnError] reports the loss at once. Pass the token of the lock to the resource that
// the job changes: see package fence.
package cronlock
