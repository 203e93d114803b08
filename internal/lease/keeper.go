package lease

import (
	"container/heap"
	"context"
	"fmt"
	"sync"
	"time"
)

// The keeper renews every lease of a client and ends those that are over.
//
// It is one goroutine with one timer for all leases, and it does no I/O at
// all: what is to be sent goes to the engine's sender. A publish can block for
// as long as a minute while the network is stuck, and the context of a lease
// has to end at its validity end whatever the network does.
//
// State and times of all leases are under keeper.mu, which is held for a few
// instructions at a time and never across I/O or a callback.
const (
	// keeperLinger is how long the goroutine stays when there is nothing to
	// keep, so that taking and releasing one lock over and over does not start
	// one each time.
	keeperLinger = time.Second
	// napMax bounds one sleep while there are leases: Go's timers do not run
	// while the machine is suspended, the leases do.
	napMax = time.Second
)

type keeper struct {
	e *Engine

	mu      sync.Mutex
	leases  map[*Lease]struct{} // all that are not released, lost ones included
	due     dueHeap             // those that are held
	running bool
	stopped bool
	wake    chan struct{}
	sleep   Instant // when the goroutine wakes by itself
	verify  Instant // when the bucket is to be looked at again
	empty   chan struct{}
	wg      sync.WaitGroup
}

func newKeeper(e *Engine) *keeper {
	return &keeper{e: e, leases: make(map[*Lease]struct{}), wake: make(chan struct{}, 1)}
}

// add takes charge of a lease that was just granted.
func (k *keeper) add(l *Lease) {
	k.mu.Lock()
	k.leases[l] = struct{}{}
	l.schedule()
	heap.Push(&k.due, l)
	if k.stopped { // granted while the engine was closed: nobody would keep it
		lose := l.lose(ErrClosed, "")
		k.mu.Unlock()
		lose()
		return
	}
	if !k.running {
		k.running = true
		k.sleep = 0
		if k.verify == 0 {
			k.verify = k.e.now().Add(verifyEvery)
		}
		k.wg.Go(k.run)
	}
	k.nudge(l.due)
	k.mu.Unlock()
}

// nudge wakes the goroutine if it would oversleep due. Under mu.
func (k *keeper) nudge(due Instant) {
	if due < k.sleep {
		select {
		case k.wake <- struct{}{}:
		default:
		}
	}
}

// moved puts a lease whose times have changed in its place. Under mu.
func (k *keeper) moved(l *Lease) {
	if l.index >= 0 {
		l.schedule()
		heap.Fix(&k.due, l.index)
		k.nudge(l.due)
	}
}

// retire takes a lease that has ended off the schedule. Under mu.
func (k *keeper) retire(l *Lease) {
	if l.index >= 0 {
		heap.Remove(&k.due, l.index)
	}
}

// remove forgets a released lease. Under mu.
func (k *keeper) remove(l *Lease) {
	k.retire(l)
	delete(k.leases, l)
	k.tellEmpty()
}

// tellEmpty tells a waiting Close that no lock is held any more. Under mu.
func (k *keeper) tellEmpty() {
	if k.empty != nil && k.lockCount() == 0 {
		close(k.empty)
		k.empty = nil
	}
}

// lockCount counts the locks that are held. Under mu.
func (k *keeper) lockCount() int {
	n := 0
	for l := range k.leases {
		if l.spec.lock && l.state == Held {
			n++
		}
	}
	return n
}

