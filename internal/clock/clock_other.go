//go:build !linux

package clock

// suspended is zero if the platform has only its monotonic clock: Go's clock counts suspend on Windows, and does not on
// macOS. There a lease can seem valid for the time that the machine slept; fencing tokens still hold.
func suspended() int64 { return 0 }
