//go:build !unix

package main

import (
	"os"

	"github.com/shirou/gopsutil/v4/process"
)

// ownUsage is the seconds of CPU that this process has used, in steps of some
// milliseconds.
func ownUsage() float64 {
	used, _ := usage([]*process.Process{{Pid: int32(os.Getpid())}}) // fails for no process of its own
	return used
}
