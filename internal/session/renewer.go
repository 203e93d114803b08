package session

import (
	"container/heap"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/kvstore"
)

const (
	// renewerLinger is how long the goroutine stays when there is nothing to
	// renew, so that taking and releasing one lock over and over does not start
	// one each time.
	renewerLinger = time.Second
	// napMax bounds one sleep while there are records: Go's timers do not run
	// while the machine is suspended, the leases do.
	napMax = time.Second
)

// renewer renews every record of a client and ends those that are over.
//
// It is one goroutine with one timer for all records, and it does no I/O at all.
// The context of a lease has to end at its validity end whatever the network does.
//
// What it has is under the session's mutex, which it holds for a few instructions at a time.
type renewer struct {
	s *Session

	// The following fields are under the session's mutex.
	due     dueHeap // all records that are held
	pace    core.Pace[*kept, *final]
	behind  bool // renewals are late: no new lock is taken
	locks   int  // how many of the records in due are locks, and not places
	running bool
	stopped bool
	wake    chan struct{}
	sleep   clock.Instant // when the goroutine wakes by itself
	empty   chan struct{} // closed when no lock is held any more; nil: nobody waits
	wg      sync.WaitGroup
}

func newRenewer(s *Session) *renewer { return &renewer{s: s, wake: make(chan struct{}, 1)} }

// add takes charge of a record that was just granted.
func (r *renewer) add(k *kept) {
	k.s.mu.Lock()
	due := k.of.nextDuty(k.Due())
	stopped := r.stopped
	k.slot.due = due
	heap.Push(&r.due, k)
	r.pace.Add(k.Granted)
	if k.IsLock() {
		r.locks++
	}
	r.begin(due)
	r.nudge(due)
	var lost ending
	if stopped { // granted while the client was closed: nobody would renew it
		lost = k.lose(core.EndClosed, "")
	}
	k.s.mu.Unlock()
	lost.finish()
}

// begin starts the goroutine, which has nothing to do before due. Under mu.
func (r *renewer) begin(due clock.Instant) {
	if !r.stopped && !r.running {
		r.running, r.sleep = true, due
		r.wg.Go(r.run)
	}
}

// nudge wakes the goroutine if it would oversleep due. Under mu.
func (r *renewer) nudge(due clock.Instant) {
	if due < r.sleep {
		select {
		case r.wake <- struct{}{}:
		default:
		}
	}
}

// schedule sets when to come back to a record that is held. Under mu.
func (r *renewer) schedule(k *kept, due clock.Instant) {
	if k.slot.index >= 0 {
		k.slot.due = due
		heap.Fix(&r.due, int(k.slot.index))
		r.nudge(due)
	}
}

// want has a record renewed as soon as its turn comes. Its validity ends at end, and it is late
// from an instant before that on. under is a renewal that is enough if its answer is still to
// come; zero: none is. Under mu.
func (r *renewer) want(k *kept, late, end clock.Instant, under core.Renewal) {
	if k.slot.index >= 0 && !r.pace.UnderWay(under, r.s.b.Instant()) {
		r.pace.Want(k, late, end)
		r.pump()
	}
}

// admit lets nobody take a new lock while the renewals of those that are held are late, as
// [renewer.atRisk] understands it: the service is slower than they are due. Under mu.
func (r *renewer) admit(now clock.Instant) {
	by := r.pace.Behind(now)
	if by == 0 && !r.behind {
		return
	}
	var why error
	if by > 0 {
		why = fmt.Errorf("%w: the renewals of the locks that this client holds come first, and are behind by %v: %d wait",
			bucket.ErrUnavailable, by.Round(time.Millisecond), r.pace.Ready())
	}
	r.s.b.Postpone(why)
	switch begins := by > 0; {
	case begins && !r.behind:
		r.s.warn("renewals are late: the client takes no new lock until they are not", "bucket", r.s.b.KV.Bucket(), "held", r.locks, "error", why)
		r.behind = true
	case !begins:
		r.s.warn("renewals are in time again", "bucket", r.s.b.KV.Bucket(), "held", r.locks)
		r.behind = false
	}
}

// pump has the sender send what is ready. Under mu.
func (r *renewer) pump() {
	if r.pace.Resumes() {
		r.pace.Pumping = r.s.sender.Add(r.send)
	}
}

// send sends what is ready. It runs on the goroutine that sends.
func (r *renewer) send() {
	for {
		now := r.s.b.Instant()
		r.s.mu.Lock()
		k, f, n := r.pace.Next(now)
		if n == 0 {
			r.pace.Pumping = false
			r.s.mu.Unlock()
			return
		}
		r.s.mu.Unlock()
		if f != nil {
			f.send(n, now)
		} else if !k.renew(n) {
			r.s.mu.Lock()
			r.pace.Unsent(n)
			r.s.mu.Unlock()
		}
	}
}

// hear takes the answer to number n of all writes, which was sent at sent, or that the connection
// has not taken it.
func (r *renewer) hear(n uint64, sent, now clock.Instant, refused bool) {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	if refused {
		r.pace.Refused(n)
	} else {
		r.pace.Hear(n, now.Sub(sent), now)
	}
	r.pump()
}

// remove forgets a record that has ended. Under mu.
func (r *renewer) remove(k *kept) {
	if k.slot.index < 0 {
		return
	}
	heap.Remove(&r.due, int(k.slot.index))
	r.pace.Remove(k, k.Granted)
	if k.IsLock() {
		r.locks--
	}
	if r.empty != nil && r.locks == 0 {
		close(r.empty)
		r.empty = nil
	}
}

