package session

import (
	"sync"
	"time"
)

// orphanLife is how long the client waits for the answer to an attempt whose claim
// is over.
const orphanLife = 5 * time.Minute

// orphans are the waits for what may come of attempts without an answer whose claim is
// over. When such an answer comes, the client deletes the record that the attempt has
// made. That is a courtesy to waiters; safety does not depend on it. This type only ends
// the waits.
type orphans struct {
	mu sync.Mutex
	m  map[*Orphan]struct{}
}

// Orphan is one wait. The zero value has not begun.
type Orphan struct {
	drop    func()
	timer   *time.Timer
	settled bool // there is nothing to wait for any more
}

// Await begins the wait: drop is called when it has lasted long enough, or the session
// is closed, unless [Session.Settle] comes first.
func (s *Session) Await(o *Orphan, drop func()) {
	g := &s.orphans
	g.mu.Lock()
	defer g.mu.Unlock()
	if o.settled {
		return
	}
	if g.m == nil {
		g.m = make(map[*Orphan]struct{})
	}
	g.m[o] = struct{}{}
	o.drop = drop
	o.timer = time.AfterFunc(orphanLife, func() {
		if g.settle(o) {
			s.Send(drop) // it may be the end of a subscription: I/O
		}
	})
}

// Settle ends the wait without calling its drop.
func (s *Session) Settle(o *Orphan) { s.orphans.settle(o) }

// settle says whether it is this call that has settled o.
func (g *orphans) settle(o *Orphan) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if o.settled {
		return false
	}
	o.settled = true
	if o.timer != nil {
		o.timer.Stop()
		delete(g.m, o)
	}
	return true
}

func (g *orphans) close() {
	g.mu.Lock()
	all := g.m
	g.m = nil
	for o := range all {
		o.timer.Stop()
		o.settled = true
	}
	g.mu.Unlock()
	for o := range all {
		o.drop()
	}
}
