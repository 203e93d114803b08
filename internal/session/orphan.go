package session

import (
	"container/list"
	"sync"
	"time"

	"github.com/natslock/locks/internal/clock"
)

// orphanLife is how long the client waits for the answer to an attempt whose claim
// is over.
const orphanLife = 5 * time.Minute

// orphans are the attempts without an answer whose claim is over. When such an answer
// comes, the client deletes the record that the attempt has made. That is a courtesy to
// waiters; safety does not rest on it. This type only ends the wait for the answers.
type orphans struct {
	s     *Session
	mu    sync.Mutex
	queue list.List   // of *Orphan, in the order of their ends
	timer *time.Timer // fires at the end of the first; nil: there has been none
}

// Orphan is the wait for what may come of attempts whose claim is over. The zero
// value is one that has not begun.
type Orphan struct {
	end     clock.Instant
	drop    func()
	at      *list.Element
	settled bool // there is nothing to wait for any more
}

func newOrphans(s *Session) *orphans { return &orphans{s: s} }

// Await begins the wait: drop is called when it has lasted long enough, unless
// [Session.Settle] comes first.
func (s *Session) Await(o *Orphan, drop func()) {
	g := s.orphans
	g.mu.Lock()
	defer g.mu.Unlock()
	if o.settled {
		return
	}
	o.end, o.drop = s.b.Instant().Add(orphanLife), drop
	o.at = g.queue.PushBack(o)
	switch {
	case g.timer == nil:
		g.timer = time.AfterFunc(orphanLife, g.dropEnded)
	case g.queue.Len() == 1:
		g.timer.Reset(orphanLife)
	}
}

// Settle ends the wait without calling its drop.
func (s *Session) Settle(o *Orphan) {
	g := s.orphans
	g.mu.Lock()
	defer g.mu.Unlock()
	o.settled = true
	if o.at != nil {
		g.queue.Remove(o.at)
		o.at = nil
	}
}

// dropEnded drops the orphans whose time is over.
func (g *orphans) dropEnded() {
	now := g.s.b.Instant()
	g.mu.Lock()
	defer g.mu.Unlock()
	for el := g.queue.Front(); el != nil; el = g.queue.Front() {
		o := el.Value.(*Orphan)
		if left := o.end.Sub(now); left > 0 {
			g.timer.Reset(left)
			return
		}
		g.queue.Remove(el)
		o.at = nil
		g.s.Send(o.drop) // it may be the end of a subscription: I/O
	}
}

func (g *orphans) close() {
	g.mu.Lock()
	var all []func()
	for el := g.queue.Front(); el != nil; el = el.Next() {
		all = append(all, el.Value.(*Orphan).drop)
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
