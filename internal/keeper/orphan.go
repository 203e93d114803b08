package keeper

import (
	"sync"
	"time"
)

// orphanLife limits the wait for the answer to an attempt whose claim is over.
const orphanLife = 5 * time.Minute

// orphans is the set of waits for answers that no caller wants anymore: to attempts of a claim that is over, or to
// renewals of a record that has ended. When such an answer arrives, the client deletes the record that the write
// created. That is a courtesy to waiters; safety does not depend on it. This type only ends the waits.
type orphans struct {
	mu sync.Mutex
	m  map[*Orphan]struct{}
}

// Orphan is a wait for one answer that no caller wants anymore. The zero value is a wait that has not begun.
type Orphan struct {
	drop    func()
	timer   *time.Timer
	settled bool // nothing is left to wait for
}

// Await begins the wait o. It calls drop once the wait has lasted for [orphanLife] or the client is closed, unless
// [Keeper.Settle] is called first.
func (r *Keeper) Await(o *Orphan, drop func()) {
	g := &r.orphans
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
			r.Send(drop) // drop may end a subscription, which is I/O
		}
	})
}

// Settle ends the wait without calling drop.
func (r *Keeper) Settle(o *Orphan) { r.orphans.settle(o) }

// settle ends the wait o. It reports false if o had already been settled.
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
