//go:build !race

package machine

// Race says that the race detector is on.
const Race = false
