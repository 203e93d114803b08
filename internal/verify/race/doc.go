// Package race reports whether the race detector is on.
//
// The detector makes a client several times as slow, and leaves a server in another process
// as fast as it is: times beside each other mean nothing then. It also finds what it can
// find within minutes of a simulation, and the run without it simulates the hours.
package race

import "time"

// Part is a quarter of n under the race detector, and n without it.
func Part[T int | float64 | time.Duration](n T) T {
	if Enabled {
		return n / 4
	}
	return n
}
