package clock

import "golang.org/x/sys/unix"

// suspended returns how long the machine has been suspended since boot. CLOCK_BOOTTIME includes time spent suspended,
// and CLOCK_MONOTONIC does not (see clock_gettime(2)). CLOCK_BOOTTIME is read first, so that being preempted between
// the two calls makes the result too small, never too large.
func suspended() int64 {
	var boot, mono unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot) != nil || unix.ClockGettime(unix.CLOCK_MONOTONIC, &mono) != nil {
		return 0
	}
	return boot.Nano() - mono.Nano()
}
