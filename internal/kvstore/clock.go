package kvstore

import (
	"sync/atomic"
	"time"
)

// clockReading is a server's wall-clock time from a reply, along with the readings of both
// local clocks when the reply arrived.
type clockReading struct {
	server, local time.Time // local includes the monotonic clock reading
	wall          time.Time
}

// serverClock estimates the servers' wall clock.
type serverClock struct{ last atomic.Pointer[clockReading] }

// now takes the server's time from the last reply and adds the time that has passed since
// then on whichever local clock has advanced further. The wall clock may have been set
// back, and the monotonic clock may stop while the machine sleeps. An estimate that is
// ahead costs one request, whose reply corrects it; an estimate that is behind costs a
// wait.
func (c *serverClock) now() time.Time {
	now := time.Now()
	last := c.last.Load()
	if last == nil {
		return now
	}
	return last.server.Add(max(now.Sub(last.local), now.Round(0).Sub(last.wall)))
}

// read records the server's wall-clock time from a reply. The estimate lags by at most the
// time the reply took to arrive.
func (c *serverClock) read(server time.Time) {
	if !server.IsZero() {
		now := time.Now()
		c.last.Store(&clockReading{server: server, local: now, wall: now.Round(0)})
	}
}
