package clock

import (
	"context"
	"math/rand/v2"
	"time"
)

// OutageBackoff returns the pause before retry number try, counting from 0, of a request that got no answer. It grows
// from 50 ms to 3 s, with jitter. Callers cut the pause short when the connection comes back.
func OutageBackoff(try int) time.Duration {
	d := 50 * time.Millisecond << min(try, 6)
	return d/2 + rand.N(d)
}

// ShortBackoff returns the pause before retrying a request that is likely to succeed soon: 1 to 64 ms, with jitter so
// that two clients do not keep colliding.
func ShortBackoff(try int) time.Duration {
	d := time.Millisecond << min(try, 6)
	return d/2 + rand.N(d)
}

// immediately is how many times a write that has met another one in flight is retried without a pause. A retry reaches
// the server a round trip after the refusal, by which time the server has most likely stored the other write. Even the
// shortest timer would take longer.
const immediately = 6

// InFlightBackoff returns the pause before retrying a write that has met another one in flight.
func InFlightBackoff(try int) time.Duration {
	if try < immediately {
		return 0
	}
	return ShortBackoff(try - immediately)
}

// Sleep waits until d has passed or ctx is done, and returns ctx's cause in the latter case.
func Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
