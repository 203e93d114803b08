package supervise

import "golang.org/x/sys/unix"

// machineClock counts suspend, as the clock of the leases does.
const machineClock = unix.CLOCK_BOOTTIME
