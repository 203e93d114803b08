package supervise

import (
	"math"
	"time"
)

// instant is a reading of the clock that now uses, in nanoseconds.
type instant int64

func (i instant) add(d time.Duration) instant { return i + instant(d) }

func (i instant) sub(j instant) time.Duration { return time.Duration(i - j) }

// never is later than any reading of the clock.
const never = instant(math.MaxInt64)
