package kvstore

import (
	"sync/atomic"
	"time"
)

// clockReading is what an answer said of the server's wall clock, and both local
// clocks at its arrival.
type clockReading struct {
	server, local time.Time // local has the monotonic clock's reading
	wall          time.Time
}

// serverClock estimates the servers' wall clock.
type serverClock struct{ last atomic.Pointer[clockReading] }

// now uses the local clock that has
// advanced further since the last answer. An operator may set the wall clock back, and
// the monotonic clock may stop while the machine sleeps. An estimate that is ahead
// costs one request, whose answer corrects it. An estimate that is behind costs a wait.
func (c *serverClock) now() time.Time {
	now := time.Now()
	last := c.last.Load()
	if last == nil {
		return now
	}
	return last.server.Add(max(now.Sub(last.local), now.Round(0).Sub(last.wall)))
}

// read notes what an answer said of the server's wall clock. The answer has
// travelled since, so the estimate is late by its way at most.
func (c *serverClock) read(server time.Time) {
	if !server.IsZero() {
		now := time.Now()
		c.last.Store(&clockReading{server: server, local: now, wall: now.Round(0)})
	}
}
