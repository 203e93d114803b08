//go:build !race

package speed

// Race says that the race detector is off.
const Race = false
