package testutil

import (
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server/ats"
)

// bubbles ensures that only one bubble runs at a time; see [Bubble].
var bubbles sync.Mutex

// bubbleBegins is when a bubble's server starts. The clock of synctest begins in the
// year 2000, but a lock bucket derives its first sequence from the time since 2016, so
// all buckets created before then would have the same first sequence.
var bubbleBegins = time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)

// Bubble runs fn in a testing/synctest bubble with a real JetStream server. Time in the
// bubble is fake, and starts at the beginning of 2026. It stands still while any
// goroutine can run, and jumps to the next timer when none can. This includes the
// server's timers, and therefore TTLs. Each timer costs real time: a day takes about
// 2 s with only the server, 3 s with an idle client, and 20 s with one held lock.
// Goroutines that can run at the same instant run concurrently in any order, so two
// runs of a test differ even in a bubble.
//
// Connect with [Server.Connect] or [Server.ConnectLink], and wait with time.Sleep and
// synctest.Wait. After fn and the cleanups of its t, Bubble closes the connections and
// the server. Close each lock client before fn returns or in a cleanup of its t,
// because a goroutine that is still running makes the bubble panic.
//
// The following do not work in a bubble:
//
//   - TCP, and therefore clusters and other processes.
//   - A stream's MaxAge and a bucket's TTL, which follow the real clock. TTLs of
//     individual keys work.
//   - t.Parallel and t.Run, by synctest's rules. The test that calls Bubble must not
//     run in parallel with others that use NATS, because nats.go shares a pool of
//     timers across the process, and a timer cannot leave its bubble. Bubbles wait for
//     one another. Tests without a bubble may be parallel, because they resume only
//     after the other tests.
//   - Blocking for long on something that synctest does not see, above all a mutex,
//     because the clock stands still in the meantime.
func Bubble(t *testing.T, fn func(t *testing.T, s *Server), opts ...ServerOption) {
	t.Helper()
	bubbles.Lock()
	defer bubbles.Unlock()

	// The first store in the process starts a ticking goroutine, and the last one ends
	// it. If the goroutine were started inside the bubble, it would belong to the
	// bubble, which would then never end, so start it here.
	ats.Register()
	defer ats.Unregister()

	if outside.soil() {
		dropPools()
	}
	defer dropPools()
	synctest.Test(t, func(inner *testing.T) {
		time.Sleep(time.Until(bubbleBegins))
		s := newServer(inner, t, opts)
		s.bubble = true
		s.mustStart()
		fn(inner, s)
	})
}

// outside counts the servers that run outside bubbles. Only these servers and their
// clients put real-clock timers into the pools, and each bubble leaves the pools empty.
// A bubble that follows another one therefore needs no garbage collection before it
// begins, which would otherwise take half of a short test's CPU time.
var outside servers

type servers struct {
	mu      sync.Mutex
	running int
	since   bool // a server has run since the last bubble began
}

func (s *servers) started() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running++
}

func (s *servers) stopped() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running--
	s.since = true
}

// soil reports whether a server has run since the last call, or is still running.
func (s *servers) soil() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	soiled := s.since || s.running > 0
	s.since = false
	return soiled
}

// dropPools empties the process's sync.Pools. nats.go keeps timers in one, for Flush
// among others. A bubble's timer panics if it is reset outside the bubble, and a timer
// from outside would follow the real clock inside the bubble. A pool's contents survive
// one garbage collection but not two.
func dropPools() {
	runtime.GC()
	runtime.GC()
}
