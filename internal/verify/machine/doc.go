// Package machine reports what slows a test down: the race detector, and other processes.
//
// The detector makes a client several times as slow, but not a server in another process,
// so comparing their times means nothing then. It also finds the races that it can find
// within minutes of a simulation. The run without it simulates the hours.
package machine
