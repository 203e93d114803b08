//go:build !race

package machine

// Race reports whether the race detector is on.
const Race = false
