package testutil

import (
	"runtime"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/nats-io/nats-server/v2/server/ats"
)

// bubbles lets one bubble run at a time, see [Bubble].
var bubbles sync.Mutex

// Bubble runs fn in a testing/synctest bubble with a real JetStream server in
// it. Time in there is fake: it stands while anything can run and jumps to the
// next timer when nothing can, for the server's timers as well (TTLs!). A day
// passes in the blink of an eye and always in the same way.
//
// Connect with [Server.Connect] or [Server.ConnectLink]; wait with time.Sleep
// and synctest.Wait. Connections and the server are closed when fn and the
// cleanups of its t are through. A goroutine left behind then fails the test.
//
// What does not work in a bubble:
//
//   - TCP, so clusters; also other processes;
//   - a stream's MaxAge and a bucket's TTL: their clock stays real. TTLs of
//     single keys work;
//   - t.Parallel, t.Run (synctest's rules). Nor may the test that calls Bubble
//     run in parallel with others that use NATS: nats.go shares a pool of
//     timers in the process, and a timer cannot leave its bubble. Bubbles
//     wait for one another;
//   - blocking for long in something that synctest does not see, a mutex above
//     all: the clock stands meanwhile.
func Bubble(t *testing.T, fn func(t *testing.T, s *Server), opts ...ServerOption) {
	t.Helper()
	bubbles.Lock()
	defer bubbles.Unlock()

	// The first store of the process starts a ticking goroutine, the last one
	// ends it. Born inside, it would belong to the bubble, which then never
	// ends: so it starts here.
	ats.Register()
	defer ats.Unregister()

	dropPools()
	defer dropPools()
	synctest.Test(t, func(inner *testing.T) {
		s := newServer(inner, t, opts)
		s.bubble = true
		s.mustStart()
		fn(inner, s)
	})
}

// dropPools empties the process's sync.Pools. nats.go keeps timers in one
// (used by Flush, for one), and resetting a timer of a bubble outside of it
// panics; the other way round the timer would run by the real clock. A pool's
// content survives one collection and not two.
func dropPools() {
	runtime.GC()
	runtime.GC()
}
