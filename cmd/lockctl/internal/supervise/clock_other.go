//go:build unix && !linux && !netbsd

package supervise

import "golang.org/x/sys/unix"

// machineClock includes suspend on macOS. Where it does not, neither does the clock of
// the leases.
const machineClock = unix.CLOCK_MONOTONIC
