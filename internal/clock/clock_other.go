//go:build !linux

package clock

// suspended returns 0, because the platform has only its monotonic clock. Go's clock counts suspend on Windows, but not
// on macOS, where a lease can seem valid for as long as the machine slept; fencing tokens still hold.
func suspended() int64 { return 0 }
