//go:build !race

package ratios_test

// Race says that the race detector is off.
const Race = false
