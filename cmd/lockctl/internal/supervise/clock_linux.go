package supervise

import "golang.org/x/sys/unix"

// machineClock includes time spent in suspend, like the clock that leases are judged by.
const machineClock = unix.CLOCK_BOOTTIME
