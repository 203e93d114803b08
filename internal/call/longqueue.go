package call

import (
	"sync"
	"time"

	"github.com/natslock/locks/internal/clock"
)

// longQueues are the queues that are too long to be read whole by each waiter. The cost
// of a list grows with the length of the queue.
type longQueues struct {
	mu sync.Mutex
	m  map[string]reach // by pattern
}

// reach is how far before a ticket its predecessor was, and for how long that
// counts: after that a list of the whole queue shows whether it is still long.
type reach struct {
	revisions uint64
	until     clock.Instant
}

const (
	// longQueue is how many waiters make a queue too long to be read whole by
	// each newcomer.
	longQueue = 32
	// reachFor is how long a queue stays marked as long.
	reachFor = time.Second
	// reachFirst is how far before its ticket a client reads at first in a long queue
	// that it has not read yet.
	reachFirst = 16
	// reachFurther is how often a client reads a part four times as long as the last one,
	// before it reads the whole queue.
	reachFurther = 3
	// reachMax bounds the memory of long queues.
	reachMax = 1024
)

// from returns the revision from which on to read the queue to find the
// predecessor of ticket. 0 is all of it. further is how often the predecessor was not
// found: writes to other locks, and renewals, may be between the two. A place's revision is
// its ticket or, renewed, a later one: a list from a revision on has every place with a
// ticket from there.
func (q *longQueues) from(now clock.Instant, pattern string, ticket uint64, further uint) uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	r, long := q.m[pattern]
	if !long || now >= r.until || further > reachFurther {
		return 0
	}
	return ticket - min(r.revisions<<(2*further), ticket)
}

// isLong notes that a queue is too long to be read whole, before any list of it: a
// newcomer has seen only its beginning.
func (q *longQueues) isLong(now clock.Instant, pattern string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if r, long := q.m[pattern]; !long || now >= r.until {
		q.reach(pattern, reach{reachFirst, now.Add(reachFor)})
	}
}

// found notes how far before a ticket its predecessor was, in a queue of which
// n places were read, or the whole of it.
func (q *longQueues) found(now clock.Instant, pattern string, distance uint64, n int, whole bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	r, long := q.m[pattern]
	switch {
	case whole && n > longQueue:
		r.until = now.Add(reachFor)
	case whole || !long:
		delete(q.m, pattern)
		return
	}
	r.revisions = 4*distance + 16 // others write too
	q.reach(pattern, r)
}

// reach notes the reach of a queue. Under mu.
func (q *longQueues) reach(pattern string, r reach) {
	if _, long := q.m[pattern]; q.m == nil || !long && len(q.m) >= reachMax {
		q.m = make(map[string]reach)
	}
	q.m[pattern] = r
}
