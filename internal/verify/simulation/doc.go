// Package simulation lets clients contend for locks for hours of simulated time, while
// the network, the server and an operator get in their way. Package history records what
// the clients do and judges it. The package has no code outside its tests.
package simulation
