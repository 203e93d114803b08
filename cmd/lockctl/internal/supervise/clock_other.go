//go:build unix && !linux && !netbsd

package supervise

import "golang.org/x/sys/unix"

// machineClock counts suspend on macOS. Where it does not, nor does the clock of
// the leases.
const machineClock = unix.CLOCK_MONOTONIC
