// Package machine reports what slows a test down: the race detector, and other processes.
//
// The race detector makes a client several times as slow but leaves a server in another process
// alone, so comparing the times of the two is meaningless while it is on. A simulation needs
// only minutes to show the detector the races that it can find. The runs without it simulate
// hours.
package machine
