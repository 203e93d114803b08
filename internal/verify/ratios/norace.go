//go:build !race

package ratios

// Race says that the race detector is off.
const Race = false
