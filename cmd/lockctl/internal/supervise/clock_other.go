//go:build unix && !linux && !netbsd

package supervise

import "golang.org/x/sys/unix"

// machineClock includes the time in suspend on macOS. Where it does not, the clock of
// the leases does not either.
const machineClock = unix.CLOCK_MONOTONIC
