package fence

// Forget makes f send writes again after it was superseded or lost, so that a test sees the
// server refuse each of them.
func Forget(f *Fence) { f.ended.Store(nil) }
