package lease

import (
	"container/list"
	"sync"
	"time"
)

// ghostLife is how long the client listens for the answer to an attempt whose claim
// is over.
const ghostLife = 5 * time.Minute

// ghosts remembers what to drop later: the interest in answers that may still come
// to attempts whose claim is over. When such an answer comes, the record that the
// attempt has made is deleted. That is a courtesy to those who wait; safety does
// not rest on it.
type ghosts struct {
	e     *Engine
	mu    sync.Mutex
	queue list.List   // of *ghost, in the order of their ends
	timer *time.Timer // fires at the end of the first; nil: none has been kept
}

type ghost struct {
	end  Instant
	drop func()
	at   *list.Element
	laid bool // settled: there is nothing to listen for any more
}

func newGhosts(e *Engine) *ghosts { return &ghosts{e: e} }

// keep calls drop when the time of a ghost is over.
func (g *ghosts) keep(drop func()) { g.add(&ghost{}, drop) }

func (g *ghosts) add(x *ghost, drop func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if x.laid {
		return
	}
	x.end, x.drop = g.e.now().Add(ghostLife), drop
	x.at = g.queue.PushBack(x)
	switch {
	case g.timer == nil:
		g.timer = time.AfterFunc(ghostLife, g.dropEnded)
	case g.queue.Len() == 1:
		g.timer.Reset(ghostLife)
	}
}

// dropEnded drops the ghosts whose time is over.
func (g *ghosts) dropEnded() {
	now := g.e.now()
	g.mu.Lock()
	defer g.mu.Unlock()
	for el := g.queue.Front(); el != nil; el = g.queue.Front() {
		x := el.Value.(*ghost)
		if left := x.end.Sub(now); left > 0 {
			g.timer.Reset(left)
			return
		}
		g.queue.Remove(el)
		x.at = nil
		g.e.sender.add(x.drop) // it may be the end of a subscription: I/O
	}
}

// lay forgets a ghost that is settled, without calling its drop.
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
	if g.timer != nil {
		g.timer.Stop()
	}
	g.mu.Unlock()
	for _, drop := range all {
		drop()
	}
}
