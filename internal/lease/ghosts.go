package lease

import (
	"sync"
	"time"
)

// ghostLife is how long the answer to an attempt that nobody wants any more is
// still listened for.
const ghostLife = 5 * time.Minute

// ghosts remembers what to forget later: answers that may still come to
// attempts that are over. When they come, the record they made is deleted.
// That is a courtesy to those who wait; safety does not rest on it.
type ghosts struct {
	e     *Engine
	mu    sync.Mutex
	queue []ghost // in the order of their ends
}

type ghost struct {
	end  Instant
	drop func()
}

func newGhosts(e *Engine) *ghosts { return &ghosts{e: e} }

// keep calls drop when the time of a ghost is over. That happens when another
// one comes, or at the end: nothing runs for them in between.
func (g *ghosts) keep(drop func()) {
	now := g.e.now()
	g.mu.Lock()
	g.queue = append(g.queue, ghost{end: now.Add(ghostLife), drop: drop})
	n := 0
	for n < len(g.queue) && g.queue[n].end <= now {
		n++
	}
	over := g.queue[:n:n]
	g.queue = g.queue[n:]
	g.mu.Unlock()
	for _, x := range over {
		x.drop()
	}
}

func (g *ghosts) close() {
	g.mu.Lock()
	all := g.queue
	g.queue = nil
	g.mu.Unlock()
	for _, x := range all {
		x.drop()
	}
}
