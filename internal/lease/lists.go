package lease

import (
	"context"
	"fmt"
	"sync"
)

// lists lets callers that want to see the same queue share one look at it. When
// many begin to wait at once, each has to look after its own ticket was written;
// one look by itself costs as much as the queue is long.
type lists struct {
	mu sync.Mutex
	m  map[string]*look // by pattern
}

// look is the looking at one queue: one request at a time, and those who come
// meanwhile share the next.
type look struct {
	next *shared // what is asked for and not begun
}

// shared is one request and its answer.
type shared struct {
	min   uint64
	done  chan struct{}
	queue []Entry
	err   error
}

// waiters lists the queue under pattern, as of a state that contains revision
// and is not older than this call.
func (e *Engine) waiters(ctx context.Context, pattern string, revision uint64) ([]Entry, error) {
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
		l.next = &shared{done: make(chan struct{})}
	}
	s := l.next
	s.min = max(s.min, revision)
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
		s.queue, s.err = e.listQueue(ctx, pattern, s.min)
		close(s.done)
	}
}
