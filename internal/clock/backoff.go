package clock

import (
	"context"
	"math/rand/v2"
	"time"
)

// OutageBackoff returns the pause before try number try, from 0, of a request that got no answer. It grows from 50 ms
// to 3 s, with jitter. A connection that comes back cuts the pause short.
func OutageBackoff(try int) time.Duration {
	d := 50 * time.Millisecond << min(try, 6)
	return d/2 + rand.N(d)
}

// ShortBackoff returns the pause before a request that is likely to succeed soon: 1 to 64 ms. The jitter keeps two
// clients from meeting again and again.
func ShortBackoff(try int) time.Duration {
	d := time.Millisecond << min(try, 6)
	return d/2 + rand.N(d)
}

// immediately is the number of tries that follow without a pause when a write has met another one in flight. Between a
// refusal and the next try a round trip passes, by which time the server has most likely stored the other write. Even
// the shortest timer would take longer.
const immediately = 6

// InFlightBackoff returns the pause before another try of a write that has met another one in flight.
func InFlightBackoff(try int) time.Duration {
	if try < immediately {
		return 0
	}
	return ShortBackoff(try - immediately)
}

// Sleep waits for d or the end of ctx, whose cause it returns.
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
