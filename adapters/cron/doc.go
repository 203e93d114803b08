// Package cronlock has one of several replicas run each tick of a job. It wraps the jobs of
// github.com/robfig/cron/v3 with locks of natslock.
//
//	c := cron.New()
//	_, err := c.AddJob("0 * * * *", cronlock.OnceFunc(locks, "billing.report", report))
//
// [OnceFunc] is for a function that takes a context, and [Once] is a cron.JobWrapper for
// any other job.
//
// # Once per tick
//
// The clocks of replicas differ. A replica that is late would find the lock of a short job
// free, and run the job again. So each lock is kept for [DefaultMinHold] at least, counted
// from the grant: see [MinHold]. A replica that finds the lock taken leaves the tick to the
// holder, and does not wait.
//
// Set the minimum hold longer than the clock skew between replicas, and shorter than the interval between
// ticks by at least 2 s plus that skew. The promise is at most once per tick. A tick passes
// without a run when the server cannot be reached, or while the lock of a replica that
// crashed lasts: up to its TTL.
//
// The ticks of "@every 1h" count from the start of the process, so replicas do not agree on
// them. Use "@hourly" or "0 * * * *", and the same time zone in all replicas.
//
// # When the lock is lost
//
// The host cannot stop a job. The context of OnceFunc's function ends with the lock, and
// [OnError] reports the loss at once in both cases. Pass the token of the lock to the
// resource that the job changes: see package fence.
package cronlock
