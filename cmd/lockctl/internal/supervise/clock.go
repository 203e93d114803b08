package supervise

import (
	"math"
	"time"
)

// instant is a point in time on the clock that now reads, in nanoseconds.
type instant int64

func (i instant) add(d time.Duration) instant { return i + instant(d) }

func (i instant) sub(j instant) time.Duration { return time.Duration(i - j) }

// never is an instant that never comes.
const never = instant(math.MaxInt64)
