package acquire

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/kvstore"
)

// lists lets callers that want to read the same queue share one list of it. When many
// waiters come at once, each has to read the queue after the server has written its
// ticket. The cost of one list grows with the length of the queue.
type lists struct {
	c    *Client
	mu   sync.Mutex
	m    map[string]*listing // by pattern
	long map[string]reach    // by pattern: the queues that are too long to be read whole
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
	// that it has not listed yet.
	reachFirst = 64
	// reachMax bounds the memory of long queues.
	reachMax = 1024
)

// from returns the revision from which on to read the queue to find the
// predecessor of ticket. 0 is all of it. A place's revision is its ticket or, renewed,
// a later one: a list from a revision on has every place with a ticket from there.
func (ls *lists) from(pattern string, ticket uint64) uint64 {
	now := ls.c.b.Instant()
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if r, ok := ls.long[pattern]; ok && now < r.until && r.revisions < ticket {
		return ticket - r.revisions
	}
	return 0
}

// isLong notes that a queue is too long to be read whole, before any list of it: a
// newcomer has seen only its beginning.
func (ls *lists) isLong(pattern string) {
	now := ls.c.b.Instant()
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if r, long := ls.long[pattern]; !long || now >= r.until {
		ls.reach(pattern, reach{reachFirst, now.Add(reachFor)})
	}
}

// found notes how far before a ticket its predecessor was, in a queue of which
// n places were read, or the whole of it.
func (ls *lists) found(pattern string, distance uint64, n int, whole bool) {
	now := ls.c.b.Instant()
	ls.mu.Lock()
	defer ls.mu.Unlock()
	r, long := ls.long[pattern]
	switch {
	case whole && n > longQueue:
		r.until = now.Add(reachFor)
	case whole || !long:
		delete(ls.long, pattern)
		return
	}
	r.revisions = 4*distance + 16 // others write too
	ls.reach(pattern, r)
}

// reach notes the reach of a queue. Under mu.
func (ls *lists) reach(pattern string, r reach) {
	if _, long := ls.long[pattern]; ls.long == nil || !long && len(ls.long) >= reachMax {
		ls.long = make(map[string]reach)
	}
	ls.long[pattern] = r
}

// listing is the reading of one queue: one request at a time, and callers that come
// meanwhile share the next.
type listing struct {
	next *shared // asked for and not begun
}

// shared is one request and its answer.
type shared struct {
	min   uint64
	from  uint64
	done  chan struct{}
	queue []record.Entry
	err   error
}

// queue lists the queue under pattern, as of a state that contains revision
// and is not older than this call: all of it, or the records from a revision on.
func (ls *lists) queue(ctx context.Context, pattern string, revision, from uint64) ([]record.Entry, error) {
	ls.mu.Lock()
	l := ls.m[pattern]
	idle := l == nil
	if idle {
		l = &listing{}
		if ls.m == nil {
			ls.m = make(map[string]*listing)
		}
		ls.m[pattern] = l
	}
	if l.next == nil {
		l.next = &shared{from: from, done: make(chan struct{})}
	}
	s := l.next
	s.min, s.from = max(s.min, revision), min(s.from, from)
	ls.mu.Unlock()
	if idle {
		ls.c.s.Background(func(ctx context.Context) { ls.answer(ctx, pattern, l) })
	}
	select {
	case <-s.done:
		return s.queue, s.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-ls.c.s.Working().Done():
		return nil, fmt.Errorf("list %q: %w", pattern, bucket.ErrClosed)
	}
}

// answer lists one queue until nobody asks any more.
func (ls *lists) answer(ctx context.Context, pattern string, l *listing) {
	for {
		ls.mu.Lock()
		s := l.next
		l.next = nil
		if s == nil {
			delete(ls.m, pattern)
			ls.mu.Unlock()
			return
		}
		ls.mu.Unlock()
		got, err := ls.c.b.ListSoon(ctx, pattern, s.min, kvstore.From(s.from))
		if s.err = err; err == nil {
			s.queue = record.Queue(got.Records)
		}
		close(s.done)
	}
}
