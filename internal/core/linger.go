package core

import (
	"time"

	"github.com/natslock/locks/internal/clock"
)

// A run lingers when its last member has left and asked for that: the client keeps the
// lease, which is idle then. The next goroutine of the client that asks for the lock is
// inside without a message. The client gives an idle lease up when another client queues,
// or when a goroutine asks for the lock with options that this lease does not have.
//
// A goroutine uses an idle lease only while the last list of the queue is fresh and contained
// no other client. Otherwise it waits for a new list, and so do those that ask after it.
//
// An idle lease is never used again once its release has begun: recall ends its run first.
// A lease that the server has just granted is used once before it is given up, because a
// run is idle only after a member has left it.

const (
	// freshFor is for how long a list of the queue counts that contained no other client. If
	// a notification is lost, its client waits no longer than that.
	freshFor = 5 * time.Second
	// listEvery is how often the client lists the queue of an idle lease.
	listEvery = 4 * time.Second
	// sweepEvery is the shortest time between two rounds through the idle leases.
	sweepEvery = 10 * time.Millisecond
)

// spare is the state of a run that lingers, or has lingered.
type spare struct {
	linger       time.Duration // of the member that left last; 0: none has left
	ends         clock.Instant // of an idle run
	older, newer *Run          // among the idle ones of the client
	idle         bool
	waits        bool // nobody is inside: its members wait for a list
	listing      bool // a list of its own is under way
}

// Spare says whether nobody uses the lease of the run.
func (r *Run) Spare() bool { return r.spare.idle || r.spare.waits }

// Idle says whether the lease of the run can be used by the next goroutine.
func (r *Run) Idle() bool { return r.spare.idle }

// Spare returns the run of the line whose lease nobody uses, if there is one.
func (l *Line) Spare() *Run {
	if l == nil {
		return nil
	}
	for _, r := range l.Runs {
		if r.Spare() {
			return r
		}
	}
	return nil
}

// lingers says whether the run keeps its lease although no member is left.
func (r *Run) lingers(now clock.Instant) bool {
	l := r.Line
	return r.spare.linger > 0 && !l.c.closed && len(l.Runs) == 1 && !r.othersWait(now) && r.MayIdle
}

// Informed says whether the client would know of another client that waits.
func (r *Run) Informed(now clock.Instant) bool {
	o := r.Line.Others
	return o != nil && o.Queue && o.from == 0 && o.fresh(o.listedAt, now, freshFor) && //safety:linger-informed
		(!r.Reads() || o.fresh(o.gate.listedAt, now, freshFor))
}

// listedAt is when the client requested the list that [Run.Informed] judges. It is 0 without
// one.
func (r *Run) listedAt() clock.Instant {
	o := r.Line.Others
	switch {
	case o == nil:
		return 0
	case r.Reads():
		return min(o.listedAt, o.gate.listedAt)
	}
	return o.listedAt
}

// othersWait says whether another client is known to wait for the lease.
func (r *Run) othersWait(now clock.Instant) bool {
	o := r.Line.Others
	if o == nil {
		return false
	}
	if r.Reads() && o.gate.revision > r.Lease.Revision && o.gate.inPlace(now) { //safety:gate-recalls
		return true
	}
	return o.after(0, now, r.Reads()) //safety:place-recalls
}

// othersChanged handles news of other clients: the client gives the idle lease of the line up
// when another one waits, and notifies the holders that want that.
func (l *Line) othersChanged(now clock.Instant) {
	if r := l.Spare(); r != nil && r.othersWait(now) {
		r.recall(now)
	}
	l.contend(now)
}

// idles makes the run idle.
func (r *Run) idles(now clock.Instant) {
	c := r.Line.c
	r.spare.ends = now.Add(r.spare.linger)
	c.keep(r)
	r.listen()
	c.do(Effect{Do: Idle, Run: r})
	relistAt := now.Add(listEvery)
	if r.Informed(now) {
		relistAt = r.listedAt().Add(listEvery) //safety:linger-relisted
	} else {
		r.relist()
	}
	c.sweepAt(min(r.spare.ends, relistAt))
	if c.idle.n > c.Most {
		c.idle.oldest.recall(now)
	}
}

