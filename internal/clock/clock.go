package clock

import (
	"sync/atomic"
	"time"
)

// Instant is a point in time, in nanoseconds since an arbitrary origin. It may be negative, because inside a synctest
// bubble the origin lies in the future. The clock never jumps. If the platform reports suspends, the clock keeps
// running while the machine is suspended, so that a lease cannot outlive its holder's suspension.
type Instant int64

// Add returns the instant i+d.
func (i Instant) Add(d time.Duration) Instant { return i + Instant(d) }

// Sub returns the duration i-j.
func (i Instant) Sub(j Instant) time.Duration { return time.Duration(i - j) }

// clockNoise is the largest disagreement between two clocks that is not treated as a suspend. Being preempted between
// the two readings is harmless, because they are taken in the order that underestimates the time suspended.
const clockNoise = int64(time.Millisecond)

// askAgain limits how long Now reuses the last known suspended time when nothing suggests a suspend.
const askAgain = int64(100 * time.Millisecond)

var (
	clockBase = time.Now()
	asleep0   = suspendedFor()
	asleep    atomic.Int64 // time suspended since asleep0, as of the last query
	ahead     atomic.Int64 // how far the wall clock led the monotonic clock at the last query
	asked     atomic.Int64 // monotonic time of the last query
	// These are variables so that this package's tests can simulate a suspend.
	suspendedFor = suspended
	wallClock    = time.Time.UnixNano
)

// Now returns the current time: Go's monotonic time, which is fake inside a synctest bubble, plus the time spent
// suspended since the program started.
//
// Querying the suspended time takes two system calls, which cost many times as much as the rest of Now. So Now does it
// only if the wall clock has moved relative to the monotonic clock, or if the last query is older than askAgain. On
// resume, Linux adds the time slept to CLOCK_REALTIME and CLOCK_BOOTTIME in one step (__timekeeping_inject_sleeptime),
// so no suspend goes unnoticed. Any other step of the wall clock costs only the system calls. A suspend stays hidden,
// for at most askAgain, only if the wall clock is set back by exactly the time slept before the next reading.
func Now() Instant {
	now := time.Now()
	mono := int64(now.Sub(clockBase))
	moved := wallClock(now) - mono
	if known := ahead.Load(); max(moved-known, known-moved) < clockNoise/2 { //safety:suspend-noticed
		if age := mono - asked.Load(); age >= 0 && age < askAgain { //safety:suspend-asked
			return Instant(mono + asleep.Load())
		}
	}
	d := suspendedFor() - asleep0
	for known := asleep.Load(); d > known+clockNoise; known = asleep.Load() {
		if asleep.CompareAndSwap(known, d) {
			break
		}
	}
	// asleep was updated first, so a reader that sees the new values of asked and ahead also sees the new sum.
	d = asleep.Load()
	asked.Store(mono)
	ahead.Store(moved)
	return Instant(mono + d)
}