func (k *keeper) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	lingering := false
	for {
		var acts []func()
		k.mu.Lock()
		now := k.e.now()
		for len(k.due) > 0 && k.due[0].due <= now {
			l := k.due[0]
			if act := l.tick(now); act != nil {
				acts = append(acts, act)
			}
			if l.index >= 0 {
				l.schedule()
				heap.Fix(&k.due, l.index)
			}
		}
		if len(k.due) > 0 && now >= k.verify {
			k.verify = now.Add(verifyEvery)
			acts = append(acts, func() { k.e.background(k.e.verify) })
		}
		nap := napMax
		if len(k.due) > 0 {
			lingering = false
			nap = min(nap, k.due[0].due.Sub(now))
		} else {
			if lingering || k.stopped {
				k.running = false
				k.mu.Unlock()
				return
			}
			lingering = true
			nap = keeperLinger
		}
		k.sleep = now.Add(nap)
		k.mu.Unlock()
		for _, act := range acts {
			act()
		}
		timer.Reset(max(nap, 0))
		select {
		case <-timer.C:
		case <-k.wake:
		}
	}
}

// held runs fn on every lease that is held. Under mu while it runs.
func (k *keeper) held(fn func(l *Lease)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for l := range k.leases {
		if l.state == Held {
			fn(l)
		}
	}
}

// renewAll makes every renewal due now: the connection is back, and what was
// on its way when it broke may be lost.
func (k *keeper) renewAll() {
	now := k.e.now()
	k.held(func(l *Lease) {
		if l.renews() {
			l.renewNow(now)
		} else {
			l.suspect(l.last)
		}
	})
}

// connectionClosed tells the holders at once that nothing will be renewed any
// more; their contexts last to the end of their validity.
func (k *keeper) connectionClosed() {
	k.held(func(l *Lease) {
		if l.announced {
			l.warn()
			k.e.tell(l.base, l.event(EventAtRisk, fmt.Errorf("%w: connection closed", ErrUnavailable)))
		}
	})
}

// loseAll ends every lease: the bucket they were in is gone.
func (k *keeper) loseAll(why string) {
	var acts []func()
	k.held(func(l *Lease) { acts = append(acts, l.lose(ErrLost, why)) })
	for _, act := range acts {
		act()
	}
}

// atRisk returns an error when a lease has gone unconfirmed for more than two
// thirds of its validity.
func (k *keeper) atRisk() error {
	now := k.e.now()
	var n int
	var name string
	k.held(func(l *Lease) {
		if l.renews() && l.end.Sub(now) < (l.terms.ttl-l.terms.margin)/3 {
			n, name = n+1, l.spec.name
		}
	})
	if n > 0 {
		return fmt.Errorf("%w: renewals of %d locks are overdue, %q among them", ErrUnavailable, n, name)
	}
	return nil
}

// count returns how many locks are held and how many places in queues.
func (k *keeper) count() (locks, waiting int) {
	k.held(func(l *Lease) {
		if l.spec.lock {
			locks++
		} else {
			waiting++
		}
	})
	return locks, waiting
}

// close waits for the locks to be released until ctx ends, then ends the
// contexts of the rest and returns their names.
func (k *keeper) close(ctx context.Context) []string {
	k.mu.Lock()
	var empty chan struct{}
	if k.lockCount() > 0 {
		empty = make(chan struct{})
		k.empty = empty
	}
	k.mu.Unlock()
	if empty != nil {
		select {
		case <-empty:
		case <-ctx.Done():
		}
	}
	var left []string
	var acts []func()
	k.mu.Lock()
	k.empty = nil
	for l := range k.leases {
		if l.state == Held {
			if l.spec.lock {
				left = append(left, l.spec.name)
			}
			acts = append(acts, l.lose(ErrClosed, ""))
		}
	}
	k.stopped = true
	k.sleep = Instant(1<<63 - 1)
	k.nudge(0)
	k.mu.Unlock()
	for _, act := range acts {
		act()
	}
	k.wg.Wait()
	return left
}

// dueHeap orders leases by when the keeper has to look at them.
type dueHeap []*Lease

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].due < h[j].due }
func (h dueHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}
func (h *dueHeap) Push(x any) {
	l := x.(*Lease)
	l.index = len(*h)
	*h = append(*h, l)
}
func (h *dueHeap) Pop() any {
	old := *h
	l := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	l.index = -1
	return l
}
