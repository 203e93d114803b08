// Package scale guards what locks cost: the number of messages for each step of a lock, however
// many clients contend for it, and the number of goroutines in a client with thousands of locks.
package scale
