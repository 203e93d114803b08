//go:build !linux

package clock

// suspended is zero where the platform's monotonic clock is all there is:
// Go's clock counts suspend on Windows, and does not on macOS. There a lease
// can seem valid for as long as the machine slept; fencing tokens still hold.
func suspended() int64 { return 0 }
