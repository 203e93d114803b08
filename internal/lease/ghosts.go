package lease

import (
	"container/list"
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
	queue list.List // of *ghost, in the order of their ends
}

type ghost struct {
	end  Instant
	drop func()
	at   *list.Element
	laid bool // its answer has come
}

func newGhosts(e *Engine) *ghosts { return &ghosts{e: e} }

// keep calls drop when the time of a ghost is over. That happens when another
// one comes, or at the end: nothing runs for them in between.
func (g *ghosts) keep(drop func()) { g.add(&ghost{}, drop) }

func (g *ghosts) add(x *ghost, drop func()) {
	now := g.e.now()
	var over []func()
	g.mu.Lock()
	if !x.laid {
		x.end, x.drop = now.Add(ghostLife), drop
		x.at = g.queue.PushBack(x)
	}
	for el := g.queue.Front(); el != nil && el.Value.(*ghost).end <= now; el = g.queue.Front() {
		over = append(over, g.queue.Remove(el).(*ghost).drop)
	}
	g.mu.Unlock()
	for _, drop := range over {
		g.e.sender.add(drop) // it may be the end of a subscription: I/O
	}
}

// lay forgets a ghost whose answer has come.
func (g *ghosts) lay(x *ghost) {
	g.mu.Lock()
	defer g.mu.Unlock()
	x.laid = true
	if x.at != nil {
		g.queue.Remove(x.at)
		x.at = nil
	}
}

func (g *ghosts) close() {
	g.mu.Lock()
	var all []func()
	for el := g.queue.Front(); el != nil; el = el.Next() {
		all = append(all, el.Value.(*ghost).drop)
	}
	g.queue.Init()
	g.mu.Unlock()
	for _, drop := range all {
		drop()
	}
}
