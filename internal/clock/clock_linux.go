package clock

import "golang.org/x/sys/unix"

// suspended returns the time for which the machine has been suspended since it booted. CLOCK_BOOTTIME counts suspend,
// CLOCK_MONOTONIC does not (clock_gettime(2)). It reads the former first: a preemption in between makes the result too
// small, never too large.
func suspended() int64 {
	var boot, mono unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot) != nil || unix.ClockGettime(unix.CLOCK_MONOTONIC, &mono) != nil {
		return 0
	}
	return boot.Nano() - mono.Nano()
}
