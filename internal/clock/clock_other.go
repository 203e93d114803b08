//go:build !linux

package clock

// suspended returns 0, because only the monotonic clock is available. Go's clock includes time spent suspended on
// Windows but not on macOS, where an expired lease can seem valid for as long as the machine was asleep. Fencing tokens
// are not affected.
func suspended() int64 { return 0 }
