//go:build unix

package main

import (
	"os/signal"
	"syscall"
)

// ignoreBackgroundReads makes the read of a terminal from the background fail. Otherwise
// it stops the process, which then renews no lock.
func ignoreBackgroundReads() { signal.Ignore(syscall.SIGTTIN) }
