// Package scale guards what locks cost: the messages of each step of a lock, however many clients
// contend for it, and the goroutines of a client with thousands of locks.
package scale
