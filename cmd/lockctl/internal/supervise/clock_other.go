//go:build unix && !linux && !netbsd

package supervise

import "golang.org/x/sys/unix"

// machineClock includes time spent in suspend on macOS. On other systems it may not, but then
// neither does the clock that leases are judged by.
const machineClock = unix.CLOCK_MONOTONIC
