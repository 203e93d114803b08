package clock

import (
	"sync/atomic"
	"time"
)

// Instant is a point in time, in nanoseconds from an arbitrary origin that may lie in the future (inside a synctest
// bubble it does). Its clock never jumps. If the platform reports suspend, the clock runs on while the machine is
// suspended, so that a lease does not outlive its holder's suspension.
type Instant int64

// Add returns the instant d later.
func (i Instant) Add(d time.Duration) Instant { return i + Instant(d) }

// Sub returns the time from j to i.
func (i Instant) Sub(j Instant) time.Duration { return time.Duration(i - j) }

// clockNoise is the largest difference between two clocks that is not considered a suspend. A preemption between the
// two readings is harmless, because they are taken in the order that underestimates.
const clockNoise = int64(time.Millisecond)

// askAgain is the time after which Now asks again for the suspended time even if nothing points to a suspend.
const askAgain = int64(100 * time.Millisecond)

var (
	clockBase = time.Now()
	asleep0   = suspendedFor()
	asleep    atomic.Int64 // since asleep0, when last asked
	ahead     atomic.Int64 // the lead of the wall clock over the monotonic one when last asked
	asked     atomic.Int64 // when that was, in monotonic time
	// suspendedFor is suspended, and wallClock reads the wall clock; the tests of this package simulate a suspend.
	suspendedFor = suspended
	wallClock    = time.Time.UnixNano
)

// Now reads the clock: Go's monotonic time, so that it is fake inside a synctest bubble, plus the time spent suspended
// since the program started.
//
// The suspended time costs two system calls, many times the rest. Now asks for it when the wall clock has moved against
// the monotonic one. At a resume Linux adds the time slept to CLOCK_REALTIME and to CLOCK_BOOTTIME in one step
// (__timekeeping_inject_sleeptime), so no suspend goes unseen. Any other move of the wall clock costs only the calls. A
// wall clock that is set back by exactly the time slept, before the next reading, hides a suspend for at most askAgain.
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
	// In this order, a reader that finds the new position also finds the new sum.
	d = asleep.Load()
	asked.Store(mono)
	ahead.Store(moved)
	return Instant(mono + d)
}
