// Package machine reports what slows a test down: the race detector, and other processes.
//
// The detector makes a client several times as slow, and leaves a server in another process
// as fast as it is: times beside each other mean nothing then. It also finds the races that
// it can find within minutes of a simulation, and the run without it simulates the hours.
package machine