// keep makes r the idle run that was used last.
func (c *Client) keep(r *Run) {
	r.spare.idle, r.spare.older = true, c.idle.newest
	if r.spare.older == nil {
		c.idle.oldest = r
	} else {
		r.spare.older.spare.newer = r
	}
	c.idle.newest = r
	c.idle.n++
}

// Keep prepares a run that has never waited (see [Line.Head]) for lingering.
func (r *Run) Keep() {
	r.relist() // its subscription shows the places of other clients //safety:try-subscribed
}

// use takes an idle run for a goroutine that asks.
func (r *Run) use() {
	c, older, newer := r.Line.c, r.spare.older, r.spare.newer
	if older == nil {
		c.idle.oldest = newer
	} else {
		older.spare.newer = newer
	}
	if newer == nil {
		c.idle.newest = older
	} else {
		newer.spare.older = older
	}
	r.spare.idle, r.spare.older, r.spare.newer = false, nil, nil
	c.idle.n--
}

// take lets a goroutine that asks into an idle run, or has it wait for a list.
func (r *Run) take(m *Member, now clock.Instant) {
	r.use()
	if !r.Informed(now) { //safety:idle-informed
		r.spare.waits = true
		r.relist()
		r.Members = append(r.Members, m)
		return
	}
	if now.Sub(r.listedAt()) >= listEvery {
		r.relist() // before the list is too old
	}
	r.letIn(m)
}

// relist has the client list the queue, after it has subscribed to it.
func (r *Run) relist() {
	if !r.spare.listing {
		r.spare.listing = true
		r.Line.c.do(Effect{Do: Relist, Run: r})
	}
}

// Relisted ends a [Relist], whether or not the list has succeeded.
func (r *Run) Relisted(now clock.Instant) {
	r.spare.listing = false // first: a goroutine that waits from now on wants another list
	r.ListedTogether(now)
}

// ListedTogether handles a list of the queue that was requested together with those of other runs.
func (r *Run) ListedTogether(now clock.Instant) {
	switch {
	case r.Over || !r.Spare():
	case !r.Informed(now):
		r.recall(now)
	case !r.spare.waits:
	case len(r.Members) > 0:
		r.spare.waits = false
		r.serve(nil)
	default: // they have given up
		r.recall(now)
	}
}

// Recall gives up a lease that nobody uses, because a goroutine or a client that cannot use it wants the lock.
func (r *Run) Recall(now clock.Instant) { r.recall(now) }

// recall gives up a lease that nobody uses. Members that wait do so in a new run.
func (r *Run) recall(now clock.Instant) {
	r.end(now) //safety:recall-closes
	r.Line.c.do(Effect{Do: Release, Run: r})
}

// Close stops all lingering: no lease becomes idle any more.
func (c *Client) Close() { c.closed = true }

// GiveUpIdle gives up the lease of the line that nobody uses.
func (l *Line) GiveUpIdle(now clock.Instant) {
	if r := l.Spare(); r != nil {
		r.recall(now)
	}
}

// sweepAt sets the alarm of the next round through the idle leases.
func (c *Client) sweepAt(at clock.Instant) {
	if c.rings == 0 || at < c.rings {
		c.rings = at
		c.do(Effect{Do: Alarm, At: at})
	}
}

// Sweep gives up the idle leases whose time is over. When one list is listEvery old, Sweep returns
// all runs whose lists are half as old or more, so that the caller lists their queues together.
func (c *Client) Sweep(now clock.Instant) (due []*Run) {
	c.rings = 0
	ends, relistAt := now.Add(listEvery), now.Add(listEvery)
	for next := c.idle.oldest; next != nil; {
		r := next
		next = r.spare.newer
		if now >= r.spare.ends {
			r.recall(now)
			continue
		}
		ends = min(ends, r.spare.ends)
		if !r.spare.listing {
			at := r.listedAt().Add(listEvery)
			if relistAt = min(relistAt, at); now >= at.Add(-listEvery/2) {
				due = append(due, r)
			}
		}
	}
	if now < relistAt {
		due = nil
	} else {
		relistAt = now.Add(listEvery / 2)
	}
	if c.idle.n > 0 {
		c.sweepAt(max(min(ends, relistAt), now.Add(sweepEvery)))
	}
	return due
}

// IdleLeases is how many leases nobody uses.
func (c *Client) IdleLeases() int { return c.idle.n }
