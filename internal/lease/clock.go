package lease

import (
	"sync/atomic"
	"time"
)

// Instant is a point in time, from an arbitrary origin that may lie in the future
// (inside a synctest bubble it does), in nanoseconds on a clock that never jumps and,
// where the platform tells, goes on counting while the machine is suspended. A
// lease must not outlive a suspended holder's nap.
type Instant int64

// Add returns the instant d later.
func (i Instant) Add(d time.Duration) Instant { return i + Instant(d) }

// Sub returns the time from j to i.
func (i Instant) Sub(j Instant) time.Duration { return time.Duration(i - j) }

// clockNoise is how far two clocks may be read apart without it being taken
// for a suspend: at least what a preemption between the two readings costs is
// harmless, because the readings are taken in the order that underestimates.
const clockNoise = int64(time.Millisecond)

var (
	clockBase = time.Now()
	asleep0   = suspendedFor()
	asleep    atomic.Int64
	// suspendedFor is suspended; the tests of this package put a nap in.
	suspendedFor = suspended
)

// Now reads the clock: Go's monotonic time, so that it is fake inside a
// synctest bubble, plus the time spent suspended since the program started.
func Now() Instant {
	mono := int64(time.Since(clockBase))
	d := suspendedFor() - asleep0
	for {
		known := asleep.Load()
		if d <= known+clockNoise {
			return Instant(mono + known)
		}
		if asleep.CompareAndSwap(known, d) {
			return Instant(mono + d)
		}
	}
}
