package supervise

import "golang.org/x/sys/unix"

// machineClock includes suspend, like the clock of the leases.
const machineClock = unix.CLOCK_BOOTTIME
