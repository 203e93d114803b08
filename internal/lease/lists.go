package lease

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/natslock/locks/kvstore"
)

// lists lets callers that want to see the same queue share one look at it. When
// many begin to wait at once, each has to look after its own ticket was written;
// one look by itself costs as much as the queue is long.
type lists struct {
	mu sync.Mutex
	m  map[string]*look // by pattern
	// long are the queues that were found to be.
	long map[string]reach // by pattern
}

// reach is how far before a ticket to look for the one before it, until when: then
// a look at the whole queue says whether it is still long.
type reach struct {
	revisions uint64
	until     Instant
}

const (
	// longQueue is how many waiters make a queue too long to be read whole by
	// each who joins it.
	longQueue = 32
	// reachFor is how long a queue that was long is taken to be.
	reachFor = time.Second
	// reachMax bounds the memory of long queues.
	reachMax = 1024
)

// reach returns from which revision on to read the queue to find who is before
// ticket; 0 is all of it. A place's revision is its ticket or, renewed, a later
// one: what is read from a revision on has every place with a ticket from there.
func (e *Engine) reach(pattern string, ticket uint64) (from uint64) {
	ls := &e.lists
	now := e.now()
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if r, ok := ls.long[pattern]; ok && now < r.until && r.revisions < ticket {
		return ticket - r.revisions
	}
	return 0
}

// reached notes how far before a ticket the one before it was, in a queue of which
// n places were read, or the whole of it.
func (e *Engine) reached(pattern string, distance uint64, n int, whole bool) {
	ls := &e.lists
	now := e.now()
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
	if ls.long == nil || !long && len(ls.long) >= reachMax {
		ls.long = make(map[string]reach)
	}
	ls.long[pattern] = r
}

// look is the looking at one queue: one request at a time, and those who come
// meanwhile share the next.
type look struct {
	next *shared // what is asked for and not begun
}

// shared is one request and its answer.
type shared struct {
	min   uint64
	from  uint64
	done  chan struct{}
	queue []Entry
	err   error
}

// waiters lists the queue under pattern, as of a state that contains revision
// and is not older than this call: all of it, or what has revisions of at least from.
func (e *Engine) waiters(ctx context.Context, pattern string, revision, from uint64) ([]Entry, error) {
	ls := &e.lists
	ls.mu.Lock()
	l := ls.m[pattern]
	idle := l == nil
	if idle {
		l = &look{}
		if ls.m == nil {
			ls.m = make(map[string]*look)
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
		e.background(func(ctx context.Context) { e.lookAll(ctx, pattern, l) })
	}
	select {
	case <-s.done:
		return s.queue, s.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-e.ctx.Done():
		return nil, fmt.Errorf("list %q: %w", pattern, ErrClosed)
	}
}

// lookAll answers what is asked of one queue until nobody asks any more.
func (e *Engine) lookAll(ctx context.Context, pattern string, l *look) {
	for {
		e.lists.mu.Lock()
		s := l.next
		l.next = nil
		if s == nil {
			delete(e.lists.m, pattern)
			e.lists.mu.Unlock()
			return
		}
		e.lists.mu.Unlock()
		s.queue, s.err = e.listQueue(ctx, pattern, s.min, s.from)
		close(s.done)
	}
}

// listQueue reads the queue under pattern, from a revision on, as of a state that
// contains revision.
func (e *Engine) listQueue(parent context.Context, pattern string, revision, from uint64) ([]Entry, error) {
	ctx, cancel := answerIn(parent, 2*answerTimeout)
	defer cancel()
	l, err := e.kv.List(ctx, pattern, revision, kvstore.From(from))
	if err != nil {
		return nil, late(parent, ctx, err)
	}
	return queueOf(l.Records), nil
}

// queueOf is the queue that records of its places make.
func queueOf(records []kvstore.Record) []Entry {
	queue := make([]Entry, 0, len(records))
	for _, r := range records {
		// What cannot be read is nobody's place: it must not hold up the queue.
		if entry := entryOf(r); !entry.Unreadable && entry.Status == StatusWaiting {
			queue = append(queue, entry)
		}
	}
	byTicket(queue)
	return queue
}

// byTicket sorts a queue: a renewed entry has a later revision than its place.
func byTicket(queue []Entry) {
	slices.SortFunc(queue, func(a, b Entry) int { return cmp.Compare(a.TokenOrTicket(), b.TokenOrTicket()) })
}
