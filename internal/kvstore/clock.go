package kvstore

import (
	"sync/atomic"
	"time"
)

// clockReading is the server's wall-clock time from an answer, and both local clocks
// when it arrived.
type clockReading struct {
	server, local time.Time // local has the monotonic clock's reading
	wall          time.Time
}

// serverClock estimates the servers' wall clock.
type serverClock struct{ last atomic.Pointer[clockReading] }

// now uses whichever local clock has advanced further since the last answer. An
// operator may set the wall clock back, and the monotonic clock may stop while the
// machine sleeps. An estimate that is ahead costs one request, whose answer corrects
// it. One that is behind costs a wait.
func (c *serverClock) now() time.Time {
	now := time.Now()
	last := c.last.Load()
	if last == nil {
		return now
	}
	return last.server.Add(max(now.Sub(last.local), now.Round(0).Sub(last.wall)))
}

// read records the server's wall-clock time from an answer. The answer has travelled
// since, so the estimate is late by at most its travel time.
func (c *serverClock) read(server time.Time) {
	if !server.IsZero() {
		now := time.Now()
		c.last.Store(&clockReading{server: server, local: now, wall: now.Round(0)})
	}
}
