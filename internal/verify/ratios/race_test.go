//go:build race

package ratios_test

// Race says that the race detector is on: it slows down the client and not the
// server, so that times beside each other mean nothing.
const Race = true
