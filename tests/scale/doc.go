// Package scale tests what locks cost: how many messages each operation takes, no matter how many
// clients contend, and how many goroutines a client with thousands of locks needs.
package scale
