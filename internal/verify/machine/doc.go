// Package machine reports what slows a test down: the race detector, and other processes.
//
// The race detector makes a client several times slower but does not affect a server in another
// process, so comparing the times of the two is meaningless while it is on. A few simulated
// minutes are enough to show the detector the races it can find, whereas runs without the
// detector simulate hours.
package machine