func (r *renewer) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	idle := false
	var ripe []*kept
	for {
		r.s.mu.Lock()
		now := r.s.b.Instant()
		ripe = ripe[:0]
		for len(r.due) > 0 && r.due[0].slot.due <= now {
			k := r.due[0]
			ripe = append(ripe, k)
			k.slot.due = now.Add(napMax) // until its tick sets it
			heap.Fix(&r.due, 0)
		}
		r.s.mu.Unlock()
		for i, k := range ripe {
			k.tick(now)
			ripe[i] = nil
		}
		r.s.mu.Lock()
		r.pace.Roll(now)
		r.pump()
		r.admit(now)
		if len(r.due) > 0 { //safety:bucket-verified
			r.s.verifyAfter(verifyEvery)
		}
		nap := napMax
		switch {
		case len(r.due) > 0:
			idle = false
			nap = min(nap, r.due[0].slot.due.Sub(now))
		case r.pace.Finals() > 0 && !r.stopped:
			idle = false
		default:
			if idle || r.stopped {
				r.running = false
				r.s.mu.Unlock()
				return
			}
			idle = true
			nap = renewerLinger
		}
		r.sleep = now.Add(nap)
		r.s.mu.Unlock()
		timer.Reset(max(nap, 0))
		select {
		case <-timer.C:
		case <-r.wake:
		}
	}
}

// held calls fn for every record that is held, under the mutex, and lets go of it in between.
func (r *renewer) held(fn func(k *kept)) {
	r.s.mu.Lock()
	all := slices.Clone(r.due)
	r.s.mu.Unlock()
	for _, k := range all {
		r.s.mu.Lock()
		if k.State == Held {
			fn(k)
		}
		r.s.mu.Unlock()
	}
}

// renewAll makes every renewal due now: the connection is back, and what was on its way when it
// broke is lost. None waits longer: a server that has lost records over its restart refuses the
// renewals of locks that another client may get now. The pace bounds how many are under way at once,
// and the renewals after those are spread again.
func (r *renewer) renewAll() {
	now := r.s.b.Instant()
	r.s.mu.Lock()
	r.pace.Reset()
	r.s.mu.Unlock()
	r.held(func(k *kept) {
		k.apply(k.Reconnected(now, k.phase()), "") // which ends nothing
	})
}

// connectionClosed notifies the holders at once that nothing will be renewed any
// more. Their contexts last to the end of their validity.
func (r *renewer) connectionClosed() {
	r.warnAll(fmt.Errorf("%w: connection closed", bucket.ErrUnavailable))
}

// warnAll notifies the holders that their locks are at risk.
func (r *renewer) warnAll(why error) {
	r.held(func(k *kept) {
		if l, ok := k.of.(*Lease); ok {
			l.atRisk(why)
		}
	})
}

// loseAll ends every record: the bucket they were in is gone.
func (r *renewer) loseAll(why string) { r.endAll(core.EndLost, why) }

func (r *renewer) endAll(end core.End, why string) (locks []string) {
	var all []ending
	r.held(func(k *kept) {
		if k.IsLock() {
			locks = append(locks, k.Name)
		}
		all = append(all, k.lose(end, why))
	})
	for _, e := range all {
		e.finish()
	}
	return locks
}

// atRisk returns an error when a record has gone unconfirmed for more than two
// thirds of its validity, or the server has refused to renew it.
func (r *renewer) atRisk() error {
	now := r.s.b.Instant()
	var n int
	var name, why string
	r.held(func(k *kept) {
		refused := k.IsLock() && k.Renews() && k.failure != nil && kvstore.Refused(*k.failure)
		if refused || k.AtRisk(now) {
			if n++; why == "" {
				name, why = k.Name, k.failed()
			}
		}
	})
	if n > 0 {
		return fmt.Errorf("%w: renewals of %d locks are overdue, %q among them%s", bucket.ErrUnavailable, n, name, why)
	}
	return nil
}

// lag is by how much the latest renewal of a lock is late; 0: all are in time.
func (r *renewer) lag() (late time.Duration) {
	now := r.s.b.Instant()
	r.held(func(k *kept) {
		if k.IsLock() {
			late = max(late, k.Lag(now))
		}
	})
	return late
}

// count returns how many locks are held.
func (r *renewer) count() int {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	return r.locks
}

// close waits for the locks to be released until ctx ends, then ends the
// contexts of the rest and returns their names.
func (r *renewer) close(ctx context.Context) []string {
	r.s.mu.Lock()
	var empty chan struct{}
	if r.locks > 0 {
		empty = make(chan struct{})
		r.empty = empty
	}
	r.s.mu.Unlock()
	if empty != nil {
		select {
		case <-empty:
		case <-ctx.Done():
		}
	}
	r.s.mu.Lock()
	r.empty = nil
	r.stopped, r.pace.Open = true, true
	r.pump()
	r.s.mu.Unlock()
	left := r.endAll(core.EndClosed, "")
	r.s.mu.Lock()
	r.sleep = clock.Instant(1<<63 - 1)
	r.nudge(0)
	r.s.mu.Unlock()
	r.wg.Wait()
	return left
}

// slot is a record's place in the heap. Under the mutex.
type slot struct {
	due   clock.Instant
	index int32 // -1: not in it
	ready int32 // in that of the pace
}

// Slot is part of [core.Paced].
func (k *kept) Slot() *int32 { return &k.slot.ready }

// dueHeap orders records by when the renewer has to come back to them.
type dueHeap []*kept

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].slot.due < h[j].slot.due }
func (h dueHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].slot.index, h[j].slot.index = int32(i), int32(j)
}
func (h *dueHeap) Push(x any) {
	k := x.(*kept)
	k.slot.index = int32(len(*h))
	*h = append(*h, k)
}
func (h *dueHeap) Pop() any {
	old := *h
	k := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	k.slot.index = -1
	return k
}
