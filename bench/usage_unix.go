//go:build unix

package main

import (
	"syscall"
	"time"
)

// ownUsage is the seconds of CPU that this process has used, to the microsecond.
func ownUsage() float64 {
	var r syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &r) // fails for no process of its own
	return time.Duration(r.Utime.Nano() + r.Stime.Nano()).Seconds()
}
