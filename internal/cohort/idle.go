package cohort

import (
	"time"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/session"
)

// A lease lingers if its last holder asked for that. In that case, the client keeps the lease, and the next goroutine
// that asks for the lock is admitted without a message to the server. The client gives up an idle lease when another
// client queues, when a goroutine that the lease cannot serve asks for the lock, or when the linger time has passed.
//
// The client keeps an idle lease only while a subscription shows who queues. Because a notification may be lost, a
// goroutine may enter an idle lease only if the client has listed the queue within the last [idleSilence]. Otherwise
// the client lists the queue first.
//
// Once the release of an idle lease has begun, the lease is never used again, because recall first removes it from its
// cohort.

// sweepEvery is the shortest time between two sweeps of the idle leases.
const sweepEvery = 10 * time.Millisecond

// idleList holds the idle leases of a client, in the order in which they became idle.
type idleList struct {
	oldest, newest *tenure
	n              int
	alarm          *time.Timer   // triggers the next sweep; nil until a lease becomes idle for the first time
	rings          clock.Instant // when alarm fires; 0 if it is not set
}

func (l *idleList) add(t *tenure) {
	t.idle, t.older, t.newer = true, l.newest, nil
	if t.older == nil {
		l.oldest = t
	} else {
		t.older.newer = t
	}
	l.newest = t
	l.n++
}

func (l *idleList) remove(t *tenure) {
	if t.older == nil {
		l.oldest = t.newer
	} else {
		t.older.newer = t.newer
	}
	if t.newer == nil {
		l.newest = t.older
	} else {
		t.newer.older = t.older
	}
	t.idle, t.older, t.newer = false, nil, nil
	l.n--
}

// idleTenure returns the cohort's idle lease, or nil if there is none.
func (k *cohort) idleTenure() *tenure {
	if len(k.tenures) > 0 && k.tenures[0].idle {
		return k.tenures[0]
	}
	return nil
}

// lingers reports whether the client keeps the lease when no holder is inside.
func (t *tenure) lingers(linger time.Duration, now clock.Instant) bool {
	k := t.cohort
	l := k.lock
	if linger == 0 || l.c.closed || k.private || k.founder || !l.others.proves(k.reads()) || l.standing(k, now) == somebody {
		return false
	}
	until, shown := t.lease.Validity(now)
	return shown && now < until
}

// idles makes the lease idle for up to linger.
func (t *tenure) idles(linger time.Duration, now clock.Instant) {
	c := t.cohort.lock.c
	t.idleSince, t.idleEnds = now, now.Add(linger)
	t.turnEnds, t.marked = now, false // an idle lease has no turn
	c.idle.add(t)
	t.listen()
	t.lease.Idle()
	if l := t.cohort.lock; !l.others.quiet(t.cohort.reads(), now) { // others may have queued before the client subscribed
		l.list()
	}
	if c.idle.n > c.most {
		c.idle.oldest.recall()
	}
	c.sweepAt(t.idleEnds)
}

// take lets h enter an idle lease if the client has listed the queue recently. Otherwise h waits for a list, unless h
// is a one-shot acquire, which lists the queue itself and claims the lock if that fails. If the lease has been idle for
// a long time, h first makes sure that the lease's record still exists.
func (t *tenure) take(h *holder, now clock.Instant) role {
	k := t.cohort
	l := k.lock
	if !l.others.quiet(k.reads(), now) { //safety:idle-informed
		switch {
		case !h.a.Req.Once:
			l.c.idle.remove(t)
			t.deciding = true
			l.list()
			k.push(h, now)
			return waits
		case !h.informed:
			return informs
		}
		h.awaits = t.recall()
		return founds
	}
	if now.Sub(l.others.heardAt(k.reads())) >= idleSilence*4/5 {
		l.list() // before the last list becomes too old
	}
	l.c.idle.remove(t)
	sent, _ := t.lease.Confirmation()
	h.confirms = now.Sub(t.idleSince) > idleSilence && now.Sub(sent) > idleSilence //safety:idle-confirmed
	t.admit(h)
	return enters
}

// recall gives up a lease that has no holder inside, and returns it.
func (t *tenure) recall() *session.Lease {
	t.drop() //safety:recall-closes
	t.leave()
	return t.lease
}

// recallIdle gives up all idle leases when the client closes.
func (c *Client) recallIdle() {
	c.mu.Lock()
	defer c.unlock()
	for t := c.idle.oldest; t != nil; {
		newer := t.newer
		t.recall()
		t = newer
	}
	if c.idle.alarm != nil {
		c.idle.alarm.Stop()
	}
}

// sweepAt schedules a sweep for time at, unless an earlier one is already scheduled.
func (c *Client) sweepAt(at clock.Instant) {
	if c.idle.rings != 0 && c.idle.rings <= at {
		return
	}
	c.idle.rings = at
	if in := at.Sub(c.b.Instant()); c.idle.alarm == nil {
		c.idle.alarm = time.AfterFunc(in, c.sweep)
	} else {
		c.idle.alarm.Reset(in)
	}
}

// sweep gives up the idle leases whose time is up and schedules the next sweep.
func (c *Client) sweep() {
	c.mu.Lock()
	defer c.unlock()
	c.idle.rings = 0
	now := c.b.Instant()
	var next clock.Instant
	for t := c.idle.oldest; t != nil; {
		newer := t.newer
		if now >= t.idleEnds {
			t.recall()
		} else if next == 0 || t.idleEnds < next {
			next = t.idleEnds
		}
		t = newer
	}
	if next != 0 {
		c.sweepAt(max(next, now.Add(sweepEvery)))
	}
}
